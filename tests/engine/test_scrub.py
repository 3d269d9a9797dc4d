"""The scrub finds what is wrong, drops it, and goes on where it stopped."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest
import trio

from mummufs.core.ranges import RangeKey
from mummufs.core.states import State
from mummufs.engine.scrub import Scrub
from mummufs.source.memory import MemorySource
from mummufs.store.layout import HEADER_BYTES
from tests.engine.harness import FakeParser, FaultyOs, contents, engine, make_table

WINDOW = 16 << 10
COUNT = 6
FAST = float("inf")


def model() -> tuple[MemorySource, FakeParser]:
    data = contents(COUNT * WINDOW, 1)
    table = make_table(len(data), [(i * WINDOW, WINDOW) for i in range(COUNT)])
    return MemorySource({b"dir/model": data}), FakeParser({b"dir/model": table})


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 5] ^= 1
    path.write_bytes(data)


async def test_a_clean_store(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"dir/model")
        await e.fill(handle, *range(COUNT))
        scrub = e.service.scrub
        assert scrub is not None
        for against in (False, True):
            await scrub.run(against_source=against, rate_bytes_per_s=FAST)
            p = scrub.progress
            assert (p.ranges, p.bytes, p.corrupt, p.different, p.skipped) == (COUNT, COUNT * WINDOW, 0, 0, 0)
            assert not p.running
        e.check()


async def test_a_flipped_byte_is_found_and_dropped(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"dir/model")
        await e.fill(handle, *range(COUNT))
        flip(e.range_file(handle, 2))
        scrub = e.service.scrub
        assert scrub is not None
        await scrub.run(rate_bytes_per_s=FAST)
        await e.idle()
        assert scrub.progress.corrupt == 1
        assert e.state(handle, 2) is State.ABSENT
        assert e.counters.errors.corrupt == 1
        e.check()


async def test_what_is_evicted_while_it_is_looked_at_is_not_corrupt(tmp_path: Path) -> None:
    source, parser = model()
    begun, held = threading.Event(), threading.Event()

    def hold(name: str, _: int) -> bool:
        if name == "read":
            begun.set()
            held.wait(60)
        return False

    fs = FaultyOs(tmp_path)
    async with engine(source, tmp_path, parser, fs=fs) as e, trio.open_nursery() as nursery:
        handle = await e.open(b"dir/model")
        await e.fill(handle, 0)
        scrub = e.service.scrub
        assert scrub is not None
        fs.fails = hold
        nursery.start_soon(partial(scrub.run, rate_bytes_per_s=FAST))
        await trio.to_thread.run_sync(begun.wait)
        e.cache.evictor.evict_nowait([e.key(handle, 0)])
        await e.wait_until(lambda: not e.range_file(handle, 0).exists())
        held.set()
        await e.idle()
        assert (scrub.progress.running, scrub.progress.corrupt, scrub.progress.skipped) == (False, 0, 1)
        assert (e.counters.errors.corrupt, e.counters.errors.store) == (0, 0)
        e.check()


async def test_the_source_is_the_judge_where_it_is_asked(tmp_path: Path) -> None:
    """The bytes of the source have changed and nothing shows it: what a store to a shared mapping may do."""
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"dir/model")
        await e.fill(handle, *range(COUNT))
        node = source._nodes[b"dir/model"]
        changed = bytearray(node.contents)
        changed[3 * WINDOW + 7] ^= 0xFF
        node.contents = bytes(changed)
        scrub = e.service.scrub
        assert scrub is not None
        await scrub.run(against_source=True, rate_bytes_per_s=FAST)
        await e.idle()
        assert (scrub.progress.corrupt, scrub.progress.different) == (0, 1)
        assert e.state(handle, 3) is State.ABSENT
        e.check()


async def test_a_sample_and_a_resumed_scrub(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"dir/model")
        await e.fill(handle, *range(COUNT))
        scrub = e.service.scrub
        assert scrub is not None
        await scrub.run(sample=2, rate_bytes_per_s=FAST)
        assert scrub.progress.ranges == 2
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: scrub.run(rate_bytes_per_s=1e-9))
                await e.wait_until(lambda: scrub.progress.ranges == 1)
                scope.cancel()
        assert not scrub.progress.running
        await scrub.run(resume=True, rate_bytes_per_s=FAST)
        assert scrub.progress.ranges == COUNT - 1


async def test_a_scrub_runs_until_its_mark_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who saw it end may ask at once for the next one to go on from there."""
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"dir/model")
        await e.fill(handle, *range(COUNT))
        scrub, save_mark = e.service.scrub, e.cache.store.save_mark
        assert scrub is not None
        running: list[bool] = []

        def watched(at: RangeKey | None) -> None:
            running.append(scrub.progress.running)
            save_mark(at)

        monkeypatch.setattr(e.cache.store, "save_mark", watched)
        await scrub.run(rate_bytes_per_s=FAST)
        assert running == [True]
        assert not scrub.progress.running


async def test_a_scrub_is_resumed_by_the_next_mount(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"dir/model")
        await e.fill(handle, *range(COUNT))
        first = e.service.scrub
        assert first is not None
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(first.run, rate_bytes_per_s=1e-9))
                await e.wait_until(partial(_one_done, first))
                scope.cancel()
    async with engine(source, tmp_path, parser, scan=True) as e:
        scrub = e.service.scrub
        assert scrub is not None
        await scrub.run(resume=True, rate_bytes_per_s=FAST)
        assert scrub.progress.ranges == COUNT - 1
        await scrub.run(resume=True, rate_bytes_per_s=FAST)
        assert scrub.progress.ranges == COUNT, "the last one was through: it begins anew"


def _one_done(scrub: Scrub) -> bool:
    return scrub.progress.ranges == 1
