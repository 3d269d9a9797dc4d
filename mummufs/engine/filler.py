"""Fills: what is read from the source becomes range files.

`offer_nowait` is asked for each window that a read makes wanted. It starts a flight, or says no at once: the range is
declined by the index, or the filler is at one of its limits. It never waits. The flight reads, readers are served from
it, and when its bytes are whole they are written to the store by another thread, off every reply's path.

A fill is counted in the index from `begin_fill` on, before a byte of its range file is written. If there is no room
yet, victims are on their way out while the flight reads; if the room has not come ROOM_WAIT_S after the last byte,
the fill is given up. Only what is certainly one version is stored: the file must have the same version before and
after the pass, and must not have changed in the last `settle_ns`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from mummufs.core.index import DECLINED, CacheIndex, Decision
from mummufs.core.ranges import ByteRange, RangeKey, Version
from mummufs.core.stats import Counters
from mummufs.engine.evictor import Evictor
from mummufs.engine.flight import Flight, read_piece
from mummufs.engine.gate import Gate
from mummufs.engine.resident import Resident
from mummufs.engine.threads import Pools
from mummufs.source.base import Attributes, SourceFile
from mummufs.store.layout import charge_of
from mummufs.store.rangestore import RangeStore
from mummufs.store.storedrange import StoredRange

IN_FLIGHT_BYTES_MAX = 256 << 20
"""Window bytes in memory for all flights together, until they are written."""
FLIGHTS_MAX = 1024
"""Flights at once: enough that the bytes are the limit for a model of small tensors, some 250 KiB on average."""
ROOM_WAIT_S = 10.0
"""How long a flight that has its bytes waits for room in the store."""
NO_ROOM_S = 5.0
"""Found to be nearly full, the store's file system is asked again after this long; until then no flight begins."""

log = logging.getLogger(__name__)


