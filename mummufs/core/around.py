"""Read-around: what else to ask spinning disks for when a window is read, so that one seek brings many.

Theory of operation. What a reader reads without a seek is a *row*: windows that follow one another, in any order, since
his requests come side by side. Of each file the latest row is remembered, and three things are asked for besides:

- *What is read around each window anyway.* The kernel reads ahead of who reads a slice of a file, and around who faults
  one in, and its requests reach us one after the other, each in a thread of its own. On disks they would be a seek
  each, out of order. Rows of a file are alike, so where the last REACHES rows all have reached so far before and
  beyond their first window, that is asked for with the next one's first window, in one pass. And each request has the
  row asked for again up to its own place, so that whichever thread comes first, the disks are asked in order: to be
  asked twice costs nothing.
- *What follows*, for who walks through a file, window by window, so that the disks never stand still: AHEAD times what
  the row is long, up to a block. That is a known factor of what the reader has read.
- *The block*, where seeks are many. A file is cut into blocks of BLOCK_BYTES. Reading a whole block costs as much as
  some seeks, and pays if more of its windows than that are going to be read. Nobody knows that beforehand, so the rule
  is that of renting and buying: rows of a block are read one by one, each for a seek of its own, until the seeks have
  cost PATIENCE of what the block costs; then the rest of it is asked for. So reading along costs a known factor of the
  seeks that were needed before, whatever comes: a model of which a token reads little here and little there pays its
  seeks and no more, and one that is read all over has its blocks in a few passes. It is asked for from the window on,
  because a reader waits for that one, then what lies before it.

None of it is waited for, and none of it is stored: it is in the kernel's cache of the source when somebody comes for
it, and costs no seek then.

Seeks are forgotten with their block, when BLOCKS_MAX others have been read in since: the kernel may have dropped by
then what was read along, so a block that is visited that seldom would not have paid.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from mummufs.core.ranges import ByteRange, FileId

BLOCK_BYTES = 32 << 20
"""46 ms of four disks at 180 MB/s: some five seeks."""
SEEK_BYTES = 6 << 20
"""What four such disks read in the time of a seek, 8 ms."""
PATIENCE = 0.75
"""Of a block's bytes. The fourth seek has it asked for."""
BLOCKS_MAX = 128
"""Blocks whose seeks are counted at once, 4 GiB."""
ROWS_MAX = 64
"""Files of which the latest row is remembered."""
SPILL_BYTES = 5 << 19
"""What of a row may be nobody's wish: the kernel reads up to 1 MiB ahead twice, and half of that around a fault."""
WALK_BYTES = 8 << 20
"""A row that is longer by this, and by two windows, is a walk through the file."""
AHEAD = 0.5
"""Times the length of the row. Half of that is through before more is asked for."""
GAP_MAX_BYTES = 2 << 20
"""Windows closer than this are in one row, and cost no seek."""
REACHES = 4
"""Rows that must have reached as far."""
REACH_MAX_BYTES = 4 << 20
"""What is asked for before a window, and beyond it, at most: the kernel's read-ahead, in whole windows."""


class Along(NamedTuple):
    """What to ask for besides a window.

    Attributes:
        before: to be asked for before the window, so that the disks go forward.
        rest: to be asked for at leisure.
        again: `before` has been asked for already, or will be in a moment by another request's thread.
    """

    before: list[ByteRange]
    rest: list[ByteRange]
    again: bool = False


class Reach(NamedTuple):
    """How far a row reaches before its first window, and beyond it; bytes."""

    before: int
    after: int

    def around(self, window: ByteRange, size: int) -> ByteRange:
        """A window of a file of this size with as much around it."""
        start, end = max(0, window.offset - self.before), max(window.end, min(size, window.end + self.after))
        return ByteRange(start, end - start)


NOTHING = Reach(0, 0)


@dataclass(slots=True)
class _Block:
    """What a block has cost so far.

    Attributes:
        read_bytes: of its windows, what is asked for with them not counted.
        asked: whether all of it has been asked for.
    """

    seeks: int = 0
    read_bytes: int = 0
    asked: bool = False


