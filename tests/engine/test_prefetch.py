"""Fetching ahead: what is read in order is there before it is asked for, at nobody's cost, and it is accounted for."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from mummufs.core import sequence
from mummufs.core.states import State
from mummufs.engine.overlay import Handle
from mummufs.engine.prefetch import Prefetcher
from mummufs.engine.schedule import LOWEST_WAIT_S
from mummufs.source.memory import MemorySource
from mummufs.store.layout import charge_of
from tests.engine.harness import FAIL_AFTER_S, KIB, Engine, FakeParser, budget_for, contents, engine, make_table

WINDOW = 64 * KIB
COUNT = 40
RUN = 4
"""Windows after which something follows."""
AHEAD = 8
PASS = 2
DATA = contents(COUNT * WINDOW)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes of `sequence`, for windows of 64 KiB."""
    monkeypatch.setattr(sequence, "RUN_WINDOWS_MIN", RUN)
    monkeypatch.setattr(sequence, "RUN_BYTES_MIN", RUN * WINDOW)
    monkeypatch.setattr(sequence, "AHEAD_BYTES_MAX", AHEAD * WINDOW)
    monkeypatch.setattr(sequence, "PASS_BYTES", PASS * WINDOW)
    monkeypatch.setattr(sequence, "BACK_BYTES_MAX", WINDOW)
    monkeypatch.setattr(sequence, "GAP_BYTES_MAX", 0)


def model() -> tuple[MemorySource, FakeParser]:
    table = make_table(len(DATA), [(i * WINDOW, WINDOW) for i in range(COUNT)])
    return MemorySource({b"model": DATA, b"other": DATA}), FakeParser({b"model": table, b"other": table})


def prefetcher(e: Engine) -> Prefetcher:
    assert e.cache.prefetch is not None
    return e.cache.prefetch


async def read_windows(e: Engine, handle: Handle, *numbers: int) -> None:
    """Read these windows whole, each when all that follows from the one before has been done."""
    for i in numbers:
        assert await e.read(handle, i * WINDOW, WINDOW) == DATA[i * WINDOW : (i + 1) * WINDOW]
        await e.idle()


async def test_who_reads_in_order_finds_what_follows(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser, prefetch=True) as e:
        handle = await e.open(b"model")
        await read_windows(e, handle, *range(RUN - 1))
        assert prefetcher(e).counters.windows == 0
        await read_windows(e, handle, RUN - 1)
        assert prefetcher(e).counters.windows == RUN, "no more than was read"
        await read_windows(e, handle, *range(RUN, COUNT))
        found = prefetcher(e).statistics()
        rest = (COUNT - RUN) * WINDOW
        assert (found["fetched_bytes"], found["used_bytes"]) == (rest, rest)
        assert (found["wasted_bytes"], found["unread_bytes"], found["declined_bytes"]) == (0, 0, 0)
        assert (e.counters.reads.misses, e.counters.reads.hits) == (RUN, COUNT - RUN)
        assert e.counters.source_reads.bytes == len(DATA), "nothing was read twice"
        e.check()


@pytest.mark.parametrize("numbers", [range(COUNT - 1, -1, -1), [*range(0, COUNT, 2), *range(1, COUNT, 2)]])
async def test_any_other_order_has_nothing_fetched(tmp_path: Path, numbers: Sequence[int]) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser, prefetch=True) as e:
        handle = await e.open(b"model")
        await read_windows(e, handle, *numbers)
        assert prefetcher(e).counters.windows == 0


