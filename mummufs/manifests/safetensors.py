"""safetensors: a 64-bit length, that much JSON, and the data that the JSON's `data_offsets` are relative to.

The JSON is one object: a member per tensor (dtype, shape, data_offsets) and `__metadata__`, which is passed over. It
is read entry by entry (see `jsonstream`). Experts are separate tensors (`.experts.17.`), or fused ones whose first
dimension counts the experts (`experts.gate_up_proj`); a fused one becomes a range per expert.
"""

from __future__ import annotations

import re

from mummufs.core.errors import ManifestError
from mummufs.core.manifest import Manifest, RangeKind
from mummufs.manifests.base import HeaderCursor, RangeList, Subject, shown, whole_number
from mummufs.manifests.jsonstream import BLOCK_BYTES, JsonStream

FORMAT = "safetensors"

HEADER_SIZE_MAX = 100_000_000
"""The format's own limit."""

LENGTH_SIZE = 8

_EXPERT = re.compile(r"(?:^|\.)experts\.\d+\.")
_FUSED_EXPERTS = re.compile(r"(?:^|\.)experts\.(?:\w*proj|w[123])(?:_blocks|_scales)?(?:\.weight)?$")


def recognises(subject: Subject) -> bool:
    """Whether the file starts with a length within the format's limit and an object.

    The suffix does not decide: downloaded models are often stored as blobs named by their digest.
    """
    return starts_as_safetensors(subject.head())


def starts_as_safetensors(head: bytes) -> bool:
    """As `recognises`, from the first bytes alone."""
    return head[LENGTH_SIZE : LENGTH_SIZE + 1] == b"{" and 2 <= _json_size(head) <= HEADER_SIZE_MAX


def parse(subject: Subject) -> Manifest:
    """The header, the tensors and the expert slices.

    Raises:
        ManifestError: the header is cut short or absurd.
    """
    cursor = HeaderCursor(subject)
    json_size = _json_size(cursor.take(LENGTH_SIZE))
    data_start = LENGTH_SIZE + json_size
    if json_size > min(HEADER_SIZE_MAX, cursor.left_bytes):
        raise ManifestError(f"it claims a header of {json_size} bytes in a file of {subject.file_size}")

    ranges = RangeList(subject.file_size)
    ranges.add(0, data_start, "header", RangeKind.HEADER)
    stream = JsonStream(lambda: cursor.take(min(BLOCK_BYTES, data_start - cursor.offset)))
    for name in stream.members():
        if name == "__metadata__":
            stream.skip()
        else:
            _add_tensor(ranges, data_start, name, stream.value())
    stream.end()
    return Manifest(FORMAT, subject.file_size, ranges)


def _json_size(head: bytes) -> int:
    return int.from_bytes(head[:LENGTH_SIZE], "little")


def _add_tensor(ranges: RangeList, data_start: int, name: str, entry: object) -> None:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(offsets, list) or len(offsets) != 2:
        raise ManifestError(f"tensor {shown(name)} has no data_offsets of a start and an end")
    start, end = (whole_number(x, f"an offset of tensor {shown(name)}") for x in offsets)
    if start > end:
        raise ManifestError(f"tensor {shown(name)} ends at {end}, before its start at {start}")
    size, experts = end - start, _fused_experts(name, entry.get("shape"))
    if experts and size and size % experts == 0:
        ranges.add_slices(data_start + start, size, experts, name)
    else:
        kind = RangeKind.EXPERT if _EXPERT.search(name) else RangeKind.DENSE
        ranges.add(data_start + start, size, name, kind)


def _fused_experts(name: str, shape: object) -> int:
    """How many experts a fused tensor holds; 0 where it is none."""
    if isinstance(shape, list) and len(shape) >= 3 and _FUSED_EXPERTS.search(name):
        return whole_number(shape[0], f"the first dimension of tensor {shown(name)}")
    return 0
