"""A flight: one pass over the source for the store and for every reader of these bytes meanwhile.

It is for one window, or for several that lie close together: the source is asked for all of them at once then, and for
what lies between. The pass starts at the page that was asked for and wraps. Readers wait for their bytes only and are
released piece by piece. What a reader read itself may be given to the flight, which then leaves those bytes out of its
pass.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, cast

import trio

from mummufs.core.ranges import ByteRange, RangeKey, Version
from mummufs.source.base import SourceFile, Wanted
from mummufs.source.hints import will_need

PIECE_MAX_BYTES = 4 << 20
"""The largest source read of a pass, some 25 ms of a spinning disk, but for the first: that is what is wanted first."""
FOREGROUND_BYTES = 16 << 20
"""What a flight that a reader has started reads in one go, whether or not somebody still waits for it, and has disks
that spin told of at once. A matrix of one expert is 1 to 12 MB as a rule: what is left over costs a seek of its own."""
PIECE_MIN_BYTES = 128 << 10
"""The smallest, but for what is left over. Pieces double from the first, so that the first reader waits least."""
_PRIVATE: dict[str, Any] = {"flags": getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)}
"""Windows has neither, nor the types that go with them."""
HUGE_BYTES = 2 << 20
"""Buffers of this size and more are made of huge pages: taking them and giving them back costs a tenth."""


class FlightFailedError(Exception):
    """The pass ended without these bytes: the reader asks the source itself."""


class MovedOnError(OSError):
    """The file's ctime is another, and nothing else: whoever has its node finds out why, and reads again."""


class Flight:
    """The bytes of its windows, as they arrive. Offsets are those of the file.

    Attributes:
        keys: its windows, all of one file, in the order of their offsets.
        window: from the start of the first to the end of the last.
        doomed: its file is being changed through the mount: nothing of it is stored.
        hints: what disks are told before its first piece is read, if that is more than its window.
        go: set when a reader waits, for a pass that waits for its turn.
    """

    def __init__(
        self,
        keys: Sequence[RangeKey],
        version: Version,
        file: SourceFile,
        first: ByteRange | None = None,
        *,
        lowest: bool = False,
    ) -> None:
        """Prepare a pass.

        Args:
            file: what to read; the flight keeps it open.
            first: the bytes that are wanted first.
            lowest: everything else is read before it, and between its pieces, none of which is large.

        Raises:
            OSError: there is no memory for it.
        """
        self.keys = tuple(keys)
        self.version = version
        self.file = file
        self.lowest = lowest
        start, end = keys[0].offset, max(key.offset + key.size for key in keys)
        self.window = ByteRange(start, end - start)
        self.go = trio.Event()
        self._waiting: list[ByteRange] = []
        self._first = first or ByteRange(start, min(self.window.size, PIECE_MAX_BYTES) if lowest else self.window.size)
        self._buffer = _buffer(self.window.size)
        self._runs: list[tuple[int, int]] = []
        self._arrival = trio.Event()
        self.errno: int | None = None
        self.ended = False
        self.doomed = False
        self.given = False
        self.hints: Sequence[ByteRange] = ()

    @property
    def is_waited_for(self) -> bool:
        """Whether a reader waits for bytes that have not arrived."""
        return any(not self.has(part.offset, part.end) for part in self._waiting)

    def data(self, key: RangeKey) -> memoryview:
        """The bytes of one of its windows; whole once `is_complete`."""
        return self.piece(ByteRange(key.offset, key.size))

    @property
    def is_complete(self) -> bool:
        """Whether every byte has arrived."""
        return self._runs == [(self.window.offset, self.window.end)]

    @property
    def failed(self) -> bool:
        """Whether it ended without all of its bytes, or with bytes of more than one version."""
        return self.doomed or (self.ended and (self.errno is not None or not self.is_complete))

    def has(self, offset: int, end: int) -> bool:
        """Whether these bytes have arrived."""
        i = bisect_right(self._runs, (offset, self.window.end)) - 1
        return i >= 0 and self._runs[i][0] <= offset and end <= self._runs[i][1]

    def give(self, offset: int, data: memoryview) -> None:
        """Bytes that a reader read itself, some of which lie in the window. What is missing the pass reads."""
        self.given = True
        part = self.window.intersection(ByteRange(offset, len(data)))
        if part.size:
            self.piece(part)[:] = data[part.offset - offset : part.end - offset]
            self.arrived(part)

    def piece(self, part: ByteRange) -> memoryview:
        """The place for these bytes."""
        at = part.offset - self.window.offset
        return memoryview(self._buffer)[at : at + part.size]

    def arrived(self, part: ByteRange) -> None:
        """These bytes are in their place: release who waits for them."""
        start, end = part.offset, part.end
        first = bisect_left(self._runs, start, key=lambda run: run[1])
        last = bisect_right(self._runs, end, key=lambda run: run[0])
        if first < last:
            start, end = min(start, self._runs[first][0]), max(end, self._runs[last - 1][1])
        self._runs[first:last] = [(start, end)]
        self._announce()

    def end(self, error: OSError | None) -> None:
        """The pass is over; whoever still waits has to ask the source itself."""
        self.errno = (
            None if error is None else error.errno or errno.EIO
        )  # the error itself has frames that have the flight
        self.ended = True
        self._announce()

    async def wait_read(self, part: ByteRange) -> memoryview:
        """These bytes, as soon as they are there. They do not change any more; who keeps them copies them.

        Raises:
            FlightFailedError: they will not come.
        """
        self._waiting.append(part)
        try:
            while not self.has(part.offset, part.end):
                if self.ended:
                    raise FlightFailedError
                self.go.set()
                await self._arrival.wait()
        finally:
            self._waiting.remove(part)
        return self.piece(part)

    async def wait_given(self) -> None:
        """Wait until the reader that has promised its bytes has given them, or has ended the flight."""
        while not self.given and not self.ended:
            await self._arrival.wait()

    async def wait_ended(self) -> None:
        """Wait until nothing more is read for it."""
        while not self.ended:
            await self._arrival.wait()

    def turn(self) -> trio.Event:
        """A new `go` for the next piece, set if a reader waits already."""
        self.go = trio.Event()
        if self.is_waited_for:
            self.go.set()
        return self.go

    def pieces(self) -> Iterator[ByteRange]:
        """What to read next, until nothing is missing. Looks at what has arrived each time it is asked."""
        size = self._first.size
        at = self._first.offset
        limit, wrapped = self.window.end, False
        while True:
            gap = self._gap(at, limit)
            if gap is None:
                if wrapped:
                    return
                at, limit, wrapped = self.window.offset, self._first.offset, True
                continue
            piece = ByteRange(gap.offset, min(gap.size, size))
            yield piece
            at = piece.end
            size = min(PIECE_MAX_BYTES, 2 * max(size, PIECE_MIN_BYTES))

    def _gap(self, at: int, limit: int) -> ByteRange | None:
        """The first run of missing bytes in `[at, limit)`."""
        for start, end in self._runs:
            if start <= at < end:
                at = end
        if at >= limit:
            return None
        end = min((start for start, _ in self._runs if start > at), default=limit)
        return ByteRange(at, min(end, limit) - at)

    def _announce(self) -> None:
        arrival, self._arrival = self._arrival, trio.Event()
        arrival.set()