async def test_it_is_off_unless_asked_for(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await read_windows(e, handle, *range(COUNT))
        assert e.cache.prefetch is None
        assert e.counters.reads.misses == COUNT


async def test_hits_that_the_engine_does_not_see_lead_on(tmp_path: Path) -> None:
    """They are reported in batches; the second one of the same window changes nothing."""
    source, parser = model()
    async with engine(source, tmp_path, parser, prefetch=True) as e:
        handle = await e.open(b"model")
        await read_windows(e, handle, *range(RUN))
        reports, view = e.service.reports, handle.node.view
        assert reports is not None and view is not None
        pieces = view.pieces(RUN * WINDOW, 2 * RUN * WINDOW)
        assert pieces is not None and len(pieces) == RUN
        for _ in range(2):
            reports.take(RUN, {stored: size for stored, _, _, size in pieces})
            await e.idle()
            assert prefetcher(e).counters.windows == RUN + AHEAD
            assert prefetcher(e).statistics()["used_bytes"] == RUN * WINDOW


async def test_nothing_is_read_while_somebody_waits(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """But one pass that has let others go first for LOWEST_WAIT_S."""
    source, parser = model()
    async with engine(source, tmp_path, parser, prefetch=True) as e:
        handle, other = await e.open(b"model"), await e.open(b"other")
        await read_windows(e, handle, *range(RUN))
        source.hold_reads()
        before = len(source.reads)
        schedule = e.cache.filler.schedule
        with trio.fail_after(10 * FAIL_AFTER_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(e.read, other, 5 * WINDOW, WINDOW)
                await e.wait_until(lambda: len(source.reads) == before + 1)
                for i in range(RUN, 2 * RUN):
                    prefetcher(e).touched_in_store(e.key(handle, i))
                await trio.testing.wait_all_tasks_blocked()
                assert (schedule.foreground, schedule.background, schedule.waiting) == (1, 0, 1)
                assert len(source.reads) == before + 1
                assert e.cache.filler.flights == 1 + PASS, "one pass is under way at a time"
                mock_clock.jump(LOWEST_WAIT_S)
                await e.wait_until(lambda: len(source.reads) == before + 2)
                assert schedule.waiting == 0
                source.release_reads()
        await e.idle()
        assert e.state(handle, 2 * RUN + AHEAD - 1) is State.RESIDENT
        e.check()


async def test_who_comes_for_what_is_on_its_way_joins_it(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser, prefetch=True) as e:
        handle = await e.open(b"model")
        await read_windows(e, handle, *range(RUN - 1))
        source.hold_reads()
        before = len(source.reads)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(e.read, handle, (RUN - 1) * WINDOW, WINDOW)
            await e.wait_until(lambda: len(source.reads) == before + 1)
            await e.wait_until(lambda: prefetcher(e).counters.windows > 0)
            nursery.start_soon(e.read, handle, RUN * WINDOW, WINDOW)
            await e.wait_until(lambda: len(source.reads) == before + 2)
            source.release_reads()
        await e.idle()
        found = prefetcher(e).statistics()
        assert e.counters.source_reads.bytes == (RUN + found["windows"]) * WINDOW
        assert (found["windows"], found["used_bytes"], found["late_bytes"]) == (PASS, WINDOW, WINDOW)
        await read_windows(e, handle, *range(RUN + 1, 2 * RUN - 1))
        assert prefetcher(e).counters.windows == PASS, "nothing follows who is as fast as the source"
        await read_windows(e, handle, 2 * RUN - 1)
        assert prefetcher(e).counters.windows > PASS, "until it has read as much again"


async def test_it_takes_free_room_only(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser, prefetch=True, budget_bytes=budget_for(10, WINDOW)) as e:
        handle = await e.open(b"model")
        await read_windows(e, handle, *range(RUN, 2 * RUN))
        assert e.counters.evictions.ranges == 0
        found = prefetcher(e).statistics()
        assert found["windows"] == RUN
        await read_windows(e, handle, *range(2 * RUN, 3 * RUN))
        found = prefetcher(e).statistics()
        assert found["declined_bytes"] > 0
        free = e.index.free_bytes - e.index.headroom_bytes
        assert 0 <= free < 3 * charge_of(WINDOW)
        assert e.counters.evictions.ranges == 0, "nothing had to go for it"


async def test_what_is_evicted_or_never_read_was_wasted(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser, prefetch=True) as e:
        handle = await e.open(b"model")
        await read_windows(e, handle, *range(RUN))
        e.cache.evictor.evict_nowait([e.key(handle, RUN), e.key(handle, RUN + 1)])
        await e.idle()
        found = prefetcher(e).statistics()
        assert (found["wasted_bytes"], found["unread_bytes"]) == (2 * WINDOW, (RUN - 2) * WINDOW)
        await read_windows(e, handle, RUN + 2)
        e.cache.evictor.evict_nowait([e.key(handle, RUN + 3)])
        await read_windows(e, handle, RUN + 3)
        counters = prefetcher(e).counters
        assert (counters.used_bytes, counters.wasted_bytes) == (WINDOW, 3 * WINDOW), "it came too late"
        await e.service.drain()
        assert counters.used_bytes + counters.wasted_bytes == counters.fetched_bytes
        assert prefetcher(e).statistics()["unread_bytes"] == 0


async def test_nothing_is_fetched_of_a_file_that_was_closed(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser, prefetch=True) as e:
        handle = await e.open(b"model")
        await read_windows(e, handle, *range(RUN))
        windows, key = prefetcher(e).counters.windows, e.key(handle, RUN)
        e.overlay.close(handle)
        del handle
        gc.collect()
        prefetcher(e).touched_in_store(key)
        await e.idle()
        assert prefetcher(e).counters.windows == windows


async def test_a_failed_pass_was_wasted_and_is_no_fault_of_a_read(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser, prefetch=True) as e:
        handle = await e.open(b"model")
        await read_windows(e, handle, *range(RUN - 1))
        source.fail_read(2)
        await read_windows(e, handle, RUN - 1)
        assert prefetcher(e).statistics()["wasted_bytes"] == PASS * WINDOW
        await read_windows(e, handle, *range(RUN, COUNT))
        assert (e.counters.errors.source, e.counters.errors.handler) == (0, 0)
        e.check()
