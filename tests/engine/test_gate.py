"""The gate: a store that hangs or fails is left alone, the source answers, and a probe takes it up again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from mummufs.core import breaker
from mummufs.core.breaker import StoreState
from mummufs.core.errors import RangeFileError
from mummufs.engine import gate
from mummufs.source.memory import MemorySource
from tests.engine.harness import FakeParser, FaultyOs, contents, engine, gather, make_table

WINDOW = 64 << 10
COUNT = 4


class HangingOs(FaultyOs):
    """Reads of range files wait while `hangs`."""

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self._gate = threading.Event()
        self._gate.set()

    def hang(self) -> None:
        self._gate.clear()

    def release(self) -> None:
        self._gate.set()

    def read(self, fd: int, buffer: memoryview, offset: int) -> int:
        self._gate.wait(60)
        return super().read(fd, buffer, offset)


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[HangingOs]:
    fs = HangingOs(tmp_path)
    yield fs
    fs.release()


def model() -> tuple[MemorySource, FakeParser, bytes]:
    data = contents(COUNT * WINDOW, 1)
    table = make_table(len(data), [(i * WINDOW, WINDOW) for i in range(COUNT)])
    return MemorySource({b"model": data}), FakeParser({b"model": table}), data


async def test_a_hung_store_is_answered_for_by_the_source(
    tmp_path: Path, hanging: HangingOs, mock_clock: MockClock
) -> None:
    source, parser, data = model()
    async with engine(source, tmp_path, parser, fs=hanging) as e:
        handle = await e.open(b"model")
        await e.fill(handle, *range(COUNT))
        hanging.hang()
        got: list[bytes | bytearray] = []

        async def read() -> None:
            got.append(await e.overlay.read(handle, 0, 4096))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            assert not got
            mock_clock.jump(breaker.STALL_S)
        assert got == [data[:4096]]
        assert e.cache.gate.state is StoreState.OFF
        for i in range(COUNT):  # later reads do not wait for it at all: this clock stands still
            assert await e.overlay.read(handle, i * WINDOW, 4096) == data[i * WINDOW : i * WINDOW + 4096]
        assert e.index.statistics().resident == COUNT, "a hang is no fault of the entries"
        hanging.release()


async def test_a_probe_takes_it_up_again(tmp_path: Path, hanging: HangingOs, mock_clock: MockClock) -> None:
    source, parser, data = model()
    async with engine(source, tmp_path, parser, fs=hanging) as e:
        handle = await e.open(b"model")
        await e.fill(handle, *range(COUNT))
        e.cache.gate.reads.failed(mock_clock.current_time(), at_once=True)
        e.cache.gate._opened.set()
        before = e.counters.reads.hits
        assert await e.overlay.read(handle, 0, 4096) == data[:4096]
        assert e.counters.reads.hits == before
        mock_clock.jump(breaker.PROBE_S)
        await e.idle()
        assert not e.cache.gate.reads.is_open
        assert await e.overlay.read(handle, 0, 4096) == data[:4096]
        assert e.counters.reads.hits == before + 1
        e.check()


async def test_reads_that_keep_failing_turn_the_store_off(tmp_path: Path, mock_clock: MockClock) -> None:
    data = contents(12 * 4096, 1)
    source = MemorySource({b"model": data})
    parser = FakeParser({b"model": make_table(len(data), [(i * 4096, 4096) for i in range(12)])})
    fs = FaultyOs(tmp_path)
    async with engine(source, tmp_path, parser, fs=fs) as e:
        handle = await e.open(b"model")
        await e.fill(handle, *range(12))
        fs.fails = lambda name, _: name == "read"
        for i in range(12):
            assert await e.overlay.read(handle, i * 4096, 4096) == data[i * 4096 : (i + 1) * 4096]
        assert e.cache.gate.state is StoreState.OFF
        assert e.index.statistics().resident == 12 - breaker.FAULTS_MAX, "each failed entry is dropped, the rest kept"
        fs.fails = lambda *_: False
        mock_clock.jump(breaker.PROBE_S)
        await e.idle()
        mock_clock.jump(breaker.QUIET_S)
        assert e.cache.gate.state.value == "normal"


async def test_many_readers_of_one_broken_range_file_do_not_turn_the_store_off(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """They all meet the same fault, which says nothing of other files. Here none of them goes on before all have."""
    source, parser, data = model()
    async with engine(source, tmp_path, parser) as e:
        await e.fill(await e.open(b"model"), *range(COUNT))
    readers = 2 * breaker.FAULTS_MAX
    together = threading.Barrier(readers)
    fs = FaultyOs(tmp_path)
    async with engine(source, tmp_path, parser, fs=fs, scan=True) as e:
        handle = await e.open(b"model")
        fs.fails = lambda name, _: name == "open" and together.wait(60) >= 0
        got = await gather(*(partial(e.read, handle, WINDOW, 4096) for _ in range(readers)))
        fs.fails = lambda *_: False
        assert got == [data[WINDOW : WINDOW + 4096]] * readers
        await e.idle()
        assert not e.cache.gate.reads.is_open
        assert e.counters.errors.store == 1
        assert e.index.statistics().resident == COUNT - 1
        hits = e.counters.reads.hits
        assert await e.read(handle, 0, 4096) == data[:4096]
        assert e.counters.reads.hits == hits + 1
        e.check()


async def test_what_a_write_raises_comes_as_it_is(tmp_path: Path) -> None:
    """Not in a group of exceptions, whatever it is."""
    source, parser, _ = model()

    def refuse(error: Exception) -> None:
        raise error

    async with engine(source, tmp_path, parser) as e:
        for error in (RangeFileError("it is too large"), OSError(5, "no"), RuntimeError("a fault of ours")):
            with pytest.raises(type(error)) as raised:
                await e.cache.gate.write(refuse, error)
            assert raised.value is error
        e.check()


async def test_a_write_that_is_late_stops_new_fills_and_is_waited_for(
    tmp_path: Path, hanging: HangingOs, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, parser, data = model()
    held = threading.Event()
    write = hanging.write

    def slow(fd: int, data: memoryview, offset: int) -> int:
        held.wait(60)
        return write(fd, data, offset)

    async with engine(source, tmp_path, parser, fs=hanging) as e:
        handle = await e.open(b"model")
        await e.idle()  # its range table has been written
        monkeypatch.setattr(hanging, "write", slow)
        assert await e.overlay.read(handle, 0, 4096) == data[:4096]
        await e.wait_until(lambda: e.pools.store_writes.waiting == 1 and e.index.statistics().filling == 1)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(gate.WRITE_LATE_S)
        await trio.testing.wait_all_tasks_blocked()
        assert await e.overlay.read(handle, WINDOW, 4096) == data[WINDOW : WINDOW + 4096]
        assert e.cache.gate.writes.is_open
        assert e.counters.fills.dropped == 1
        held.set()
        await e.idle()
        assert e.counters.fills.completed == 1
        mock_clock.jump(breaker.PROBE_S)
        await e.idle()
        assert e.cache.gate.writes.next_probe() is None, "it is closed again"
        e.check()


async def test_no_space_is_told_once_and_probed(tmp_path: Path, mock_clock: MockClock) -> None:
    source, parser, data = model()
    fs = FaultyOs(tmp_path)
    async with engine(source, tmp_path, parser, fs=fs) as e:
        handle = await e.open(b"model")
        await e.idle()
        fs.fails = lambda name, _: name in ("write", "create")
        for i in range(COUNT):
            assert await e.overlay.read(handle, i * WINDOW, WINDOW) == data[i * WINDOW : (i + 1) * WINDOW]
            await e.idle()
        assert e.cache.gate.state is StoreState.DEGRADED
        assert e.counters.fills.aborted == 1
        assert e.counters.fills.dropped == COUNT - 1
        fs.fails = lambda *_: False
        mock_clock.jump(breaker.PROBE_S)
        await e.idle()
        await e.fill(handle, *range(COUNT))
        assert e.index.statistics().resident == COUNT
        e.check()
