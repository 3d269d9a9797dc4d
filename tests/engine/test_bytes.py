"""The bytes of a read are those of the source, wherever they come from; warm reads do not ask the source."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from mummufs.core.ranges import RangeKey, Version
from mummufs.core.states import State
from mummufs.source.memory import MemorySource
from mummufs.store.layout import charge_of
from mummufs.store.storedrange import StoredRange
from tests.engine.harness import KIB, PAGE, Engine, FakeParser, contents, engine, make_table

SIZE = 40 * PAGE + 777
WINDOWS = (
    (0, 3 * PAGE),
    (2 * PAGE, 3 * PAGE),  # shares a page with the one before
    (4 * PAGE, 2 * PAGE),  # and this one with both its neighbours' ends
    (6 * PAGE, 1 * PAGE),  # no gap
    (9 * PAGE, 8 * PAGE),  # after a gap
    (20 * PAGE, 1 * PAGE),
    (30 * PAGE, SIZE - 30 * PAGE),  # ends at end of file
)
DATA = contents(SIZE)

offsets = st.one_of(
    st.integers(0, SIZE + PAGE),
    st.builds(lambda page, by: max(0, page * PAGE + by), st.integers(0, 41), st.integers(-2, 2)),
)
sizes = st.one_of(st.integers(0, SIZE), st.integers(0, 2 * PAGE), st.sampled_from([1, PAGE, 2 * PAGE, SIZE, 2 * SIZE]))


def source_and_parser() -> tuple[MemorySource, FakeParser]:
    return MemorySource({b"model": DATA}), FakeParser({b"model": make_table(SIZE, WINDOWS)})


@settings(max_examples=40, deadline=None)
@given(requests=st.lists(st.tuples(offsets, sizes), min_size=1, max_size=8), tight=st.booleans(), idle=st.booleans())
async def test_any_reads_in_any_state_of_the_cache(requests: list[tuple[int, int]], tight: bool, idle: bool) -> None:
    source, parser = source_and_parser()
    with tempfile.TemporaryDirectory() as store:
        budget = 16 * PAGE if tight else 1 << 20
        async with engine(source, Path(store), parser, budget_bytes=budget) as e:
            handle = await e.open(b"model")
            for _ in range(2):
                for offset, size in requests:
                    assert await e.read(handle, offset, size) == DATA[offset : offset + size]
                    if idle:
                        await e.idle()
            await e.idle()
            e.check()


async def warmed(e: Engine) -> None:
    handle = await e.open(b"model")
    await e.fill(handle, *range(len(WINDOWS)))
    assert all(e.state(handle, i) is State.RESIDENT for i in range(len(WINDOWS)))
    e.overlay.close(handle)


async def read_windows(e: Engine) -> None:
    """Read every byte that lies in a window, in pieces that do not fit them, and compare."""
    handle = await e.open(b"model")
    for begin, end in ((0, 7 * PAGE), (9 * PAGE, 17 * PAGE), (20 * PAGE, 21 * PAGE), (30 * PAGE, SIZE)):
        for offset in range(begin, end, 1000):
            size = min(1000, end - offset)
            assert await e.read(handle, offset, size) == DATA[offset : offset + size]
    e.overlay.close(handle)


def assert_hits_only(e: Engine) -> None:
    reads = e.counters.reads
    assert (reads.misses, reads.bypasses, reads.miss_bytes, reads.bypass_bytes) == (0, 0, 0, 0)
    assert reads.hits > 0
    assert e.counters.source_reads.count == 0


async def test_a_second_pass_does_not_read_the_source(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        await warmed(e)
        before, misses, hits = len(source.reads), e.counters.reads.misses, e.counters.reads.hits
        await read_windows(e)
        await e.idle()
        assert len(source.reads) == before
        assert e.counters.reads.misses == misses
        assert e.counters.reads.hits > hits
        assert e.counters.reads.bypasses == 0
        e.check()


async def test_nor_does_the_first_pass_after_a_remount(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        await warmed(e)
        resident = set(e.index.resident_keys())
    before = len(source.reads)
    async with engine(source, tmp_path, parser, scan=True) as e:
        assert set(e.index.resident_keys()) == resident
        await read_windows(e)
        await e.idle()
        assert_hits_only(e)
        e.check()
    assert len(source.reads) == before
    assert parser.calls == [b"model"]  # the table was kept too


async def test_nor_while_the_scan_of_the_store_is_under_way(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        await warmed(e)
    before = len(source.reads)
    async with engine(source, tmp_path, parser, scan=True, hold_scan=True) as e:
        await read_windows(e)
        assert_hits_only(e)
        assert not e.service.scanned
        e.service.scan_gate.set()
        await e.service.stock_taken.wait()
        await e.idle()
        e.check()
    assert len(source.reads) == before


async def test_nor_where_the_scan_comes_to_a_range_while_it_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read's own plan is older than what the scan has just found."""
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        await warmed(e)
    before = len(source.reads)
    async with engine(source, tmp_path, parser, scan=True, hold_scan=True) as e:
        real, cache = e.cache.store.open_range, e.cache

        def opened(key: RangeKey, version: Version) -> StoredRange:
            stored = real(key, version)
            if trio.from_thread.run_sync(e.index.restore, key, charge_of(key.size), version):
                trio.from_thread.run_sync(cache.resident.add, key, version)
            return stored

        monkeypatch.setattr(cache.store, "open_range", opened)
        await read_windows(e)
        assert_hits_only(e)
        e.check()
    assert len(source.reads) == before


async def test_nothing_is_stored_before_the_scan_has_ended(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser, scan=True, hold_scan=True) as e:
        handle = await e.open(b"model")
        assert await e.read(handle, 0, SIZE) == DATA
        await e.idle()
        e.check()
        assert e.index.statistics().resident == 0
        e.service.scan_gate.set()
        await e.service.stock_taken.wait()
        await e.read(handle, 0, SIZE)
        await e.idle()
        assert e.index.statistics().resident == len(WINDOWS)
        e.check()


async def test_few_open_range_files(tmp_path: Path) -> None:
    size = 64 * PAGE
    data = contents(size)
    source = MemorySource({b"model": data})
    parser = FakeParser({b"model": make_table(size, [(i * PAGE, PAGE) for i in range(64)])})
    async with engine(source, tmp_path, parser, open_max=3) as e:
        handle = await e.open(b"model")
        for _ in range(3):
            for i in range(64):
                assert await e.read(handle, i * PAGE, PAGE) == data[i * PAGE : (i + 1) * PAGE]
                assert e.cache.resident.open_files <= 3
            await e.idle()
        assert source.read_bytes() == size
        e.check()


async def test_without_windows_a_file_is_passed_through(tmp_path: Path) -> None:
    source, parser = MemorySource({b"plain": DATA, b"small": b"x" * 10, b"empty": b""}), FakeParser()
    async with engine(source, tmp_path, parser) as e:
        for path, data in ((b"plain", DATA), (b"small", b"x" * 10), (b"empty", b"")):
            handle = await e.open(path)
            assert await e.read(handle, 0, 512 * KIB) == data
            assert await e.read(handle, len(data) + 1, 10) == b""
            e.overlay.close(handle)
        await e.idle()
        assert parser.calls == [b"plain", b"small"]  # an empty file has nothing to look into
        assert e.counters.reads.bypass_bytes == SIZE + 10
        assert e.overlay.open_files == 0
        e.check()
