"""The memory of heat: saved in the background and at the end, there again after both, and never in a reader's way."""

from __future__ import annotations

import errno
import threading
from functools import partial
from math import inf
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mummufs.core.index import HEADROOM_SHARE
from mummufs.core.ranges import FileId, RangeKey, page_ceil
from mummufs.core.ratings import HeatRecord, PackRecord
from mummufs.core.states import State
from mummufs.engine import heatkeeper
from mummufs.engine.gate import SLOW_S
from mummufs.engine.heatkeeper import SAVE_S, HeatKeeper
from mummufs.engine.service import DRAIN_S
from mummufs.source.memory import MemorySource
from mummufs.store.heatfile import HeatImage, HeatPacker
from mummufs.store.layout import HEAT_BAD_NAME, HEAT_NAME, TMP_DIR
from mummufs.store.osfs import RealOs
from mummufs.store.rangestore import RangeStore
from tests.engine.harness import KIB, Engine, FakeParser, FaultyOs, budget_for, contents, empty, engine, make_table

WINDOW = 64 * KIB
COUNT = 8
DATA = contents(COUNT * WINDOW)
PER_DAY = 6 * (WINDOW + 4096)
FOREIGN = FileId(3, 4)


def source_and_parser() -> tuple[MemorySource, FakeParser]:
    table = make_table(len(DATA), [(i * WINDOW, WINDOW) for i in range(COUNT)])
    return MemorySource({b"model": DATA}), FakeParser({b"model": table})


def keeper(e: Engine) -> HeatKeeper:
    assert e.service.heat is not None
    return e.service.heat


def saved(store_dir: Path) -> dict[RangeKey, float]:
    """What the heat file holds."""
    image = HeatImage((store_dir / HEAT_NAME).read_bytes())
    return {record.key: record.heat for record in image.records(0, image.count)}


def put(store_dir: Path, records: list[HeatRecord], packs: tuple[PackRecord, ...] = ()) -> None:
    """Leave a heat file as an earlier mount does."""
    packer = HeatPacker()
    for record in records:
        packer.add(*record)
    RangeStore(RealOs(store_dir)).heat.save(packer, packs)


def record(i: int, heat: float = 1.0) -> HeatRecord:
    return HeatRecord(RangeKey(FOREIGN, i * WINDOW, WINDOW), heat, i)


async def minute(e: Engine, clock: MockClock) -> None:
    clock.jump(SAVE_S)
    await e.idle()


async def test_killed_after_a_minute_it_has_the_heat_again(tmp_path: Path, mock_clock: MockClock) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 0, 1)
        for _ in range(6):
            await e.read(handle, 0, WINDOW)
        assert not (tmp_path / HEAT_NAME).exists()
        await minute(e, mock_clock)
        keys = [e.key(handle, i) for i in range(3)]
        heats = [e.index.heat(key) for key in keys]
        assert heats[0] > 2 > heats[1] > -inf == heats[2]
        assert saved(tmp_path) == {keys[0]: heats[0], keys[1]: heats[1]}
        assert keeper(e).records == 2
        await e.read(handle, 3 * WINDOW, 1)  # after the save, so this is lost
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser, scan=True, budget_bytes=32 << 20) as e:
        assert keeper(e).recalled == 2
        assert [e.index.heat(key) for key in keys] == pytest.approx(heats), "whatever the budget is now"
        assert e.index.state(keys[0]) is State.RESIDENT
        assert [key for key in e.index.resident_keys() if key in keys[:2]] == [keys[1], keys[0]]


async def test_a_clean_end_keeps_all_of_it(tmp_path: Path, mock_clock: MockClock) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 5)
        await e.service.drain()
        assert saved(tmp_path) == {e.key(handle, 5): e.index.heat(e.key(handle, 5))}
        await e.service.drain()
        assert keeper(e).saves == 1, "nothing has changed since"
        await e.idle()
        e.check()


