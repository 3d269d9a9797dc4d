"""Read-around: what else to ask spinning disks for when a window is read, since the seek is paid for anyway.

Theory of operation. A file is cut into blocks of BLOCK_BYTES. The first window that is missed in a block has the whole
block asked for: the window first, because a reader waits for it, then what lies behind it, then what lies before it.
None of the rest is waited for, and none of it is stored: it is in the kernel's cache of the source when somebody comes
for it, and costs no seek then.

Whether that pays is measured. A block that leaves the list tells which share of it was used. Reading a window by itself
costs a seek and its bytes; having it read along costs its bytes, and those of what is read along in vain:

    share * (SEEK_BYTES + window) > window

Below that only every PROBE_EVERY-th block is asked for, so that a change is noticed. Who walks through a file window
by window has the next block asked for when half of this one is through, so that the disks never stand still.
"""

from __future__ import annotations

from collections import OrderedDict

from mummufs.core.ranges import ByteRange, FileId

BLOCK_BYTES = 32 << 20
"""46 ms of four disks at 180 MB/s: some five seeks."""
SEEK_BYTES = 6 << 20
"""What four such disks read in the time of a seek, 8 ms."""
BLOCKS_MAX = 128
"""Blocks whose use is counted at once: 4 GiB, beyond which the kernel may have dropped what was not used."""
SHARE_FIRST = 0.5
SHARE_WEIGHT = 0.05
"""What one block counts for the share: about the last twenty do."""
PROBE_EVERY = 16
STREAMS_MAX = 64
"""Files of which the last window is remembered."""
STREAM_WINDOWS = 2
"""So many windows in a row are a walk through the file."""
GAP_MAX_BYTES = 1 << 20
"""Windows closer than this follow one another."""


class ReadAround:
    """Decides what to read along.

    Attributes:
        share: which part of what was read along is used, by the latest blocks.
    """

    def __init__(self) -> None:
        self.share = SHARE_FIRST
        self._used: OrderedDict[tuple[FileId, int], int] = OrderedDict()
        self._streams: OrderedDict[FileId, tuple[int, int]] = OrderedDict()
        self._passed_over = 0

    def plan(self, file: FileId, window: ByteRange, size: int, *, used: int, quiet: bool) -> list[ByteRange]:
        """A window is about to be read. What to ask for, in this order: nothing, or the window and up to two blocks.

        Args:
            window: the window, or from where a reader reads on into it.
            size: the file's.
            used: bytes of it that count as used, if its block was asked for before.
            quiet: nobody else waits for the source. Only then is a block asked for that nobody walks into.
        """
        walked = self._walk(file, window)
        block = window.offset // BLOCK_BYTES
        last = (window.end - 1) // BLOCK_BYTES
        runs: list[ByteRange] = []
        if (file, block) in self._used:
            self._used[file, block] += used
        elif quiet and window.size < BLOCK_BYTES and self._pays(window.size):
            whole = self._ask(file, block, size)
            runs = [ByteRange(window.offset, max(whole.end, window.end) - window.offset)]
            if whole.offset < window.offset:
                runs.append(ByteRange(whole.offset, window.offset - whole.offset))
        following = (last + 1) * BLOCK_BYTES
        near = following - window.end < BLOCK_BYTES // 2 and following < size
        if walked and near and (file, last + 1) not in self._used:
            runs += [*([] if runs else [window]), self._ask(file, last + 1, size)]
        return runs

    def _walk(self, file: FileId, window: ByteRange) -> bool:
        """Whether this window is one of a row."""
        end, count = self._streams.pop(file, (0, 0))
        if not count or window.offset - end >= GAP_MAX_BYTES or window.end < end:
            end, count = window.end, 1
        elif window.end > end:
            end, count = window.end, count + 1
        self._streams[file] = end, count
        if len(self._streams) > STREAMS_MAX:
            self._streams.popitem(last=False)
        return count >= STREAM_WINDOWS

    def _pays(self, window_bytes: int) -> bool:
        """Whether a block is worth its bytes."""
        if self.share * (SEEK_BYTES + window_bytes) > window_bytes:
            return True
        self._passed_over += 1
        return self._passed_over % PROBE_EVERY == 0

    def _ask(self, file: FileId, block: int, size: int) -> ByteRange:
        """A block that is to be asked for, as far as the file goes. Its use is counted from now on."""
        self._used[file, block] = 0
        if len(self._used) > BLOCKS_MAX:
            _, used = self._used.popitem(last=False)
            self.share += SHARE_WEIGHT * (min(1.0, used / BLOCK_BYTES) - self.share)
        start = block * BLOCK_BYTES
        return ByteRange(start, min(start + BLOCK_BYTES, size) - start)
