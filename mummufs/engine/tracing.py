"""Records which ranges are read, while somebody asks for it: what `mummufs trace` fetches block by block.

The hooks are where touches are counted, so a trace is what the policy hears. They cost one look at `on` while nobody
traces. The kernel reads a window by many requests: those of one pass are joined into one read, as long as they come
in quick succession. What is not joined is several reads with a part of the window each, which weigh as much together.

Everything is bounded: blocks that nobody has fetched (then reads are dropped and counted), passes that are open, files
and windows. Who stops fetching without a word is taken to have died after LEASE_NS, and the recording ends.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from mummufs.core.errors import MummufsError
from mummufs.core.packs import pack_of
from mummufs.core.ranges import FileId, RangeKey
from mummufs.core.trace import FILES_MAX, WINDOWS_MAX, BlockBuilder, TraceFile, TraceWindow

JOIN_MS = 500
"""Requests of one pass are joined if they come within so long after its first; those of a miss, which waits for the
source, after the one before ..."""
PASS_MS = 10_000
"""... and for no longer than this altogether."""
PASSES_MAX = 64
"""Windows that are being read at once, as far as their requests are joined."""
BLOCKS_MAX = 32
"""Full blocks that wait to be fetched: 4.5 MB, and 20 s of an engine that reads 13,000 ranges a second."""
LEASE_NS = 60 * 10**9
"""A recording of which nothing was fetched for so long is over."""


@dataclass
class _Pass:
    """Requests that are joined: the place of their read in the block, and until when and how much it may still take."""

    place: int
    begun_ms: int
    until_ms: int
    left: int
    hit: bool


@dataclass
class TraceCounters:
    """What the recording that is under way, or the last one, came to. `blocks` wait to be fetched."""

    reads: int = 0
    read_bytes: int = 0
    hit_bytes: int = 0
    dropped: int = 0
    blocks: int = 0
    blocks_max: int = 0


class Tracing:
    """The recorder of one mount. Not for threads: it is called where the index is."""

    def __init__(
        self,
        find: Callable[[FileId], tuple[bytes, int] | None] = lambda _: None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Make one that is off.

        Args:
            find: the path of a file in the source and its size, None if nobody knows.
            clock_ns: ns since whenever.
        """
        self.on = False
        """Whether `touched` is to be called."""
        self.find = find
        self._clock_ns = clock_ns
        self._ticket = 0
        self._block = BlockBuilder()
        self._dropped = 0
        self._blocks: deque[bytes] = deque()
        self._files: dict[FileId, int] = {}
        self._windows: dict[RangeKey, int] = {}
        self._passes: OrderedDict[RangeKey, _Pass] = OrderedDict()
        self._begin()

    def start(self) -> int:
        """Begin a recording and return its number, by which it is fetched.

        Raises:
            MummufsError: one is under way.
        """
        if self.on and self._clock_ns() <= self._lease_end_ns:
            raise MummufsError(
                "this mount is being traced already: end that trace first, or wait a minute if it was killed"
            )
        self._begin()
        self._ticket += 1
        self.on = True
        return self._ticket

    def take(self, ticket: int) -> bytes:
        """The oldest block that has not been fetched, or what there is of the next one; empty if nothing was read.

        Raises:
            MummufsError: the recording of this number is over.
        """
        self._require(ticket)
        self._lease_end_ns = self._clock_ns() + LEASE_NS
        if not self._blocks and len(self._block):
            self._seal()
        block = self._blocks.popleft() if self._blocks else b""
        self.counters.blocks = len(self._blocks) + (len(self._block) > 0)
        return block

    def stop(self, ticket: int) -> None:
        """End a recording. What has not been fetched is lost.

        Raises:
            MummufsError: it is over already.
        """
        self._require(ticket)
        self._end()

    def touched(self, key: RangeKey, size: int, *, hit: bool) -> None:
        """`size` bytes of a window were read, from its range file or not. Only while `on`."""
        now_ns = self._clock_ns()
        if now_ns > self._lease_end_ns:
            self._end()
            return
        if size <= 0:
            return
        ms = (now_ns - self._begun_ns) // 10**6
        if not self._join(key, ms, size, hit=hit):
            number = self._place_for(key)
            if number is None:
                self.counters.dropped += 1
                self._dropped += 1
                return
            place = self._block.add_read(ms, number, key.size - size, hit=hit)
            self.counters.reads += 1
            if size < key.size:
                self._passes[key] = _Pass(place, ms, ms + JOIN_MS, key.size - size, hit)
                if len(self._passes) > PASSES_MAX:
                    self._passes.popitem(last=False)
        self.counters.read_bytes += size
        self.counters.hit_bytes += size * hit

    def _join(self, key: RangeKey, ms: int, size: int, *, hit: bool) -> bool:
        """Whether these bytes go on with a pass."""
        going = self._passes.get(key)
        if going is None:
            return False
        if going.hit is not hit or size > going.left or ms > going.until_ms:
            del self._passes[key]
            return False
        self._block.add_bytes(going.place, size)
        going.left -= size
        if not hit:
            going.until_ms = min(ms + JOIN_MS, going.begun_ms + PASS_MS)
        if going.left == 0:
            del self._passes[key]
        return True

    def _place_for(self, key: RangeKey) -> int | None:
        """The number of a window, introduced if need be; None if there is no place for another read of it."""
        if self._block.is_full:
            if len(self._blocks) >= BLOCKS_MAX:
                return None
            self._seal()
        number = self._windows.get(key)
        if number is not None:
            return number
        file = self._files.get(key.file)
        if len(self._windows) >= WINDOWS_MAX or (file is None and len(self._files) >= FILES_MAX):
            return None
        if file is None:
            file = self._files[key.file] = len(self._files)
            self._block.add_file(self._described(key.file))
        number = self._windows[key] = len(self._windows)
        self._block.add_window(TraceWindow(file, key.offset, key.size))
        return number

    def _described(self, file: FileId) -> TraceFile:
        path, size = self.find(file) or (b"", 0)
        return TraceFile(file, size, path, pack_of(path))

    def _seal(self) -> None:
        self._blocks.append(self._block.to_bytes(self._dropped))
        self._block, self._dropped = BlockBuilder(), 0
        self._passes.clear()
        self.counters.blocks = len(self._blocks)
        self.counters.blocks_max = max(self.counters.blocks_max, len(self._blocks))

    def _require(self, ticket: int) -> None:
        if not self.on or ticket != self._ticket:
            raise MummufsError("this trace has been ended by the mount")

    def _begin(self) -> None:
        self.counters = TraceCounters()
        self._begun_ns = self._clock_ns()
        self._lease_end_ns = self._begun_ns + LEASE_NS
        self._clear()

    def _end(self) -> None:
        self.on = False
        self.counters.blocks = 0
        self._clear()

    def _clear(self) -> None:
        self._block, self._dropped = BlockBuilder(), 0
        self._blocks.clear()
        self._files, self._windows = {}, {}
        self._passes.clear()
