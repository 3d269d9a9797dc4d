"""GGUF, versions 2 and 3, little endian. Each shard of a split model has a whole header of its own.

Theory of operation. The header is: magic, version, tensor count, metadata count; the metadata; one info per tensor
(name, dimensions, type, offset in the data section). The data section starts at the next multiple of
`general.alignment` after the last info. The metadata is walked, not decoded: only the alignment is kept. A tensor's
size follows from its dimensions and its type. A 3-D `*exps.weight` holds one slice per expert along its last, slowest
dimension, and each becomes a range.

The magic decides, not the suffix: ollama keeps GGUF files as blobs named by their digest.
"""

from __future__ import annotations

import math
import struct

from mummufs.core.errors import ManifestError
from mummufs.core.manifest import RANGES_MAX, Manifest, RangeKind
from mummufs.manifests.base import OFFSET_MAX, HeaderCursor, RangeList, Subject, shown

FORMAT = "gguf"
MAGIC = b"GGUF"

VERSIONS = (2, 3)
ALIGNMENT_DEFAULT = 32
ALIGNMENT_MAX = 1 << 20
METADATA_MAX = 100_000
"""Real files have under 200 keys."""
NAME_SIZE_MAX = 4096
"""Of a key or a tensor. GGUF allows keys of 65,535 bytes and ggml names of 64."""
DIMENSIONS_MAX = 4

GGML_TYPES: dict[int, tuple[int, int]] = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    9: (32, 40),  # Q8_1
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    15: (256, 292),  # Q8_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
    40: (64, 36),  # NVFP4
    41: (128, 18),  # Q1_0
    42: (64, 18),  # Q2_0
}
"""Elements and bytes of one block, by ggml type number."""

_VALUE_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_INTEGERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 10: "<Q", 11: "<q"}
_STRING = 8
_ARRAY = 9

_START = struct.Struct("<4sIQQ")
_U32 = struct.Struct("<I")
_DIMENSIONS = [struct.Struct(f"<{n}QIQ") for n in range(DIMENSIONS_MAX + 1)]


def recognises(subject: Subject) -> bool:
    """Whether the file starts as a GGUF."""
    return subject.head().startswith(MAGIC)


def parse(subject: Subject) -> Manifest:
    """The header, the tensors and the expert slices.

    Raises:
        ManifestError: the header is cut short, absurd, big endian or of another version.
    """
    cursor = HeaderCursor(subject)
    _, version, tensor_count, metadata_count = cursor.unpack(_START)
    if version not in VERSIONS:
        if version & 0xFFFF == 0 and version != 0:
            raise ManifestError("it is a big-endian GGUF, which is not supported: convert it to little endian")
        raise ManifestError(f"it is of GGUF version {version}, and only 2 and 3 are supported")
    if tensor_count > RANGES_MAX or metadata_count > METADATA_MAX:
        raise ManifestError(f"it claims {tensor_count} tensors and {metadata_count} metadata keys")

    alignment = ALIGNMENT_DEFAULT
    for _ in range(metadata_count):
        alignment = _metadata_value(cursor, _name(cursor), alignment)

    infos = _TensorInfos(cursor, tensor_count)
    data_start = -(-cursor.offset // alignment) * alignment
    ranges = RangeList(subject.file_size)
    ranges.add(0, min(data_start, subject.file_size), "header", RangeKind.HEADER)
    infos.add_to(ranges, data_start)
    return Manifest(FORMAT, subject.file_size, ranges)


class _TensorInfos:
    """The tensor infos, kept as a list of ranges relative to the data section, whose start is known only after them."""

    def __init__(self, cursor: HeaderCursor, count: int) -> None:
        self._found = RangeList(OFFSET_MAX)
        self._experts: dict[int, int] = {}  # number in the list -> slices of that tensor
        for _ in range(count):
            name = _name(cursor).decode("utf-8", "replace")
            (dimension_count,) = cursor.unpack(_U32)
            if dimension_count > DIMENSIONS_MAX:
                raise ManifestError(f"tensor {shown(name)} has {dimension_count} dimensions")
            *dimensions, type_number, offset = cursor.unpack(_DIMENSIONS[dimension_count])
            size = _tensor_size(name, dimensions, type_number)
            if size and dimension_count == 3 and name.endswith("exps.weight") and size % dimensions[2] == 0:
                self._experts[len(self._found)] = dimensions[2]
            self._found.add(offset, size, name, RangeKind.DENSE)

    def add_to(self, ranges: RangeList, data_start: int) -> None:
        """Give the tensors and expert slices to `ranges`, as offsets in the file."""
        for i, found in enumerate(self._found):
            offset, experts = data_start + found.offset, self._experts.get(i)
            if experts is None:
                ranges.add(offset, found.size, found.name, found.kind)
            else:
                ranges.add_slices(offset, found.size, experts, found.name)


def _name(cursor: HeaderCursor) -> bytes:
    size = cursor.u64()
    if size > NAME_SIZE_MAX:
        raise ManifestError(f"a name of {size} bytes is claimed at offset {cursor.offset - 8}")
    return cursor.take(size)


def _metadata_value(cursor: HeaderCursor, key: bytes, alignment: int) -> int:
    """Go past one value. Returns the alignment: the value itself if it is `general.alignment`."""
    (value_type,) = cursor.unpack(_U32)
    if key == b"general.alignment":
        if value_type not in _INTEGERS:
            raise ManifestError("its general.alignment is not an integer")
        (alignment,) = cursor.unpack(struct.Struct(_INTEGERS[value_type]))
        if not 0 < alignment <= ALIGNMENT_MAX or alignment % 8:
            raise ManifestError(f"its general.alignment is {alignment}, not a multiple of 8 of at most {ALIGNMENT_MAX}")
    elif value_type == _STRING:
        cursor.skip_strings(1)
    elif value_type == _ARRAY:
        (item_type,) = cursor.unpack(_U32)
        count = cursor.u64()
        if item_type == _STRING:
            cursor.skip_strings(count)
        else:  # arrays of arrays end here too: no engine reads them
            cursor.skip(count * _value_size(item_type, key))
    else:
        cursor.skip(_value_size(value_type, key))
    return alignment


def _value_size(value_type: int, key: bytes) -> int:
    size = _VALUE_SIZES.get(value_type)
    if size is None:
        raise ManifestError(f"metadata {shown(key.decode('utf-8', 'replace'))} has the unsupported type {value_type}")
    return size


def _tensor_size(name: str, dimensions: list[int], type_number: int) -> int:
    block = GGML_TYPES.get(type_number)
    if block is None:
        raise ManifestError(f"tensor {shown(name)} has the unknown ggml type {type_number}")
    block_elements, block_bytes = block
    row = dimensions[0] if dimensions else 1
    if row % block_elements:
        raise ManifestError(f"tensor {shown(name)} has rows of {row}, not a multiple of {block_elements}")
    size = math.prod(dimensions) // block_elements * block_bytes
    if size > OFFSET_MAX:
        raise ManifestError(f"tensor {shown(name)} claims {size} bytes")
    return size
