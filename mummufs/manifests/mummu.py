"""A mummu pack: a folder with `manifest.json`, a blob per precision, and `header.gguf`.

The manifest's `tensors` each give, per precision, where their values and scales lie in that precision's blob; the
blob's own name says which precision it is. Scales follow their values, and both are read together, so they are one
range. `header.gguf` has a GGUF header without the data that it names: it is one range.
"""

from __future__ import annotations

from mummufs.core.errors import ManifestError
from mummufs.core.manifest import Manifest, RangeKind
from mummufs.core.ranges import PAGE_SIZE
from mummufs.manifests.base import SIDE_FILE_BYTES_MAX, RangeList, Subject, shown, text, whole_number
from mummufs.manifests.jsonstream import JsonStream

FORMAT = "mummu"
MANIFEST_NAME = b"manifest.json"
HEADER_NAME = b"header.gguf"
PRECISIONS = {b"q4.bin": "q4", b"q8.bin": "q8", b"f16.bin": "f16", b"f32.bin": "f32"}

PADDING_MAX = PAGE_SIZE
"""Values and scales with less than this between them are one range."""


def recognises(subject: Subject) -> bool:
    """Whether the file has the name of a pack's blob and a manifest beside it."""
    named = subject.name in PRECISIONS or subject.name == HEADER_NAME
    return named and subject.siblings.size(MANIFEST_NAME) is not None


def parse(subject: Subject) -> Manifest:
    """The ranges of one blob.

    Raises:
        ManifestError: the pack's manifest is broken, or does not fit the blob.
    """
    ranges = RangeList(subject.file_size)
    if subject.name == HEADER_NAME:
        ranges.add(0, subject.file_size, "header", RangeKind.HEADER)
        return Manifest(FORMAT, subject.file_size, ranges)

    data = subject.siblings.read(MANIFEST_NAME, SIDE_FILE_BYTES_MAX)
    if data is None:
        raise ManifestError("its pack's manifest.json has just been removed")
    stream = JsonStream.of(data)
    has_tensors = False
    for key in stream.members():
        if key != "tensors":
            stream.skip()
            continue
        has_tensors = True
        for _ in stream.items():
            _add_tensor(ranges, PRECISIONS[subject.name], stream.value())
    stream.end()
    if not has_tensors:
        raise ManifestError("the manifest.json beside it has no 'tensors'")
    return Manifest(FORMAT, subject.file_size, ranges)


def _add_tensor(ranges: RangeList, precision: str, entry: object) -> None:
    if not isinstance(entry, dict):
        raise ManifestError("a tensor of its pack's manifest.json is not an object")
    name = text(entry.get("name"), "the name of a tensor")
    precisions = entry.get("precisions")
    if not isinstance(precisions, dict):
        raise ManifestError(f"tensor {shown(name)} has no precisions")
    parts = precisions.get(precision)
    if parts is None:
        return
    if not isinstance(parts, dict):
        raise ManifestError(f"tensor {shown(name)} has no offsets for {precision}")
    kind = _kind(entry.get("role"))
    values, values_size = _part(parts, "values", name)
    scales, scales_size = _part(parts, "scales", name)
    if scales_size and 0 <= scales - (values + values_size) < PADDING_MAX:
        ranges.add(values, scales + scales_size - values, name, kind)
    else:
        ranges.add(values, values_size, name, kind)
        ranges.add(scales, scales_size, f"{name} scales", kind)


def _part(parts: dict[str, object], part: str, name: str) -> tuple[int, int]:
    """Offset and size of the values or the scales. Scales may be missing: float blobs have none."""
    offset, size = parts.get(f"{part}_offset"), parts.get(f"{part}_len")
    if part == "scales" and offset is None and size is None:
        return 0, 0
    return (
        whole_number(offset, f"{part}_offset of tensor {shown(name)}"),
        whole_number(size, f"{part}_len of tensor {shown(name)}"),
    )


def _kind(role: object) -> RangeKind:
    """A role is a word, or an object whose `kind` is the word."""
    word = role.get("kind") if isinstance(role, dict) else role
    return RangeKind.EXPERT if word == "expert" else RangeKind.DENSE
