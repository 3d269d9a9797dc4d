"""Everything in the background has a limit; and readers, flights and the whole engine may be cancelled at any time."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from mummufs.core.states import State
from mummufs.engine import filler, landing
from mummufs.source.memory import MemorySource
from mummufs.store.layout import TMP_DIR, charge_of
from mummufs.store.osfs import RealOs
from mummufs.store.rangestore import RangeStore
from tests.engine.harness import KIB, PAGE, FakeParser, FaultyOs, budget_for, contents, empty, engine, make_table

WINDOW = 64 * KIB
COUNT = 8
DATA = contents(COUNT * WINDOW)


def source_and_parser() -> tuple[MemorySource, FakeParser]:
    table = make_table(len(DATA), [(i * WINDOW, WINDOW) for i in range(COUNT)])
    return MemorySource({b"model": DATA}), FakeParser({b"model": table})


@pytest.mark.parametrize("limit", ["flights", "bytes"])
async def test_what_is_wanted_beyond_the_limit_is_dropped_and_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    if limit == "flights":
        monkeypatch.setattr(filler, "FLIGHTS_MAX", 2)
    else:
        monkeypatch.setattr(filler, "IN_FLIGHT_BYTES_MAX", 3 * WINDOW - 1)
    source, parser = source_and_parser()
    got: dict[int, bytes] = {}
    async with engine(source, tmp_path, parser) as e, trio.open_nursery() as nursery:
        handle = await e.open(b"model")

        async def read(i: int) -> None:
            got[i] = await e.read(handle, i * WINDOW, PAGE)

        source.hold_reads()
        for i in range(COUNT):
            nursery.start_soon(read, i)
        await e.wait_until(lambda: len(source.reads) == COUNT)
        assert e.cache.filler.flights == 2
        assert e.cache.filler.in_flight_bytes == 2 * WINDOW
        assert e.counters.fills.dropped == COUNT - 2
        source.release_reads()
        await e.idle()
        assert got == {i: DATA[i * WINDOW : i * WINDOW + PAGE] for i in range(COUNT)}
        assert e.counters.fills.completed == 2
        assert e.cache.filler.in_flight_bytes_max == 2 * WINDOW
        e.check()


async def test_early_reads_are_filled_within_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filler, "FLIGHTS_MAX", 1)
    source, parser = source_and_parser()
    parser.gate = trio.Event()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        assert await e.read(handle, 0, len(DATA)) == DATA
        parser.gate.set()
        await e.idle()
        assert e.index.statistics().resident == COUNT
        assert e.counters.fills.dropped == 0
        e.check()


async def test_a_reader_that_goes_away_leaves_the_flight_and_the_others_alone(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    got: list[bytes] = []
    async with engine(source, tmp_path, parser) as e, trio.open_nursery() as nursery:
        handle = await e.open(b"model")
        scopes = [trio.CancelScope() for _ in range(3)]

        async def read(scope: trio.CancelScope, offset: int) -> None:
            with scope:
                got.append(await e.read(handle, offset, PAGE))

        source.hold_reads()
        for i, scope in enumerate(scopes):
            nursery.start_soon(read, scope, i * PAGE)
        await e.wait_until(lambda: len(source.reads) == 1)
        scopes[0].cancel()
        scopes[2].cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert e.service.reader.reads_in_flight == 1
        source.release_reads()
        await e.idle()
        assert len(got) == 1
        assert got[0] in {DATA[i * PAGE : (i + 1) * PAGE] for i in range(3)}
        assert source.read_bytes() == WINDOW
        assert e.state(handle, 0) is State.RESIDENT
        e.check()


async def test_a_reader_that_goes_away_with_the_bytes_it_has_promised(tmp_path: Path) -> None:
    """It covers two windows and would give them to their flights; somebody else waits for one of these."""
    source, parser = source_and_parser()
    got: list[bytes] = []
    async with engine(source, tmp_path, parser) as e, trio.open_nursery() as nursery:
        handle = await e.open(b"model")
        scope = trio.CancelScope()

        async def goes_away() -> None:
            with scope:
                await e.read(handle, 0, 2 * WINDOW)

        async def stays() -> None:
            got.append(await e.read(handle, WINDOW + 1, PAGE))

        source.hold_reads()
        nursery.start_soon(goes_away)
        await e.wait_until(lambda: len(source.reads) == 1)
        assert e.cache.filler.flights == 2
        nursery.start_soon(stays)
        await trio.testing.wait_all_tasks_blocked()
        assert len(source.reads) == 1
        scope.cancel()
        await e.wait_until(lambda: len(source.reads) == 2)
        source.release_reads()
        await e.idle()
        await empty(e.pools.source)
        assert got == [DATA[WINDOW + 1 : WINDOW + 1 + PAGE]]
        assert e.counters.fills.aborted == 2
        e.check()


async def test_an_open_that_is_cancelled_leaves_no_handle(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e, trio.open_nursery() as nursery:
        node = await e.overlay.look_up(e.overlay.nodes.root, b"model")
        places = [object() for _ in range(e.pools.store_reads.threads)]
        for place in places:
            await e.pools.store_reads._limiter.acquire_on_behalf_of(place)  # the store hangs
        nursery.start_soon(e.overlay.open, node)
        await e.wait_until(lambda: e.pools.store_reads.waiting == 1)
        assert (node.opens, e.overlay.open_files) == (1, 1)
        nursery.cancel_scope.cancel()
    assert (node.opens, e.overlay.open_files) == (0, 0)


async def test_a_flight_that_gets_no_room_is_given_up(tmp_path: Path, mock_clock: MockClock) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser, budget_bytes=budget_for(1, WINDOW)) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 0)
        stored = e.cache.resident.acquire(e.key(handle, 0), handle.node.version)
        assert stored is not None
        assert await e.read(handle, WINDOW, PAGE) == DATA[WINDOW : WINDOW + PAGE]
        await e.idle()
        assert (e.state(handle, 0), e.state(handle, 1)) == (State.EVICTING, State.ABSENT)
        assert e.cache.filler.in_flight_bytes == WINDOW
        mock_clock.jump(landing.ROOM_WAIT_S)
        await e.idle()
        assert e.cache.filler.in_flight_bytes == 0
        assert e.counters.fills.aborted == 1
        e.check(evicting=1)
        del stored
        await e.idle()
        await e.fill(handle, 1)
        assert e.state(handle, 1) is State.RESIDENT
        e.check()


async def test_a_full_file_system_stops_fills_for_a_while(tmp_path: Path, mock_clock: MockClock) -> None:
    source, parser = source_and_parser()
    fs = FaultyOs(tmp_path)
    async with engine(source, tmp_path, parser, fs=fs) as e:
        handle = await e.open(b"model")
        fs.fails = lambda name, _: name == "write"
        await e.fill(handle, 0, 1, 2)
        assert (e.counters.errors.store, e.counters.fills.aborted, e.counters.fills.dropped) == (1, 1, 2)
        assert source.read_bytes() == WINDOW + 2
        fs.fails = lambda *_: False
        mock_clock.jump(landing.NO_ROOM_S)
        await e.idle()  # a probe finds that the store can be written to again
        await e.fill(handle, 0)
        assert e.state(handle, 0) is State.RESIDENT
        e.check()


@pytest.mark.parametrize("part", ["write", "unlink", "read"])
async def test_an_unexpected_fault_of_the_store_does_not_end_the_engine(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    source, parser = source_and_parser()

    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    async with engine(source, tmp_path, parser, open_max=1) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 0, 1)
        name = {"write": "write_range", "unlink": "remove_range", "read": "open_range"}[part]
        monkeypatch.setattr(e.cache.store, name, broken)
        if part == "unlink":
            e.cache.evictor.evict_nowait([e.key(handle, 0)])
        if part == "read":
            with pytest.raises(RuntimeError):  # the backend answers EIO, to this reader alone
                await e.read(handle, 0, PAGE)
        else:
            assert await e.read(handle, 2 * WINDOW, PAGE) == DATA[2 * WINDOW : 2 * WINDOW + PAGE]
        await e.idle()
        monkeypatch.undo()
        mock_clock.jump(60.0)
        for i in range(COUNT):
            assert await e.read(handle, i * WINDOW, PAGE) == DATA[i * WINDOW : i * WINDOW + PAGE]
            await e.idle()
        assert e.index.statistics().resident == COUNT
        e.check()


async def test_an_engine_cancelled_amid_flights_leaves_nothing_that_the_next_start_does_not_remove(
    tmp_path: Path,
) -> None:
    source, parser = source_and_parser()
    fs = FaultyOs(tmp_path)
    async with engine(source, tmp_path, parser, fs=fs) as e, trio.open_nursery() as nursery:
        handle = await e.open(b"model")
        await e.fill(handle, 0)
        fs.fails = lambda name, _: name in ("rename", "unlink")  # as if the process had died in between
        assert await e.read(handle, WINDOW, PAGE) == DATA[WINDOW : WINDOW + PAGE]
        await e.idle()
        source.hold_reads()
        for i in range(1, 4):
            nursery.start_soon(partial(e.read, handle, i * WINDOW, PAGE))
        await e.wait_until(lambda: len(source.reads) >= 3)
        assert len(list((tmp_path / TMP_DIR).iterdir())) == 1
        nursery.cancel_scope.cancel()
    assert e.cache.filler.flights == 0
    assert e.cache.filler.in_flight_bytes == 0
    assert e.index.statistics().filling == 0
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser, fs=RealOs(tmp_path), scan=True) as e:
        handle = await e.open(b"model")
        assert e.state(handle, 0) is State.RESIDENT
        assert await e.read(handle, 0, len(DATA)) == DATA
        await e.idle()
        e.check()
    assert charge_of(WINDOW) == WINDOW + PAGE
    assert RangeStore(RealOs(tmp_path)).tables_bytes > 0


async def test_drain_waits_for_what_is_being_written_and_begins_nothing(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        assert await e.read(handle, 0, PAGE) == DATA[:PAGE]
        await e.service.drain()
        assert e.state(handle, 0) is State.RESIDENT
        await e.fill(handle, 1)
        assert e.state(handle, 1) is State.ABSENT
        e.check()


async def test_a_scan_that_ends_during_a_drain_begins_nothing_either(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser, scan=True, hold_scan=True) as e:
        handle = await e.open(b"model")
        await e.service.drain()
        e.service.scan_gate.set()
        await e.service.stock_taken.wait()
        await e.fill(handle, 0)
        assert e.state(handle, 0) is State.ABSENT
        e.check()


async def test_a_drain_gives_up_on_a_source_that_hangs(tmp_path: Path, mock_clock: MockClock) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e, trio.open_nursery() as nursery:
        handle = await e.open(b"model")
        source.hold_reads()
        nursery.start_soon(partial(e.read, handle, 0, PAGE))
        await e.wait_until(lambda: len(source.reads) == 1)
        ended = trio.Event()

        async def drain() -> None:
            await e.service.drain()
            ended.set()

        nursery.start_soon(drain)
        await trio.testing.wait_all_tasks_blocked()
        await e.wait_until(lambda: e.calls == 1)  # a write that is under way would be late by the jump, and left alone
        assert not ended.is_set()
        mock_clock.jump(2.0)
        await ended.wait()
        source.release_reads()
        await e.idle()
        e.check()


async def test_more_files_than_may_be_open_are_refused_and_those_that_are_go_on(tmp_path: Path) -> None:
    source = MemorySource({b"a": DATA, b"b": DATA, b"c": DATA})
    async with engine(source, tmp_path, FakeParser(), files_max=2) as e:
        a, b = await e.open(b"a"), await e.open(b"b")
        again = await e.open(b"a")  # it takes no descriptor more
        with pytest.raises(OSError, match="open files") as refused:
            await e.open(b"c")
        assert refused.value.errno == errno.EMFILE
        mirror, node = e.service.mirror, b.node
        with pytest.raises(OSError, match="open files"):  # a descriptor to write is one of its own
            await mirror.open(node, truncate=False, drop_privileges=False)
        assert await e.read(a, WINDOW, PAGE) == DATA[WINDOW : WINDOW + PAGE]
        e.service.overlay.close(a)
        e.service.overlay.close(again)
        writer = await mirror.open(node, truncate=False, drop_privileges=False)
        with pytest.raises(OSError, match="open files"):
            await e.open(b"c")
        mirror.close(writer)
        assert await e.read(await e.open(b"c"), 0, PAGE) == DATA[:PAGE]
        await e.idle()
