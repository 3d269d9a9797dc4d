"""How long the event loop keeps others waiting: `python -m tests.soak.lag STORE RANGES`, run by `scripts/soak limits`.

The engine over a store of very many ranges, in a process of its own that is set up as the daemon is: it takes stock,
is given more ranges until its index has a million, evicts a third of them, and then serves readers whose fills evict.
A task that sleeps a millisecond notes by how much it is late. Prints a JSON object: by phase, milliseconds.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import trio

from mummufs import collector
from mummufs.core.manifest import RangeTable
from mummufs.engine.service import RESTORE_STEP, Service, ServiceOptions
from mummufs.mount import SWITCH_INTERVAL_S
from mummufs.source.base import SourceFile
from mummufs.source.memory import MemorySource
from mummufs.store.layout import charge_of
from mummufs.store.osfs import RealOs
from mummufs.store.rangestore import RangeStore
from tests.soak.big import VERSION, WINDOW_BYTES, keys

TICK_S = 0.001
ENTRIES = 1_000_000
MODEL_RANGES = 2000
READERS = 16
EVICTED_SHARE = 3
"""One in so many ranges is evicted at once."""


class Lag:
    """A task that notes how late it wakes; `phase` says under which name. Garbage collections are noted as well."""

    def __init__(self) -> None:
        self.phase = "start"
        self.late_ms: dict[str, array[float]] = {}
        self.collected_ms: dict[str, list[float]] = {}
        self._begun = 0.0
        gc.callbacks.append(self._on_collection)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            due = time.perf_counter() + TICK_S
            await trio.sleep(TICK_S)
            late = self.late_ms.setdefault(self.phase, array("d"))
            late.append(max(0.0, time.perf_counter() - due) * 1e3)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        del info
        if phase == "start":
            self._begun = time.perf_counter()
        else:
            self.collected_ms.setdefault(self.phase, []).append((time.perf_counter() - self._begun) * 1e3)

    def figures(self) -> dict[str, dict[str, float]]:
        """By phase: 50th and 99th percentile and maximum of the lag, the longest collection, and how many ticks."""
        found = {}
        for phase, late in self.late_ms.items():
            ordered = sorted(late)
            found[phase] = {
                "p50_ms": ordered[len(ordered) // 2],
                "p99_ms": ordered[len(ordered) * 99 // 100],
                "max_ms": ordered[-1],
                "gc_max_ms": max(self.collected_ms.get(phase, [0.0])),
                "ticks": len(ordered),
            }
        return found


class _Parser:
    """One model whose windows are all of WINDOW_BYTES."""

    async def parse(self, path: bytes, file: SourceFile) -> RangeTable | None:
        del path, file
        starts = array("Q", range(0, MODEL_RANGES * WINDOW_BYTES, WINDOW_BYTES))
        ends = array("Q", [start + WINDOW_BYTES for start in starts])
        columns = (starts, ends, starts, ends)
        names = array("Q", [0] * MODEL_RANGES)
        return RangeTable("soak", MODEL_RANGES * WINDOW_BYTES, columns, bytes(MODEL_RANGES), names, b"")


async def _until(is_true: Callable[[], bool]) -> None:
    while not is_true():  # noqa: ASYNC110 - what is measured is not to be changed for it
        await trio.sleep(0.01)


async def _measure(service: Service, lag: Lag, stored: int) -> None:
    assert service.cache is not None
    index = service.cache.index
    charge = charge_of(WINDOW_BYTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lag.run)
        lag.phase = "stock-taking"
        await nursery.start(service.run)
        await _until(lambda: service.scanned)
        assert index.statistics().resident == stored, "not all of the store was found"
        lag.phase = "growing"
        for at in range(0, ENTRIES - stored, RESTORE_STEP):
            count = min(RESTORE_STEP, ENTRIES - stored - at)
            service._restore((key, VERSION) for key in keys(count, stored + at))
            await trio.lowlevel.checkpoint()
        lag.phase = "evicting at once"
        left = ENTRIES - ENTRIES // EVICTED_SHARE
        index.set_overhead(index.budget_bytes - index.headroom_bytes - left * charge)
        evictor, filler = service.cache.evictor, service.cache.filler
        evictor.wake()
        await _until(lambda: index.statistics().resident <= left and not evictor.queued)
        lag.phase = "readers' fills evict"
        overlay = service.overlay
        node = await overlay.look_up(overlay.nodes.root, b"model")
        handle = await overlay.open(node)
        filler.open_for_fills = True

        async def read(start: int) -> None:
            for i in range(start, MODEL_RANGES, READERS):
                for part in range(2):
                    await overlay.read(handle, i * WINDOW_BYTES + part * WINDOW_BYTES // 2, WINDOW_BYTES // 2)

        async with trio.open_nursery() as readers:
            for start in range(READERS):
                readers.start_soon(read, start)
        await _until(lambda: not filler.flights and not evictor.queued)
        overlay.close(handle)
        nursery.cancel_scope.cancel()


def main(directory: Path, stored: int) -> int:
    """Measure, and print what was found."""
    source = MemorySource({b"model": bytes(MODEL_RANGES * WINDOW_BYTES)})
    budget = ENTRIES * charge_of(WINDOW_BYTES) * 102 // 100
    store = RangeStore(RealOs(directory), lambda: None)
    options = ServiceOptions(source_reads=8, budget_bytes=budget, settle_s=0.0)
    service = Service(source, options, store, store_dir=directory, parser=_Parser(), wall_ns=lambda: 4 * 10**18)
    lag = Lag()
    collector.tame()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    trio.run(_measure, service, lag, stored)
    fills, evictions = service.counters.fills.completed, service.counters.evictions.ranges
    print(json.dumps({"phases": lag.figures(), "fills": fills, "evictions": evictions}), flush=True)
    os._exit(0)  # a million objects need not be freed one by one


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
