"""What somebody wants to be in the store, and what is: the warmer, the pins, eviction by name, and who is resident.

Requests come over the control socket. A warm takes hours, so warms are jobs of the warmer; the others take as long as
the headers of their files do, and are jobs here, LOOKS_AT_ONCE at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from mummufs.core.errors import MummufsError
from mummufs.core.layers import LayerRow, LayerSums
from mummufs.core.packs import pack_of
from mummufs.core.plan import window_key
from mummufs.core.states import State
from mummufs.core.stats import Counters
from mummufs.engine.cache import Cache
from mummufs.engine.catalog import Catalog
from mummufs.engine.jobs import Job, Jobs
from mummufs.engine.overlay import Overlay
from mummufs.engine.pins import PinChange, Pins
from mummufs.engine.places import Places, Unreadable, shown
from mummufs.engine.selection import STEP, Selection
from mummufs.engine.threads import Pools
from mummufs.engine.warmer import Warmer
from mummufs.engine.warmprogress import Tally
from mummufs.source.base import Source
from mummufs.store.layout import charge_of

LOOKS_AT_ONCE = 2
"""Requests other than warms that are carried out at once."""
READY_WAIT_S = 60.0
"""How long a request waits, when a mount begins, for the store to be accounted for."""
ROWS_MAX = 100_000
"""Rows of one residency: layers of all models together."""


@dataclass
class Evicted:
    """What an eviction by name has come to; bytes are those of the budget.

    Attributes:
        pinned: left alone because they are pinned.
        filling: on their way in, and left alone.
    """

    files: int = 0
    evicted: Tally = field(default_factory=Tally)
    pinned: Tally = field(default_factory=Tally)
    filling: Tally = field(default_factory=Tally)
    unreadable: Unreadable = field(default_factory=Unreadable)


@dataclass
class Residency:
    """Who is resident, by layer. A model is a pack (`core/packs.py`), called by its file where it is one.

    Attributes:
        without_ranges: files that no format recognises.
    """

    files: int = 0
    without_ranges: int = 0
    rows: list[LayerRow] = field(default_factory=list)
    unreadable: Unreadable = field(default_factory=Unreadable)


Look = PinChange | Evicted | Residency


class Placement:
    """Carries out requests about what is in the store."""

    def __init__(
        self, cache: Cache, catalog: Catalog, source: Source, overlay: Overlay, pools: Pools, counters: Counters
    ) -> None:
        self._cache = cache
        self._places = Places(source, pools, overlay, catalog)
        self.warmer = Warmer(cache, self._places, counters)
        self.pins = Pins(cache, self._places, self.warmer, counters, overlay)
        self.looks: Jobs[Look] = Jobs("requests", LOOKS_AT_ONCE, counters)
        catalog.known = self.pins.known

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry requests out until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.warmer.run)
            await nursery.start(self.looks.run)
            nursery.start_soon(self.pins.run)
            task_status.started()

    @property
    def room_bytes(self) -> int:
        """What ranges may take in all, in bytes of the budget."""
        statistics = self._cache.index.statistics()
        return statistics.budget_bytes - statistics.overhead_bytes - self._cache.index.headroom_bytes

    def pin_nowait(self, wanted: Sequence[bytes], ranges: str) -> Job[Look]:
        """Pin ranges; `Pins.pin` says what comes of it."""
        Selection(ranges)
        change = PinChange()
        return self._look(change, partial(self.pins.pin, wanted, ranges, change))

    def unpin_nowait(self, wanted: Sequence[bytes], ranges: str | None) -> Job[Look]:
        """Unpin ranges; `Pins.unpin` says what comes of it."""
        change = PinChange()
        return self._look(change, partial(self.pins.unpin, wanted, ranges, change))

    def evict_nowait(self, wanted: Sequence[bytes], ranges: str, *, force: bool) -> Job[Look]:
        """Drop ranges from the store.

        Args:
            force: pinned ones too; their pins stay.
        """
        evicted = Evicted()
        return self._look(evicted, partial(self._evict, wanted, Selection(ranges), force, evicted))

    def residency_nowait(self, wanted: Sequence[bytes]) -> Job[Look]:
        """Find out what is resident of some files, by layer."""
        residency = Residency()
        return self._look(residency, partial(self._residency, wanted, residency))

    def _look(self, look: Look, carry_out: Callable[[], Awaitable[None]]) -> Job[Look]:
        """Have a request carried out once the store is accounted for."""

        async def run(_: Look) -> None:
            with trio.move_on_after(READY_WAIT_S) as scope:
                await self.warmer.ready.wait()
            if scope.cancelled_caught:
                raise MummufsError(
                    "the store is still being accounted for: try again when `mummufs status` says normal"
                )
            await carry_out()

        return self.looks.start_nowait(look, run)

    async def _evict(self, wanted: Sequence[bytes], selection: Selection, force: bool, evicted: Evicted) -> None:
        index = self._cache.index
        paths = await self._places.find(wanted)
        for path in paths:
            async with self._places.tried(path, evicted.unreadable) as handle:
                if handle is None:
                    continue
                async for key in selection.keys(handle.node):
                    state = index.state(key)
                    if state is State.FILLING:
                        evicted.filling.add(charge_of(key.size))
                    elif state is State.RESIDENT and index.is_pinned(key) and not force:
                        evicted.pinned.add(charge_of(key.size))
                    elif state is State.RESIDENT:
                        evicted.evicted.add(charge_of(key.size))
                        self._cache.evictor.evict_nowait((key,))
            evicted.files += 1
        evicted.unreadable.check(paths)

    async def _residency(self, wanted: Sequence[bytes], residency: Residency) -> None:
        sums = LayerSums()
        index = self._cache.index
        paths = await self._places.find(wanted)
        alone = {pack for pack, files in Counter(map(pack_of, paths)).items() if files == 1}
        for path in paths:
            model = shown(path if pack_of(path) in alone else pack_of(path))
            async with self._places.tried(path, residency.unreadable) as handle:
                if handle is None:
                    continue
                node = handle.node
                table, version = node.ranges, node.version
                residency.files += 1
                residency.without_ranges += not table
                for i in range(0 if table is None else len(table)):
                    assert table is not None
                    window = table.window(i)
                    resident = index.is_resident(window_key(node.file, table, i), version)
                    sums.add(model, window.name, window.kind, window.size, resident=resident)
                    if i % STEP == STEP - 1:
                        await trio.lowlevel.checkpoint()
            if len(sums) > ROWS_MAX:
                raise MummufsError(f"there are more than {ROWS_MAX} layers: name a smaller folder")
        residency.unreadable.check(paths)
        residency.rows = sums.rows()
