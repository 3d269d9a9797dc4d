"""A Strata pack: `native_experts.txt` version 3 beside `experts.bin`, or beside the files that hold the experts.

The table has one row per layer:

    layer gu_type d_type offset blob_bytes [gate_off up_off down_off [shard]]

- In `experts.bin` the layer's blobs, one per expert, follow one another from `offset`, each of `blob_bytes`: gate
  rows, up rows, down rows.
- Without it the experts stay where they are: from `gate_off`, `up_off` and `down_off` of the file `shard` run the
  layer's gate, up and down slices, one per expert. Their sizes follow from the ggml types and `blob_bytes`, because
  the three hold equally many weights. A row without a shard is in the file that the table's comment names
  ("absolute offsets in FILE,"). Version 4's column `gate,up,down` names a file for each.
- A shard that is a GGUF is left to its own header, which names the same slices and the rest of the model too.

Accepted: blank lines; comments (`#`), of which "n_expert N" and "absolute offsets in FILE" are read; rows of 5, 8 or
9 fields in any order. Without "n_expert" a layer has as many experts as fit before the next one's offset; it never
has more, so a table with a row for each expert is read as it is meant. Numbers are plain decimals.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from mummufs.core.errors import ManifestError
from mummufs.core.manifest import Manifest, RangeKind
from mummufs.manifests.base import RangeList, Subject
from mummufs.manifests.gguf import GGML_TYPES, MAGIC

FORMAT = "strata"
TABLE_NAME = b"native_experts.txt"
BLOBS_NAME = b"experts.bin"

TABLE_BYTES_MAX = 4 << 20
ROWS_MAX = 50_000
"""A real table has a row per layer."""

ROLES = ("gate", "up", "down")

_EXPERT_COUNT = re.compile(rb"\bn_expert (\d{1,9})\b")
_DEFAULT_SHARD = re.compile(rb"\babsolute offsets in ([^,)]+)")
_LINE = re.compile(rb"[^\r\n]+")
_NUMBER = re.compile(rb"\d{1,19}")


class _Row(NamedTuple):
    layer: int
    gate_up_type: int
    down_type: int
    offset: int
    blob_bytes: int
    role_offsets: tuple[int, ...]
    shards: tuple[bytes, ...]


class _Table(NamedTuple):
    rows: list[_Row]  # by offset
    expert_count: int | None


def recognises(subject: Subject) -> bool:
    """Whether the file is the experts.bin beside a table, or a file that the table names and that is no GGUF."""
    if subject.siblings.size(TABLE_NAME) is None or subject.name == TABLE_NAME:
        return False
    if subject.name == BLOBS_NAME:
        return True
    if subject.head().startswith(MAGIC):
        return False
    return subject.name in (subject.siblings.read(TABLE_NAME, TABLE_BYTES_MAX) or b"")


def parse(subject: Subject) -> Manifest:
    """A range for each expert's blob, or for each expert's gate, up and down slice.

    Raises:
        ManifestError: the table is broken or does not fit the file.
    """
    data = subject.siblings.read(TABLE_NAME, TABLE_BYTES_MAX)
    if data is None:
        raise ManifestError("its native_experts.txt has just been removed")
    table = _read_table(data)
    ranges = RangeList(subject.file_size)
    seen: Counter[int] = Counter()
    for row, count in _with_counts(table, subject):
        for i in range(seen[row.layer], seen[row.layer] + count):
            _add_expert(ranges, row, i - seen[row.layer], f"layer{row.layer}.expert{i}", subject.name)
        seen[row.layer] += count
    if not ranges:
        raise ManifestError("its native_experts.txt gives no expert in this file")
    return Manifest(FORMAT, subject.file_size, ranges)


def _add_expert(ranges: RangeList, row: _Row, i: int, name: str, file_name: bytes) -> None:
    if file_name == BLOBS_NAME:
        ranges.add(row.offset + i * row.blob_bytes, row.blob_bytes, name, RangeKind.EXPERT)
        return
    if file_name not in row.shards:
        return
    sizes = _role_sizes(row)
    for role, offset, size, shard in zip(ROLES, row.role_offsets, sizes, row.shards, strict=True):
        if shard == file_name:
            ranges.add(offset + i * size, size, f"{name}.{role}", RangeKind.EXPERT)


def _with_counts(table: _Table, subject: Subject) -> Iterator[tuple[_Row, int]]:
    """Each row and its number of experts. The last row has as many as the one before it, where nothing else says."""
    count = table.expert_count or 0
    for i, row in enumerate(table.rows):
        if i + 1 < len(table.rows):
            fitting = (table.rows[i + 1].offset - row.offset) // row.blob_bytes
            count = min(table.expert_count or fitting, fitting)
        elif subject.name == BLOBS_NAME and table.expert_count is None:
            count = (subject.file_size - row.offset) // row.blob_bytes
        if count < 1:
            raise ManifestError(f"layer {row.layer} of its native_experts.txt has no room for an expert")
        yield row, count


def _role_sizes(row: _Row) -> tuple[int, int, int]:
    """Bytes of one expert's gate, up and down slices."""
    if row.gate_up_type not in GGML_TYPES or row.down_type not in GGML_TYPES:
        raise ManifestError(f"layer {row.layer} has the unknown ggml types {row.gate_up_type} and {row.down_type}")
    gate_up, down = (Fraction(size, n) for n, size in (GGML_TYPES[row.gate_up_type], GGML_TYPES[row.down_type]))
    weights = row.blob_bytes / (2 * gate_up + down)
    gate_size, down_size = weights * gate_up, weights * down
    if gate_size.denominator != 1 or down_size.denominator != 1:
        raise ManifestError(
            f"layer {row.layer} has blobs of {row.blob_bytes} bytes, which its ggml types do not divide"
        )
    return int(gate_size), int(gate_size), int(down_size)


def _read_table(data: bytes) -> _Table:
    rows: list[_Row] = []
    expert_count: int | None = None
    default_shard = b""
    for match in _LINE.finditer(data):
        line = match.group().strip()
        if line.startswith(b"#"):
            found = _EXPERT_COUNT.search(line)
            expert_count = int(found.group(1)) if found else expert_count
            found = _DEFAULT_SHARD.search(line)
            default_shard = found.group(1).strip() if found else default_shard
        elif line:
            if len(rows) == ROWS_MAX:
                raise ManifestError(f"its native_experts.txt has more than {ROWS_MAX} rows")
            rows.append(_row(line, default_shard))
    if not rows:
        raise ManifestError("its native_experts.txt has no rows")
    rows.sort(key=lambda row: row.offset)
    return _Table(rows, expert_count)


def _row(line: bytes, default_shard: bytes) -> _Row:
    fields = line.split(None, 8)
    numbers, shard = fields[:8], fields[8] if len(fields) == 9 else default_shard
    if len(numbers) not in (5, 8) or not all(_NUMBER.fullmatch(field) for field in numbers):
        raise ManifestError(f"a row of its native_experts.txt is not 5 or 8 numbers and a name: {line[:80]!r}")
    layer, gate_up_type, down_type, offset, blob_bytes, *role_offsets = map(int, numbers)
    if blob_bytes == 0:
        raise ManifestError(f"layer {layer} of its native_experts.txt has blobs of 0 bytes")
    shards = tuple(name or default_shard for name in shard.split(b","))
    if len(shards) != len(ROLES):
        shards = (shard,) * len(ROLES)
    return _Row(
        layer,
        gate_up_type,
        down_type,
        offset,
        blob_bytes,
        tuple(role_offsets),
        shards if role_offsets else (),
    )