class Filler:
    """Starts flights and writes what they bring."""

    def __init__(
        self,
        index: CacheIndex,
        resident: Resident,
        store: RangeStore,
        evictor: Evictor,
        gate: Gate,
        pools: Pools,
        counters: Counters,
        *,
        settle_ns: int,
        reserve_bytes: int,
        wall_ns: Callable[[], int],
    ) -> None:
        """Make a filler that does nothing until `run`.

        Args:
            settle_ns: a file that changed this recently is not stored.
            reserve_bytes: fills stop while the store's file system has less free space than this.
            wall_ns: the time of day, in ns since 1970, as the source's clock has it.
        """
        self._index = index
        self._resident = resident
        self._store = store
        self._evictor = evictor
        self._gate = gate
        self._pools = pools
        self._counters = counters
        self._settle_ns = settle_ns
        self._reserve_bytes = reserve_bytes
        self._wall_ns = wall_ns
        self._flights: dict[RangeKey, Flight] = {}
        self._nursery: trio.Nursery | None = None
        self._landing = trio.Event()
        self._no_room_until = 0.0
        self.noticed: Callable[[SourceFile, Attributes], None] | None = None
        """Told when a file turns out to have another version than a flight was started for."""
        self.open_for_fills = False
        """Off until the store's contents are accounted for, and while the mount ends."""
        self.in_flight_bytes = 0
        self.in_flight_bytes_max = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep flights in the air until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    def flight(self, key: RangeKey, version: Version) -> Flight | None:
        """The flight that is bringing this range, or has brought it and is being written; None if there is none."""
        flight = self._flights.get(key)
        return flight if flight is not None and flight.version == version and not flight.failed else None

    @property
    def flights(self) -> int:
        """Flights in the air or being written."""
        return len(self._flights)

    def offer_nowait(
        self, key: RangeKey, version: Version, file: SourceFile, first: ByteRange, *, reads: bool
    ) -> Flight | None:
        """Start a flight for a wanted range, or None at once.

        Args:
            first: the bytes of the window that are wanted first.
            reads: False if the caller is about to read the window itself: it will `give` its bytes or `end` the flight.
        """
        if not self.open_for_fills or self._nursery is None or key in self._flights:
            return None
        if self._is_unsettled(version):
            self._counters.fills.unsettled += 1
            return None
        if self._gate.writes.is_open or self._gate.reads.is_open or trio.current_time() < self._no_room_until:
            self._counters.fills.dropped += 1
            return None
        if self.is_full(key.size):
            self._counters.fills.dropped += 1
            return None
        plan = self._index.plan_fill(key, charge_of(key.size), version)
        if plan.decision in DECLINED:
            self._counters.fills.declined += 1
            return None
        if plan.decision is Decision.PRESENT:
            return None
        try:
            flight = Flight(key, version, file, first)
        except MemoryError:
            self._counters.fills.dropped += 1
            return None
        self._evictor.evict_nowait(plan.victims)
        self._flights[key] = flight
        self.in_flight_bytes += key.size
        self.in_flight_bytes_max = max(self.in_flight_bytes_max, self.in_flight_bytes)
        reserved = plan.decision is Decision.READY
        if reserved:
            self._index.begin_fill(key, charge_of(key.size), version)
        self._nursery.start_soon(self._fly, flight, reserved, reads)
        return flight

    def is_full(self, size: int) -> bool:
        """Whether a flight of this size would pass the limits now."""
        return len(self._flights) >= FLIGHTS_MAX or self.in_flight_bytes + size > IN_FLIGHT_BYTES_MAX

    async def wait_landing(self) -> None:
        """Wait until a flight has ended, one way or the other."""
        await self._landing.wait()

    async def _fly(self, flight: Flight, reserved: bool, reads: bool) -> None:
        key = flight.key
        stored: StoredRange | None = None
        try:
            await self._bring(flight, reads)
            if flight.error is None:
                reserved = reserved or await self._wait_room(flight)
                if reserved:
                    stored = await self._write(flight)
        except Exception:
            self._counters.errors.handler += 1
            log.exception("a fill failed on a fault of ours: inode %d, offset %d", key.file.inode, key.offset)
        finally:
            if not flight.ended:
                flight.end(None)
            self._land(flight, reserved, stored)

    async def _bring(self, flight: Flight, reads: bool) -> None:
        """Read what nobody gives, until the window is whole or the source fails."""
        try:
            if not reads:
                await flight.wait_given()
                if flight.ended:
                    return
            for piece in flight.pieces():
                buffer = flight.piece(piece)
                self._counters.source_reads.count += 1
                await self._pools.source.run(read_piece, flight.file, flight.version, buffer, piece.offset)
                self._counters.source_reads.bytes += piece.size
                flight.arrived(piece)
            attributes = await self._pools.metadata.run(flight.file.attributes)
            if attributes.version == flight.version:
                flight.end(None)
            else:
                flight.end(OSError("the file changed meanwhile"))
                if self.noticed is not None:
                    self.noticed(flight.file, attributes)
        except OSError as error:
            # The readers that still wait ask the source themselves, and count and report what it says.
            flight.end(error)

    async def _wait_room(self, flight: Flight) -> bool:
        """Take the bytes of the budget that a flight needs, once its victims have gone."""
        charge = charge_of(flight.key.size)
        with trio.move_on_after(ROOM_WAIT_S):
            while True:
                plan = self._index.plan_fill(flight.key, charge, flight.version)
                if plan.decision is Decision.READY:
                    self._index.begin_fill(flight.key, charge, flight.version)
                    return True
                if plan.decision is not Decision.ROOM:
                    break
                self._evictor.evict_nowait(plan.victims)
                await self._evictor.wait_progress()
        return False

    async def _write(self, flight: Flight) -> StoredRange | None:
        """Write the range file; None if the store cannot."""
        key = flight.key
        try:
            free = await self._gate.write(self._store.free_bytes)
            if free - charge_of(key.size) >= self._reserve_bytes:
                return await self._gate.write(self._store.write_range, key, flight.version, flight.data)
            self._no_room_until = trio.current_time() + NO_ROOM_S
            reason = f"the store's file system has {free} bytes left, of which {self._reserve_bytes} are kept free"
        except OSError as error:
            self._counters.errors.store += 1
            if not isinstance(error, IsADirectoryError):  # that name alone is taken, which says nothing of the store
                self._gate.failed(self._gate.writes, error, at_once=True)
            reason = str(error)
        log.warning("inode %d, offset %d, %d bytes: not stored: %s", key.file.inode, key.offset, key.size, reason)
        return None

    def _land(self, flight: Flight, reserved: bool, stored: StoredRange | None) -> None:
        """Take the flight off the table and tell the index how it ended."""
        key = flight.key
        del self._flights[key]
        self.in_flight_bytes -= key.size
        if stored is not None:
            self._index.commit_fill(key)
            self._resident.add(key, flight.version, stored)
            self._counters.fills.completed += 1
            self._counters.fills.bytes += key.size
        else:
            if reserved:
                self._index.abort_fill(key)
            self._counters.fills.aborted += 1
        self._evictor.wake()
        landing, self._landing = self._landing, trio.Event()
        landing.set()

    def _is_unsettled(self, version: Version) -> bool:
        """Whether the file changed so lately that another change might not show in its attributes.

        The ctime tells: it moves with every change, and unlike the mtime nobody can set it.
        """
        return self._wall_ns() - version.ctime_ns < self._settle_ns
