"""No fault of the store is a fault of a read: the source answers, the entry is dropped once, a counter rises."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from trio.testing import MockClock

from mummufs.core import breaker
from mummufs.core.breaker import StoreState
from mummufs.core.states import State
from mummufs.engine import evictor
from mummufs.source.memory import MemorySource
from mummufs.store.layout import HEADER_BYTES, range_name
from mummufs.store.rangestore import RangeStore
from mummufs.store.scan import scan
from tests.engine.harness import KIB, Engine, FakeParser, FaultyOs, contents, engine, gather, make_table
from tests.store.samples import NO_FILES, put

WINDOW = 64 * KIB
COUNT = 4
DATA = contents(COUNT * WINDOW)
WINDOWS = [(i * WINDOW, WINDOW) for i in range(COUNT)]


def source_and_parser() -> tuple[MemorySource, FakeParser]:
    return MemorySource({b"model": DATA}), FakeParser({b"model": make_table(len(DATA), WINDOWS)})


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), at)


def _extend(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def _empty_with_size(path: Path) -> None:
    os.truncate(path, 0)
    os.truncate(path, HEADER_BYTES + WINDOW)


def _replace_by_symlink(path: Path) -> None:
    shutil.copy(path, path.with_name("moved"))
    path.unlink()
    path.symlink_to("moved")


def _replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _swap(path: Path) -> None:
    """Another range's file under this name, whole and with its own header."""
    other = next(p for p in path.parents[1].glob("*/*.rng") if p != path)
    path.unlink()
    shutil.copy(other, path)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "deleted": Path.unlink,
    "emptied": lambda path: os.truncate(path, 0),
    "one byte short": lambda path: os.truncate(path, HEADER_BYTES + WINDOW - 1),
    "one byte long": _extend,
    "data flipped": lambda path: _flip(path, HEADER_BYTES + WINDOW // 2),
    "last byte flipped": lambda path: _flip(path, HEADER_BYTES + WINDOW - 1),
    "key flipped": lambda path: _flip(path, 33),
    "version flipped": lambda path: _flip(path, 57),
    "magic flipped": lambda path: _flip(path, 0),
    "zeros": _empty_with_size,
    "symlink": _replace_by_symlink,
    "fifo": _replace_by_fifo,
    "swapped": _swap,
}


async def _read_all(e: Engine, readers: int = 8) -> None:
    """Many readers of the file at once, all of whom get the right bytes."""
    handle = await e.open(b"model")
    results = await gather(
        *(partial(e.read, handle, i * WINDOW + 5, 10 * KIB) for _ in range(readers) for i in range(COUNT))
    )
    e.overlay.close(handle)
    assert results == [DATA[i * WINDOW + 5 : i * WINDOW + 5 + 10 * KIB] for i in range(COUNT)] * readers
    await e.idle()


@pytest.mark.parametrize("remounted", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_range_file(tmp_path: Path, damage: str, remounted: bool) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, *range(COUNT))
        path = e.range_file(handle, 1)
        if not remounted:
            await _hurt_and_read(e, path, damage)
    if remounted:
        async with engine(source, tmp_path, parser, scan=True) as e:
            await _hurt_and_read(e, path, damage)


async def _hurt_and_read(e: Engine, path: Path, damage: str) -> None:
    handle = await e.open(b"model")
    await e.idle()
    assert e.state(handle, 1) is State.RESIDENT
    completed = e.counters.fills.completed
    # A file that was deleted or replaced may still be open here, and then its bytes are as good as they were.
    DAMAGES[damage](path)
    foreign = frozenset({os.fspath(p.relative_to(e.store_dir)) for p in path.parent.glob("moved")})
    await _read_all(e)
    assert e.state(handle, 1) is State.ABSENT
    assert e.counters.errors.store == 1
    assert e.counters.evictions.ranges == 1
    e.check(foreign=foreign)
    await _read_all(e)
    assert e.state(handle, 1) is State.RESIDENT
    assert e.counters.fills.completed == completed + 1
    hits = e.counters.reads.hit_bytes
    await _read_all(e)
    assert e.counters.reads.hit_bytes == hits + 8 * COUNT * 10 * KIB
    assert (e.counters.errors.store, e.counters.errors.source, e.counters.errors.handler) == (1, 0, 0)
    e.check(foreign=foreign)


class _Short(FaultyOs):
    """Opens nothing while the process has no descriptor left."""

    is_short = False

    def open(self, name: str) -> int:
        if self.is_short:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().open(name)


async def test_a_shortage_of_descriptors_is_no_fault_of_a_range_file(tmp_path: Path, mock_clock: MockClock) -> None:
    """The source answers for the ranges that cannot be opened now, and none of them is dropped."""
    source, parser = source_and_parser()
    fs = _Short(tmp_path)
    async with engine(source, tmp_path, parser, fs=fs, open_max=1) as e:
        handle = await e.open(b"model")
        await e.fill(handle, *range(COUNT))
        fs.is_short = True
        await _read_all(e)
        fs.is_short = False
        assert e.counters.errors.store >= 1
        assert e.index.statistics().resident == COUNT
        assert (e.counters.evictions.ranges, e.counters.errors.source) == (0, 0)
        mock_clock.jump(breaker.PROBE_S)
        await e.idle()
        misses = e.counters.reads.miss_bytes
        await _read_all(e)
        assert e.counters.reads.miss_bytes == misses
        e.check()


