"""From the ranges that a header names to the windows that are cached: `Manifest` -> `RangeTable`.

Theory of operation. A parser yields a `Manifest`: the tensors and expert slices of one file, as the file's own
header gives them. Three steps turn those spans into windows:

1. neighbours under JOIN_UNDER_BYTES (norms, biases) are joined up to JOIN_LIMIT_BYTES, because a range file should be
   worth a seek; neighbours are spans with less than a page between them;
2. spans over SPLIT_OVER_BYTES are split on SPLIT_STEP_BYTES steps from their own start, so that one miss never drags
   in a gigabyte;
3. each span is rounded out to whole pages, ending at end of file: the kernel asks in pages, and hardly any tensor
   starts on one. A window that this leaves wholly inside a neighbour is given up to it.

After step 3 two neighbouring windows may share one page. Both hold its bytes; whichever is resident serves them.

A table of 100,000 windows is a handful of flat arrays and one blob of names, so that it is loaded without a Python
loop: it is built in a child process and crosses to the daemon, and to the store, as `to_bytes()`.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

from mummufs.core.errors import ManifestError
from mummufs.core.ranges import PAGE_SIZE, ByteRange, page_ceil, page_floor

JOIN_UNDER_BYTES = 64 << 10
JOIN_LIMIT_BYTES = 1 << 20
SPLIT_OVER_BYTES = 32 << 20
SPLIT_STEP_BYTES = 32 << 20

RANGES_MAX = 250_000
"""More ranges or windows than this in one file is taken for a hostile header: the largest real model has some
100,000, and the table of this many is what still fits the memory that a parse may take."""

NAME_BYTES_MAX = 512
"""Longer names are cut: a name is only ever shown."""

FIRSTS_MAX = 4096
"""Tensors whose first slices are remembered."""
FINDS_MAX = 16
"""Other names that may have the one that is looked for within them."""
_UNKNOWN = -1

TABLE_BYTES_MAX = 64 << 20
"""A serialised table over this is not written and not read."""


class RangeKind(IntEnum):
    """What a range holds. The numbers are part of the table's format."""

    HEADER = 0
    DENSE = 1
    EXPERT = 2


class ManifestRange(NamedTuple):
    """One range as a header names it."""

    offset: int
    size: int
    name: str
    kind: RangeKind = RangeKind.DENSE


@dataclass(frozen=True)
class Manifest:
    """The ranges of one file.

    Attributes:
        format: the header's format, as `mummufs ranges` shows it ("gguf", "safetensors", ...).
        file_size: the size of the file that the ranges lie in.
        ranges: in any order; `validated` sorts them.
    """

    format: str
    file_size: int
    ranges: Sequence[ManifestRange]

    def validated(self) -> Manifest:
        """The same manifest with its ranges in order and the empty ones gone.

        Raises:
            ManifestError: as `in_order`.
        """
        return Manifest(self.format, self.file_size, tuple(self.in_order()))

    def in_order(self) -> Iterator[ManifestRange]:
        """The ranges that are not empty, by offset. One at a time, because a compact list may hold very many.

        Raises:
            ManifestError: a range lies outside the file or over another, or there are absurdly many.
        """
        if len(self.ranges) > RANGES_MAX:
            raise ManifestError(f"it names {len(self.ranges)} ranges, more than the limit of {RANGES_MAX}")
        end_before, name_before = 0, ""
        for r in _sorted_by_offset(self.ranges):
            if r.size == 0:
                continue
            if r.offset < 0 or r.size < 0 or r.offset + r.size > self.file_size:
                raise ManifestError(
                    f"range {r.name!r} at {r.offset}, {r.size} bytes, lies outside the file of {self.file_size} bytes"
                )
            if r.offset < end_before:
                raise ManifestError(f"ranges {name_before!r} and {r.name!r} overlap at offset {r.offset}")
            end_before, name_before = r.offset + r.size, r.name
            yield r


def _sorted_by_offset(ranges: Sequence[ManifestRange]) -> Iterator[ManifestRange]:
    """In order of offset. The order is a list of numbers, so that a compact list is never unfolded whole."""
    if all(a.offset <= b.offset for a, b in pairwise(ranges)):
        return iter(ranges)
    return (ranges[i] for i in sorted(range(len(ranges)), key=lambda i: ranges[i].offset))


class Window(NamedTuple):
    """One cached range: its window (what is stored) and its span (what the header named)."""

    offset: int
    size: int
    span_offset: int
    span_size: int
    name: str
    kind: RangeKind

    @property
    def range(self) -> ByteRange:
        """The window as a range of the file."""
        return ByteRange(self.offset, self.size)


