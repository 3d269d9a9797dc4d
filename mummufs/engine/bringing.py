"""Bringing: how the bytes of a flight are read from the source.

What a reader waits for is read first and in one call of a worker thread, which announces each piece as it has it:
going to a thread and back costs more than a piece that the source has in its cache. What nobody waits for is read
piece by piece, each when its turn has come (`schedule`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import trio

from mummufs.core.ranges import ByteRange, Version
from mummufs.core.stats import Counters
from mummufs.engine.flight import PIECE_MAX_BYTES, Flight, read_piece
from mummufs.engine.schedule import Schedule
from mummufs.engine.threads import Pools
from mummufs.source.base import Attributes, SourceFile
from mummufs.source.local import refuse_written

FOREGROUND_BYTES = 4 << 20
"""What a flight that a reader has started reads in one go, whether or not somebody still waits for it."""


PASS_PIECE_BYTES = 256 << 10
"""A read of a window that no flight brings counts as a piece of a pass over it if it is at least this large."""
PASS_WINDOW_BYTES = 8 << 20
"""Up to this size the whole window is asked for then: some two seeks' time of four disks."""


class _Piece(NamedTuple):
    """What is read next, and what the disks are told before, so that they read on while it is looked at."""

    part: ByteRange
    hints: Sequence[ByteRange]


class Bringer:
    """Reads flights."""

    def __init__(self, pools: Pools, schedule: Schedule, counters: Counters, *, hints: bool) -> None:
        """Make one.

        Args:
            hints: whether the source is told what will be read.
        """
        self._pools = pools
        self._schedule = schedule
        self._counters = counters
        self._has_hints = hints

    async def bring(self, flight: Flight, *, urgent: bool) -> Attributes:
        """Read what is missing; what the file is afterwards.

        Args:
            urgent: a reader waits, or would soon.

        Raises:
            OSError: the source's own, ESTALE where the file is of another version, EBUSY where it is being written.
        """
        pieces = self._pieces(flight)
        attributes = await self._read_foreground(flight, pieces) if urgent else None
        first = not urgent
        for piece in pieces:
            await self._read_in_turn(flight, piece, first=first)
            first = False
        if attributes is None:
            attributes = await self._pools.metadata.run(_attributes, flight.file)
        return attributes

    def pass_hints(self, window: ByteRange, part: ByteRange) -> Sequence[ByteRange]:
        """What the disks are told before a reader reads a part of a window itself, because its fill was declined.

        The kernel cuts a reader's pass over a window into requests, which reach the source side by side and in any
        order. Each would cost disks a seek; told of the whole they read it in one pass.
        """
        if not self._has_hints or part.size < PASS_PIECE_BYTES or part.contains(window):
            return ()
        if window.size <= PASS_WINDOW_BYTES:
            return (window,)
        return (window.intersection(ByteRange(part.offset, part.size + PIECE_MAX_BYTES)),)

    def _pieces(self, flight: Flight) -> Iterator[_Piece]:
        window, first = flight.window, True
        for part in flight.pieces():
            hints = []
            if self._has_hints and first and window.size <= FOREGROUND_BYTES:
                hints.append(window)  # in its order: to read the end first would cost the disks more than its start
            elif self._has_hints:
                hints.append(window.intersection(ByteRange(part.offset, part.size + PIECE_MAX_BYTES)))
            first = False
            yield _Piece(part, hints)

    async def _read_foreground(self, flight: Flight, pieces: Iterator[_Piece]) -> Attributes | None:
        """Read up to FOREGROUND_BYTES in one call; what the file is afterwards if nothing is left to read."""
        run: list[_Piece] = []
        size, whole = 0, False
        while size < FOREGROUND_BYTES and not whole:
            piece = next(pieces, None)
            whole = piece is None
            if piece is not None:
                run.append(piece)
                size += piece.part.size
        if not run:
            return None
        self._counters.source_reads.count += len(run)
        soon = trio.lowlevel.current_trio_token().run_sync_soon

        def arrived(part: ByteRange) -> None:
            with contextlib.suppress(trio.RunFinishedError):
                soon(self._arrived, flight, part)

        return await self._schedule.read(_read_run, flight, run, arrived, whole)

    async def _read_in_turn(self, flight: Flight, piece: _Piece, *, first: bool) -> None:
        """Read one piece: at once where somebody waits for it; else when its turn has come."""
        part = piece.part
        read = _read_first_piece if first else read_piece
        call = partial(read, flight.file, flight.version, flight.piece(part), part.offset, piece.hints)
        counters = self._counters.source_reads
        counters.count += 1
        if flight.is_waited_for:
            await self._schedule.read(call)
        else:
            counters.background += 1
            place, go = flight.keys[0].file, flight.turn()
            await self._schedule.read_in_turn(place, part.offset, go, call, lowest=flight.lowest)
        self._arrived(flight, part)

    def _arrived(self, flight: Flight, part: ByteRange) -> None:
        self._counters.source_reads.bytes += part.size
        flight.arrived(part)


def _read_run(
    flight: Flight, run: Sequence[_Piece], arrived: Callable[[ByteRange], None], whole: bool
) -> Attributes | None:
    """Read pieces and announce each; the file's attributes afterwards, if these are all."""
    refuse_written(flight.file)
    for part, hints in run:
        if flight.ended:  # it was given up
            return None
        read_piece(flight.file, flight.version, flight.piece(part), part.offset, hints)
        arrived(part)
    return _attributes(flight.file) if whole else None


def _read_first_piece(
    file: SourceFile, version: Version, buffer: memoryview, offset: int, hints: Sequence[ByteRange]
) -> None:
    """As `read_piece`, unless somebody has the file open for writing (EBUSY)."""
    refuse_written(file)
    read_piece(file, version, buffer, offset, hints)


def _attributes(file: SourceFile) -> Attributes:
    """Once more at the end, for bytes that a reader has given."""
    refuse_written(file)
    return file.attributes()
