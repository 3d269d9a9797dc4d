"""What one read is made of, as a value: HIT, MISS and BYPASS segments in order, without gap or overlap.

Neighbouring windows may share one page (see manifest.py). The plan goes through the request once. Where several
windows hold the page it is at, it takes a resident one; failing that the one that reaches furthest, so that a request
inside one window is one segment even if its first page is also a neighbour's last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from mummufs.core.manifest import RangeTable
from mummufs.core.ranges import ByteRange, FileId, RangeKey, Version

NO_WINDOW = -1


class SegmentKind(IntEnum):
    """Where a segment's bytes come from. In order of severity: a request counts once, by its worst segment."""

    HIT = 0
    """From the range file."""
    BYPASS = 1
    """From the source, outside every window: no cache could have served it."""
    MISS = 2
    """From the source, inside a window that is not resident."""


class Segment(NamedTuple):
    """A run of the request that has one origin."""

    kind: SegmentKind
    offset: int
    size: int
    window: int
    """The window's number in the table, or NO_WINDOW for a bypass."""

    @property
    def end(self) -> int:
        return self.offset + self.size


class ReadPlan(NamedTuple):
    """The segments of one read of one version of a file."""

    file: FileId
    version: Version
    table: RangeTable | None
    offset: int
    size: int
    segments: tuple[Segment, ...]

    @property
    def worst(self) -> SegmentKind:
        """The kind that the request is counted as."""
        return max((s.kind for s in self.segments), default=SegmentKind.BYPASS)

    def key(self, segment: Segment) -> RangeKey:
        """The stored range that a HIT or MISS segment lies in."""
        assert self.table is not None and segment.window != NO_WINDOW, "a bypass has no key"
        return window_key(self.file, self.table, segment.window)


def window_key(file: FileId, table: RangeTable, i: int) -> RangeKey:
    """The key of the i-th window of a file's table."""
    offset = table.starts[i]
    return RangeKey(file, offset, table.ends[i] - offset)


def plan_segments(
    table: RangeTable | None, offset: int, size: int, is_resident: Callable[[int], bool]
) -> Iterator[Segment]:
    """Cut `[offset, offset + size)` into segments. O(log n + windows touched).

    Args:
        is_resident: whether the window with this number can be served from its range file.
    """
    if table is None:
        if size:
            yield Segment(SegmentKind.BYPASS, offset, size, NO_WINDOW)
        return
    at, end = offset, offset + size
    touched = table.overlapping(offset, size)
    i, last = touched.start, touched.stop
    while at < end:
        while i < last and table.ends[i] <= at:
            i += 1
        if i == last:
            yield Segment(SegmentKind.BYPASS, at, end - at, NO_WINDOW)
            return
        if table.starts[i] > at:
            stop = min(end, table.starts[i])
            yield Segment(SegmentKind.BYPASS, at, stop - at, NO_WINDOW)
            at = stop
            continue
        i, resident = _choose(table, i, last, at, is_resident)
        stop = min(end, table.ends[i])
        if not resident:
            following = i + 1
            if following < last and table.starts[following] < stop and is_resident(following):
                stop = table.starts[following]
        kind = SegmentKind.HIT if resident else SegmentKind.MISS
        yield Segment(kind, at, stop - at, i)
        at = stop


def _choose(table: RangeTable, i: int, last: int, at: int, is_resident: Callable[[int], bool]) -> tuple[int, bool]:
    """The window to serve the page at `at` from, of those from `i` on that hold it, and whether it is resident."""
    if is_resident(i):
        return i, True
    while i + 1 < last and table.starts[i + 1] <= at:
        i += 1
        if is_resident(i):
            return i, True
    return i, False


def is_wanted(window: ByteRange, request: ByteRange, distinct_bytes: int) -> bool:
    """Whether a read that touches a window is reason enough to fill it.

    The kernel's read-ahead runs over both ends of what an engine asked for, so a read that only grazes a window is
    answered and no more. A fill is wanted when the read lies inside the window or covers it whole, or when the
    distinct bytes of it read so far have reached half.

    Args:
        distinct_bytes: how many different bytes of the window have been read, this read included.
    """
    return window.contains(request) or request.contains(window) or 2 * distinct_bytes >= window.size