async def test_it_is_saved_once_a_minute_and_only_after_changes(tmp_path: Path, mock_clock: MockClock) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        await minute(e, mock_clock)
        assert keeper(e).saves == 0, "nothing was read"
        handle = await e.open(b"model")
        for expected in (1, 2, 3):
            for step in range(6):
                await e.read(handle, step * WINDOW, WINDOW)
                await e.idle()
                mock_clock.jump(SAVE_S / 8)
                await e.idle()
                assert keeper(e).saves == expected - 1
            mock_clock.jump(SAVE_S / 4)
            await e.idle()
            assert keeper(e).saves == expected
        await minute(e, mock_clock)
        await minute(e, mock_clock)
        assert keeper(e).saves == 3
        keeper(e).changed()
        await minute(e, mock_clock)
        assert keeper(e).saves == 4
        e.check()


async def test_it_counts_in_the_budget(tmp_path: Path, mock_clock: MockClock) -> None:
    source, parser = source_and_parser()
    seen: list[int] = []
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 0)
        tables = e.index.statistics().overhead_bytes
        write = e.cache.store.heat._write

        def watched(name: str, data: memoryview) -> None:
            seen.append(e.index.statistics().overhead_bytes)
            write(name, data)

        e.cache.store.heat._write = watched
        await minute(e, mock_clock)
        size = page_ceil((tmp_path / HEAT_NAME).stat().st_size)
        assert e.index.statistics().overhead_bytes == tables + size
        keeper(e).changed()
        await minute(e, mock_clock)
        assert seen == [tables + size, tables + 2 * size], "the old one is there until the new one has its name"
        assert e.index.statistics().overhead_bytes == tables + size
    async with engine(source, tmp_path, parser) as e:
        assert e.index.statistics().overhead_bytes == tables + size


async def test_where_there_are_more_than_may_be_kept_the_hottest_are(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heatkeeper, "RECORDS_MAX", 3)
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        for i in range(10):
            e.index.recall(record(i, heat=float(i * 7 % 10)))
        keeper(e).changed()
        await minute(e, mock_clock)
        assert sorted(saved(tmp_path).values()) == [7.0, 8.0, 9.0]


async def test_a_small_budget_keeps_few(tmp_path: Path, mock_clock: MockClock) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser, budget_bytes=budget_for(1, WINDOW)) as e:
        for i in range(200):
            e.index.recall(record(i))
        keeper(e).changed()
        await minute(e, mock_clock)
        assert 10 < len(saved(tmp_path)) < 20
        assert 2 / heatkeeper.HEAT_SHARE <= HEADROOM_SHARE, "it may be there twice while it is written"


async def test_it_is_walked_and_recalled_in_steps(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heatkeeper, "WALK_STEP", 4)
    monkeypatch.setattr(heatkeeper, "RECALL_STEP", 3)
    files = tuple(FileId(3, i) for i in range(10))
    put(tmp_path, [record(i, float(i)) for i in range(10)], (PackRecord(b"pack", 20.0, files),))
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        assert keeper(e).recalled == 10
        packs = {pack.name: pack for pack in e.index.packs()}
        assert set(packs[b"pack"].files) == set(files)
        assert packs[b"pack"].activity == pytest.approx(20.0)
        keeper(e).changed()
        mock_clock.jump(SAVE_S)
        await e.idle()
        assert keeper(e).saves == 0, "it pauses between two steps"
        mock_clock.autojump_threshold = 0.01
        await trio.sleep(1)
        mock_clock.autojump_threshold = inf
        await e.idle()
        assert keeper(e).saves == 1
        assert saved(tmp_path) == {record(i).key: float(i) for i in range(10)}


async def test_an_end_in_the_middle_of_a_walk_saves_at_once(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heatkeeper, "WALK_STEP", 4)
    put(tmp_path, [record(i, float(i)) for i in range(10)])
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        keeper(e).changed()
        mock_clock.jump(SAVE_S)
        await e.idle()
        e.index.recall(record(20))
        await e.service.drain()
        assert len(saved(tmp_path)) == 11


