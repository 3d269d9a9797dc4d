"""An engine without a mount: a service over a source in memory and a real store in a temporary directory.

Nothing here sleeps. `idle` returns when every task is blocked and no call is in a worker thread, that is when nothing
can happen any more until the test does something or a timer ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import trio
import trio.testing

from mummufs.core.index import CacheIndex
from mummufs.core.manifest import RangeTable
from mummufs.core.plan import window_key
from mummufs.core.ranges import RangeKey
from mummufs.core.states import State
from mummufs.engine.cache import Cache
from mummufs.engine.overlay import Handle
from mummufs.engine.service import Service, ServiceOptions
from mummufs.engine.threads import Pool
from mummufs.source.base import Source, SourceFile
from mummufs.source.memory import MemorySource
from mummufs.store.layout import RANGES_DIR, TMP_DIR, charge_of, range_name
from mummufs.store.osfs import Os, RealOs
from mummufs.store.rangestore import RangeStore
from tests.support.watched_os import WatchedOs

KIB = 1 << 10
PAGE = 4096
WALL_NS = 4 * 10**18
"""The time of day that the engine is told, in the year 2096: nothing in the source was written lately."""
FAIL_AFTER_S = 30.0

Result = TypeVar("Result")
Args = TypeVarTuple("Args")


def contents(size: int, seed: int = 1) -> bytes:
    """Bytes of which no two pages are alike."""
    return random.Random(seed).randbytes(size)


def make_table(file_size: int, windows: Sequence[tuple[int, int]]) -> RangeTable:
    """A table of just these windows `(offset, size)`, whatever their sizes: nothing is joined or split."""
    starts = array("Q", [offset for offset, _ in windows])
    ends = array("Q", [offset + size for offset, size in windows])
    columns = (starts, ends, starts, ends)
    name_ends = array("Q", [0] * len(windows))
    table = RangeTable("test", file_size, columns, bytes(len(windows)), name_ends, b"")
    table._check()
    return table


class FakeParser:
    """Answers with tables that the test made.

    Attributes:
        tables: by path; what is not there has no windows.
        errors: by path: raised in place of an answer.
        gate: no parse ends before it is set.
        calls: the paths parsed so far.
    """

    def __init__(self, tables: dict[bytes, RangeTable] | None = None) -> None:
        self.tables = tables or {}
        self.errors: dict[bytes, Exception] = {}
        self.gate = trio.Event()
        self.gate.set()
        self.calls: list[bytes] = []

    async def parse(self, path: bytes, file: SourceFile) -> RangeTable | None:
        self.calls.append(path)
        await self.gate.wait()
        if path in self.errors:
            raise self.errors[path]
        return self.tables.get(path)


class FaultyOs(WatchedOs):
    """The real calls, logged by name. Those fail of which `fails`, told the name and the number from 1, says so."""

    def __init__(self, directory: Path, fails: Callable[[str, int], bool] = lambda *_: False) -> None:
        super().__init__(directory)
        self.log: list[str] = []
        self.fails = fails

    def _call(self, name: str) -> None:
        self.log.append(name)
        if self.fails(name, len(self.log)):
            raise OSError(errno.EIO, f"call {len(self.log)} ({name}) fails for the test")


class _Changes:
    """Tells that some call in a worker thread has ended, or that a read has reached the source."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    def announce_from_thread(self) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self.announce)

    def announce(self) -> None:
        event, self._event = self._event, trio.Event()
        event.set()

    async def wait(self) -> None:
        await self._event.wait()


class _WatchedGate(threading.Event):
    """The gate that a memory source's reads pass when they have been recorded."""

    def __init__(self, changes: _Changes) -> None:
        super().__init__()
        self._changes = changes
        self.set()

    def wait(self, timeout: float | None = None) -> bool:
        self._changes.announce_from_thread()
        return super().wait(timeout)


class _WatchedPool(Pool):
    def __init__(self, threads: int, changes: _Changes) -> None:
        super().__init__(threads)
        self._changes = changes

    async def run(self, function: Callable[[*Args], Result], *args: *Args) -> Result:
        try:
            return await super().run(function, *args)
        finally:
            self._changes.announce()


