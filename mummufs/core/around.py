"""Read-around: what else to ask spinning disks for when a window is read, so that one seek brings many.

Theory of operation. A file is cut into blocks of BLOCK_BYTES. Reading a whole block costs as much as some seeks, and
pays if more of its windows than that are going to be read. Nobody knows that beforehand, so the rule is that of renting
and buying: windows of a block are read one by one, each for a seek of its own, until the seeks have cost PATIENCE of
what the block costs; then the rest of it is asked for. So reading along costs a known factor of the seeks that were
needed before, whatever comes: a model of which a token reads little here and little there pays its seeks and no more,
and one that is read all over has its blocks in a few passes.

The block is asked for from the window on, because a reader waits for that one, then what lies before it. None of the
rest is waited for, and none of it is stored: it is in the kernel's cache of the source when somebody comes for it, and
costs no seek then.

Seeks are forgotten with their block, when BLOCKS_MAX others have been read in since: the kernel may have dropped by
then what was read along, so a block that is visited that seldom would not have paid.

Who walks through a file, window by window, has what follows asked for, so that the disks never stand still: AHEAD times
what the row is long, up to a block. That too is a known factor of what the reader has read.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

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
"""Files of which the latest windows in a row are remembered."""
WALK_BYTES = 4 << 20
"""Windows of so many bytes in a row are a walk through the file. The kernel reads ahead into the next one or two."""
AHEAD = 2
"""Times the length of the row. Half of that is through before more is asked for."""
GAP_MAX_BYTES = 2 << 20
"""Windows closer than this follow one another, and cost no seek."""

ASKED = -1
"""In place of a count of seeks: the block has been asked for."""


@dataclass(slots=True)
class _Row:
    """The latest windows in a row in a file, and up to where the disks have been asked for what follows."""

    start: int
    end: int
    asked: int

    def is_near(self, window: ByteRange) -> bool:
        """Whether a window belongs to the row. Those that readers wait for come side by side, and in any order."""
        return self.start - GAP_MAX_BYTES < window.offset < max(self.end, self.asked) + GAP_MAX_BYTES

    def ahead(self, size: int) -> ByteRange:
        """What follows and has not been asked for; nothing until half of what was is through."""
        walked = self.end - self.start
        length = min(AHEAD * walked, BLOCK_BYTES)
        start = max(self.asked, self.end)
        end = max(start, min(self.end + length, size))
        if walked < WALK_BYTES or end - start < min(length // 2, size - start):
            end = start
        return ByteRange(start, end - start)


class ReadAround:
    """Decides what to read along.

    Attributes:
        asked_bytes: what was asked for besides windows that were about to be read, so far.
        used_bytes: how much of it was read then. What is read again, because it was not stored, counts again.
    """

    def __init__(self) -> None:
        self.asked_bytes = 0
        self.used_bytes = 0
        self._seeks: OrderedDict[tuple[FileId, int], int] = OrderedDict()
        self._rows: OrderedDict[FileId, _Row] = OrderedDict()

    def plan(self, file: FileId, window: ByteRange, size: int, *, used: int, quiet: bool) -> list[ByteRange]:
        """A window is about to be read. What to ask for, in this order: nothing, or the window and what is around it.

        Args:
            window: the window, or from where a reader reads on into it.
            size: the file's.
            used: bytes of it that count as used, if they were asked for before.
            quiet: nobody else waits for the source. Only then is a block asked for that nobody walks into.
        """
        row = self._rows.pop(file, None)
        if row is not None and row.is_near(window):  # it costs no seek
            if row.end <= window.offset < row.asked or self._seeks.get((file, window.offset // BLOCK_BYTES)) == ASKED:
                self.used_bytes += used
            row.start, row.end = min(row.start, window.offset), max(row.end, window.end)
            ahead = row.ahead(size)
            row.asked = ahead.end
            runs = [window, ahead] if ahead.size else []
        else:
            row = _Row(window.offset, window.end, window.end)
            runs = self._block(file, window, size, used, quiet=quiet)
        self._rows[file] = row
        if len(self._rows) > ROWS_MAX:
            self._rows.popitem(last=False)
        self.asked_bytes += sum(run.size - run.intersection(window).size for run in runs)
        return runs

    def _block(self, file: FileId, window: ByteRange, size: int, used: int, *, quiet: bool) -> list[ByteRange]:
        """The window's block, if it has cost seeks enough."""
        block = window.offset // BLOCK_BYTES
        seeks = self._seeks.get((file, block), 0)
        if seeks == ASKED:
            self.used_bytes += used
            return []
        seeks += 1
        due = quiet and seeks * SEEK_BYTES >= PATIENCE * BLOCK_BYTES and window.size < BLOCK_BYTES
        self._seeks[file, block] = ASKED if due else seeks
        if len(self._seeks) > BLOCKS_MAX:
            self._seeks.popitem(last=False)
        if not due:
            return []
        start, end = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, size)
        runs = [ByteRange(window.offset, max(end, window.end) - window.offset)]
        return runs if start == window.offset else [*runs, ByteRange(start, window.offset - start)]

    def _check(self) -> None:
        assert len(self._seeks) <= BLOCKS_MAX
        assert len(self._rows) <= ROWS_MAX
        assert self.used_bytes >= 0
        for row in self._rows.values():
            assert row.start < row.end
