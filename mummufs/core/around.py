"""Read-around: what else to ask spinning disks for when a window is read, so that one seek brings all of it.

Theory of operation. What a reader reads without a seek is a *row*: windows that follow one another, in any order, since
his requests come side by side. Of each file the latest rows are remembered, one for each of some readers. Asked for are

- *the row so far*, with each request of a row, as far as it is on its way. The kernel reads ahead of who reads a slice
  of a file, and around who faults one in. Its requests reach the source in a thread each, and in any order, which would
  be a seek each. Whichever thread comes first, the disks are asked from the start on; to be asked twice for what is
  coming costs nothing.
- *what rows reach around their first window*, with that window. Rows of a file are alike. What one of the last REACHES
  rows had before and beyond the window that its reader came for, the kernel is about to ask for again.
- *what follows*, for who walks through a file, window by window, so that the disks never stand still: AHEAD times what
  has walked. So it costs a known share of what was read before, whatever comes.

None of it is waited for, and none of it is stored: it is in the kernel's cache of the source when somebody comes for
it, and costs no seek then.

To ask for a whole block of the file once its seeks had cost as much was tried, as one rents before one buys: tokens
that read a little here and a little there had the disks busy with what nobody came for (docs/performance.md).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from mummufs.core.ranges import ByteRange, FileId

FILES_MAX = 64
"""Files whose rows are remembered."""
ROWS_MAX = 4
"""Rows of a file that may still go on: readers side by side."""
GAP_MAX_BYTES = 2 << 20
"""Windows closer than this are in one row."""
SPILL_BYTES = 5 << 19
"""What of a row may be nobody's wish: the kernel reads up to 1 MiB ahead twice, and half of that around a fault."""
WALK_BYTES = 32 << 20
"""A row that is longer by this, and by two windows, is a walk through the file. One layer's dense part is none."""
AHEAD = 1.0
"""Times what was walked. Half of that is through before more is asked for."""
AHEAD_MAX_BYTES = 32 << 20
"""46 ms of four disks at 180 MB/s."""
REACHES = 4
"""Rows that are looked at."""
REACH_MAX_BYTES = 4 << 20
"""A row that reaches further around its first window was a walk."""


class Along(NamedTuple):
    """What to ask for besides a window.

    Attributes:
        before: to be asked for before the window, so that the disks go forward.
        ahead: to be asked for at leisure.
        again: `before` is the row so far: only what is on its way of that is to be asked for, once more.
    """

    before: list[ByteRange]
    ahead: list[ByteRange]
    again: bool


class Reach(NamedTuple):
    """How far a row reaches before its first window, and beyond it; bytes."""

    before: int
    after: int

    def around(self, window: ByteRange, size: int) -> ByteRange:
        """A window of a file of this size with as much around it."""
        start, end = max(0, window.offset - self.before), max(window.end, min(size, window.end + self.after))
        return ByteRange(start, end - start)


