"""A flight: one pass over the source for one window, for the store and for every reader of it meanwhile.

The pass starts at the page that was asked for and wraps. Readers wait for their bytes only and are released piece by
piece. What a reader read itself may be given to the flight, which then leaves those bytes out of its pass.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import trio

from mummufs.core.ranges import ByteRange, RangeKey, Version
from mummufs.source.base import SourceFile

PIECE_MAX_BYTES = 4 << 20
"""The largest source read of a pass: some 25 ms of a spinning disk."""
PIECE_MIN_BYTES = 128 << 10
"""The smallest, but for what is left over. Pieces double from the first, so that the first reader waits least."""


class FlightFailedError(Exception):
    """The pass ended without these bytes: the reader asks the source itself."""


class Flight:
    """The bytes of one window, as they arrive. Offsets are those of the file."""

    def __init__(self, key: RangeKey, version: Version, file: SourceFile, first: ByteRange) -> None:
        """Prepare a pass.

        Args:
            file: what to read; the flight keeps it open.
            first: the bytes of the window that are wanted first.
        """
        self.key = key
        self.version = version
        self.file = file
        self.window = ByteRange(key.offset, key.size)
        self._first = first
        self._buffer = bytearray(key.size)
        self._runs: list[tuple[int, int]] = []
        self._arrival = trio.Event()
        self.error: OSError | None = None
        self.ended = False
        self.given = False

    @property
    def data(self) -> memoryview:
        """The window's bytes; whole once `is_complete`."""
        return memoryview(self._buffer)

    @property
    def is_complete(self) -> bool:
        """Whether every byte has arrived."""
        return self._runs == [(self.window.offset, self.window.end)]

    @property
    def failed(self) -> bool:
        """Whether it ended without all of its bytes, or with bytes of more than one version."""
        return self.ended and (self.error is not None or not self.is_complete)

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
        self.error = error
        self.ended = True
        self._announce()

    async def wait_read(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from the file's `offset` as soon as those bytes are there.

        Raises:
            FlightFailedError: they will not come.
        """
        while not self.has(offset, offset + len(buffer)):
            if self.ended:
                raise FlightFailedError
            await self._arrival.wait()
        buffer[:] = self.piece(ByteRange(offset, len(buffer)))

    async def wait_given(self) -> None:
        """Wait until the reader that has promised its bytes has given them, or has ended the flight."""
        while not self.given and not self.ended:
            await self._arrival.wait()

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


def read_piece(file: SourceFile, version: Version, buffer: memoryview, offset: int) -> None:
    """Fill `buffer` with bytes of this very version of a file. Blocks; runs in a worker thread.

    Raises:
        OSError: ESTALE where the file is of another version by now, EIO where it ends early, or the source's own.
    """
    n = file.read_into(buffer, offset)
    if file.attributes().version.differs_in_contents(version):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    if n < len(buffer):
        raise OSError(errno.EIO, f"the source gave {n} bytes in place of {len(buffer)} at offset {offset}")
