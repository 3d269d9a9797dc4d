"""What may be read of a file without asking the engine: its windows, and the open range files of those in the store.

A backend's own threads look here first. A `FileView` belongs to one version of one file; a node has one while that
version is current, its windows are known and it is not stale, and loses it the moment one of these ends. The view's
dict of stored ranges is changed entry by entry by the engine and read without a lock: a reader finds a range or does
not, and what it has found it may finish reading, because a range file is closed with its last reference.

Nothing is proved here. A range file that has not been proved yet, or has changed since, is not read: the engine is
asked, which proves it, and the next read of it may go by the view.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping

from mummufs.core.index import CacheIndex
from mummufs.core.manifest import RangeTable
from mummufs.core.ranges import RangeKey, Version
from mummufs.core.states import State
from mummufs.core.stats import Counters
from mummufs.engine.tracing import Tracing
from mummufs.store.storedrange import StoredRange

Piece = tuple[StoredRange, int, int, int]
"""A run of bytes: the range file that has them, the window's number in the table, where in the window they begin, and
how many they are. A plain tuple, because every hit makes one."""


class OpenRanges(dict[tuple[int, int], StoredRange]):
    """The open range files of one version of a file, by offset and size of their windows."""

    __slots__ = ("__weakref__",)


class FileView:
    """The windows of one version of a file, and which of them have a range file open."""

    __slots__ = ("ends", "size", "starts", "stored")

    def __init__(self, version: Version, table: RangeTable, stored: OpenRanges) -> None:
        self.size = version.size
        self.starts, self.ends = table.starts, table.ends
        self.stored = stored

    def pieces(self, offset: int, end: int) -> list[Piece] | None:
        """Where the bytes `[offset, end)` are, in order; None unless every one of them is in an open range file.

        O(log windows + pieces). Windows may share a page: whichever is open serves it.
        """
        starts, ends, stored = self.starts, self.ends, self.stored
        found: list[Piece] = []
        i = bisect_right(ends, offset)
        at = offset
        while at < end:
            if i == len(starts) or starts[i] > at:
                return None
            range_file = stored.get((starts[i], ends[i] - starts[i]))
            if range_file is None:
                i += 1  # the neighbour may hold this page too
                if i == len(starts) or starts[i] > at:
                    return None
                range_file = stored.get((starts[i], ends[i] - starts[i]))
                if range_file is None:
                    return None
            stop = min(end, ends[i])
            found.append((range_file, i, at - starts[i], stop - at))
            at = stop
            i += 1
        return found


class HitReports:
    """Takes in what was served by views: the counters, and the touches that the policy lives on.

    Called from the trio thread with the sums of a batch.
    """

    def __init__(
        self, index: CacheIndex, counters: Counters, tracing: Tracing, also: Callable[[RangeKey], None] | None = None
    ) -> None:
        """Make one.

        Args:
            also: told of each range that was read, in the order of a batch's first reads of them.
        """
        self._index = index
        self._also = also
        self._counters = counters
        self._tracing = tracing

    def take(self, requests: int, touched: Mapping[StoredRange, int]) -> None:
        """A batch of requests was served whole.

        Args:
            touched: range file -> bytes of it that were read.
        """
        reads = self._counters.reads
        size = sum(touched.values())
        reads.hits += requests
        reads.hit_bytes += size
        reads.replied_bytes += size
        self._touch(touched)

    def take_pushed(self, pushed: Mapping[StoredRange, int]) -> None:
        """Bytes were put where readers find them without a request: they are touched, but nobody was replied to.

        Args:
            pushed: range file -> bytes of it.
        """
        self._touch(pushed)

    def _touch(self, touched: Mapping[StoredRange, int]) -> None:
        for stored, read in touched.items():
            if self._index.state(stored.key) is not State.ABSENT:  # else it was evicted meanwhile
                self._index.touch(stored.key, read, hit=True)
            if self._tracing.on:
                self._tracing.touched(stored.key, read, hit=True)
            if self._also is not None:
                self._also(stored.key)
