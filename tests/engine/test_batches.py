"""A source that reads several at once is asked for all that is known at once: merged, and in flight together.

The source holds each of its requests until every other of the batch has begun, so what is not in flight together fails.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import trio

from mummufs.core.ranges import PAGE_SIZE, FileId
from mummufs.core.states import State
from mummufs.core.unbuffered import GRAIN_BYTES
from mummufs.engine import bringing, merging
from mummufs.engine.warmprogress import WarmProgress
from mummufs.source.base import Wanted
from mummufs.source.direct import DirectTreeSource
from mummufs.source.memory import MemoryFile, MemorySource
from mummufs.source.unbuffered import Request, read_planned
from mummufs.source.windows import WindowsSource
from tests.engine.harness import KIB, Engine, FakeParser, budget_for, contents, engine, gather, make_table
from tests.support.fake_win32 import FakeWin32

MIB = 1 << 20
MEET_S = 20.0
EXPERT = 544 * KIB
FAR = 4 * MIB
WINDOWS = [(i * EXPERT, EXPERT) for i in range(4)] + [(FAR + i * 2 * MIB, 256 * KIB) for i in range(4)]
SIZE = FAR + 4 * 2 * MIB + 123
DATA = contents(SIZE)

Batch = list[tuple[int, int]]


class AtOnce(MemorySource):
    """A source whose files are read as they are past a file cache.

    Attributes:
        batches: offset and size of requests.
        failing: offsets; the next request from one of them that is in a batch with others fails.
    """

    def __init__(self, files: dict[bytes, bytes]) -> None:
        super().__init__(files)
        self.batches: list[Batch] = []
        self.failing: set[int] = set()

    def open(self, path: bytes) -> MemoryFile:
        return AtOnceFile(self, path, super().open(path).node)


class AtOnceFile(MemoryFile):
    """An open file of it."""

    reads_at_once = True

    def read_into(self, buffer: memoryview, offset: int) -> int:
        return read_planned(self, [Wanted(offset, buffer)])[0]

    def read_many(self, wanted: Sequence[Wanted]) -> list[int]:
        return read_planned(self, wanted)

    def read_at_once(self, requests: Sequence[Request]) -> list[int]:
        source = self._source
        assert isinstance(source, AtOnce)
        source.batches.append([(request.offset, len(request.buffer)) for request in requests])
        begun = threading.Barrier(len(requests))
        got: list[int | OSError] = [0] * len(requests)

        def read(i: int, request: Request) -> None:
            begun.wait(MEET_S)
            if len(requests) > 1 and request.offset in source.failing:
                source.failing.remove(request.offset)
                got[i] = OSError(errno.EIO, os.strerror(errno.EIO))
                return
            try:
                got[i] = MemoryFile.read_into(self, request.buffer, request.offset)
            except OSError as error:
                got[i] = error

        threads = [threading.Thread(target=read, args=(i, request)) for i, request in enumerate(requests)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [_raised(n) for n in got]


def _raised(n: int | OSError) -> int:
    if isinstance(n, OSError):
        raise n
    return n


def model() -> tuple[AtOnce, FakeParser]:
    return AtOnce({b"model": DATA}), FakeParser({b"model": make_table(SIZE, WINDOWS)})


def grown(offset: int, end: int) -> tuple[int, int]:
    """The request for these bytes."""
    start = offset // PAGE_SIZE * PAGE_SIZE
    return start, -(-(end - start) // GRAIN_BYTES) * GRAIN_BYTES


async def warm(e: Engine) -> WarmProgress:
    assert e.service.placement is not None
    job = e.service.placement.warmer.find_and_warm_nowait([b"model"], "*")
    await job.ended.wait()
    await e.idle()
    return job.progress


async def test_a_read_over_neighbouring_windows_is_one_request(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        assert await e.read(handle, 100, 4 * EXPERT - 200) == DATA[100 : 4 * EXPERT - 100]
        await e.idle()
        assert source.batches[0] == [grown(100, 4 * EXPERT - 100)], "four windows, whose gaps are none"
        assert [e.state(handle, i) for i in range(4)] == [State.RESIDENT] * 4
        assert e.counters.source_reads.merged == 3
        before = len(source.batches)
        assert await e.read(handle, 0, 4 * EXPERT) == DATA[: 4 * EXPERT]
        assert len(source.batches) == before, "from the store"
        e.check()


async def test_a_read_over_windows_that_lie_apart_has_them_in_flight_together(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        offset, end = FAR - 2 * MIB, FAR + 3 * 2 * MIB + 256 * KIB
        assert await e.read(handle, offset, end - offset) == DATA[offset:end]
        await e.idle()
        flights = [grown(o, o + n) for o, n in WINDOWS[4:]]
        assert flights in source.batches, "the four windows"
        (between,) = [batch for batch in source.batches if batch != flights]
        assert between == [grown(offset, FAR + 6 * MIB)], "and what is beside them, which lies less than 1 MiB apart"
        assert [e.state(handle, i) for i in range(4, 8)] == [State.RESIDENT] * 4
        e.check()


async def test_what_is_left_of_the_windows_follows_in_one_batch(tmp_path: Path) -> None:
    """The reader waits for no more than he has asked for."""
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 5)
        source.batches.clear()
        offset, end = FAR + 100 * KIB, FAR + 4 * MIB + 128 * KIB
        assert await e.read(handle, offset, end - offset) == DATA[offset:end]
        await e.idle()
        between = [grown(FAR + 256 * KIB, FAR + 4 * MIB)]
        first, rest = [batch for batch in source.batches if batch != between]
        assert first == [grown(offset, FAR + 256 * KIB), grown(FAR + 4 * MIB, end)]
        assert rest == [grown(FAR, FAR + 100 * KIB), grown(end, FAR + 4 * MIB + 256 * KIB)]
        assert [e.state(handle, i) for i in (4, 5, 6)] == [State.RESIDENT] * 3
        e.check()


async def test_grazed_ends_around_a_hit_are_read_together(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 1)
        source.batches.clear()
        offset, end = EXPERT - 64 * KIB, 2 * EXPERT + 64 * KIB
        assert await e.read(handle, offset, end - offset) == DATA[offset:end]
        await e.idle()
        assert source.batches == [[grown(offset, end)]], "less than 1 MiB apart: one request, the hit in its middle"
        assert (e.state(handle, 0), e.state(handle, 2)) == (State.ABSENT, State.ABSENT)
        e.check()


async def test_a_warm_has_all_of_a_batch_in_flight_at_once(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        done = await warm(e)
        assert done.filled.ranges == len(WINDOWS)
        apart = [grown(0, 4 * EXPERT), *(grown(o, o + n) for o, n in WINDOWS[4:])]
        assert source.batches == [apart], "those that touch are one request, and all are one batch"
        assert e.counters.source_reads.background == 5
        assert await e.read(await e.open(b"model"), 0, SIZE) == DATA
        e.check()


async def test_batches_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "BATCH_BYTES_MAX", 5 * 256 * KIB)
    monkeypatch.setattr(bringing, "BATCH_BYTES", 256 * KIB)
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        assert (await warm(e)).filled.ranges == len(WINDOWS)
        assert sorted(source.batches) == [[grown(0, 4 * EXPERT)], *([grown(o, o + n)] for o, n in WINDOWS[4:])]
        e.check()


async def test_who_comes_for_any_window_of_a_batch_sends_it_off(tmp_path: Path) -> None:
    source, parser = model()
    source.write(b"other", DATA)
    async with engine(source, tmp_path, parser) as e:
        handle, other = await e.open(b"model"), await e.open(b"other")
        source.hold_reads()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(e.read, other, 0, 4096)  # somebody waits for the source, so nobody else has a turn
            await e.wait_until(lambda: len(source.reads) == 1)
            keys = [e.key(handle, i) for i in (4, 5, 6)]
            e.cache.filler.offer_all_nowait(keys, handle.node.version, handle.file, lowest=True)
            await trio.testing.wait_all_tasks_blocked()
            assert e.cache.filler.schedule.waiting == 1, "one turn for all"
            nursery.start_soon(e.read, handle, keys[1].offset + 5, 5)
            await e.wait_until(lambda: len(source.reads) == 4)
            assert source.batches[-1] == [grown(key.offset, key.offset + key.size) for key in keys]
            source.release_reads()
        await e.idle()
        assert [e.state(handle, i) for i in (4, 5, 6)] == [State.RESIDENT] * 3
        e.check()


async def test_one_request_that_fails_fails_its_batch_and_readers_ask_again(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        source.failing.add(FAR + 2 * MIB)  # a window's: of one for what lies beside them the reader would be told
        offset, end = FAR, FAR + 4 * MIB
        assert await e.read(handle, offset, end - offset) == DATA[offset:end]
        assert not source.failing
        await e.idle()
        e.check()
        source.fail_nth.clear()
        source.fail_nth = dict.fromkeys(range(len(source.reads), len(source.reads) + 1000), errno.EIO)
        results = await gather(partial(e.read, handle, FAR + 6 * MIB, 128 * KIB))
        assert [result.errno for result in results] == [errno.EIO]
        source.fail_nth.clear()
        await e.idle()
        assert e.state(handle, 7) is State.ABSENT
        e.check()


async def test_a_change_meanwhile_is_stored_by_none_of_the_batch(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        keys, version = [e.key(handle, i) for i in (4, 5, 6)], handle.node.version
        source.hold_reads()
        e.cache.filler.offer_all_nowait(keys, version, handle.file)
        await e.wait_until(lambda: len(source.reads) == 3)
        source.write(b"model", DATA[::-1])
        source.release_reads()
        await e.idle()
        assert [e.index.is_resident(key, version) for key in keys] == [False] * 3
        e.check()


@pytest.mark.parametrize("budget", [64 << 20, budget_for(2, EXPERT)])
async def test_random_reads_give_the_bytes_of_the_source(tmp_path: Path, budget: int) -> None:
    source, parser = model()
    rng = random.Random(budget)
    async with engine(source, tmp_path, parser, budget_bytes=budget) as e:
        handle = await e.open(b"model")

        async def read() -> None:
            for _ in range(12):
                offset, size = rng.randrange(SIZE), rng.choice((1, 5000, 300 * KIB, 3 * MIB))
                assert await e.read(handle, offset, size) == DATA[offset : offset + size]

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(read)
        await e.idle()
        assert max(map(len, source.batches)) > 1
        e.check()


async def test_a_tree_past_the_page_cache(tmp_path: Path) -> None:
    root, store = tmp_path / "root", tmp_path / "store"
    root.mkdir()
    store.mkdir()
    (root / "model").write_bytes(DATA)
    parser = FakeParser({b"model": make_table(SIZE, WINDOWS)})
    async with engine(DirectTreeSource(root), store, parser) as e:
        handle = await e.open(b"model")
        for offset, size in ((EXPERT - 5, 10), (100, SIZE - 300), (SIZE - 200, 200)):
            assert await e.read(handle, offset, size) == DATA[offset : offset + size]
        assert (await warm(e)).resident.ranges == len(WINDOWS)
        e.check()


class _Counted(FakeWin32):
    """Attributes: batches: how many requests there were in each call past the file cache."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.batches: list[int] = []

    def read(self, handle: int, requests: Sequence[tuple[int, memoryview]]) -> list[int]:
        self.batches.append(len(requests))
        return super().read(handle, requests)


@pytest.mark.parametrize("unbuffered", [True, False])
async def test_the_source_of_windows(tmp_path: Path, unbuffered: bool) -> None:
    root, store = tmp_path / "root", tmp_path / "store"
    root.mkdir()
    store.mkdir()
    (root / "model").write_bytes(DATA)
    win32 = _Counted(root)
    parser = FakeParser({b"model": make_table(SIZE, WINDOWS)})
    async with engine(WindowsSource("C:\\", win32, unbuffered=unbuffered), store, parser) as e:
        assert (await warm(e)).filled.ranges == len(WINDOWS)
        assert win32.batches == ([5] if unbuffered else [1] * 5)
        handle = await e.open(b"model")
        for offset, size in ((0, SIZE), (EXPERT - 5, 10), (SIZE - 200, 200)):
            assert await e.read(handle, offset, size) == DATA[offset : offset + size]
        await e.idle()
        assert isinstance(handle.node.file, FileId)
        e.check()
