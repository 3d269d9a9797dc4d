"""Keeps the heat for the next mount: reads the heat file at the start, saves it in the background and at the end.

It is saved at most once a minute, if anything was read or written since, so that a daemon that is killed loses no more
than that (and the seconds that a save may take). The index is walked on the trio thread in steps of a fraction of a
millisecond, with pauses that leave the interpreter to who serves hits; the file is packed up, written and synced by a
worker thread. Where an index knows of more ranges than the file may hold, the hottest are kept: they are what the next
mount must not evict, and what it does not know is only cold.

Nothing here matters to a read. A heat file that cannot be read is tried again at the next save; one that cannot be
believed is set aside, and heat starts anew. Recalled heat is added to what the mount has learned meanwhile, so it may
come late.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from heapq import heappush, heappushpop
from math import inf

import trio

from mummufs.core.errors import HeatFileError
from mummufs.core.hotness import COLD
from mummufs.core.ranges import page_ceil
from mummufs.core.ratings import GHOSTS_MAX, HeatRecord
from mummufs.core.stats import Counters
from mummufs.engine.cache import Cache
from mummufs.engine.gate import StoreLateError
from mummufs.engine.wear import Wear
from mummufs.store.heatfile import RECORD_BYTES, RECORDS_MAX, HeatImage, HeatPacker
from mummufs.store.written import Purpose

SAVE_S = 60.0
"""Heat is saved at most this often."""
HEAT_SHARE = 256
"""One in so many bytes of the budget may go to the heat file: twice of it fits the headroom that the index keeps."""
WALK_STEP = 256
"""Ranges of the index looked at between two checkpoints: about half a millisecond."""
WALK_PAUSE_S = 0.002
"""Pause between two of these steps: 150,000 ranges take some two seconds, and a fifth of one core."""
RECALL_STEP = 128
"""Ranges recalled between two checkpoints."""
LOAD_TRIES = 3
"""A heat file that cannot be read so many times is not tried again. A store that does not answer is waited for."""

log = logging.getLogger(__name__)


class HeatKeeper:
    """The heat file of one mount.

    Attributes:
        loaded: what the last mount has left has been taken in, or given up; nothing is saved before.
        recalled: ranges whose heat was recalled.
        saves: saves so far.
        failed: saves that failed.
        records: ranges in the file as it was last saved or loaded.
    """

    def __init__(self, cache: Cache, counters: Counters, wear: Wear, save_s: float = SAVE_S) -> None:
        self._index = cache.index
        self._store = cache.store
        self._gate = cache.gate
        self._evictor = cache.evictor
        self._counters = counters
        self._wear = wear
        self._save_s = save_s
        self._tries = 0
        self._told = 0
        self._saved = self._changes()
        self._background = trio.CancelScope()
        self._lock = trio.Lock()
        self.loaded = False
        self.recalled = 0
        self.saves = 0
        self.failed = 0
        self._saved_at: float | None = None
        self.records = 0

    @property
    def saved_ago_s(self) -> float | None:
        """Seconds since the last save; None if there was none."""
        return None if self._saved_at is None else round(trio.current_time() - self._saved_at, 3)

    async def run(self) -> None:
        """Save in the background until cancelled, or until the end has come."""
        with self._background:
            due = trio.current_time() + self._save_s
            while True:
                await trio.sleep_until(due)
                due = trio.current_time() + self._save_s
                await self._guarded(self._load)
                await self._guarded(self._save_in_steps)

    async def load(self) -> None:
        """Take in what the last mount has left. A fault of the store is not raised."""
        await self._guarded(self._load)

    def changed(self) -> None:
        """Heat has changed in another way than by reads."""
        self._told += 1

    async def finish(self) -> None:
        """The mount ends: save once more, at once, if anything has changed."""
        self._background.cancel()
        await self._guarded(self._save_at_once)

    # ------------------------------------------------------------------ loading

    async def _load(self) -> None:
        async with self._lock:
            if self.loaded:
                return
            try:
                image = await self._gate.read_slowly(self._store.heat.load)
                self.loaded = True
                if image is not None:
                    await self._recall(image)
            except HeatFileError as error:
                await self._start_anew(str(error))
            except StoreLateError:
                log.debug("the store does not answer: the heat of the last mount is read later")
            except OSError as error:
                self._tries += 1
                log.debug("the heat of the last mount cannot be read yet: %s", error)
                if self._tries >= LOAD_TRIES:
                    await self._start_anew(f"it cannot be read: {error}")

    async def _recall(self, image: HeatImage) -> None:
        """Give the index its heat. The packs come first, and of the ranges those touched latest."""
        self._wear.recall(image.spent)
        for pack in image.packs:
            self._index.recall_pack(pack._replace(files=pack.files[:RECALL_STEP]))
            for at in range(RECALL_STEP, len(pack.files), RECALL_STEP):
                await trio.lowlevel.checkpoint()
                self._index.recall_pack(pack._replace(activity=COLD, files=pack.files[at : at + RECALL_STEP]))
            await trio.lowlevel.checkpoint()
        for end in range(image.count, 0, -RECALL_STEP):
            for record in reversed(list(image.records(max(0, end - RECALL_STEP), end))):
                self._index.recall(record._replace(seq=record.seq - image.latest))  # before any touch of this mount
                self.recalled += 1
            await trio.lowlevel.checkpoint()
        self.records = image.count
        log.info("heat of %d ranges was recalled", image.count)

    async def _start_anew(self, reason: str) -> None:
        """The heat file is good for nothing: keep it for whoever wants to know why, and go on without."""
        self.loaded = True
        self._counters.errors.store += 1
        kept = ""
        if not self._gate.writes.is_open:
            try:
                name = await self._gate.write(self._store.heat.set_aside)
                kept = f", and its file is called '{name}' now"
            except OSError as error:  # the next save takes its place
                log.debug("the heat file cannot be set aside: %s", error)
        log.warning("the heat of the last mount is lost, it starts anew%s: %s", kept, reason)
        self._count_overhead()

    # ------------------------------------------------------------------ saving

    async def _save_in_steps(self) -> None:
        await self._save(WALK_PAUSE_S)

    async def _save_at_once(self) -> None:
        await self._save(0.0)

    async def _save(self, pause_s: float) -> None:
        async with self._lock:
            changes = self._changes()
            if not self.loaded or changes == self._saved or self._gate.writes.is_open:
                return
            packer = await self._packed(pause_s)
            self._count_overhead(page_ceil(packer.size))  # for a moment the old file is there as well
            try:
                await self._gate.write(self._store.heat.save, packer, self._index.packs(), self._wear.mark())
            except OSError as error:
                self.failed += 1
                self._counters.errors.store += 1
                log.warning("the heat is not kept: %s", error)
                return
            finally:
                self._count_overhead()
            self._saved, self.records = changes, packer.count
            self.saves += 1
            self._saved_at = trio.current_time()

    async def _packed(self, pause_s: float) -> HeatPacker:
        """The ranges that have heat: all, or the hottest that the file may hold."""
        limit = min(RECORDS_MAX, GHOSTS_MAX, self._index.budget_bytes // HEAT_SHARE // RECORD_BYTES)
        known, floor = self._index.statistics(), -inf
        if known.resident + known.ghosts > limit:
            floor = await self._floor(limit, pause_s)
        packer = HeatPacker(limit)

        def take(record: HeatRecord) -> None:
            if record.heat >= floor:
                packer.add(*record)

        await self._walk(take, pause_s)
        return packer

    async def _floor(self, limit: int, pause_s: float) -> float:
        """The heat of the coldest of the `limit` hottest ranges; -inf where there are fewer."""
        hottest: list[float] = []

        def take(record: HeatRecord) -> None:
            if len(hottest) < limit:
                heappush(hottest, record.heat)
            else:
                heappushpop(hottest, record.heat)

        await self._walk(take, pause_s)
        return hottest[0] if 0 < limit <= len(hottest) else -inf

    async def _walk(self, take: Callable[[HeatRecord], None], pause_s: float) -> None:
        for i, step in enumerate(self._index.hot_steps(WALK_STEP)):
            if i:
                await trio.sleep(pause_s)
            for record in step:
                take(record)

    def _changes(self) -> tuple[int, int, int]:
        """Differs from what it was if there may be something to save."""
        reads, written = self._counters.reads, self._store.written
        return reads.hits + reads.misses, written.total - written.of(Purpose.HEAT), self._told

    def _count_overhead(self, more: int = 0) -> None:
        self._index.set_overhead(self._store.overhead_bytes + more)
        self._evictor.wake()

    async def _guarded(self, call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except Exception:  # the memory of heat must not end the mount
            self._counters.errors.handler += 1
            log.exception("keeping the heat failed on a fault of ours")
