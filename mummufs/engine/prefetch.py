"""Prefetch: what follows is fetched while a model is read in the order of its manifest (`core/sequence`).

It is a guess, so it costs nobody anything:

- its reads have the lowest turn of all (`schedule`): none begins while somebody waits for the source, except one of
  PASS_BYTES for each LOWEST_WAIT_S. One pass is under way at a time; who comes for its bytes meanwhile joins it, and
  nothing more is fetched ahead of him for a while: he is as fast as the source;
- its fills leave half of the filler's memory to others;
- it takes free room, but for the index's headroom, and evicts nothing. A window that nobody has read has no heat, so
  it would be the next victim of whatever comes after it: in a store that is full, what is fetched ahead would push
  itself out before it is read. What is colder than the next window gives way to it when its reader comes.

So it helps who loads a model into a store that has room; in one that is full it does nothing.

A window is *used* if it is touched while it is in the store or on its way; it is *wasted* if it is evicted before, or
was never touched when the mount ends. The bytes are those of whole windows.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import asdict, dataclass
from weakref import ReferenceType, ref

import trio

from mummufs.core.index import CacheIndex
from mummufs.core.plan import ReadPlan, Segment, SegmentKind, window_key
from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.core.sequence import Order
from mummufs.core.states import State
from mummufs.core.stats import Counters
from mummufs.engine.filler import IN_FLIGHT_BYTES_MAX, Filler
from mummufs.engine.flight import Flight
from mummufs.source.base import SourceFile
from mummufs.store.layout import charge_of

FILES_MAX = 32
"""Files that are followed at once; of more, the one read longest ago is forgotten."""
UNREAD_MAX = 1024
"""Fetched windows that wait for their reader; of more, the oldest counts as wasted."""
FILLER_BYTES_MAX = IN_FLIGHT_BYTES_MAX // 2
"""Nothing is fetched while the filler holds more than this."""

log = logging.getLogger(__name__)


@dataclass
class PrefetchCounters:
    """What came of it: windows and their bytes.

    `late_bytes` are those of the used windows that were still on their way when they were touched. `declined_bytes`
    were to follow, and there was no room for them.
    """

    windows: int = 0
    fetched_bytes: int = 0
    used_bytes: int = 0
    late_bytes: int = 0
    wasted_bytes: int = 0
    declined_bytes: int = 0


@dataclass(eq=False)
class _Followed:
    """A file that is open. It is not kept open by being followed."""

    order: Order
    version: Version
    file: ReferenceType[SourceFile]


class Prefetcher:
    """Fetches ahead of who reads in order. Not for threads."""

    def __init__(self, index: CacheIndex, filler: Filler, counters: Counters) -> None:
        self._index = index
        self._filler = filler
        self._errors = counters.errors
        self._followed: OrderedDict[FileId, _Followed] = OrderedDict()
        self._unread: OrderedDict[RangeKey, None] = OrderedDict()
        self._wake = trio.Event()
        self.counters = PrefetchCounters()

    async def run(self) -> None:
        """Fetch until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            try:
                while await self._fetch_next():
                    await trio.lowlevel.checkpoint()
            except Exception:  # a task of the engine must not end the mount
                self._errors.handler += 1
                log.exception("fetching ahead failed on a fault of ours")

    def touched(self, plan: ReadPlan, segment: Segment, file: SourceFile) -> None:
        """A reader is at this segment of a window, which it has found in the store or not."""
        key = plan.key(segment)
        late = False
        if key in self._unread:
            flight = None if segment.kind is SegmentKind.HIT else self._filler.flight(key, plan.version)
            self._came_for(key, there=segment.kind is SegmentKind.HIT or flight is not None)
            late = flight is not None and not flight.has(segment.offset, segment.end)
        assert plan.table is not None, "a window is one of a table"
        followed = self._followed.get(plan.file)
        if followed is None or followed.order.table is not plan.table or followed.version != plan.version:
            followed = self._followed[plan.file] = _Followed(Order(plan.table), plan.version, ref(file))
            if len(self._followed) > FILES_MAX:
                self._followed.popitem(last=False)
        self._followed.move_to_end(plan.file)
        followed.file = ref(file)
        moved = followed.order.touched(segment.window)
        if late:
            self.counters.late_bytes += key.size
            followed.order.late(segment.window)
        elif moved:
            self._wake.set()

    def touched_in_store(self, key: RangeKey) -> None:
        """A window was read that a backend has found in the store by itself."""
        if key in self._unread:
            self._came_for(key, there=True)
        followed = self._followed.get(key.file)
        if followed is not None and followed.order.touched_at(key.offset):
            self._wake.set()

    def statistics(self) -> dict[str, int]:
        """The counters, and what waits for its reader: fetched = used + wasted + unread."""
        for key in [key for key in self._unread if not self._is_there(key)]:
            self._came_for(key, there=False)
        return {**asdict(self.counters), "unread_bytes": sum(key.size for key in self._unread)}

    def finish(self) -> None:
        """The mount ends: what nobody has read was wasted."""
        for key in list(self._unread):
            self._came_for(key, there=False)
        if self.counters.windows:
            log.info("fetched ahead: %(fetched_bytes)d bytes, used %(used_bytes)d", asdict(self.counters))

    # ------------------------------------------------------------------ fetching

    async def _fetch_next(self) -> bool:
        """Fetch the next pass. False if nothing is to be fetched."""
        while self._filler.in_flight_bytes > FILLER_BYTES_MAX and self._filler.flights:
            await self._filler.wait_landing()
        for file, followed in reversed(self._followed.items()):  # the one read last first
            if windows := followed.order.take():
                keys = [window_key(file, followed.order.table, i) for i in windows]
                await self._fetch(self._let_in(keys, followed.version), followed)
                return True
        return False

    def _let_in(self, keys: list[RangeKey], version: Version) -> list[RangeKey]:
        """Those that are absent and that there is room for."""
        filler, let_in = self._filler, list[RangeKey]()
        if not filler.open_for_fills or not filler.is_taking or filler.settles_in_s(version) > 0:
            return let_in
        free = self._index.free_bytes - self._index.headroom_bytes
        for key in keys:
            if self._index.state(key) is not State.ABSENT or filler.has(key):
                continue
            free -= charge_of(key.size)
            if free < 0:
                self.counters.declined_bytes += key.size
            else:
                let_in.append(key)
        return let_in

    async def _fetch(self, keys: list[RangeKey], followed: _Followed) -> None:
        """Have them filled, as far as the filler takes them, and wait until they are read."""
        file, version = followed.file(), followed.version
        if file is None or not keys:  # nobody has it open any more, or all of it is there
            return
        self._filler.offer_all_nowait(keys, version, file, lowest=True)
        del file
        flights: dict[Flight, None] = {}
        for key in keys:
            flight = self._filler.flight(key, version)
            if flight is not None:
                flights[flight] = None
                self._expect(key)
        for flight in flights:
            await flight.wait_ended()

    # ------------------------------------------------------------------ accounts

    def _expect(self, key: RangeKey) -> None:
        """A window is fetched."""
        self.counters.windows += 1
        self.counters.fetched_bytes += key.size
        self._unread[key] = None
        if len(self._unread) > UNREAD_MAX:
            self._came_for(next(iter(self._unread)), there=False)

    def _is_there(self, key: RangeKey) -> bool:
        return self._index.state(key) is State.RESIDENT or self._filler.has(key)

    def _came_for(self, key: RangeKey, *, there: bool) -> None:
        """A fetched window was read, or it is known that nobody has read it in time."""
        del self._unread[key]
        if there:
            self.counters.used_bytes += key.size
        else:
            self.counters.wasted_bytes += key.size