@pytest.mark.parametrize("kind", [kind for kind in NO_FILES if kind != "directory"])
async def test_many_range_files_replaced_by_something_else(tmp_path: Path, kind: str) -> None:
    """More of them than failures open a breaker: the disk is well, each range is dropped, and stored again."""
    count = breaker.FAULTS_MAX + 2
    data = contents(count * WINDOW)
    source = MemorySource({b"model": data})
    parser = FakeParser({b"model": make_table(len(data), [(i * WINDOW, WINDOW) for i in range(count)])})
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, *range(count))
        paths = [e.range_file(handle, i) for i in range(count)]
    async with engine(source, tmp_path, parser, scan=True) as e:
        handle = await e.open(b"model")
        await e.idle()
        for path in paths:
            put(path, kind)
        for state in (State.ABSENT, State.RESIDENT):
            for i in range(count):
                assert await e.read(handle, i * WINDOW, WINDOW) == data[i * WINDOW : (i + 1) * WINDOW]
                await e.idle()
            assert {e.state(handle, i) for i in range(count)} == {state}
            assert not e.cache.gate.reads.is_open
        assert e.counters.errors.store == e.counters.errors.corrupt == count
        e.check(foreign=frozenset(os.fspath(path.with_name("target").relative_to(tmp_path)) for path in paths))


async def test_a_directory_in_the_place_of_a_range_file(tmp_path: Path, mock_clock: MockClock) -> None:
    """It is somebody else's and left alone: its range cannot be stored until it has gone."""
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, *range(COUNT))
        path = e.range_file(handle, 1)
        _replace_by_directory(path)
        foreign = frozenset({os.fspath(path.relative_to(tmp_path))})
        for _ in range(3):
            await _read_all(e)
            assert e.state(handle, 1) is State.ABSENT
            e.check(foreign=foreign)
        path.rmdir()
        await _read_all(e)
        assert e.state(handle, 1) is State.RESIDENT
        e.check()


async def test_the_store_directory_is_removed(tmp_path: Path, mock_clock: MockClock) -> None:
    """Nothing is stored until a probe has made it anew; then it fills again."""
    source, parser = source_and_parser()
    store = tmp_path / "store"
    store.mkdir()
    async with engine(source, store, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 0, 1)
        shutil.rmtree(store)
        await _read_all(e)
        await _read_all(e)
        assert e.index.statistics().resident == 0
        assert e.cache.gate.state is StoreState.DEGRADED
        assert e.counters.errors.store >= 2
        assert (e.counters.errors.source, e.counters.errors.handler) == (0, 0)
        mock_clock.jump(breaker.PROBE_S)
        await e.idle()
        await _read_all(e)
        assert e.index.statistics().resident == COUNT
        mock_clock.jump(breaker.QUIET_S)
        assert e.cache.gate.state.value == "normal"
        e.check()


async def test_unlinks_that_fail_are_tried_again_later_and_not_at_every_fill(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    source, parser = source_and_parser()
    fs = FaultyOs(tmp_path)
    async with engine(source, tmp_path, parser, fs=fs) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 0)
        fs.fails = lambda name, _: name == "unlink"
        e.cache.evictor.evict_nowait([e.key(handle, 0)])
        await e.fill(handle, 1, 2, 3)
        assert fs.log.count("unlink") == 1
        e.check(evicting=1)
        mock_clock.jump(evictor.RETRY_S)
        await e.idle()
        assert fs.log.count("unlink") == 2
        fs.fails = lambda *_: False
        mock_clock.jump(evictor.RETRY_S)
        await e.idle()
        assert e.state(handle, 0) is State.ABSENT
        e.check()


def _nth(n: int, persistently: bool) -> Callable[[str, int], bool]:
    return (lambda _, i: i >= n) if persistently else (lambda _, i: i == n)


@pytest.mark.parametrize("persistently", [False, True])
async def test_the_nth_call_to_the_store_fails(tmp_path: Path, persistently: bool, mock_clock: MockClock) -> None:
    """Cold reads, warm reads, an eviction and a refill, with every call of them failing in turn."""
    n = 0
    while True:
        n += 1
        store = tmp_path / str(n)
        store.mkdir()
        source, parser = source_and_parser()
        fs = FaultyOs(store)
        RangeStore(fs)  # what is under test begins after the start
        fs.log.clear()
        started = len(fs.log)
        async with engine(source, store, parser, fs=fs, open_max=2) as e:
            started = len(fs.log)
            fs.fails = _nth(started + n, persistently)
            await _scenario(e)
            done = len(fs.log) - started < n
            fs.fails = lambda *_: False
            for _ in range(3):  # what could not be removed is removed now
                mock_clock.jump(evictor.RETRY_S)
                await e.idle()
            assert (e.counters.errors.source, e.counters.errors.handler) == (0, 0)
            if not persistently and not done:
                assert e.index.statistics().evicting == 0
            _check_but_temporaries(e)
        if done:
            assert n > 30
            return


async def _scenario(e: Engine) -> None:
    await _read_all(e, readers=2)
    await _read_all(e, readers=2)
    keys = list(e.index.resident_keys())
    e.cache.evictor.evict_nowait(keys[:2])
    await _read_all(e, readers=2)


def _check_but_temporaries(e: Engine) -> None:
    """The books are right; a temporary that could not be removed is left to the next start, which removes it."""
    e.index._check()
    e.check_gauges()
    reads = e.counters.reads
    assert reads.hit_bytes + reads.miss_bytes + reads.bypass_bytes == reads.replied_bytes
    found = {range_name(header.key) for header in scan(os.fspath(e.store_dir))}
    assert found == {range_name(key) for key in e.index.resident_keys()}
