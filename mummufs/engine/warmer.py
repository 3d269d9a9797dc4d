"""The warmer: brings ranges into the store that nobody has read yet, because somebody has asked for them.

Theory of operation. One warm runs at a time; a few more wait (`jobs`). It goes through its files twice: first to count
what is asked for, then to fill what is absent, in order of offset, in groups that are one pass of up to 32 MiB each, or
one batch of passes where the source reads several at once (`merging`). One group is read at a time, so that the head
does not go to and fro, and others are written meanwhile, IN_FLIGHT_BYTES in all. Its reads have the lowest turn of all
(`schedule`), so a reader never waits for more than the piece of a few MiB, or the batch, that is being read. What is
resident is passed over, so a warm that was stopped goes on where it was when it is asked for again.

What a warm may take. It is a request, not a read: it gives a range no heat, and what it brings is the first to go
again if nobody reads it. So it

- fills free space, but for the index's headroom, which readers' fills are to find;
- takes the place of what belongs to a model that nobody has read lately (`lately`), however hot it once was: heat runs
  on a clock of its model's own hits, so a model that nobody uses stays as hot as it was, and somebody has just said
  which one they will use instead;
- after that takes the place of ranges of a model in use that are colder than one whole read just now
  (HEAT_OF_ONE_TOUCH); either way the coldest first, never one that is pinned or asked for by the same warm;
- leaves alone everything else. What finds no place is declined, counted, and served by pass-through as ever.

Room is made before a range is offered, so that admission, which compares heat, is never asked on its behalf. Ranges
that are pinned are always admitted, and need none of this.
"""

from __future__ import annotations

import errno
import logging
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from heapq import heappop, heappush

import trio

from mummufs.core.errors import MummufsError
from mummufs.core.ranges import RangeKey, Version
from mummufs.core.states import DECLINED, Decision, State
from mummufs.core.stats import Counters
from mummufs.engine.cache import Cache
from mummufs.engine.flight import Flight
from mummufs.engine.jobs import Job, Jobs
from mummufs.engine.lately import Lately
from mummufs.engine.merging import BATCH_BYTES_MAX, BATCH_FLIGHTS_MAX, MERGE_GAP_BYTES, MERGE_MAX_BYTES
from mummufs.engine.nodes import Node
from mummufs.engine.overlay import Handle
from mummufs.engine.places import Places, why_not
from mummufs.engine.selection import Selection
from mummufs.engine.warmprogress import Reason, Tally, Target, WarmProgress
from mummufs.store.layout import charge_of

IN_FLIGHT_BYTES = 2 * MERGE_MAX_BYTES
"""Window bytes of a warm in the air: one pass is read while another is written."""
HEAT_OF_ONE_TOUCH = 0.0
"""log2 of the heat of a range that was read whole once, just now."""
ROOM_WAIT_S = 10.0
"""How long a warm waits for evicted ranges to give their bytes back; after that it takes what room there is."""
SETTLE_WAIT_S = 30.0
"""How long a warm waits for a file to settle that has only just changed."""
STEP = 256
"""Ranges looked at between two checkpoints."""
OFFER_TRIES = 3
"""How often a group is offered: readers may take the room that was made for it."""

log = logging.getLogger(__name__)