@dataclass(slots=True)
class _Row:
    """The latest row of a file.

    Attributes:
        first: the window that it began with.
        start, end: how far it reaches by now.
        asked_from, asked: what was asked for besides: from here, and up to here.
    """

    first: ByteRange
    start: int
    end: int
    asked_from: int
    asked: int
    begun: bool = False
    """Whether the start of a window was read in it."""
    reaches: deque[Reach] = field(default_factory=lambda: deque(maxlen=REACHES))
    """Of the last rows."""
    reach: Reach = NOTHING
    """What they all had."""

    def is_near(self, window: ByteRange) -> bool:
        """Whether a window belongs to the row. Those that readers wait for come side by side, and in any order."""
        return self.start - GAP_MAX_BYTES < window.offset < max(self.end, self.asked) + GAP_MAX_BYTES

    def was_asked_for(self, window: ByteRange) -> bool:
        """Whether a window of the row was asked for before anybody read it."""
        return self.end <= window.offset < self.asked or self.asked_from <= window.offset < self.start

    def ahead(self, size: int, window: ByteRange) -> ByteRange:
        """What follows who walks and has not been asked for; nothing until half of what was is through."""
        walked = self.end - self.start - SPILL_BYTES
        length = max(0, min(int(AHEAD * walked), BLOCK_BYTES))
        start = max(self.asked, self.end)
        end = max(start, min(self.end + length, size))
        if walked < max(WALK_BYTES, 2 * window.size) or end - start < min(length // 2, size - start):
            end = start
        return ByteRange(start, end - start)

    def next(self, window: ByteRange, size: int, *, from_start: bool) -> _Row:
        """The row that begins with a window elsewhere, asked for as far as all of the last ones reached."""
        self.reaches.append(Reach(self.first.offset - self.start, self.end - self.first.end))
        reach = NOTHING
        if len(self.reaches) == REACHES:
            reach = Reach(*(min(REACH_MAX_BYTES, sorted(sizes)[-2]) for sizes in zip(*self.reaches, strict=True)))
        asked_from = reach.around(window, size).offset if from_start else window.offset
        return _Row(window, window.offset, window.end, asked_from, window.end, reaches=self.reaches, reach=reach)


class ReadAround:
    """Decides what to read along.

    Attributes:
        asked_bytes: what was asked for besides windows that were about to be read, so far.
        used_bytes: how much of it was read then. What is read again, because it was not stored, counts again.
    """

    def __init__(self) -> None:
        self.asked_bytes = 0
        self.used_bytes = 0
        self._blocks: OrderedDict[tuple[FileId, int], _Block] = OrderedDict()
        self._rows: OrderedDict[FileId, _Row] = OrderedDict()

    def plan(
        self, file: FileId, window: ByteRange, size: int, *, used: int, quiet: bool, from_start: bool = True
    ) -> Along:
        """A window is about to be read. What to ask for besides.

        Args:
            window: the window, or the part of it that is read; several that lie side by side count as one.
            size: the file's.
            used: bytes of it that count as used, if they were asked for before.
            quiet: nobody else waits for the source. Only then is a block asked for that nobody walks into.
            from_start: it is read from its start.
        """
        row = self._rows.pop(file, None)
        if row is not None and row.is_near(window):
            along = self._in_row(file, row, window, size, used)
        else:
            row = (
                _Row(window, window.offset, window.end, window.offset, window.end)
                if row is None
                else row.next(window, size, from_start=from_start)
            )
            before = ByteRange(row.asked_from, row.start - row.asked_from)
            along = Along(_some(before), self._block(file, window, size, used, quiet=quiet))
        self._rows[file] = row
        if len(self._rows) > ROWS_MAX:
            self._rows.popitem(last=False)
        runs = [*([] if along.again else along.before), *along.rest]
        self.asked_bytes += sum(run.size - run.intersection(window).size for run in runs)
        block = self._blocks.get((file, window.offset // BLOCK_BYTES))
        if block is not None:
            block.read_bytes += window.size
        return along

    def begins(self, file: FileId, window: ByteRange) -> Reach | None:
        """A window is about to be read from its start, and `plan` has been asked. If it is the first of its row, the
        reader came for it, and for what is read around it nobody did: what the last rows all had of that; else None."""
        row = self._rows.get(file)
        if row is None or row.begun or not row.start <= window.offset < row.end:
            return None
        row.begun, row.first = True, window
        return row.reach

    def _in_row(self, file: FileId, row: _Row, window: ByteRange, size: int, used: int) -> Along:
        """A window that costs no seek."""
        block = self._blocks.get((file, window.offset // BLOCK_BYTES))
        if row.was_asked_for(window) or (block is not None and block.asked):
            self.used_bytes += used
        start = min(window.offset, max(row.start, window.offset - GAP_MAX_BYTES))
        row.start, row.end = min(row.start, window.offset), max(row.end, window.end)
        ahead = row.ahead(size, window)
        row.asked = max(row.asked, ahead.end)
        return Along(_some(ByteRange(start, window.offset - start)), _some(ahead), again=True)

    def _block(self, file: FileId, window: ByteRange, size: int, used: int, *, quiet: bool) -> list[ByteRange]:
        """The window's block, if it has cost seeks enough."""
        number = window.offset // BLOCK_BYTES
        start, end = number * BLOCK_BYTES, min((number + 1) * BLOCK_BYTES, size)
        block = self._blocks.pop((file, number), _Block())
        self._blocks[file, number] = block
        if len(self._blocks) > BLOCKS_MAX:
            self._blocks.popitem(last=False)
        if block.asked:
            self.used_bytes += used
            return []
        block.seeks += 1
        left = end - start - min(block.read_bytes, end - start)
        block.asked = quiet and block.seeks * SEEK_BYTES >= PATIENCE * left and window.size < BLOCK_BYTES
        if not block.asked:
            return []
        runs = [ByteRange(window.offset, max(end, window.end) - window.offset)]
        return runs if start == window.offset else [*runs, ByteRange(start, window.offset - start)]

    def _check(self) -> None:
        assert len(self._blocks) <= BLOCKS_MAX
        assert len(self._rows) <= ROWS_MAX
        assert self.used_bytes >= 0
        for row in self._rows.values():
            assert row.start < row.end


def _some(run: ByteRange) -> list[ByteRange]:
    return [run] if run.size else []