def _buffer(size: int) -> mmap.mmap:
    """Memory that nobody has filled with zeros: that takes 10 ms for a large window, and the event loop would stand."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, size)
    memory: Any = mmap.mmap(-1, size, **_PRIVATE)
    if size >= HUGE_BYTES:
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(getattr(mmap, "MADV_HUGEPAGE", 0))
    return cast(mmap.mmap, memory)


def read_piece(
    file: SourceFile, version: Version, buffer: memoryview, offset: int, hints: Sequence[ByteRange] = ()
) -> None:
    """Fill `buffer` with bytes of this very version of a file. Blocks; runs in a worker thread.

    Args:
        hints: what will be read next, or so: the source is told first.

    Raises:
        MovedOnError: the ctime alone is another by now, after a chmod or a rewrite whose mtime was set back.
        OSError: ESTALE where the file is of another version by now, EIO where it ends early, or the source's own.
    """
    will_need(file, hints)
    n = file.read_into(buffer, offset)
    _check_version(file, version)
    _check_whole(n, Wanted(offset, buffer))


def read_pieces(file: SourceFile, version: Version, wanted: Sequence[Wanted]) -> None:
    """As `read_piece` for each of these places, by one call to the source."""
    sizes = file.read_many(wanted)
    _check_version(file, version)
    for n, part in zip(sizes, wanted, strict=True):
        _check_whole(n, part)


def _check_version(file: SourceFile, version: Version) -> None:
    found = file.attributes().version
    if found.differs_in_contents(version):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    if found != version:
        raise MovedOnError(errno.ESTALE, os.strerror(errno.ESTALE))


def _check_whole(n: int, part: Wanted) -> None:
    if n < len(part.place):
        raise OSError(errno.EIO, f"the source gave {n} bytes in place of {len(part.place)} at offset {part.offset}")
