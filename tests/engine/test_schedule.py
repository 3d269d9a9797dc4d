"""Who reads the source next: who is waited for goes first, the rest by place, and nobody waits for ever."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from mummufs.core.ranges import ByteRange, FileId, RangeKey
from mummufs.engine import bringing, flight
from mummufs.engine.flight import FOREGROUND_BYTES
from mummufs.engine.merging import MERGE_GAP_BYTES, MERGE_MAX_BYTES, merged
from mummufs.engine.schedule import BACKGROUND_WAIT_S, LOWEST_WAIT_S, Schedule
from mummufs.engine.threads import Pools
from mummufs.source.memory import MemoryFile, MemorySource
from tests.engine.harness import FAIL_AFTER_S, KIB, PAGE, FakeParser, FaultyOs, contents, engine, gather, make_table

FILE = FileId(1, 1)
MIB = 1 << 20


class Calls:
    """Calls that the test lets go, in a schedule of their own."""

    def __init__(self) -> None:
        self.schedule = Schedule(Pools(8))
        self.begun: list[str] = []
        self.ends: dict[str, trio.Event] = {}
        self._beginning = trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    def call(self, name: str) -> None:
        trio.from_thread.run_sync(self._has_begun, name, trio_token=self._token)
        trio.from_thread.run(self.ends[name].wait, trio_token=self._token)

    def _has_begun(self, name: str) -> None:
        self.begun.append(name)
        self._beginning.set()

    async def foreground(self, name: str) -> None:
        self.ends[name] = trio.Event()
        await self.schedule.read(self.call, name)

    async def background(self, name: str, offset: int, go: trio.Event, lowest: bool = False) -> None:
        self.ends[name] = trio.Event()
        await self.schedule.read_in_turn(FILE, offset, go, self.call, name, lowest=lowest)

    async def settle(self, count: int) -> None:
        """Wait until so many calls have begun."""
        while len(self.begun) < count:
            self._beginning = trio.Event()
            await self._beginning.wait()
        await trio.testing.wait_all_tasks_blocked()

    def check_at_rest(self) -> None:
        schedule = self.schedule
        assert (schedule.foreground, schedule.background, schedule.waiting) == (0, 0, 0)
        assert schedule._waiting == {}


async def test_background_reads_go_one_by_one_in_the_order_of_their_places(mock_clock: MockClock) -> None:
    calls = Calls()
    async with trio.open_nursery() as nursery:
        for offset in (30, 10, 20, 5):
            nursery.start_soon(calls.background, f"b{offset}", offset, trio.Event())
            await trio.testing.wait_all_tasks_blocked()
        for i, name in enumerate(("b30", "b5", "b10", "b20")):
            await calls.settle(i + 1)
            assert calls.begun[-1] == name
            assert (calls.schedule.background, calls.schedule.waiting) == (1, 3 - i)
            calls.ends[name].set()
    assert calls.begun == ["b30", "b5", "b10", "b20"], "behind the last place it begins anew"
    assert calls.schedule.waiting_max == 3
    calls.check_at_rest()


async def test_what_somebody_waits_for_passes_what_nobody_does(mock_clock: MockClock) -> None:
    calls = Calls()
    async with trio.open_nursery() as nursery:
        for name in ("f1", "f2"):
            nursery.start_soon(calls.foreground, name)
        await calls.settle(2)
        assert not calls.schedule.is_quiet
        nursery.start_soon(calls.background, "b", 0, trio.Event())
        await calls.settle(2)
        nursery.start_soon(calls.foreground, "f3")
        await calls.settle(3)
        assert sorted(calls.begun) == ["f1", "f2", "f3"]
        for name in ("f1", "f2", "f3"):
            await calls.settle(3)
            assert "b" not in calls.begun
            calls.ends[name].set()
        await calls.settle(4)
        assert calls.begun[-1] == "b"
        calls.ends["b"].set()
    calls.check_at_rest()


async def test_it_does_not_wait_for_ever(mock_clock: MockClock) -> None:
    calls = Calls()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(calls.foreground, "f")
        await calls.settle(1)
        nursery.start_soon(calls.background, "b", 0, trio.Event())
        await calls.settle(1)
        mock_clock.jump(BACKGROUND_WAIT_S)
        await calls.settle(2)
        assert (calls.schedule.foreground, calls.schedule.background, calls.schedule.waiting) == (2, 0, 0)
        calls.ends["b"].set()
        calls.ends["f"].set()
    calls.check_at_rest()


async def test_the_lowest_lets_every_other_one_pass_for_a_time(mock_clock: MockClock) -> None:
    calls = Calls()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(calls.background, "first", 0, trio.Event())
        await calls.settle(1)
        for name in ("low 1", "low 2", "low 3"):
            nursery.start_soon(calls.background, name, 0, trio.Event(), True)
        nursery.start_soon(calls.background, "b", 9, trio.Event())
        await calls.settle(1)
        assert (calls.begun, calls.schedule.waiting) == (["first"], 4)
        calls.ends["first"].set()
        await calls.settle(2)
        assert calls.begun[-1] == "b"
        mock_clock.jump(BACKGROUND_WAIT_S)
        await calls.settle(2)
        calls.ends["b"].set()
        await calls.settle(3)
        assert calls.begun[-1].startswith("low")
        mock_clock.jump(LOWEST_WAIT_S)
        await calls.settle(5)
        for name in ("low 1", "low 2", "low 3"):
            calls.ends[name].set()
    calls.check_at_rest()


async def test_it_goes_at_once_when_somebody_has_come(mock_clock: MockClock) -> None:
    calls, go = Calls(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(calls.foreground, "f")
        await calls.settle(1)
        nursery.start_soon(calls.background, "b", 0, go)
        await trio.testing.wait_all_tasks_blocked()
        assert calls.begun == ["f"]
        go.set()
        await calls.settle(2)
        calls.ends["b"].set()
        calls.ends["f"].set()
    calls.check_at_rest()


@pytest.mark.parametrize("granted", [False, True])
async def test_one_that_is_cancelled_gives_its_turn_to_the_next(granted: bool, mock_clock: MockClock) -> None:
    calls = Calls()
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def goes_away() -> None:
            with scope:
                await calls.background("away", 0, trio.Event())

        nursery.start_soon(calls.foreground, "f")
        await calls.settle(1)
        nursery.start_soon(goes_away)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(calls.background, "stays", 1, trio.Event())
        await trio.testing.wait_all_tasks_blocked()
        if granted:
            calls.schedule.foreground -= 1
            calls.schedule._grant()  # has its turn, and has not run yet
            calls.schedule.foreground += 1
            assert calls.schedule.background == 1
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert calls.schedule.background == 0
        calls.ends["f"].set()
        await calls.settle(2)
        assert calls.begun == ["f", "stays"]
        calls.ends["stays"].set()
    calls.check_at_rest()


# ---------------------------------------------------------------------- flights


def test_windows_close_together_are_one_group() -> None:
    def key(offset: int, size: int = 2 * MIB) -> RangeKey:
        return RangeKey(FILE, offset, size)

    near, far = key(2 * MIB + MERGE_GAP_BYTES - 1), key(2 * MIB + MERGE_GAP_BYTES)
    assert merged([key(0), near]) == [[key(0), near]]
    assert merged([key(0), far]) == [[key(0)], [far]]
    assert merged([]) == []
    many = [key(i * 2 * MIB) for i in range(40)]
    assert [len(group) for group in merged(many)] == [16, 16, 8]
    large = key(4 * MIB, MERGE_MAX_BYTES)
    assert merged([key(2 * MIB), large]) == [[key(2 * MIB)], [large]], "a window may be larger than a group"


async def test_early_reads_of_neighbours_are_one_pass(tmp_path: Path) -> None:
    window, gap, count = 64 * KIB, 100 * KIB, 6
    windows = [(i * (window + gap), window) for i in range(count)]
    data = contents(count * (window + gap))
    source, parser = MemorySource({b"model": data}), FakeParser({b"model": make_table(len(data), windows)})
    parser.gate = trio.Event()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        for offset, size in windows:
            await e.read(handle, offset + PAGE, size - 2 * PAGE)
        before = len(source.reads)
        parser.gate.set()
        await e.idle()
        whole = ByteRange(0, windows[-1][0] + window)
        assert [(read.offset, read.size) for read in source.reads[before:]] == [whole]
        assert e.counters.source_reads.merged == count - 1
        assert e.counters.source_reads.background == 1
        assert e.counters.fills.completed == count
        for offset, size in windows:
            assert await e.read(handle, offset, size) == data[offset : offset + size]
        assert len(source.reads) == before + 1, "all from the store"
        e.check()


async def test_a_pass_for_several_windows_that_fails_stores_none(tmp_path: Path) -> None:
    window, count = 6 * MIB, 2
    data = contents(count * window)
    table = make_table(len(data), [(i * window, window) for i in range(count)])
    source, parser = MemorySource({b"model": data}), FakeParser({b"model": table})
    parser.gate = trio.Event()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        assert await e.read(handle, 0, len(data)) == data
        source.fail_read(1)
        parser.gate.set()
        await e.idle()
        assert (e.counters.fills.completed, e.counters.fills.aborted) == (0, count)
        e.check()
        assert await e.read(handle, 0, len(data)) == data
        await e.idle()
        assert e.index.statistics().resident == count
        e.check()


async def test_the_rest_of_a_large_window_lets_others_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bringing, "FOREGROUND_BYTES", 64 * KIB)
    monkeypatch.setattr(flight, "PIECE_MAX_BYTES", 64 * KIB)
    monkeypatch.setattr(flight, "PIECE_MIN_BYTES", 32 * KIB)
    size = 1 * MIB
    data = contents(3 * size)
    source = MemorySource({b"model": data, b"other": data})
    parser = FakeParser({b"model": make_table(len(data), [(0, size), (size, size), (2 * size, size)])})
    async with engine(source, tmp_path, parser) as e, trio.open_nursery() as nursery:
        handle, other = await e.open(b"model"), await e.open(b"other")
        source.hold_reads()
        nursery.start_soon(e.read, other, 0, PAGE)
        await e.wait_until(lambda: len(source.reads) == 1)
        got: list[bytes] = []

        async def read(offset: int) -> None:
            got.append(await e.read(handle, offset, 64 * KIB))

        source.release_reads()
        await read(0)
        await e.idle()
        counters = e.counters.source_reads
        assert counters.background == (size - 64 * KIB) // (64 * KIB), "all but what was asked for"
        assert e.counters.fills.completed == 1
        before = counters.background
        await gather(*(partial(read, size + i * 64 * KIB) for i in range(16)))
        await e.idle()
        assert counters.background == before, "somebody waited for each piece"
        assert sorted(got[1:]) == sorted(data[size + i * 64 * KIB : size + (i + 1) * 64 * KIB] for i in range(16))
        assert source.read_bytes(b"model") == 2 * size
        e.check()


async def test_a_window_of_a_few_mib_is_read_in_one_go(tmp_path: Path) -> None:
    assert FOREGROUND_BYTES >= 2 * MIB
    data = contents(2 * MIB)
    source, parser = MemorySource({b"model": data}), FakeParser({b"model": make_table(len(data), [(0, 2 * MIB)])})
    async with engine(source, tmp_path, parser) as e:
        await e.read(await e.open(b"model"), MIB, PAGE)
        await e.idle()
        assert e.counters.source_reads.background == 0
        e.check()


class Held(threading.Event):
    """What a read of the source waits for; `reached` is set when it does."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()


