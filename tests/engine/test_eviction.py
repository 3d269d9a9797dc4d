"""The budget holds at every step, the coldest ranges go, and bytes are free when they are really free."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from mummufs.core.index import CacheIndex
from mummufs.core.states import State
from mummufs.engine.children import running_child
from mummufs.engine.evictor import START_WAIT_S
from mummufs.source.memory import MemorySource
from mummufs.store.layout import charge_of
from tests.engine.harness import KIB, PAGE, FakeParser, budget_for, contents, engine, gather, make_table

WINDOW = 64 * KIB
COUNT = 24
DATA = contents(COUNT * WINDOW)


def source_and_parser() -> tuple[MemorySource, FakeParser]:
    table = make_table(len(DATA), [(i * WINDOW, WINDOW) for i in range(COUNT)])
    return MemorySource({b"model": DATA}), FakeParser({b"model": table})


@pytest.mark.parametrize("policy", ["hotness", "lru"])
async def test_a_hot_range_survives_a_sweep_by_hotness_and_not_by_lru(tmp_path: Path, policy: str) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser, budget_bytes=budget_for(4, WINDOW), policy=policy) as e:
        handle = await e.open(b"model")
        for _ in range(8):
            assert await e.read(handle, 0, WINDOW) == DATA[:WINDOW]
            await e.idle()
        for i in range(1, 9):
            offset = i * WINDOW
            assert await e.read(handle, offset, WINDOW) == DATA[offset : offset + WINDOW]
            await e.idle()
        expected = State.RESIDENT if policy == "hotness" else State.ABSENT
        assert e.state(handle, 0) is expected
        assert e.state(handle, 8) is State.RESIDENT
        assert e.counters.fills.completed == 9
        e.check()


async def test_a_range_larger_than_the_budget_is_declined_and_read_all_the_same(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser, budget_bytes=charge_of(WINDOW) - 1) as e:
        handle = await e.open(b"model")
        assert await e.read(handle, 0, PAGE) == DATA[:PAGE]
        await e.idle()
        assert source.read_bytes() == PAGE
        assert e.counters.fills.declined == 1
        e.check()


def _disk_bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:  # evicted since it was listed
        return 0


async def test_the_budget_holds_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, parser = source_and_parser()
    samples: list[int] = []

    def watched(name: str) -> None:
        real = getattr(CacheIndex, name)

        def call(self: CacheIndex, *args: object) -> object:
            result = real(self, *args)
            self._check()
            s = self.statistics()
            assert s.used_bytes + s.filling_bytes + s.overhead_bytes <= s.budget_bytes
            assert sum(map(_disk_bytes, tmp_path.glob("ranges/*/*"))) <= s.budget_bytes
            samples.append(s.used_bytes + s.filling_bytes)
            return result

        monkeypatch.setattr(CacheIndex, name, call)

    for name in ("begin_fill", "commit_fill", "abort_fill", "begin_evict", "finish_evict"):
        watched(name)
    budget = budget_for(4, WINDOW)
    async with engine(source, tmp_path, parser, budget_bytes=budget) as e:
        handle = await e.open(b"model")
        wanted = list(range(COUNT))

        async def sweep(reader: int) -> None:
            for k in range(len(wanted)):
                offset = wanted[(k * 5 + reader) % len(wanted)] * WINDOW
                assert await e.read(handle, offset + 9, 10 * KIB) == DATA[offset + 9 : offset + 9 + 10 * KIB]

        # A sweep may be through before the first range files are written: until then nothing can make room.
        while e.counters.fills.completed < 8:
            assert await gather(*(partial(sweep, reader) for reader in range(16))) == [None] * 16
            await e.idle()
            # Where all are as hot, what is there stays: from now on only others are read, until they are hotter.
            wanted = [i for i in range(COUNT) if e.state(handle, i) is not State.RESIDENT][:4]
        assert e.counters.errors.handler == 0
        assert e.counters.evictions.ranges >= 4
        assert max(samples) == 4 * charge_of(WINDOW)
        e.check()


async def test_bytes_stay_counted_while_somebody_reads_from_the_range_file(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 0)
        key = e.key(handle, 0)
        stored = e.cache.resident.acquire(key, handle.node.version)
        assert stored is not None
        used = e.index.statistics().used_bytes
        e.cache.evictor.evict_nowait([key])
        await e.idle()
        assert not e.range_file(handle, 0).exists()
        assert e.state(handle, 0) is State.EVICTING
        assert e.index.statistics().used_bytes == used
        assert await e.read(handle, 0, PAGE) == DATA[:PAGE]  # from the source
        progressed = e.cache.evictor.wait_progress
        async with trio.open_nursery() as nursery:
            nursery.start_soon(progressed)
            await trio.testing.wait_all_tasks_blocked()
            del stored
        await e.idle()
        assert e.state(handle, 0) is State.RESIDENT  # the flight of that read has waited for the room
        e.check()


@pytest.mark.parametrize("how", ["in order", "it cannot be started", "it hangs"])
async def test_bytes_stay_counted_while_a_child_that_starts_has_the_range_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock, how: str
) -> None:
    """Until its own program runs it has a copy of every descriptor. One that hangs there is not waited for."""
    start, ended, real = trio.Event(), trio.Event(), trio.lowlevel.open_process

    async def slow(*args: Any, **kwargs: Any) -> trio.Process:
        await start.wait()
        if how == "it cannot be started":
            raise FileNotFoundError
        return await real(*args, **kwargs)

    async def child() -> None:
        with contextlib.suppress(FileNotFoundError):
            async with running_child("mummufs.manifests.pipechild", "00", "0", asks=True):
                pass
        ended.set()

    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e, trio.open_nursery() as nursery:
        handle = await e.open(b"model")
        await e.fill(handle, 0, 1)
        monkeypatch.setattr(trio.lowlevel, "open_process", slow)
        nursery.start_soon(child)
        await trio.testing.wait_all_tasks_blocked()
        used = e.index.statistics().used_bytes
        e.cache.evictor.evict_nowait([e.key(handle, 0), e.key(handle, 1)])
        await e.idle()
        assert not e.range_file(handle, 0).exists()
        assert e.index.statistics().used_bytes == used
        assert e.cache.evictor.queued == 2
        if how == "it hangs":
            mock_clock.jump(START_WAIT_S)
            await e.idle()
        else:
            start.set()
            await ended.wait()
            await e.idle()
        assert e.index.statistics().used_bytes == 0
        assert e.cache.evictor.queued == 0
        start.set()
        e.check()


async def test_the_budget_is_used_up_to_its_headroom(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    budget = 20 * charge_of(WINDOW)
    async with engine(source, tmp_path, parser, budget_bytes=budget) as e:
        handle = await e.open(b"model")
        taken = []
        for i in range(COUNT):
            await e.fill(handle, i)
            s = e.index.statistics()
            taken.append(s.used_bytes + s.overhead_bytes)
            assert taken[-1] <= budget - e.index.headroom_bytes
        assert min(taken[20:]) > budget - e.index.headroom_bytes - charge_of(WINDOW)
        assert e.counters.evictions.ranges > 0
        assert e.state(handle, 0) is State.ABSENT  # the oldest of equals
        assert e.state(handle, COUNT - 1) is State.RESIDENT
        e.check()


async def test_a_smaller_budget_than_before(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        await e.fill(await e.open(b"model"), *range(COUNT))
    async with engine(source, tmp_path, parser, budget_bytes=budget_for(4, WINDOW), scan=True) as e:
        await e.idle()
        assert 0 < e.index.statistics().resident <= 4
        handle = await e.open(b"model")
        for i in range(COUNT):
            assert await e.read(handle, i * WINDOW, WINDOW) == DATA[i * WINDOW : (i + 1) * WINDOW]
        await e.idle()
        e.check()