async def test_the_order_of_touches_outlives_any_number_of_mounts(tmp_path: Path, mock_clock: MockClock) -> None:
    """Equally hot ranges: the one touched longest ago goes first, whichever mount it was touched in."""
    for mount in range(4):
        source, parser = source_and_parser()
        async with engine(source, tmp_path, parser, policy="lru", scan=mount > 0) as e:
            handle = await e.open(b"model")
            for i in (2 * mount + 1, 2 * mount):
                await e.read(handle, i * WINDOW, WINDOW)
                await e.idle()
            await e.service.drain()
            order = [e.key(handle, i) for m in range(mount + 1) for i in (2 * m + 1, 2 * m)]
            assert list(e.index.resident_keys()) == order


# ---------------------------------------------------------------------- faults


@pytest.mark.parametrize("damage", ["cut", "flipped", "version"])
async def test_a_bad_one_is_set_aside_with_one_warning(
    tmp_path: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    put(tmp_path, [record(1)])
    path = tmp_path / HEAT_NAME
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[-1]
    else:
        data[8 if damage == "version" else 70] ^= 2
    path.write_bytes(data)
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        assert e.index.heat(record(1).key) == -inf
        assert (tmp_path / HEAT_BAD_NAME).read_bytes() == data
        assert [r.levelname for r in caplog.records if "heat" in r.message] == ["WARNING"]
        assert "called 'heat.bad' now" in caplog.text
        handle = await e.open(b"model")
        await e.fill(handle, 0)
        await minute(e, mock_clock)
        assert set(saved(tmp_path)) == {e.key(handle, 0)}
        assert await e.read(handle, 0, len(DATA)) == DATA


async def test_one_that_cannot_be_read_is_tried_again(tmp_path: Path, mock_clock: MockClock) -> None:
    put(tmp_path, [record(1)])
    fs = FaultyOs(tmp_path)
    source, parser = source_and_parser()
    broken = True
    real = fs.open

    def opened(name: str) -> int:
        if broken and name == HEAT_NAME:
            raise OSError(errno.EIO, "for the test")
        return real(name)

    fs.open = opened  # type: ignore[method-assign]
    async with engine(source, tmp_path, parser, fs=fs) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 0)
        assert not keeper(e).loaded
        await e.service.drain()
        assert set(saved(tmp_path)) == {record(1).key}, "it must not be written over before it was read"
    async with engine(source, tmp_path, parser, fs=fs) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 0)
        broken = False
        await minute(e, mock_clock)
        assert set(saved(tmp_path)) == {record(1).key, e.key(handle, 0)}
        assert e.index.heat(record(1).key) == pytest.approx(1.0)
    broken = True
    async with engine(source, tmp_path, parser, fs=fs) as e:
        await minute(e, mock_clock)
        assert not keeper(e).loaded
        await minute(e, mock_clock)
        assert keeper(e).loaded, "and then given up"
        assert (tmp_path / HEAT_BAD_NAME).exists()


def _is_call(wanted: int, name: str, n: int) -> bool:
    return n == wanted


async def test_no_fault_of_a_save_is_seen_by_a_reader(tmp_path: Path, mock_clock: MockClock) -> None:
    """Every call of it fails in turn; the file before it stays, and the next save is whole."""
    for nth in range(1, 20):
        store = tmp_path / str(nth)
        store.mkdir()
        put(store, [record(1)])
        fs = FaultyOs(store)
        source, parser = source_and_parser()
        async with engine(source, store, parser, fs=fs) as e:
            handle = await e.open(b"model")
            await e.fill(handle, 0)
            first = len(fs.log) + nth
            fs.fails = partial(_is_call, first)
            await minute(e, mock_clock)
            reached = len(fs.log) >= first
            fs.fails = lambda *_: False
            assert saved(store).keys() >= {record(1).key}
            assert list((store / TMP_DIR).iterdir()) == []
            assert keeper(e).failed == reached == e.counters.errors.store
            assert await e.read(handle, 0, len(DATA)) == DATA
            await e.idle()
            await minute(e, mock_clock)
            assert e.key(handle, 0) in saved(store)
            e.check()
        if not reached:
            assert nth > 4
            return
    pytest.fail("a save has no end")