def held_at(monkeypatch: pytest.MonkeyPatch, offset: int) -> Held:
    """A read of the source that begins there waits for this."""
    gate, real = Held(), MemoryFile.read_into

    def read_into(file: MemoryFile, buffer: memoryview, at: int) -> int:
        if at == offset:
            gate.reached.set()
            assert gate.wait(20.0)
        return real(file, buffer, at)

    monkeypatch.setattr(MemoryFile, "read_into", read_into)
    return gate


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of 512 KiB is read in pieces of 64, 128, 256 and 64 KiB."""
    monkeypatch.setattr(flight, "PIECE_MIN_BYTES", 64 * KIB)


RUN = 512 * KIB


@pytest.mark.usefixtures("pieces")
async def test_who_waits_for_a_piece_is_released_before_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though one call reads them all."""
    data = contents(RUN)
    source, parser = MemorySource({b"model": data}), FakeParser({b"model": make_table(RUN, [(0, RUN)])})
    gate = held_at(monkeypatch, 192 * KIB)
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        assert await e.read(handle, 0, 64 * KIB) == data[: 64 * KIB]
        assert await e.read(handle, 64 * KIB, 128 * KIB) == data[64 * KIB : 192 * KIB]
        assert (e.pools.source.busy, e.counters.source_reads.bytes) == (1, 192 * KIB)
        gate.set()
        assert await e.read(handle, 192 * KIB, 256 * KIB) == data[192 * KIB : 448 * KIB]
        await e.idle()
        assert e.counters.fills.completed == 1
        assert source.read_bytes() == e.counters.source_reads.bytes == RUN
        e.check()


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
async def test_a_run_that_fails_at_a_piece(tmp_path: Path, nth: int) -> None:
    """What has arrived is given out, the rest the readers ask for themselves, and nothing is stored."""
    data = contents(RUN)
    source, parser = MemorySource({b"model": data}), FakeParser({b"model": make_table(RUN, [(0, RUN)])})
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        source.fail_read(nth)
        results = await gather(*(partial(e.read, handle, at, 64 * KIB) for at in range(0, RUN, 64 * KIB)))
        assert results == [data[at : at + 64 * KIB] for at in range(0, RUN, 64 * KIB)]
        await e.idle()
        assert (e.counters.fills.completed, e.counters.fills.aborted) == (0, 1)
        e.check()