_HEADER = struct.Struct("<8sIIQQQ")
_MAGIC = b"MUMMUTBL"
_FORMAT_VERSION = 1


class RangeTable:
    """The windows of one file, for look-up by offset. Immutable. Look-ups are O(log n).

    Windows are in order by offset and by end; neighbours share at most one page and none lies inside another.
    """

    __slots__ = (
        "_firsts",
        "_kinds",
        "_name_ends",
        "_names",
        "_span_ends",
        "_span_starts",
        "ends",
        "file_size",
        "format",
        "starts",
    )

    def __init__(
        self,
        format: str,  # noqa: A002 - the word the manifests use
        file_size: int,
        columns: tuple[array[int], array[int], array[int], array[int]],
        kinds: bytes,
        name_ends: array[int],
        names: bytes,
    ) -> None:
        self.format = format
        self.file_size = file_size
        self.starts, self.ends, self._span_starts, self._span_ends = columns
        self._kinds = kinds
        self._name_ends = name_ends
        self._names = names
        self._firsts: dict[str, int | None] = {}

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> RangeTable:
        """Join, split and round the ranges of a manifest.

        Raises:
            ManifestError: as `Manifest.in_order`, or the split ranges are absurdly many.
        """
        columns = tuple(array("Q") for _ in range(4))
        kinds, name_ends, names = bytearray(), array("Q"), bytearray()
        for window in _windows(manifest.in_order(), manifest.file_size):
            if len(kinds) == RANGES_MAX:
                raise ManifestError(f"its ranges make more than {RANGES_MAX} windows")
            for column, value in zip(
                columns,
                (window.offset, window.range.end, window.span_offset, window.span_offset + window.span_size),
                strict=True,
            ):
                column.append(value)
            kinds.append(window.kind)
            names += window.name.encode("utf-8", "replace")[:NAME_BYTES_MAX]
            name_ends.append(len(names))
        four = (columns[0], columns[1], columns[2], columns[3])
        return cls(manifest.format, manifest.file_size, four, bytes(kinds), name_ends, bytes(names))

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Window]:
        return map(self.window, range(len(self)))

    def window(self, i: int) -> Window:
        """The i-th window in order of offset."""
        offset, span_offset = self.starts[i], self._span_starts[i]
        return Window(
            offset,
            self.ends[i] - offset,
            span_offset,
            self._span_ends[i] - span_offset,
            self.name(i),
            RangeKind(self._kinds[i]),
        )

    def name(self, i: int) -> str:
        """The name of the i-th window."""
        return self._names[self._name_ends[i - 1] if i else 0 : self._name_ends[i]].decode("utf-8", "replace")

    def slice_number(self, tensor: str, i: int) -> int | None:
        """The number of the window that is slice `i` of a fused tensor; None if there is none, or it is not one window.

        The first of a tensor is looked for in all names, a millisecond for 100,000 of them, and remembered.
        """
        first = self._firsts.get(tensor, _UNKNOWN)
        if first == _UNKNOWN:
            if len(self._firsts) >= FIRSTS_MAX:
                self._firsts.clear()
            first = self._firsts[tensor] = self._find(f"{tensor}[0]")
        if first is None or not first + i < len(self) or self.name(first + i) != f"{tensor}[{i}]":
            return None
        return first + i

    def _find(self, name: str) -> int | None:
        """The number of the window of this name."""
        wanted = name.encode("utf-8", "replace")
        at = self._names.find(wanted)
        for _ in range(FINDS_MAX):
            if at < 0:
                break
            i = bisect_right(self._name_ends, at)
            if self.name(i) == name:
                return i
            at = self._names.find(wanted, at + 1)
        return None

    def overlapping(self, offset: int, size: int) -> range:
        """The numbers of the windows that have a byte of `[offset, offset + size)`."""
        if size <= 0:
            return range(0)
        return range(bisect_right(self.ends, offset), bisect_left(self.starts, offset + size))

    def to_bytes(self) -> bytes:
        """The table as little-endian columns: what the child process and the store's table files hold."""
        label = self.format.encode("ascii", "replace")[:255]
        columns = (self.starts, self.ends, self._span_starts, self._span_ends, self._name_ends)
        head = _HEADER.pack(_MAGIC, _FORMAT_VERSION, len(label), self.file_size, len(self), len(self._names))
        return b"".join((head, label, *map(_little_endian, columns), self._kinds, self._names))

    @classmethod
    def from_bytes(cls, data: bytes) -> RangeTable:
        """Read what `to_bytes` wrote.

        Raises:
            ManifestError: the bytes are not a table of this version. Only the shape is checked: whoever stores a
                table keeps a checksum beside it.
        """
        if len(data) < _HEADER.size:
            raise ManifestError(f"a table of {len(data)} bytes is cut short")
        magic, version, label_size, file_size, count, names_size = _HEADER.unpack_from(data)
        if magic != _MAGIC or version != _FORMAT_VERSION:
            raise ManifestError("not a range table of this version")
        if len(data) != _HEADER.size + label_size + count * (5 * 8 + 1) + names_size:
            raise ManifestError(f"a table of {len(data)} bytes does not have the size that it states")
        at = _HEADER.size + label_size
        label = data[_HEADER.size : at].decode("ascii", "replace")
        columns = []
        for _ in range(5):
            column: array[int] = array("Q")
            column.frombytes(data[at : at + 8 * count])
            if sys.byteorder == "big":
                column.byteswap()
            columns.append(column)
            at += 8 * count
        kinds, names = data[at : at + count], data[at + count :]
        return cls(label, file_size, (columns[0], columns[1], columns[2], columns[3]), kinds, columns[4], names)

    def _check(self) -> None:
        """Assert every promise of the class docstring."""
        for i, w in enumerate(self):
            assert w.size > 0, "a window holds at least one byte"
            assert w.offset % PAGE_SIZE == 0, "a window starts on a page"
            assert w.range.end % PAGE_SIZE == 0 or w.range.end == self.file_size, "and ends on one, or at end of file"
            assert w.range.contains(ByteRange(w.span_offset, w.span_size)), "a window holds its span"
            assert w.size <= SPLIT_OVER_BYTES + 2 * PAGE_SIZE, "a window is bounded"
            if i:
                assert w.offset > self.starts[i - 1], "windows are in order by offset"
                assert w.range.end > self.ends[i - 1], "and by end"
                assert self.ends[i - 1] - w.offset <= PAGE_SIZE, "neighbours share at most one page"