@dataclass(slots=True)
class _Row:
    """A row.

    Attributes:
        first: the window that its reader came for, as far as known.
        start, end: how far it reaches by now.
        asked_from, asked: what was asked for besides: from here, and up to here.
        begun: whether a window was read from its start, so that `first` is certain.
    """

    first: ByteRange
    start: int
    end: int
    asked_from: int
    asked: int
    begun: bool = False

    def is_near(self, window: ByteRange) -> bool:
        """Whether a window belongs to the row. Those that readers wait for come side by side, and in any order."""
        return self.start - GAP_MAX_BYTES < window.offset < max(self.end, self.asked) + GAP_MAX_BYTES

    def was_asked_for(self, window: ByteRange) -> bool:
        """Whether a window of the row was asked for before anybody read it."""
        return self.end <= window.offset < self.asked or self.asked_from <= window.offset < self.start

    def ahead(self, window: ByteRange, size: int) -> ByteRange:
        """What follows who walks and has not been asked for; nothing until half of what was is through."""
        walked = self.end - self.start - SPILL_BYTES
        start = max(self.asked, self.end)
        if walked < max(WALK_BYTES, 2 * window.size):
            return ByteRange(start, 0)
        length = min(int(AHEAD * walked), AHEAD_MAX_BYTES)
        end = max(start, min(self.end + length, size))
        return ByteRange(start, 0 if end - start < min(length // 2, size - start) else end - start)


@dataclass(slots=True)
class _File:
    """What is remembered of a file: its rows, the latest last, and how far those before them reached."""

    rows: list[_Row] = field(default_factory=list)
    reaches: deque[Reach] = field(default_factory=lambda: deque(maxlen=REACHES))

    def take(self, window: ByteRange) -> _Row | None:
        """The row that a window belongs to, which is the latest now."""
        for row in reversed(self.rows):
            if row.is_near(window):
                self.rows.remove(row)
                self.rows.append(row)
                return row
        return None

    def begin(self, window: ByteRange, asked_from: int) -> None:
        """A row begins. The oldest one that is too many is over."""
        self.rows.append(_Row(window, window.offset, window.end, asked_from, window.end))
        if len(self.rows) > ROWS_MAX:
            row = self.rows.pop(0)
            reach = Reach(max(0, row.first.offset - row.start), max(0, row.end - row.first.end))
            if max(reach) <= REACH_MAX_BYTES:
                self.reaches.append(reach)

    @property
    def reach(self) -> Reach:
        """How far rows reach."""
        return Reach(
            max((reach.before for reach in self.reaches), default=0),
            max((reach.after for reach in self.reaches), default=0),
        )


class ReadAround:
    """Decides what to read along.

    Attributes:
        asked_bytes: what was asked for besides windows that were about to be read, so far.
        used_bytes: how much of it was read then.
    """

    def __init__(self) -> None:
        self.asked_bytes = 0
        self.used_bytes = 0
        self._files: OrderedDict[FileId, _File] = OrderedDict()

    def plan(self, file: FileId, window: ByteRange, size: int, *, used: int, from_start: bool) -> Along:
        """A window is about to be read. What to ask for besides.

        Args:
            window: the window, or the part of it that is read; several that lie side by side count as one.
            size: the file's.
            used: bytes of it that count as used, if they were asked for before.
            from_start: it is read from its start: its reader came for it, as far as can be told.
        """
        rows = self._files.pop(file, None) or _File()
        self._files[file] = rows
        if len(self._files) > FILES_MAX:
            self._files.popitem(last=False)
        row = rows.take(window)
        if row is None:
            start = rows.reach.around(window, size).offset if from_start else window.offset
            rows.begin(window, start)
            along = Along(_some(ByteRange(start, window.offset - start)), [], again=False)
        else:
            if row.was_asked_for(window):
                self.used_bytes += used
            start = min(window.offset, max(row.start, window.offset - GAP_MAX_BYTES))
            row.start, row.end = min(row.start, window.offset), max(row.end, window.end)
            ahead = row.ahead(window, size)
            row.asked = max(row.asked, ahead.end)
            along = Along(_some(ByteRange(start, window.offset - start)), _some(ahead), again=True)
        self.asked_bytes += sum(run.size for run in along.ahead) + (0 if along.again else window.offset - start)
        return along

    def begins(self, file: FileId, window: ByteRange, size: int) -> Reach | None:
        """A window is about to be read from its start, and `plan` has been asked. If it is the first such one of its
        row, its reader came for it, and not for what is read around it: how far that is; None otherwise."""
        rows = self._files.get(file)
        row = None if rows is None else rows.take(window)
        if rows is None or row is None or row.begun:
            return None
        row.begun, row.first = True, window
        reach = rows.reach
        end = reach.around(window, size).end
        self.asked_bytes += max(0, end - max(row.end, row.asked))
        row.asked = max(row.asked, end)
        return reach

    def _check(self) -> None:
        assert len(self._files) <= FILES_MAX
        for rows in self._files.values():
            assert 0 < len(rows.rows) <= ROWS_MAX
            assert all(row.start < row.end <= row.asked or row.asked >= row.first.end for row in rows.rows)
            assert max(rows.reach) <= REACH_MAX_BYTES


def _some(run: ByteRange) -> list[ByteRange]:
    return [run] if run.size else []