@pytest.mark.usefixtures("pieces")
async def test_a_file_that_changes_within_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reader has the old bytes, the second an error, and neither half is stored."""
    data = contents(RUN)
    source, parser = MemorySource({b"model": data}), FakeParser({b"model": make_table(RUN, [(0, RUN)])})
    gate = held_at(monkeypatch, 64 * KIB)
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        assert await e.read(handle, 0, 64 * KIB) == data[: 64 * KIB]
        source.write(b"model", contents(RUN, seed=2))
        gate.set()
        with pytest.raises(OSError, match="Stale"):
            await e.read(handle, 64 * KIB, 64 * KIB)
        await e.idle()
        assert e.counters.fills.completed == 0
        e.check()


@pytest.mark.usefixtures("pieces")
async def test_a_mount_that_ends_within_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for the source, and the thread reads no further than the piece it is at."""
    data = contents(RUN)
    source, parser = MemorySource({b"model": data}), FakeParser({b"model": make_table(RUN, [(0, RUN)])})
    gate = held_at(monkeypatch, 64 * KIB)
    async with engine(source, tmp_path, parser) as e:
        assert await e.read(await e.open(b"model"), 0, 64 * KIB) == data[: 64 * KIB]
        places = e.pools.source
        assert await trio.to_thread.run_sync(gate.reached.wait, 20.0)
        assert places.busy == 1
    gate.set()
    with trio.fail_after(FAIL_AFTER_S):
        while places.busy:  # its thread comes back by itself
            await trio.lowlevel.checkpoint()
    assert source.read_bytes() == 192 * KIB


async def test_writing_range_files_holds_nobody_up(tmp_path: Path) -> None:
    """Not readers, not the source, not other flights: every thread that writes is stuck in a sync."""
    window, count = 64 * KIB, 12
    data = contents(count * window)
    table = make_table(len(data), [(i * window, window) for i in range(count)])
    source, parser = MemorySource({b"model": data}), FakeParser({b"model": table})
    gate = threading.Event()
    fs = FaultyOs(tmp_path)
    async with engine(source, tmp_path, parser, fs=fs) as e:
        handle = await e.open(b"model")
        fs.fails = lambda name, _: name == "sync" and not gate.wait(20.0)
        for i in range(count):
            assert await e.read(handle, i * window, PAGE) == data[i * window : i * window + PAGE]
        await e.wait_until(lambda: source.read_bytes() == len(data))
        for i in range(count):  # from the flights, whose bytes are there
            assert await e.read(handle, i * window, window) == data[i * window : (i + 1) * window]
        assert source.read_bytes() == len(data)
        assert e.cache.filler.flights == count
        assert e.index.statistics().resident == 0
        gate.set()
        await e.idle()
        assert e.index.statistics().resident == count
        e.check()