def _little_endian(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array("Q", column)
        column.byteswap()
    return column.tobytes()


def _windows(ranges: Iterable[ManifestRange], file_size: int) -> Iterator[Window]:
    """Joined, split and rounded windows; one that rounding leaves inside a neighbour is given up to it."""
    waiting: Window | None = None
    for span in _split(_joined(ranges)):
        offset = page_floor(span.offset)
        end = min(page_ceil(span.offset + span.size), file_size)
        window = Window(offset, end - offset, *span)
        if waiting is None:
            waiting = window
        elif waiting.range.contains(window.range):
            waiting = _swallowed(waiting, window, waiting)
        elif window.range.contains(waiting.range):
            waiting = _swallowed(window, waiting, window)
        else:
            yield waiting
            waiting = window
    if waiting is not None:
        yield waiting


def _swallowed(outer: Window, inner: Window, named: Window) -> Window:
    """`outer` holding the span of `inner` too, under the name of `named`."""
    offset = min(outer.span_offset, inner.span_offset)
    end = max(outer.span_offset + outer.span_size, inner.span_offset + inner.span_size)
    return Window(outer.offset, outer.size, offset, end - offset, named.name, named.kind)


def _joined(ranges: Iterable[ManifestRange]) -> Iterator[ManifestRange]:
    run: list[ManifestRange] = []
    for r in ranges:
        if run and not _joins(run, r):
            yield _one_of(run)
            run = []
        run.append(r)
    if run:
        yield _one_of(run)


def _joins(run: list[ManifestRange], r: ManifestRange) -> bool:
    first, last = run[0], run[-1]
    return (
        last.size < JOIN_UNDER_BYTES
        and r.size < JOIN_UNDER_BYTES
        and r.offset - (last.offset + last.size) < PAGE_SIZE
        and r.offset + r.size - first.offset <= JOIN_LIMIT_BYTES
        and (last.kind == RangeKind.HEADER) == (r.kind == RangeKind.HEADER)  # a header is a range of its own
    )


def _one_of(run: list[ManifestRange]) -> ManifestRange:
    first, last = run[0], run[-1]
    if len(run) == 1:
        return first
    name = f"{first.name} .. {last.name} ({len(run)})"
    kind = first.kind if all(r.kind == first.kind for r in run) else RangeKind.DENSE
    return ManifestRange(first.offset, last.offset + last.size - first.offset, name, kind)


def _split(ranges: Iterable[ManifestRange]) -> Iterator[ManifestRange]:
    for r in ranges:
        if r.size <= SPLIT_OVER_BYTES:
            yield r
            continue
        parts = -(-r.size // SPLIT_STEP_BYTES)
        for i in range(parts):
            at = i * SPLIT_STEP_BYTES
            size = min(SPLIT_STEP_BYTES, r.size - at)
            yield ManifestRange(r.offset + at, size, f"{r.name} [{i + 1}/{parts}]", r.kind)
