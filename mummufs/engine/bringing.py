"""Bringing: how the bytes of a flight are read from the source.

What a reader waits for is read first and in one call of a worker thread, which announces each piece as it has it:
going to a thread and back costs more than a piece that the source has in its cache. What nobody waits for is read
piece by piece, each when its turn has come (`schedule`).

A source that has several reads under way together is not asked piece by piece: it would stand still between two of
them. What readers wait for is one batch there, however many flights it is of, and the rest goes in batches of up to
BATCH_BYTES, by turns as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import trio

from mummufs.core.ranges import ByteRange, Version
from mummufs.core.stats import Counters
from mummufs.engine.flight import FOREGROUND_BYTES, Flight, read_piece, read_pieces
from mummufs.engine.hinting import asked_by_flight
from mummufs.engine.schedule import Schedule
from mummufs.engine.threads import Pools
from mummufs.source.base import Attributes, SourceFile, Wanted
from mummufs.source.local import refuse_written

BATCH_BYTES = 32 << 20
"""What has one turn at a source that reads several at once, and as much as one of its requests may be: 10 ms of an
NVMe, 0.2 s of a spinning disk, which a reader may have to wait for."""


class _Piece(NamedTuple):
    """What is read next, and what the disks are told before, so that they read on while it is looked at."""

    part: ByteRange
    hints: Sequence[ByteRange]


_Run = tuple[Flight, ByteRange]
"""Bytes of a flight that are read without a break."""


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

    async def bring(self, flights: Sequence[Flight], *, urgent: bool) -> Attributes:
        """Read what is missing; what the file is afterwards.

        Args:
            flights: of one version of one file; several only where the source reads several at once.
            urgent: a reader waits, or would soon.

        Raises:
            OSError: the source's own, ESTALE where the file is of another version, EBUSY where it is being written.
        """
        if flights[0].file.reads_at_once:
            return await self._bring_together(flights, urgent=urgent)
        (flight,) = flights
        pieces = self._pieces(flight)
        attributes = await self._read_foreground(flight, pieces) if urgent else None
        first = not urgent
        for piece in pieces:
            await self._read_in_turn(flight, piece, first=first)
            first = False
        if attributes is None:
            attributes = await self._pools.metadata.run(_attributes, flight.file)
        return attributes

    def _pieces(self, flight: Flight) -> Iterator[_Piece]:
        told = flight.hints
        for part in flight.pieces():
            hints: Sequence[ByteRange] = ()
            if self._has_hints:
                hints = told or [asked_by_flight(flight.window, part).now]
                told = ()
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

    async def _bring_together(self, flights: Sequence[Flight], *, urgent: bool) -> Attributes:
        """Read what is missing in batches, each of them under way at once: what readers wait for, then the rest."""
        left = [flight.pieces() for flight in flights]
        done, wanted = 0, urgent
        while batch := _next_batch(flights, left, one_each=wanted):
            await self._read_batch(batch, foreground=urgent and done < FOREGROUND_BYTES, first=not done)
            done += sum(part.size for _, part in batch)
            wanted = False
        return await self._pools.metadata.run(_attributes, flights[0].file)

    async def _read_batch(self, batch: Sequence[_Run], *, foreground: bool, first: bool) -> None:
        """Read these at once: now where somebody waits for one of them; else when their turn has come."""
        flight, part = batch[0]
        wanted = [Wanted(part.offset, flight.piece(part)) for flight, part in batch]
        call = partial(_read_first_batch if first else read_pieces, flight.file, flight.version, wanted)
        counters = self._counters.source_reads
        counters.count += len(batch)
        if foreground or any(flight.is_waited_for for flight, _ in batch):
            await self._schedule.read(call)
        else:
            counters.background += len(batch)
            go = flight.turn()
            for other, _ in batch:
                other.go = go  # whoever comes for any of them
            await self._schedule.read_in_turn(flight.keys[0].file, part.offset, go, call, lowest=flight.lowest)
        for flight, part in batch:
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


def _next_batch(flights: Sequence[Flight], left: Sequence[Iterator[ByteRange]], *, one_each: bool) -> list[_Run]:
    """What is read next of these flights, of each whose pieces lie one behind the other in one run.

    Args:
        one_each: the next piece of each, and no more.
    """
    batch: list[_Run] = []
    size = 0
    for flight, pieces in zip(flights, left, strict=True):
        while one_each or size < BATCH_BYTES:
            part = next(pieces, None)
            if part is None:
                break
            size += part.size
            if batch and batch[-1][0] is flight and batch[-1][1].end == part.offset:
                batch[-1] = flight, ByteRange(batch[-1][1].offset, batch[-1][1].size + part.size)
            else:
                batch.append((flight, part))
            if one_each:
                break
    return batch


def _read_first_batch(file: SourceFile, version: Version, wanted: Sequence[Wanted]) -> None:
    """As `read_pieces`, unless somebody has the file open for writing (EBUSY)."""
    refuse_written(file)
    read_pieces(file, version, wanted)


def _attributes(file: SourceFile) -> Attributes:
    """Once more at the end, for bytes that a reader has given."""
    refuse_written(file)
    return file.attributes()
