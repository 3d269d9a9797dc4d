"""The native JSON manifest: `<file>.mummufs.json` beside the file, or given by the mount's `manifest` option.

It wins over every other format. docs/manifest.md has its schema.
"""

from __future__ import annotations

from mummufs.core.errors import ManifestError
from mummufs.core.manifest import Manifest, RangeKind
from mummufs.manifests.base import SIDE_FILE_BYTES_MAX, RangeList, Subject, shown, text, whole_number
from mummufs.manifests.jsonstream import JsonStream

FORMAT = "native"
SUFFIX = b".mummufs.json"
VERSION = 1

_KINDS = {"dense": RangeKind.DENSE, "expert": RangeKind.EXPERT, "header": RangeKind.HEADER}


def recognises(subject: Subject) -> bool:
    """Whether a manifest lies beside the file."""
    return subject.siblings.size(subject.name + SUFFIX) is not None


def parse(subject: Subject) -> Manifest:
    """The ranges that the manifest beside the file gives.

    Raises:
        ManifestError: it does not follow the schema, or is for another file or size.
    """
    data = subject.siblings.read(subject.name + SUFFIX, SIDE_FILE_BYTES_MAX)
    if data is None:
        raise ManifestError("its native manifest has just been removed")
    manifest = parse_explicit(subject, data)
    if manifest is None:
        raise ManifestError("the native manifest beside it names another file")
    return manifest


def parse_explicit(subject: Subject, data: bytes) -> Manifest | None:
    """The ranges that a given manifest has for `subject`, or None where it names another file.

    Raises:
        ManifestError: it does not follow the schema, or is for another size of the file.
    """
    ranges = RangeList(subject.file_size)
    late_error: ManifestError | None = None
    found: dict[str, object] = {}
    stream = JsonStream.of(data)
    for key in stream.members():
        if key == "ranges":
            for _ in stream.items():
                entry = stream.value()
                try:
                    _add_range(ranges, entry)
                except ManifestError as error:  # told only if the manifest turns out to be for this file and size
                    late_error = late_error or error
            found[key] = True
        elif key in ("version", "file", "size"):
            found[key] = stream.value()
        else:
            stream.skip()
    stream.end()

    if type(found.get("version")) is not int or found["version"] != VERSION:
        raise ManifestError(f"its native manifest is not of version {VERSION}")
    if _last_part(text(found.get("file"), "'file' of its native manifest")) != subject.name:
        return None
    size = whole_number(found.get("size"), "'size' of its native manifest")
    if size != subject.file_size:
        raise ManifestError(f"its native manifest is for a file of {size} bytes, and it has {subject.file_size}")
    if "ranges" not in found:
        raise ManifestError("its native manifest has no 'ranges'")
    if late_error is not None:
        raise late_error
    return Manifest(FORMAT, subject.file_size, ranges)


def _add_range(ranges: RangeList, entry: object) -> None:
    if not isinstance(entry, dict):
        raise ManifestError(f"range number {len(ranges)} of its native manifest is not an object")
    name = text(entry.get("name"), "the name of a range")
    kind = _KINDS.get(text(entry.get("kind", "dense"), f"the kind of range {shown(name)}"))
    if kind is None:
        raise ManifestError(f"range {shown(name)} has a kind other than {', '.join(_KINDS)}")
    offset = whole_number(entry.get("offset"), f"the offset of range {shown(name)}")
    length = whole_number(entry.get("length"), f"the length of range {shown(name)}")
    ranges.add(offset, length, name, kind)


def _last_part(path: str) -> bytes:
    """The file's own name. Bytes that are no UTF-8 stand in JSON as lone surrogates, as Python writes them."""
    try:
        return path.rpartition("/")[2].encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ManifestError("'file' of its native manifest is no file name") from None
