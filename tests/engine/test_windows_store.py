"""The engine over a store of Windows, where no open file is removed: victims that are read go back."""

from __future__ import annotations

from pathlib import Path

import trio.testing

from mummufs.core.states import State
from mummufs.engine.evictor import RETURN_PAUSE_S
from mummufs.source.memory import MemorySource
from mummufs.store.windowsos import WindowsOs
from tests.engine.harness import KIB, FakeParser, budget_for, contents, engine, make_table
from tests.support.fake_win32 import FakeWin32

WINDOW = 64 * KIB
COUNT = 12
DATA = contents(COUNT * WINDOW)


def parts(store: Path) -> tuple[MemorySource, FakeParser, WindowsOs]:
    table = make_table(len(DATA), [(i * WINDOW, WINDOW) for i in range(COUNT)])
    return MemorySource({b"model": DATA}), FakeParser({b"model": table}), WindowsOs("C:\\", FakeWin32(store))


async def test_ranges_come_and_go(tmp_path: Path) -> None:
    source, parser, fs = parts(tmp_path)
    async with engine(source, tmp_path, parser, fs=fs, budget_bytes=budget_for(3, WINDOW), policy="lru") as e:
        handle = await e.open(b"model")
        for i in [*range(COUNT), *range(COUNT)]:
            assert await e.read(handle, i * WINDOW, WINDOW) == DATA[i * WINDOW : (i + 1) * WINDOW]
            await e.idle()
        assert e.counters.evictions.ranges > COUNT and e.counters.evictions.returned == 0
        assert e.counters.errors.store == 0
        e.check()


async def test_a_victim_that_is_being_read_goes_back(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    source, parser, fs = parts(tmp_path)
    async with engine(source, tmp_path, parser, fs=fs, budget_bytes=budget_for(3, WINDOW), policy="lru") as e:
        handle = await e.open(b"model")
        await e.fill(handle, 0)
        reading = e.cache.resident.acquire(e.key(handle, 0), handle.node.version)
        assert reading is not None
        e.cache.evictor.evict_nowait([e.key(handle, 0)])
        assert e.state(handle, 0) is State.EVICTING
        await e.idle()
        assert e.state(handle, 0) is State.RESIDENT and e.counters.evictions.returned == 1
        assert e.range_file(handle, 0).exists()
        before = source.read_bytes()
        assert await e.read(handle, 0, WINDOW) == DATA[:WINDOW] and source.read_bytes() == before
        del reading
        e.cache.evictor.evict_nowait([e.key(handle, 0)])
        mock_clock.jump(RETURN_PAUSE_S)
        await e.idle()
        assert e.state(handle, 0) is State.ABSENT and not e.range_file(handle, 0).exists()
        e.check()


async def test_room_is_made_of_others_while_one_is_read(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """The coldest is read all the time: it stays, and the books are right."""
    source, parser, fs = parts(tmp_path)
    async with engine(source, tmp_path, parser, fs=fs, budget_bytes=budget_for(3, WINDOW), policy="lru") as e:
        handle = await e.open(b"model")
        await e.fill(handle, 0, 1, 2)
        reading = e.cache.resident.acquire(e.key(handle, 0), handle.node.version)
        for i in range(3, COUNT):
            offset = i * WINDOW
            assert await e.read(handle, offset, WINDOW) == DATA[offset : offset + WINDOW]
            await e.idle()
        mock_clock.jump(60)
        await e.idle()
        assert e.state(handle, 0) is State.RESIDENT
        assert e.counters.evictions.returned >= 1
        assert e.index.statistics().used_bytes <= e.index.statistics().budget_bytes
        del reading
        mock_clock.jump(60)
        await e.idle()
        e.check()
