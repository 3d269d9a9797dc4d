"""Fills: what is read from the source becomes range files.

`offer_nowait` is asked for each window that a read makes wanted. It starts a flight, or says no at once: the range is
declined by the index, or the filler is at one of its limits. It never waits. The flight reads, readers are served from
it, and when its bytes are whole they are written to the store by another thread, off every reply's path (`landing`).

Spinning disks decide how a flight reads. What a window of a few MiB costs is its seek, so it is read in one go, before
anybody else gets the head; of a larger one that goes for the part that a reader waits for, and the rest lets others
pass (`bringing`, `schedule`). Windows that are wanted at once and lie close together are one flight, and where the
source reads several at once the flights that begin together are read together (`merging`). And the disks are told what
is likely to be read next (`hinting`).

A fill is counted in the index from `begin_fill` on, before a byte of its range file is written. If there is no room
yet, victims are on their way out while the flight reads; if the room has not come some seconds after the last byte,
the fill is given up. Only what is certainly one version is stored: the file must have the same version before and
after the pass, must not have changed in the last `settle_ns`, and nobody may have it open for writing: a write that
takes long changes its version once, when it begins.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from mummufs.core.index import CacheIndex
from mummufs.core.ranges import ByteRange, FileId, RangeKey, Version
from mummufs.core.states import DECLINED, Decision
from mummufs.core.stats import Counters
from mummufs.engine.bringing import Bringer
from mummufs.engine.evictor import Evictor
from mummufs.engine.flight import Flight
from mummufs.engine.gate import Gate
from mummufs.engine.hinting import Hinter
from mummufs.engine.landing import Landing
from mummufs.engine.merging import batches, merged
from mummufs.engine.resident import Resident
from mummufs.engine.schedule import Schedule
from mummufs.engine.threads import Pools
from mummufs.engine.wear import Wear
from mummufs.source.base import Attributes, SourceFile
from mummufs.store.layout import charge_of
from mummufs.store.rangestore import RangeStore

IN_FLIGHT_BYTES_MAX = 256 << 20
"""Window bytes in memory for all flights together, until they are written."""
FLIGHTS_MAX = 1024
"""Flights at once: enough that the bytes are the limit for a model of small tensors, some 250 KiB on average."""
log = logging.getLogger(__name__)


class Filler:
    """Starts flights and sees them land."""

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
        spins: bool = False,
    ) -> None:
        """Make a filler that does nothing until `run`.

        Args:
            settle_ns: a file that changed this recently is not stored.
            reserve_bytes: fills stop while the store's file system has less free space than this.
            wall_ns: the time of day, in ns since 1970, as the source's clock has it.
            spins: the source's disks do, and are told beforehand what will be read.
        """
        self._index = index
        self._evictor = evictor
        self._pools = pools
        self._counters = counters
        self._settle_ns = settle_ns
        self._wall_ns = wall_ns
        self._writer = Landing(index, resident, store, evictor, gate, counters, reserve_bytes=reserve_bytes)
        self._flights: dict[RangeKey, Flight] = {}
        self._passes = 0
        self._nursery: trio.Nursery | None = None
        self._landing = trio.Event()
        self.schedule = Schedule(pools)
        """Who reads the source next."""
        self._bringer = Bringer(pools, self.schedule, counters, hints=spins)
        self.hinter = Hinter(index, pools, counters, self.has) if spins else None
        self.noticed: Callable[[SourceFile, Attributes], None] | None = None
        """Told when a file turns out to have another version than a flight was started for."""
        self.wear: Wear | None = None
        """Has a say in what may be written."""
        self.open_for_fills = False
        """Off until the store's contents are accounted for, and while the mount ends."""
        self.held: set[FileId] = set()
        """Files that are being changed through the mount, or were a moment ago."""
        self.in_flight_bytes = 0
        self.in_flight_bytes_max = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep flights in the air until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self.hinter is not None:
                await nursery.start(self.hinter.run)
            task_status.started()
            await trio.sleep_forever()

    def flight(self, key: RangeKey, version: Version) -> Flight | None:
        """The flight that is bringing this range, or has brought it and is being written; None if there is none."""
        flight = self._flights.get(key)
        return flight if flight is not None and flight.version == version and not flight.failed else None

    def has(self, key: RangeKey) -> bool:
        """Whether there is a flight for this range, of whatever version."""
        return key in self._flights

    def hold(self, file: FileId) -> None:
        """This file is about to be changed: no flight of it begins until it is not `held` any more, what those under
        way bring is not stored, and nobody joins them."""
        self.held.add(file)
        for flight in self._flights.values():
            if flight.keys[0].file == file:
                flight.doomed = True

    @property
    def flights(self) -> int:
        """Ranges in the air or being written."""
        return len(self._flights)

    def offer_nowait(
        self,
        key: RangeKey,
        version: Version,
        file: SourceFile,
        first: ByteRange,
        *,
        reads: bool,
    ) -> Flight | None:
        """Start a flight for a range that a reader wants, or None at once.

        Args:
            first: the bytes of the window that are wanted first.
            reads: False if the caller is about to read the window itself: it will `give` its bytes or `end` the flight.
        """
        accepted = self._accept((key,), version)
        flight = self._prepare(accepted, version, file, first)
        if flight is not None:
            self._take_off({flight: accepted}, reads=reads, urgent=True)
        return flight

    def offer_all_nowait(
        self, keys: Sequence[RangeKey], version: Version, file: SourceFile, *, lowest: bool = False
    ) -> None:
        """Start flights for ranges of one file that are wanted and that nobody waits for, in the order of offsets.

        Those that lie close together are read together; if they are `lowest`, after everything else.
        """
        flights: dict[Flight, dict[RangeKey, bool]] = {}
        for near in merged(keys):
            accepted = self._accept(near, version)
            for run in merged(list(accepted)):  # again: one that was refused in the middle leaves a gap
                reserved = {key: accepted[key] for key in run}
                flight = self._prepare(reserved, version, file, None, lowest=lowest)
                if flight is not None:
                    flights[flight] = reserved
        for together in batches(flights) if file.reads_at_once else [[flight] for flight in flights]:
            self._take_off({flight: flights[flight] for flight in together}, reads=True, urgent=False)

    def offer_together_nowait(
        self, keys: Sequence[RangeKey], version: Version, file: SourceFile, request: ByteRange
    ) -> None:
        """Start flights for ranges of one file that one reader wants, in the order of offsets, of a source that reads
        several at once: all of them are read together.

        Args:
            request: what the reader wants, which is read first.
        """
        accepted = self._accept(keys, version)
        flights: dict[Flight, dict[RangeKey, bool]] = {}
        for run in merged(list(accepted)):
            window = ByteRange(run[0].offset, run[-1].offset + run[-1].size - run[0].offset)
            reserved = {key: accepted[key] for key in run}
            flight = self._prepare(reserved, version, file, window.intersection(request))
            if flight is not None:
                flights[flight] = reserved
        if flights:
            self._take_off(flights, reads=True, urgent=True)

    @property
    def is_taking(self) -> bool:
        """Whether the store is in a state to take anything in."""
        return self._writer.is_open

    def is_full(self, size: int) -> bool:
        """Whether a flight of this size would pass the limits now."""
        return self._passes >= FLIGHTS_MAX or self.in_flight_bytes + size > IN_FLIGHT_BYTES_MAX

    async def wait_landing(self) -> None:
        """Wait until a flight has ended, one way or the other."""
        await self._landing.wait()

    # ------------------------------------------------------------------ taking off

    def _accept(self, keys: Sequence[RangeKey], version: Version) -> dict[RangeKey, bool]:
        """Those of the ranges that may be filled now, and whether the index has promised their bytes."""
        accepted: dict[RangeKey, bool] = {}
        if not self.open_for_fills or self._nursery is None:
            return accepted
        fills, size = self._counters.fills, 0
        for key in keys:
            if key in self._flights:
                continue
            if key.file in self.held or self.settles_in_s(version) > 0:
                fills.unsettled += 1
                continue
            if not self._writer.is_open or self.is_full(size + key.size):
                fills.dropped += 1
                continue
            plan = self._index.plan_fill(key, charge_of(key.size), version)
            if plan.decision in DECLINED:
                fills.declined += 1
            elif self.wear is not None and self.wear.declines(key, plan.decision, self.in_flight_bytes + size):
                fills.budget_declined += 1
            elif plan.decision is not Decision.PRESENT:
                self._evictor.evict_nowait(plan.victims)
                accepted[key] = plan.decision is Decision.READY
                if accepted[key]:
                    self._index.begin_fill(key, charge_of(key.size), version)
                size += key.size
        return accepted

    def _prepare(
        self,
        accepted: dict[RangeKey, bool],
        version: Version,
        file: SourceFile,
        first: ByteRange | None,
        *,
        lowest: bool = False,
    ) -> Flight | None:
        """A flight for these ranges, which is to take off; None where there are none, or no memory."""
        if not accepted or self._nursery is None:
            return None
        try:
            flight = Flight(list(accepted), version, file, first, lowest=lowest)
        except (MemoryError, OSError):
            self._counters.fills.dropped += len(accepted)
            for key, reserved in accepted.items():
                if reserved:
                    self._index.abort_fill(key)
            return None
        self._flights.update(dict.fromkeys(accepted, flight))
        self._passes += 1
        self.in_flight_bytes += flight.window.size
        self.in_flight_bytes_max = max(self.in_flight_bytes_max, self.in_flight_bytes)
        self._counters.source_reads.merged += len(accepted) - 1
        return flight

    def _take_off(self, flights: dict[Flight, dict[RangeKey, bool]], *, reads: bool, urgent: bool) -> None:
        """Start these flights, of one file, which are read together."""
        assert self._nursery is not None, "none is prepared without"
        bring: Callable[[], Awaitable[None]] = partial(self._bring, list(flights), reads=reads, urgent=urgent)
        for flight, accepted in flights.items():
            self._nursery.start_soon(self._fly, flight, accepted, bring)
            bring = flight.wait_ended

    # ------------------------------------------------------------------ flying

    async def _fly(self, flight: Flight, accepted: dict[RangeKey, bool], bring: Callable[[], Awaitable[None]]) -> None:
        """See a flight land whose bytes `bring` brings, or waits for."""
        left = dict(accepted)
        key = flight.keys[0]
        try:
            await bring()
            while left and not flight.failed:
                key, reserved = next(iter(left.items()))
                del left[key]
                await self._writer.land(key, flight.version, flight.data(key), reserved=reserved)
        except Exception:
            self._counters.errors.handler += 1
            log.exception("a fill failed on a fault of ours: inode %d, offset %d", key.file.inode, key.offset)
        finally:
            if not flight.ended:
                flight.end(None)
            for key, reserved in left.items():
                self._writer.give_up(key, reserved=reserved)
            for key in flight.keys:
                del self._flights[key]
            self._passes -= 1
            self.in_flight_bytes -= flight.window.size
            landing, self._landing = self._landing, trio.Event()
            landing.set()

    async def _bring(self, flights: Sequence[Flight], *, reads: bool, urgent: bool) -> None:
        """Read what nobody gives, until the windows are whole or the source fails; then the flights have ended."""
        file, version = flights[0].file, flights[0].version
        error: OSError | None = OSError(errno.EIO, "it was given up")
        try:
            if not reads:
                await flights[0].wait_given()
                if flights[0].ended:
                    return
            attributes = await self._bringer.bring(flights, urgent=urgent)
            if flights[0].doomed:  # then all of them are
                error = OSError(errno.EBUSY, "the file is written through the mount")
            elif attributes.version == version:
                error = None
            else:
                error = OSError("the file changed meanwhile")
                if self.noticed is not None:
                    self.noticed(file, attributes)
        except OSError as failure:
            # The readers that still wait ask the source themselves, and count and report what it says.
            error = failure.with_traceback(None)
            self._counters.fills.unsettled += sum(len(f.keys) for f in flights) * (failure.errno == errno.EBUSY)
        finally:
            for flight in flights:
                if not flight.ended:
                    flight.end(error)

    def settles_in_s(self, version: Version) -> float:
        """How long another change of the file might still not show in its attributes; not positive once it would.

        The ctime tells: it moves with every change, and unlike the mtime nobody can set it.
        """
        return (version.ctime_ns + self._settle_ns - self._wall_ns()) / 1e9
