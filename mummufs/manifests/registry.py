"""Which formats are known, in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from mummufs.core.manifest import Manifest
from mummufs.manifests import gguf, mummu, native, safetensors, strata
from mummufs.manifests.base import Subject


class Format(NamedTuple):
    """A format's name, its cheap test and its parser."""

    name: str
    recognises: Callable[[Subject], bool]
    parse: Callable[[Subject], Manifest]


FORMATS = tuple(
    Format(module.FORMAT, module.recognises, module.parse) for module in (native, mummu, strata, gguf, safetensors)
)
"""What a person wrote beside the file comes first, then packs that names give away, then the files' own headers."""


def may_have_manifest(name: bytes, head: bytes, sibling_names: Container[bytes]) -> bool:
    """Whether it is worth parsing a file: false means that `read_manifest` would find nothing.

    Args:
        name: the file's own name.
        head: its first SNIFF_BYTES bytes.
        sibling_names: the names in its folder.
    """
    return (
        head.startswith(gguf.MAGIC)
        or safetensors.starts_as_safetensors(head)
        or name + native.SUFFIX in sibling_names
        or (strata.TABLE_NAME in sibling_names and name != strata.TABLE_NAME)
        or (mummu.MANIFEST_NAME in sibling_names and (name in mummu.PRECISIONS or name == mummu.HEADER_NAME))
    )


def read_manifest(subject: Subject, explicit: bytes | None = None) -> Manifest | None:
    """The ranges of a file, or None where no format recognises it.

    That they do not overlap is checked by `RangeTable.from_manifest`, which sorts them.

    Args:
        explicit: the text of a native manifest that was given by an option. It is passed over if it names another file.

    Raises:
        ManifestError: a format recognises the file, and its header is broken or absurd.
    """
    if explicit is not None:
        manifest = native.parse_explicit(subject, explicit)
        if manifest is not None:
            return manifest
    for known in FORMATS:
        if known.recognises(subject):
            return known.parse(subject)
    return None
