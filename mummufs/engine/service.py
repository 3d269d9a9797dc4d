"""The engine of one mount, put together: what a backend and the control socket talk to."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path

import trio

from mummufs.core.index import CacheIndex
from mummufs.core.policy import POLICIES
from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.core.stats import Counters
from mummufs.engine.cache import Cache
from mummufs.engine.catalog import Catalog, Parser
from mummufs.engine.children import running_child
from mummufs.engine.evictor import Evictor
from mummufs.engine.filler import Filler
from mummufs.engine.gate import Gate
from mummufs.engine.heatkeeper import SAVE_S, HeatKeeper
from mummufs.engine.mirror import Mirror
from mummufs.engine.nodes import Node
from mummufs.engine.overlay import Overlay
from mummufs.engine.parse import ChildParser
from mummufs.engine.pins import RECALL_S
from mummufs.engine.pipeparse import PipeParser
from mummufs.engine.placement import Placement
from mummufs.engine.prefetch import Prefetcher
from mummufs.engine.reader import Reader
from mummufs.engine.resident import OPEN_MAX, Resident
from mummufs.engine.scrub import BackgroundScrub, Scrub
from mummufs.engine.threads import Pools
from mummufs.engine.tracing import Tracing
from mummufs.engine.views import HitReports
from mummufs.engine.wear import Wear
from mummufs.engine.writes import Writes
from mummufs.source.base import Source
from mummufs.store.layout import charge_of
from mummufs.store.rangestore import RangeStore
from mummufs.store.scan import RECORD, Records

RESTORE_STEP = 128
"""Range files that the index takes in between two checkpoints: about a millisecond."""
RESCAN_S = 1.0
RESCAN_S_MAX = 60.0
"""Pause before a scan that failed is tried again; it doubles up to the second."""
DRAIN_S = 2.0
"""How long a mount that ends waits for fills that are being written."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServiceOptions:
    """What the engine can be told.

    Attributes:
        source_reads: reads of the source at once.
        budget_bytes: what the store may take.
        reserve_bytes: free space of the store's file system below which nothing is filled.
        settle_s: a file that changed this recently is not stored.
        policy: a name in core.policy.POLICIES.
        source_timeout_s: after which a call to the source is given up, with EIO for who waits.
        offline_reads: serve what is in the store while the source is absent.
        verify_always: prove a range file before every hit, not once a mount.
        manifest: a native manifest for the file that it names.
        open_max: range files kept open.
        files_max: files of the source that are open; more are refused.
        write_budget_bytes: what may be written to the store in a day; 0 for any amount.
        heat_save_s: heat is saved for the next mount at most this often.
        read_around: the source's disks spin: they are told what is likely to be read next.
        pipes: headers are parsed by children that inherit no descriptors.
        prefetch: fetch ahead of who reads a model in the order of its manifest.
    """

    source_reads: int
    budget_bytes: int = 0
    reserve_bytes: int = 0
    settle_s: float = 5.0
    policy: str = "hotness"
    source_timeout_s: float = inf
    offline_reads: bool = False
    verify_always: bool = False
    manifest: Path | None = None
    open_max: int = OPEN_MAX
    files_max: int = sys.maxsize
    write_budget_bytes: int = 0
    heat_save_s: float = SAVE_S
    read_around: bool = False
    pipes: bool = False
    prefetch: bool = False