class _WatchedService(Service):
    """A service whose scan waits for `scan_gate` and says when it has ended."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scan_gate = trio.Event()
        self.stock_taken = trio.Event()

    async def _scan(self, store_dir: Path) -> None:
        await self.scan_gate.wait()
        await super()._scan(store_dir)

    async def _take_stock(self) -> None:
        await super()._take_stock()
        self.stock_taken.set()


class Engine:
    """A running service and short ways to use it."""

    def __init__(self, service: _WatchedService, source: Source, store_dir: Path, changes: _Changes) -> None:
        self.service = service
        self.overlay = service.overlay
        self.counters = service.counters
        self.pools = service.pools
        self.store_dir = store_dir
        self.changes = changes
        self._source = source

    @property
    def memory(self) -> MemorySource:
        """The source, which is one in memory."""
        assert isinstance(self._source, MemorySource)
        return self._source

    @property
    def cache(self) -> Cache:
        assert self.service.cache is not None
        return self.service.cache

    @property
    def index(self) -> CacheIndex:
        return self.cache.index

    async def open(self, path: bytes) -> Handle:
        """A handle of a file in the root, its table known unless the parser is held."""
        node = await self.overlay.look_up(self.overlay.nodes.root, path)
        handle = await self.overlay.open(node)
        await self.idle()
        return handle

    async def read(self, handle: Handle, offset: int, size: int) -> bytes:
        return bytes(await self.overlay.read(handle, offset, size))

    async def fill(self, handle: Handle, *numbers: int) -> None:
        """Read a byte in the middle of these windows one by one, and wait until each has landed."""
        for i in numbers:
            key = self.key(handle, i)
            await self.read(handle, key.offset + key.size // 2, 1)
            await self.idle()

    def key(self, handle: Handle, i: int) -> RangeKey:
        """The key of a file's i-th window."""
        table = handle.node.ranges
        assert table is not None
        return window_key(handle.node.file, table, i)

    def state(self, handle: Handle, i: int) -> State:
        return self.index.state(self.key(handle, i))

    def range_file(self, handle: Handle, i: int) -> Path:
        """Where the store has a file's i-th window."""
        return self.store_dir / range_name(self.key(handle, i))

    async def idle(self) -> None:
        """Wait until nothing is under way but what waits for a timer or for the test."""
        while True:
            await trio.testing.wait_all_tasks_blocked()
            if not self.calls:
                return
            await self.changes.wait()

    @property
    def calls(self) -> int:
        """Calls in worker threads, those that are held included."""
        return sum(pool.waiting for pool in self._pools())

    async def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Wait for a state that calls in worker threads bring about, while other such calls may be held."""
        while not is_true():
            await self.changes.wait()
            await trio.testing.wait_all_tasks_blocked()

    def check(self, *, evicting: int = 0, foreign: frozenset[str] = frozenset()) -> None:
        """At rest: the books are right, and what the index says is what the disk has.

        Args:
            evicting: ranges that are on their way out and cannot leave.
            foreign: names in ranges/ that the test has put there.
        """
        self.index._check()
        self.service.reader._placing.grazes._check()
        reads = self.counters.reads
        assert reads.hit_bytes + reads.miss_bytes + reads.bypass_bytes == reads.replied_bytes
        entries = self.index._entries.items()
        resident = {range_name(key) for key, e in entries if e.state is State.RESIDENT}
        leaving = {range_name(key) for key, e in entries if e.state is State.EVICTING}  # the name goes first
        found = {os.fspath(p.relative_to(self.store_dir)) for p in (self.store_dir / RANGES_DIR).glob("*/*")}
        assert found - foreign - leaving == resident
        assert list((self.store_dir / TMP_DIR).iterdir()) == []
        assert set(self.cache.resident._ranges) <= set(self.index.resident_keys())
        assert not self.cache.resident._withheld
        self.check_gauges(evicting=evicting)

    def check_gauges(self, *, evicting: int = 0) -> None:
        """At rest every gauge of what is under way is zero."""
        reader, filler, statistics = self.service.reader, self.cache.filler, self.index.statistics()
        assert (reader.reads_in_flight, reader.bytes_in_flight) == (0, 0)
        assert (filler.flights, filler.in_flight_bytes) == (0, 0)
        schedule = filler.schedule
        assert (schedule.foreground, schedule.background, schedule.waiting) == (0, 0, 0)
        assert (statistics.filling, statistics.filling_bytes, statistics.evicting) == (0, 0, evicting)
        assert not any(pool.waiting for pool in self._pools())
        assert statistics.used_bytes == sum(e.charge for e in self.index._entries.values())
        assert statistics.used_bytes + statistics.overhead_bytes <= statistics.budget_bytes

    def _pools(self) -> tuple[Pool, ...]:
        return tuple(vars(self.pools).values())


def budget_for(ranges: int, size: int) -> int:
    """A budget that has room for so many ranges of this size, and for range tables, but not for one more."""
    return ranges * charge_of(size) + charge_of(size) // 2


@contextlib.asynccontextmanager
async def engine(
    source: Source,
    store_dir: Path,
    parser: FakeParser | None,
    *,
    fs: Os | None = None,
    store: RangeStore | None = None,
    budget_bytes: int = 64 << 20,
    policy: str = "hotness",
    source_reads: int = 8,
    open_max: int = 64,
    files_max: int = 1024,
    settle_s: float = 0.0,
    wall_ns: Callable[[], int] = lambda: WALL_NS,
    read_around: bool = False,
    write_budget_bytes: int = 0,
    prefetch: bool = False,
    scan: bool = False,
    hold_scan: bool = False,
) -> AsyncIterator[Engine]:
    """A running engine.

    Args:
        parser: None for the real one, in a child process.
        store: one that was made already, in place of `fs`.
        read_around: the source is told what is likely to be read next.
        scan: look for what an earlier engine has left in the store; `hold_scan`: not before `scan_gate` is set.
    """
    options = ServiceOptions(
        source_reads=source_reads,
        budget_bytes=budget_bytes,
        settle_s=settle_s,
        policy=policy,
        open_max=open_max,
        files_max=files_max,
        read_around=read_around,
        write_budget_bytes=write_budget_bytes,
        prefetch=prefetch,
    )
    store = store or RangeStore(fs or RealOs(store_dir))
    service = _WatchedService(
        source, options, store, store_dir=store_dir if scan else None, parser=parser, wall_ns=wall_ns
    )
    changes, pools = _Changes(), service.pools
    if isinstance(source, MemorySource):
        source._open_gate = _WatchedGate(changes)
        source._write_gate = _WatchedGate(changes)
    for name in list(vars(pools)):
        setattr(pools, name, _WatchedPool(getattr(pools, name).threads, changes))
    running = Engine(service, source, store_dir, changes)
    if not hold_scan:
        service.scan_gate.set()
    try:
        mocked = isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock)
        with trio.fail_after(inf if mocked else FAIL_AFTER_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(service.run)
                if not hold_scan:
                    await service.stock_taken.wait()
                yield running
                nursery.cancel_scope.cancel()
    finally:
        source.close()


async def empty(pool: Pool) -> None:
    """Wait until no thread of a pool is at work, those of calls that were given up included."""
    places = [object() for _ in range(pool.threads)]
    for place in places:
        await pool._limiter.acquire_on_behalf_of(place)
    for place in places:
        pool._limiter.release_on_behalf_of(place)


async def gather(*calls: Callable[[], Any]) -> list[Any]:
    """Call them at once; their results in order, errors (OSError) as they are."""
    results: list[Any] = [None] * len(calls)

    async def one(i: int, call: Callable[[], Any]) -> None:
        try:
            results[i] = await call()
        except OSError as error:
            results[i] = error

    async with trio.open_nursery() as nursery:
        for i, call in enumerate(calls):
            nursery.start_soon(one, i, call)
    return results
