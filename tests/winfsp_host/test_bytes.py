"""Whatever is read through the volume is the source's: cold, warm, stitched, and while evicting."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mummufs.source.memory import MemorySource
from mummufs.source.tree import TreeSource
from tests.engine.harness import PAGE, FakeParser, budget_for, contents, make_table
from tests.support.trees import write_models
from tests.winfsp_host.host import Mounted, mounted

SIZE = 40 * PAGE + 123
DATA = contents(SIZE)
WINDOWS = [(0, 4 * PAGE), (4 * PAGE, 3 * PAGE), (9 * PAGE, 8 * PAGE), (20 * PAGE, 20 * PAGE + 123)]


def memory(**files: bytes) -> tuple[MemorySource, FakeParser]:
    """A source with one model of four windows, and whatever else."""
    source = MemorySource({b"model.gguf": DATA, **{name.encode(): data for name, data in files.items()}})
    return source, FakeParser({b"model.gguf": make_table(SIZE, WINDOWS)})


async def fill(volume: Mounted) -> None:
    """Have every window in the store and proved, so that hits need no engine."""
    opened = await volume.open("\\model.gguf")
    for _ in range(2):
        for offset, size in WINDOWS:
            await volume.read(opened, offset, size)
            await volume.engine.idle()
    await volume.call(volume.volume.close, opened)
    await volume.engine.idle()


async def test_cold_and_warm(tmp_path: Path) -> None:
    source, parser = memory()
    async with mounted(source, tmp_path, parser) as volume:
        assert await volume.whole("\\model.gguf") == DATA
        await volume.engine.idle()
        await fill(volume)
        before, hits = source.read_bytes(), volume.session.hits.hits
        opened = await volume.open("\\model.gguf")
        for offset, size in [(0, 1), (5, 4 * PAGE), (9 * PAGE, 8 * PAGE), (20 * PAGE + 7, 3), (0, 7 * PAGE)]:
            assert await volume.read(opened, offset, size) == DATA[offset : offset + size]
        assert source.read_bytes() == before, "a warm read asks the source for nothing"
        assert volume.session.hits.hits == hits + 5, "and is served without the engine"
        assert await volume.read(opened, SIZE - 10, 100) == DATA[-10:], "short at end of file alone"
        await volume.call(volume.volume.close, opened)


async def test_a_read_over_hits_misses_and_gaps_is_stitched(tmp_path: Path) -> None:
    source, parser = memory()
    async with mounted(source, tmp_path, parser) as volume:
        opened = await volume.open("\\model.gguf")
        await volume.read(opened, 9 * PAGE, 8 * PAGE)
        await volume.engine.idle()
        assert await volume.read(opened, 100, SIZE - 200) == DATA[100:-100]
        await volume.engine.idle()
        volume.session.hits.report()
        await volume.call(volume.volume.close, opened)
        volume.engine.check()


async def test_what_is_served_without_the_engine_is_counted_and_touched(tmp_path: Path) -> None:
    source, parser = memory()
    async with mounted(source, tmp_path, parser) as volume:
        await fill(volume)
        volume.session.hits.report()
        reads, before = volume.engine.counters.reads, volume.engine.counters.reads.hits
        replied = reads.hit_bytes
        opened = await volume.open("\\model.gguf")
        for _ in range(10):
            await volume.read(opened, PAGE, PAGE)
        volume.session.hits.report()
        assert (reads.hits - before, reads.hit_bytes - replied) == (10, 10 * PAGE)
        await volume.call(volume.volume.close, opened)
        volume.engine.check()


@pytest.mark.parametrize("ranges", [1, 4])
async def test_many_threads_of_c_at_once(tmp_path: Path, ranges: int) -> None:
    """With room for one window they evict all the time, with room for four they all hit."""
    source, parser = memory()
    budget = budget_for(1, WINDOWS[-1][1]) if ranges == 1 else 64 << 20
    async with mounted(source, tmp_path, parser, budget_bytes=budget) as volume:
        opened = await volume.open("\\model.gguf")
        wrong = await volume.call(volume.volume.hammer, opened, DATA, 6 * PAGE, 24, 40)
        assert wrong == 0
        await volume.engine.idle()
        volume.session.hits.report()
        if ranges == 1:
            assert volume.engine.counters.evictions.ranges > 0
        await volume.call(volume.volume.close, opened)
        await volume.engine.idle()
        volume.engine.check()


async def test_an_evicted_range_is_read_from_the_source(tmp_path: Path) -> None:
    source, parser = memory()
    async with mounted(source, tmp_path, parser) as volume:
        await fill(volume)
        opened = await volume.open("\\model.gguf")
        volume.engine.cache.evictor.evict_nowait(list(volume.engine.index.resident_keys()))
        await volume.engine.idle()
        hits = volume.session.hits.hits
        assert await volume.read(opened, 0, 7 * PAGE) == DATA[: 7 * PAGE]
        assert volume.session.hits.hits == hits
        await volume.call(volume.volume.close, opened)


async def test_models_by_the_real_parser(tmp_path: Path) -> None:
    """A directory on the disk and headers parsed in a child process: every byte of two models, twice."""
    root, store = tmp_path / "models", tmp_path / "store"
    root.mkdir()
    store.mkdir()
    names = [name for name in write_models(root) if name.parts[0] in ("gguf", "safetensors")]
    async with mounted(TreeSource(root), store, None) as volume:
        for _ in range(2):
            for name in names:
                path = "\\" + str(name).replace("/", "\\")
                opened = await volume.call(volume.volume.open, path)
                while volume.engine.service.catalog and volume.engine.service.catalog.parsing:
                    await volume.engine.idle()
                    await trio.lowlevel.checkpoint()
                await volume.call(volume.volume.close, opened)
                assert await volume.whole(path) == (root / name).read_bytes()
                await volume.engine.idle()
        assert volume.engine.counters.reads.hit_bytes > 0
        volume.session.hits.report()


async def test_a_file_without_ranges_and_an_empty_one(tmp_path: Path) -> None:
    source, parser = memory(plain=b"x" * 100_000, empty=b"")
    async with mounted(source, tmp_path, parser) as volume:
        assert await volume.whole("\\plain") == b"x" * 100_000
        assert await volume.whole("\\empty") == b""


async def test_pass_through_without_a_store(tmp_path: Path) -> None:
    """Without a gate nothing is served without the engine."""
    source, parser = memory()
    async with mounted(source, tmp_path, parser) as volume:
        await fill(volume)
        volume.session.hits._gate = None
        hits = volume.session.hits.hits
        assert await volume.whole("\\model.gguf") == DATA
        assert volume.session.hits.hits == hits