class Service:
    """The engine. Without a store it is a pass-through."""

    def __init__(
        self,
        source: Source,
        options: ServiceOptions,
        store: RangeStore | None = None,
        *,
        store_dir: Path | None = None,
        parser: Parser | None = None,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Put an engine together.

        Args:
            store_dir: where the scan for accounting looks; None if there is nothing to look for.
            parser: how manifests are read; a child process if None.
            wall_ns: the time of day in ns.
        """
        self.counters = Counters()
        self.pools = Pools(options.source_reads, options.source_timeout_s)
        self.source = source
        self.cache: Cache | None = None
        self.catalog: Catalog | None = None
        self.wear: Wear | None = None
        self.heat: HeatKeeper | None = None
        self._store_dir = store_dir
        self.scanned = store is None
        self._draining = False
        if store is not None:
            self.cache = self._make_cache(store, options, wall_ns)
            self.wear = Wear(store, self.cache.index, options.write_budget_bytes, wall_ns)
            self.cache.filler.wear = self.wear
            self.heat = HeatKeeper(self.cache, self.counters, self.wear, options.heat_save_s)
            self.catalog = Catalog(
                parser or (PipeParser if options.pipes else ChildParser)(source, self.pools, options.manifest),
                self.cache,
                self.pools,
                self.counters,
                views=not options.verify_always,
            )
        self.scrub = None if self.cache is None else Scrub(source, self.cache, self.pools, self.counters)
        self.background_scrub = None if self.scrub is None else BackgroundScrub(self.scrub, self.counters)
        self.reader = Reader(self.pools, self.counters, self.cache, verify_always=options.verify_always)
        self.overlay = Overlay(
            source,
            self.pools,
            self.counters,
            self.reader,
            self.catalog,
            self.cache.evictor if self.cache is not None else None,
            offline_reads=options.offline_reads,
            files_max=options.files_max,
        )

        self.writes = Writes(
            self.pools,
            self.counters,
            self.cache,
            self.catalog,
            settle_ns=int(options.settle_s * 1e9),
            wall_ns=wall_ns,
        )
        self.mirror = Mirror(self.overlay, source, self.pools, self.counters, self.writes)
        self.placement: Placement | None = None
        if self.cache is not None and self.catalog is not None:
            self.cache.filler.noticed = self.overlay.noticed
            self.cache.tracing.find = self._path_and_size
            self.placement = Placement(self.cache, self.catalog, source, self.overlay, self.pools, self.counters)

    def _make_cache(self, store: RangeStore, options: ServiceOptions, wall_ns: Callable[[], int]) -> Cache:
        index = CacheIndex(options.budget_bytes, POLICIES[options.policy](options.budget_bytes))
        index.set_overhead(store.overhead_bytes)
        resident = Resident(store, index.version, options.open_max)
        gate = Gate(store, self.pools, self.counters)
        evictor = Evictor(index, resident, store, gate, self.counters)
        filler = Filler(
            index,
            resident,
            store,
            evictor,
            gate,
            self.pools,
            self.counters,
            settle_ns=int(options.settle_s * 1e9),
            reserve_bytes=options.reserve_bytes,
            wall_ns=wall_ns,
            spins=options.read_around,
        )
        prefetch = Prefetcher(index, filler, self.counters) if options.prefetch else None
        return Cache(index, resident, store, filler, evictor, gate, Tracing(), prefetch)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. `task_status` is told once the root of the source has answered.

        Raises:
            OSError: the source's root cannot be looked at.
        """
        async with trio.open_nursery() as nursery:
            await nursery.start(self.overlay.run)
            await nursery.start(self.writes.run)
            if self.cache and self.catalog and self.heat and self.placement:
                nursery.start_soon(self.cache.gate.run)
                nursery.start_soon(self.heat.run)
                nursery.start_soon(self.cache.evictor.run)
                await nursery.start(self.cache.filler.run)
                if self.cache.prefetch is not None:
                    nursery.start_soon(self.cache.prefetch.run)
                await nursery.start(self.catalog.run)
                await nursery.start(self.placement.run)
                if self.background_scrub is not None:
                    await nursery.start(self.background_scrub.run)
                nursery.start_soon(self._take_stock)
            task_status.started()

    @property
    def reports(self) -> HitReports | None:
        """Takes in what a backend has served by the views of nodes; None without a store."""
        cache = self.cache
        if cache is None:
            return None
        also = None if cache.prefetch is None else cache.prefetch.touched_in_store
        return HitReports(cache.index, self.counters, cache.tracing, also)

    @property
    def tasks(self) -> int:
        """Tasks of the event loop that have not ended."""
        return trio.lowlevel.current_statistics().tasks_living

    def _path_and_size(self, file: FileId) -> tuple[bytes, int] | None:
        node = self.overlay.nodes.current(file)
        return None if node is None else (node.path, node.version.size)

    def has_no_ranges(self, node: Node) -> bool:
        """Whether it is known that no read of a file can ever be served from the store."""
        return self.cache is not None and node.parsed == node.version and not node.table

    async def drain(self) -> None:
        """Begin no more fills, and give those that have their bytes DRAIN_S to be written, and heat to be saved."""
        if self.cache is None or self.heat is None:
            return
        self._draining = True
        self.cache.filler.open_for_fills = False
        if self.cache.prefetch is not None:
            self.cache.prefetch.finish()
        with trio.move_on_after(DRAIN_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.heat.finish)
                while self.cache.filler.flights:
                    await self.cache.filler.wait_landing()

    async def _take_stock(self) -> None:
        """Account for what the store holds already; then fills may begin. A scan that fails is tried again.

        Heat comes first: what the scan finds is in its place at once.
        """
        assert self.cache is not None and self.heat is not None
        await self.heat.load()
        pause_s = RESCAN_S
        while self._store_dir is not None:
            try:
                await self._scan(self._store_dir)
                break
            except Exception as error:  # whatever it is, it must not end the mount
                self.counters.errors.store += 1
                log.warning("the scan of the store failed, nothing new is stored until one succeeds: %s", error)
            await trio.sleep(pause_s)
            pause_s = min(RESCAN_S_MAX, 2 * pause_s)
        if self.placement is not None:
            with trio.move_on_after(RECALL_S):  # nothing may take the place of what is pinned
                await self.placement.pins.recalled.wait()
        self.scanned = True
        self.reader.scanning = False
        self.cache.filler.open_for_fills = not self._draining
        if self.placement is not None:
            self.placement.warmer.ready.set()
        self.cache.evictor.wake()

    async def _scan(self, store_dir: Path) -> None:
        """Run the scan in a child process and take in what it finds."""
        async with running_child("mummufs.store.scan", str(store_dir)) as process:
            assert process.stdout is not None
            rest, records = b"", Records()
            async for chunk in process.stdout:
                data = rest + bytes(chunk)
                whole = len(data) // RECORD.size * RECORD.size
                rest = data[whole:]
                for at in range(0, whole, RESTORE_STEP * RECORD.size):
                    self._restore(records.unpack(data[at : min(whole, at + RESTORE_STEP * RECORD.size)]))
                    await trio.lowlevel.checkpoint()
            if await process.wait() != 0:
                raise OSError("the process that scans the store ended early")

    def _restore(self, found: Iterable[tuple[RangeKey, Version]]) -> None:
        assert self.cache is not None
        for key, version in found:
            self.cache.index.restore(key, charge_of(key.size), version)
