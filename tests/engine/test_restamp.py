"""A file of which only the ctime has changed: its ranges keep their files and are proved against the source."""

from __future__ import annotations

import errno
import os
import threading
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from mummufs.core.states import State
from mummufs.engine.overlay import Handle
from mummufs.source.memory import MemorySource
from mummufs.store.layout import HEADER_BYTES, HEADER_USED_BYTES
from tests.engine.harness import KIB, PAGE, Engine, FakeParser, FaultyOs, contents, engine, gather, make_table

WINDOW = 64 * KIB
COUNT = 4
OLD, NEW = contents(COUNT * WINDOW, seed=1), contents(COUNT * WINDOW, seed=2)
SETTLE_S = 5.0


class CountingOs(FaultyOs):
    """Counts the bytes written, and can hold a read."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.written = 0

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        n = super().write(fd, data, offset)
        self.written += n
        return n


def source_and_parser(data: bytes = OLD) -> tuple[MemorySource, FakeParser]:
    table = make_table(len(data), [(i * WINDOW, WINDOW) for i in range(COUNT)])
    return MemorySource({b"model": data}), FakeParser({b"model": table})


async def filled(e: Engine) -> Handle:
    handle = await e.open(b"model")
    await e.fill(handle, *range(COUNT))
    return handle


async def chmod(e: Engine, handle: Handle) -> None:
    """Have the mode changed in the source, and noticed."""
    e.memory.chmod(b"model", 0o600)
    await e.overlay.attributes(handle.node)
    await e.idle()


def files(e: Engine, handle: Handle) -> list[int]:
    return [os.stat(e.range_file(handle, i)).st_ino for i in range(COUNT)]


async def assert_served(e: Engine, handle: Handle, data: bytes = OLD) -> None:
    """Every byte comes from the store."""
    before = len(e.memory.reads)
    assert await e.read(handle, 0, len(data)) == data
    await e.idle()
    assert len(e.memory.reads) == before
    e.check()


async def test_a_chmod_loses_no_range_and_writes_no_data(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    fs = CountingOs(tmp_path)
    async with engine(source, tmp_path, parser, fs=fs) as e:
        handle = await filled(e)
        await assert_served(e, handle)
        before = files(e, handle)
        await chmod(e, handle)
        assert e.index.statistics().resident == COUNT
        hits, read, fs.written = e.counters.reads.hit_bytes, source.read_bytes(), 0
        heat = [e.index.heat(e.key(handle, i)) for i in range(COUNT)]
        for i in range(COUNT):
            assert await e.read(handle, i * WINDOW + PAGE, PAGE) == OLD[i * WINDOW + PAGE : i * WINDOW + 2 * PAGE]
            await e.idle()
        assert e.counters.reads.hit_bytes == hits, "what is suspended is not served"
        assert source.read_bytes() - read == len(OLD), "it is proved by one pass"
        assert fs.written == COUNT * HEADER_USED_BYTES
        assert e.counters.fills.restamped == COUNT
        assert (e.counters.fills.completed, e.counters.fills.aborted, e.counters.evictions.ranges) == (COUNT, 0, 0)
        assert files(e, handle) == before
        assert all(e.index.heat(e.key(handle, i)) > heat[i] for i in range(COUNT)), "its heat is not lost"
        await assert_served(e, handle)


async def test_a_reader_of_what_is_being_proved_gets_the_source_s_bytes(tmp_path: Path) -> None:
    """Of a rewrite with the mtime set back too: nothing of the old file is given out."""
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        await filled(e)
        source.write(b"model", NEW, keep_mtime=True)
        again = await e.open(b"model")
        calls = [partial(e.read, again, i * PAGE, PAGE) for i in range(len(NEW) // PAGE)]
        assert await gather(*calls) == [NEW[i * PAGE : (i + 1) * PAGE] for i in range(len(NEW) // PAGE)]
        await e.idle()
        assert e.counters.fills.restamped == 0
        assert e.index.statistics().resident == COUNT, "the bytes that were read have taken the place of the old ones"
        await assert_served(e, again, NEW)


async def test_one_window_alone_was_rewritten(tmp_path: Path) -> None:
    mixed = OLD[:WINDOW] + NEW[WINDOW : 2 * WINDOW] + OLD[2 * WINDOW :]
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        await filled(e)
    source.write(b"model", mixed, keep_mtime=True)
    async with engine(source, tmp_path, parser, scan=True) as e:
        handle = await e.open(b"model")
        for _ in range(2):
            assert await e.read(handle, 0, len(mixed)) == mixed
            await e.idle()
        assert (e.counters.fills.restamped, e.counters.fills.completed) == (COUNT - 1, 1)
        await assert_served(e, handle, mixed)


async def test_a_chmod_while_nothing_is_mounted(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        await filled(e)
    source.chmod(b"model", 0o600)
    fs = CountingOs(tmp_path)
    async with engine(source, tmp_path, parser, scan=True, fs=fs) as e:
        assert e.index.statistics().resident == COUNT
        handle = await e.open(b"model")
        fs.written = 0
        assert await e.read(handle, 0, len(OLD)) == OLD  # covers all of them: it reads itself and gives the bytes
        await e.idle()
        assert fs.written == COUNT * HEADER_USED_BYTES
        assert source.reads[-1].size == len(OLD)
        await assert_served(e, handle)
    async with engine(source, tmp_path, parser, scan=True) as e:
        await assert_served(e, await e.open(b"model"))


@pytest.mark.parametrize("where", [0, 100, HEADER_BYTES, HEADER_BYTES + WINDOW - 1])
async def test_a_range_file_that_rots_while_it_is_suspended(tmp_path: Path, where: int) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await filled(e)
        with e.range_file(handle, 1).open("r+b") as file:
            file.seek(where)
            file.write(bytes([file.read(1)[0] ^ 1]) if file.seek(where) is None else b"\xff\xfe")
        await chmod(e, handle)
        for _ in range(3):
            assert await e.read(handle, 0, len(OLD)) == OLD
            await e.idle()
        await assert_served(e, handle)


async def test_a_range_file_that_is_gone(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await filled(e)
        e.range_file(handle, 2).unlink()
        await chmod(e, handle)
        assert await e.read(handle, 0, len(OLD)) == OLD
        await e.idle()
        assert (e.counters.fills.restamped, e.counters.fills.completed) == (COUNT - 1, COUNT + 1)
        assert e.counters.errors.store == 0
        await assert_served(e, handle)


@pytest.mark.parametrize("call", ["open_to_change", "write", "sync"])
async def test_a_store_that_cannot_be_written_drops_what_is_not_known(
    tmp_path: Path, call: str, mock_clock: MockClock
) -> None:
    source, parser = source_and_parser()
    fs = FaultyOs(tmp_path)
    async with engine(source, tmp_path, parser, fs=fs) as e:
        handle = await filled(e)
        await chmod(e, handle)
        fs.fails = lambda name, _: name == call
        assert await e.read(handle, 0, PAGE) == OLD[:PAGE]
        await e.idle()
        assert e.counters.errors.store == 1
        assert e.counters.errors.handler == 0
        assert await e.read(handle, 0, len(OLD)) == OLD
        fs.fails = lambda *_: False
        mock_clock.jump(60.0)
        await e.idle()
        for _ in range(2):
            assert await e.read(handle, 0, len(OLD)) == OLD
            await e.idle()
        await assert_served(e, handle)


async def test_a_range_that_is_evicted_while_it_is_proved(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e, trio.open_nursery() as nursery:
        handle = await filled(e)
        await chmod(e, handle)
        reads = len(source.reads)
        source.hold_reads()
        nursery.start_soon(e.read, handle, 0, PAGE)
        await e.wait_until(lambda: len(source.reads) > reads)
        e.cache.evictor.evict_nowait([e.key(handle, 0)])
        source.release_reads()
        await e.idle()
        assert e.state(handle, 0) is State.RESIDENT
        assert (e.counters.fills.restamped, e.counters.fills.completed) == (0, COUNT + 1)
        assert await e.read(handle, 0, len(OLD)) == OLD
        await e.idle()
        await assert_served(e, handle)


async def test_a_hit_that_began_before_the_change_does_not_cost_the_range(tmp_path: Path) -> None:
    """It finds a header of another version: that is no fault of the range file."""
    source, parser = source_and_parser()
    gate, reached = threading.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()
    fs = FaultyOs(tmp_path)

    def hold(name: str, _: int) -> bool:
        if name == "read" and not reached.is_set():
            token.run_sync_soon(reached.set)
            gate.wait(30.0)
        return False

    async with engine(source, tmp_path, parser, fs=fs, open_max=1) as e, trio.open_nursery() as nursery:
        handle = await filled(e)
        before, got = files(e, handle), []
        fs.fails = hold

        async def early() -> None:
            got.append(await e.read(handle, 0, PAGE))

        nursery.start_soon(early)
        await reached.wait()
        source.chmod(b"model", 0o600)
        await e.overlay.attributes(handle.node)
        await e.wait_until(lambda: handle.node.ranges is not None)
        assert await e.read(handle, 3 * PAGE, PAGE) == OLD[3 * PAGE : 4 * PAGE]
        await e.wait_until(lambda: e.counters.fills.restamped == 1)
        gate.set()
        await e.idle()
        assert got == [OLD[:PAGE]]
        assert files(e, handle) == before
        assert e.counters.errors.store == 0
        assert await e.read(handle, 0, len(OLD)) == OLD
        await e.idle()
        await assert_served(e, handle)


@pytest.mark.parametrize("change", ["write", "chmod"])
async def test_a_file_that_changes_while_it_is_proved(tmp_path: Path, change: str) -> None:
    source, parser = source_and_parser()
    results: list[object] = []
    async with engine(source, tmp_path, parser) as e, trio.open_nursery() as nursery:
        handle = await filled(e)
        await chmod(e, handle)
        source.hold_reads()
        reads = len(source.reads)

        async def read() -> None:
            results.extend(await gather(partial(e.read, handle, 0, PAGE)))

        nursery.start_soon(read)
        await e.wait_until(lambda: len(source.reads) > reads)
        source.write(b"model", NEW) if change == "write" else source.chmod(b"model", 0o644)
        source.release_reads()
        await e.idle()
        assert e.counters.fills.restamped == 0
        data = OLD
        if change == "write":
            assert [error.errno for error in results if isinstance(error, OSError)] == [errno.ESTALE]
            assert e.index.statistics().resident == 0, "what a chmod had suspended goes with its file"
            data = NEW
        else:
            assert results == [OLD[:PAGE]]
            assert e.index.statistics().resident == COUNT
        again = await e.open(b"model")
        for _ in range(2):
            assert await e.read(again, 0, len(data)) == data
            await e.idle()
        await assert_served(e, again, data)


async def test_a_file_that_has_just_changed_is_not_proved_yet(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    now = [source.stat(b"model").ctime_ns + 10**10]
    async with engine(source, tmp_path, parser, settle_s=SETTLE_S, wall_ns=lambda: now[0]) as e:
        handle = await filled(e)
        await chmod(e, handle)
        now[0] = source.stat(b"model").ctime_ns + 10**9
        assert await e.read(handle, 0, len(OLD)) == OLD
        await e.idle()
        assert (e.counters.fills.restamped, e.index.statistics().resident) == (0, COUNT)
        now[0] += 10**10
        assert await e.read(handle, 0, len(OLD)) == OLD
        await e.idle()
        assert e.counters.fills.restamped == COUNT
        await assert_served(e, handle)