async def test_a_fault_of_ours_does_not_end_the_mount(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 0)
        with monkeypatch.context() as m:
            m.setattr(e.index, "hot_steps", lambda _: 1 // 0)
            await minute(e, mock_clock)
        assert e.counters.errors.handler == 1
        await minute(e, mock_clock)
        assert e.key(handle, 0) in saved(tmp_path)


class _HangingOs(FaultyOs):
    """Opening and syncing wait while `gate` is shut."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.gate = threading.Event()
        self.gate.set()

    def open(self, name: str) -> int:
        self.gate.wait(60)
        return super().open(name)

    def sync(self, fd: int) -> None:
        self.gate.wait(60)
        super().sync(fd)


async def test_an_end_waits_for_no_store_that_hangs(tmp_path: Path, mock_clock: MockClock) -> None:
    fs = _HangingOs(tmp_path)
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser, fs=fs) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 0)
        fs.gate.clear()
        begun = trio.current_time()
        mock_clock.autojump_threshold = 0.0
        await e.service.drain()
        mock_clock.autojump_threshold = inf
        assert trio.current_time() - begun == pytest.approx(DRAIN_S)
        fs.gate.set()
        await empty(e.pools.store_writes)


async def test_a_load_that_hangs_is_made_up_for(tmp_path: Path, mock_clock: MockClock) -> None:
    """However long: it says nothing of the heat file."""
    put(tmp_path, [record(1)])
    fs = _HangingOs(tmp_path)
    source, parser = source_and_parser()
    store = RangeStore(fs)
    fs.gate.clear()
    async with engine(source, tmp_path, parser, store=store, hold_scan=True) as e:
        for _ in range(2 * heatkeeper.LOAD_TRIES):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(SLOW_S)
        await trio.testing.wait_all_tasks_blocked()
        assert not keeper(e).loaded
        fs.gate.set()
        await empty(e.pools.store_reads)
        await minute(e, mock_clock)
        assert e.index.heat(record(1).key) == pytest.approx(1.0)


# ---------------------------------------------------------------------- wear


async def test_writes_beyond_the_budget_are_declined_and_read_all_the_same(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    source, parser = source_and_parser()
    wall_ns = 10**18
    async with engine(source, tmp_path, parser, write_budget_bytes=PER_DAY, wall_ns=lambda: wall_ns) as e:
        handle = await e.open(b"model")
        await e.fill(handle, *range(COUNT))
        assert e.counters.fills.completed == 3, "half of the day's bytes are for what is read more than once"
        assert e.counters.fills.budget_declined == COUNT - 3
        assert await e.read(handle, 0, len(DATA)) == DATA
        for _ in range(6):
            await e.fill(handle, 7)
            await e.read(handle, 7 * WINDOW, WINDOW)
        assert e.state(handle, 7) is State.RESIDENT, "it is hot enough"
        assert e.service.wear is not None
        statistics = e.service.wear.statistics()
        assert statistics is not None and statistics.left_bytes < PER_DAY // 2
        await e.service.drain()
        written = e.cache.store.written.total
    wall_ns += 3600 * 10**9
    async with engine(source, tmp_path, parser, write_budget_bytes=PER_DAY, wall_ns=lambda: wall_ns, scan=True) as e:
        assert e.service.wear is not None
        left = e.service.wear.statistics()
        assert left is not None
        assert left.left_bytes == pytest.approx(PER_DAY - written + PER_DAY / 24, abs=600)
    wall_ns += 24 * 3600 * 10**9
    async with engine(source, tmp_path, parser, write_budget_bytes=PER_DAY, wall_ns=lambda: wall_ns, scan=True) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 4)
        assert e.state(handle, 4) is State.RESIDENT, "another day"


async def test_a_pinned_range_needs_no_heat(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser, write_budget_bytes=4 * (WINDOW + 4096)) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 0, 1, 2)
        assert [e.state(handle, i) for i in range(3)] == [State.RESIDENT, State.RESIDENT, State.ABSENT]
        e.index.pin(e.key(handle, 2))
        await e.fill(handle, 2)
        assert e.state(handle, 2) is State.RESIDENT


async def test_without_a_budget_all_is_written(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, *range(COUNT))
        assert e.counters.fills.completed == COUNT
        assert e.service.wear is not None and e.service.wear.statistics() is None
