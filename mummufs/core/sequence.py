"""Who reads a model in the order of its manifest, and what comes next then.

Theory of operation. A *stream* is a place in a file that moves forward: each window that is touched at its place, or
close behind it, moves it there. What is skipped may be no larger than GAP_BYTES_MAX, else another stream begins: a
loader has several threads, each with a part of the file. Touches come late and not quite in order (requests run side by
side, hits are told in batches), so one that lies a little before the place of a stream belongs to it and moves nothing.

Reads in random order make streams of a window or two, all the time. So a stream has to prove itself: only when it has
gone through RUN_BYTES_MIN and RUN_WINDOWS_MIN in a row does anything follow, and then no more is fetched ahead of it
than it has gone through, AHEAD_BYTES_MAX at most. What is fetched in vain when a stream ends is so never more than what
was read in order. The experts of a token, which lie here and there, are short of RUN_BYTES_MIN, or have gaps.

A reader who catches up with what is fetched ahead of him waits for nothing but the source. There is nothing to gain,
and he would wait for a pass where he asked for less; so his stream begins anew.

It is asked for one *pass* at a time, of PASS_BYTES or one window.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from mummufs.core.manifest import RangeTable

STREAMS_MAX = 8
"""Streams of one file: so many threads may each load a part."""
GAP_BYTES_MAX = 1 << 20
"""What a stream may skip: what lies closer is read together anyway."""
BACK_BYTES_MAX = 4 << 20
"""How far before its place a touch still belongs to a stream: what is read by several requests at once."""
RUN_WINDOWS_MIN = 4
RUN_BYTES_MIN = 16 << 20
"""What a stream has to have gone through in a row."""
AHEAD_BYTES_MAX = 64 << 20
"""What is fetched ahead of a stream: a third of a second of fast disks."""
PASS_BYTES = 4 << 20
"""What is fetched at a time, unless one window is larger: who comes for its last bytes waits for no more than this."""


@dataclass(eq=False, slots=True)
class Stream:
    """A reader's way through a file, by numbers of windows.

    Attributes:
        first: where it began.
        at: the last window that was touched.
        next: nothing before this window is to be fetched any more.
    """

    first: int
    at: int
    next: int


class Order:
    """The streams of one file."""

    def __init__(self, table: RangeTable) -> None:
        self.table = table
        self._streams: list[Stream] = []

    def touched(self, i: int) -> bool:
        """The i-th window was touched. Whether a stream has moved by it, so that something may follow."""
        for stream in self._streams:
            if i == stream.at:  # most touches are one of many requests for a window
                return False
        for place, stream in enumerate(self._streams):
            if self._belongs(stream, i):
                if place:
                    self._streams.insert(0, self._streams.pop(place))
                if i < stream.at:
                    return False
                stream.at = i
                stream.next = max(stream.next, i + 1)
                return self._ahead_bytes(stream) > 0
        self._streams.insert(0, Stream(i, i, i + 1))
        del self._streams[STREAMS_MAX:]
        return False

    def touched_at(self, offset: int) -> bool:
        """The same for the window that begins at an offset, if there is one."""
        i = bisect_left(self.table.starts, offset)
        return i < len(self.table) and self.table.starts[i] == offset and self.touched(i)

    def late(self, i: int) -> None:
        """The i-th window was touched before its bytes were there: its stream has to prove itself anew."""
        for stream in self._streams:
            if stream.at == i:
                stream.first = i

    def take(self) -> range:
        """The next windows to be fetched, in order; of the stream that moved last of those that want any.

        They count as fetched: they are yielded once.
        """
        for stream in self._streams:
            windows = self._wanted(stream)
            if windows:
                stream.next = windows.stop
                return windows
        return range(0)

    def _belongs(self, stream: Stream, i: int) -> bool:
        starts, ends = self.table.starts, self.table.ends
        if i < stream.at:
            return i >= stream.first and ends[stream.at] - starts[i] <= BACK_BYTES_MAX
        return starts[i] - ends[stream.at] <= GAP_BYTES_MAX

    def _ahead_bytes(self, stream: Stream) -> int:
        """How far behind its place may be fetched."""
        run = self.table.ends[stream.at] - self.table.starts[stream.first]
        if run < RUN_BYTES_MIN or stream.at - stream.first < RUN_WINDOWS_MIN - 1:
            return 0
        return min(run, AHEAD_BYTES_MAX)

    def _wanted(self, stream: Stream) -> range:
        """The next pass of a stream: nothing before there is room for a whole one."""
        starts, ends = self.table.starts, self.table.ends
        first, limit = stream.next, ends[stream.at] + self._ahead_bytes(stream)
        if first >= len(starts) or starts[first] + PASS_BYTES > limit:
            return range(0)
        stop = first + 1
        while stop < len(starts) and ends[stop] - starts[first] <= PASS_BYTES:
            stop += 1
        return range(first, stop)

    def _check(self) -> None:
        assert len(self._streams) <= STREAMS_MAX, "the number of streams is bounded"
        for stream in self._streams:
            assert 0 <= stream.first <= stream.at < stream.next <= len(self.table), "a stream goes forward"