class Warmer:
    """Runs one warm at a time."""

    def __init__(self, cache: Cache, places: Places, counters: Counters) -> None:
        self._cache = cache
        self._places = places
        self._lately = Lately(cache.index)
        self.jobs: Jobs[WarmProgress] = Jobs("warms", 1, counters)
        self.ready = trio.Event()
        """Set when the store is accounted for; nothing is filled before."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Warm what is asked for, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lately.run)
            await nursery.start(self.jobs.run)
            task_status.started()

    def find_and_warm_nowait(self, wanted: Sequence[bytes], ranges: str) -> Job[WarmProgress]:
        """Warm the files that these paths and patterns mean, when the turn comes.

        Args:
            ranges: a pattern for the names of the ranges.

        Raises:
            MummufsError: too many wait already.
        """
        selection = Selection(ranges)
        return self.jobs.start_nowait(WarmProgress(), partial(self._find_and_warm, wanted, selection))

    def warm_nowait(self, targets: Sequence[Target], ranges: str) -> Job[WarmProgress]:
        """Warm these, when the turn comes.

        Raises:
            MummufsError: too many wait already.
        """
        return self.jobs.start_nowait(WarmProgress(), partial(self._warm, targets, Selection(ranges)))

    async def _find_and_warm(self, wanted: Sequence[bytes], selection: Selection, progress: WarmProgress) -> None:
        targets = [Target(path) for path in await self._places.find(wanted)]
        await self._warm(targets, selection, progress)

    async def _warm(self, targets: Sequence[Target], selection: Selection, progress: WarmProgress) -> None:
        await self.ready.wait()
        await _Warm(self._cache, self._places, self._lately, selection, progress).run(targets)


_Do = Callable[[Target, Handle], Awaitable[bool]]


class _Warm:
    """One warm."""

    def __init__(
        self, cache: Cache, places: Places, lately: Lately, selection: Selection, progress: WarmProgress
    ) -> None:
        self._cache = cache
        self._index, self._filler = cache.index, cache.filler
        self._places = places
        self._lately = lately
        self._selection = selection
        self._progress = progress
        self._kept: set[RangeKey] = set()
        """What was asked for and is resident, found or brought: it is no victim of the rest."""
        self._victims: list[tuple[bool, float, RangeKey]] | None = None
        """A heap of what might go when room was needed first: whether its model is in use, and its heat."""
        self._waited_in_vain = False
        self._in_the_air: dict[RangeKey, tuple[Version, Flight]] = {}
        self._in_the_air_bytes = 0

    async def run(self, targets: Sequence[Target]) -> None:
        progress = self._progress
        progress.files = len(targets)
        with_ranges = [target for target in targets if await self._each(target, self._count)]
        progress.files_done = progress.files - len(with_ranges)
        progress.counted = True
        for target in with_ranges:
            await self._each(target, self._fill)
            progress.files_done += 1
        if progress.files and progress.failed_files == progress.files:
            raise MummufsError(progress.error)

    async def _each(self, target: Target, do: _Do) -> bool:
        """Do something with an open file; False where it cannot be opened, or it was for nothing."""
        try:
            async with self._places.opened(target.path) as handle:
                return await do(target, handle)
        except OSError as error:
            self._progress.failed_files += 1
            self._progress.error = why_not(target.path, error)
            log.info("warm: %s", self._progress.error)
            return False

    # ------------------------------------------------------------------ counting

    async def _count(self, target: Target, handle: Handle) -> bool:
        """Count what is asked of a file; whether it is anything."""
        asked, version = self._progress.asked, handle.node.version
        before = asked.ranges
        async for key in self._keys(target, handle.node):
            asked.add(key.size)
            if self._index.is_resident(key, version):
                self._kept.add(key)
        missing = 0 if target.windows is None else len(target.windows) // 2 - (asked.ranges - before)
        if asked.ranges == before:
            self._progress.without_ranges += 1
        elif missing > 0 and self._selection.is_all:
            self._progress.declined.setdefault(Reason.UNKNOWN, Tally()).ranges += missing
        return asked.ranges > before

    async def _keys(self, target: Target, node: Node) -> AsyncIterator[RangeKey]:
        """The ranges of a file that are meant, in order of offset, in steps."""
        windows = await _set_of(target.windows)
        async for key in self._selection.keys(node):
            if windows is None or (key.offset, key.size) in windows:
                yield key

    # ------------------------------------------------------------------ filling

    async def _fill(self, target: Target, handle: Handle) -> bool:
        """Fill what is asked of a file."""
        group: list[RangeKey] = []
        version = handle.node.version
        await trio.sleep(min(SETTLE_WAIT_S, max(0.0, self._filler.settles_in_s(version))))
        async for key in self._keys(target, handle.node):
            if self._index.is_resident(key, version):
                self._is_there(key)
                continue
            if group and not _are_read_together(group, key, at_once=handle.file.reads_at_once):
                await self._bring(group, version, handle)
                group = []
            group.append(key)
        await self._bring(group, version, handle)
        await self._land(0)
        return True

    async def _bring(self, group: Sequence[RangeKey], version: Version, handle: Handle) -> None:
        """Have a group of ranges brought, as far as there is room for them."""
        for _, flight in list(self._in_the_air.values()):
            await flight.wait_ended()
        size = sum(key.size for key in group)
        await self._land(max(0, IN_FLIGHT_BYTES - size))
        for _ in range(OFFER_TRIES):
            group = self._let_in(group, version, handle.node)
            if not group:
                return
            while self._filler.is_full(size) and self._filler.flights:
                await self._filler.wait_landing()
            fits = await self._make_room(group)
            self._filler.offer_all_nowait(fits, version, handle.file, lowest=True)
            group = self._left_of(group, version)
            if not fits:
                break
        for key in group:
            self._decline(key, version)

    def _left_of(self, group: Sequence[RangeKey], version: Version) -> list[RangeKey]:
        """Those of a group that are not on their way, now that it was offered. The others are looked after."""
        left = []
        for key in group:
            flight = self._filler.flight(key, version)
            if flight is None:
                left.append(key)
                continue
            self._in_the_air[key] = version, flight
            self._in_the_air_bytes += key.size
        return left

    def _let_in(self, group: Sequence[RangeKey], version: Version, node: Node) -> list[RangeKey]:
        """Those of a group that may be offered; the others are counted, by what stands in their way."""
        reason = None
        if node.stale:
            reason = Reason.SOURCE
        elif node.writing is not None or self._filler.settles_in_s(version) > 0:
            reason = Reason.SETTLING
        elif not self._filler.is_taking or not self._filler.open_for_fills:
            reason = Reason.STORE
        let_in: list[RangeKey] = []
        wear, promised = self._filler.wear, self._filler.in_flight_bytes
        for key in group:
            if reason is not None:
                self._progress.decline(key.size, reason)
            elif wear is not None and wear.declines(key, Decision.READY, promised):
                self._progress.decline(key.size, Reason.WRITE_BUDGET)
            else:
                let_in.append(key)
                promised += key.size
        return let_in

    def _decline(self, key: RangeKey, version: Version) -> None:
        """A range that was offered in vain."""
        decision = self._index.plan_fill(key, charge_of(key.size), version).decision
        if self._index.is_resident(key, version):  # a reader has had it filled
            self._is_there(key)
        elif decision in DECLINED or self._free_bytes() < charge_of(key.size):
            self._progress.decline(key.size, Reason.BUDGET)
        else:
            self._progress.decline(key.size, Reason.STORE)

    async def _land(self, left_bytes: int) -> None:
        """Wait until no more than this is in the air, and count what has landed."""
        while True:
            for key in [key for key in self._in_the_air if not self._filler.has(key)]:
                version, flight = self._in_the_air.pop(key)
                self._in_the_air_bytes -= key.size
                if self._index.is_resident(key, version):
                    self._is_there(key)
                    self._progress.filled.add(key.size)
                elif flight.errno is not None:
                    busy = flight.errno == errno.EBUSY
                    self._progress.decline(key.size, Reason.SETTLING if busy else Reason.SOURCE)
                else:
                    self._progress.decline(key.size, Reason.STORE)
            if self._in_the_air_bytes <= left_bytes:
                return
            await self._filler.wait_landing()

    def _is_there(self, key: RangeKey) -> None:
        self._kept.add(key)
        self._progress.resident.add(key.size)

    # ------------------------------------------------------------------ room

    def _free_bytes(self) -> int:
        """What may be filled without making room."""
        return self._index.free_bytes - self._index.headroom_bytes

    async def _make_room(self, group: Sequence[RangeKey]) -> list[RangeKey]:
        """Those of a group, from its start on, that there is room for now; colder ranges go for them if need be."""
        wanted = sum(charge_of(key.size) for key in group if not self._index.is_pinned(key))
        with trio.move_on_after(ROOM_WAIT_S) as scope:
            while self._free_bytes() < wanted:
                victims = await self._next_victims(wanted - self._free_bytes())
                self._cache.evictor.evict_nowait(victims)
                if not victims and (self._waited_in_vain or not self._index.statistics().evicting):
                    break
                await self._cache.evictor.wait_progress()
        self._waited_in_vain |= scope.cancelled_caught
        fits, left = [], self._free_bytes()
        for key in group:
            charge = 0 if self._index.is_pinned(key) else charge_of(key.size)
            if charge <= max(0, left):
                fits.append(key)
                left -= charge
        return fits

    async def _next_victims(self, size: int) -> list[RangeKey]:
        """The coldest ranges that may go, of so many bytes; fewer where there are no more."""
        if self._victims is None:
            self._victims = []
            for i, key in enumerate(self._index.keys()):
                if self._may_go(key):
                    heappush(self._victims, (self._lately.has_read(key), self._index.heat(key), key))
                if i % STEP == STEP - 1:
                    await trio.lowlevel.checkpoint()
        found: list[RangeKey] = []
        while self._victims and size > 0:
            key = heappop(self._victims)[-1]
            if self._may_go(key):  # still
                found.append(key)
                size -= charge_of(key.size)
        return found

    def _may_go(self, key: RangeKey) -> bool:
        index = self._index
        return (
            index.state(key) is State.RESIDENT
            and key not in self._kept
            and not index.is_pinned(key)
            and (not self._lately.has_read(key) or index.heat(key) < HEAT_OF_ONE_TOUCH)
            and not self._filler.has(key)
        )


def _are_read_together(group: Sequence[RangeKey], key: RangeKey, *, at_once: bool) -> bool:
    """Whether the filler reads a range in one pass with these before it, or in one batch where a source has such."""
    if at_once:
        size = sum(other.size for other in group) + key.size
        return len(group) < BATCH_FLIGHTS_MAX and size <= BATCH_BYTES_MAX
    gap = key.offset - (group[-1].offset + group[-1].size)
    return gap < MERGE_GAP_BYTES and key.offset + key.size - group[0].offset <= MERGE_MAX_BYTES


async def _set_of(windows: array[int] | None) -> set[tuple[int, int]] | None:
    """Windows for look-up, made in steps."""
    if windows is None:
        return None
    found: set[tuple[int, int]] = set()
    for i in range(0, len(windows), 2 * STEP):
        part = windows[i : i + 2 * STEP]
        found.update(zip(part[::2], part[1::2], strict=True))
        await trio.lowlevel.checkpoint()
    return found
