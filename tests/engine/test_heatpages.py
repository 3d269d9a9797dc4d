"""Heat in and out by pages: bounded answers, and nothing taken in that is no heat."""

from __future__ import annotations

from pathlib import Path

import pytest

from mummufs.core.errors import MummufsError
from mummufs.core.ranges import FileId, RangeKey
from mummufs.core.ratings import HeatRecord
from mummufs.engine.heatpages import HEAT_MAX, PAGE_RANGES, HeatPages, known_paths
from mummufs.source.memory import MemorySource
from tests.engine.harness import KIB, Engine, FakeParser, contents, engine, make_table

WINDOW = 64 * KIB
DATA = contents(2 * WINDOW)


def source_and_parser() -> tuple[MemorySource, FakeParser]:
    table = make_table(len(DATA), [(0, WINDOW), (WINDOW, WINDOW)])
    return MemorySource({b"models/a": DATA}), FakeParser({b"models/a": table})


def pages(e: Engine) -> HeatPages:
    assert e.service.heat is not None
    return HeatPages(e.cache, e.service.heat)


def row(i: int, heat: float = 1.0) -> list[float]:
    return [7, 8, i * WINDOW, WINDOW, heat]


async def all_of(heat: HeatPages) -> list[HeatRecord]:
    found: list[HeatRecord] = []
    walk: int | None = None
    while True:
        page = await heat.page(walk)
        assert len(page.ranges) <= PAGE_RANGES
        found += page.ranges
        walk = page.walk
        if not page.more:
            return found


@pytest.mark.parametrize("count", [0, 1, PAGE_RANGES - 1, PAGE_RANGES, 2 * PAGE_RANGES + 1])
async def test_every_range_is_on_one_page(tmp_path: Path, count: int) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        heat = pages(e)
        for at in range(0, count, PAGE_RANGES):
            rows = [row(i, i / 1000) for i in range(at, min(count, at + PAGE_RANGES))]
            assert await heat.recall(rows) == len(rows)
        found = await all_of(heat)
        assert sorted(r.key.offset for r in found) == [i * WINDOW for i in range(count)]
        assert all(r.heat == pytest.approx(r.key.offset / WINDOW / 1000) for r in found)


async def test_heat_is_added_to_what_there_is(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        heat, key = pages(e), RangeKey(FileId(7, 8), 0, WINDOW)
        await heat.recall([row(0, 1.0)])
        await heat.recall([row(0, 1.0)])
        assert e.index.heat(key) == pytest.approx(2.0)
        await heat.recall([row(0, 1e9)])
        assert e.index.heat(key) == HEAT_MAX


async def test_two_clients_at_once_do_not_mix(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        heat = pages(e)
        for at in range(3):
            await heat.recall([row(at * PAGE_RANGES + i) for i in range(PAGE_RANGES)])
        first = await heat.page(None)
        assert first.more
        assert len(await all_of(heat)) == 3 * PAGE_RANGES
        with pytest.raises(MummufsError, match="another profile"):
            await heat.page(first.walk)


@pytest.mark.parametrize(
    "rows",
    [
        None,
        {},
        [row(0)] * (PAGE_RANGES + 1),
        [None],
        [[7, 8, 0, WINDOW]],
        [[7, 8, 0, WINDOW, 1.0, 1]],
        [[7, 8, 0, 0, 1.0]],
        [[7, 8, -1, WINDOW, 1.0]],
        [[7, 8, 1 << 63, WINDOW, 1.0]],
        [[1 << 64, 8, 0, WINDOW, 1.0]],
        [[7, True, 0, WINDOW, 1.0]],
        [[7, 8, 0.0, WINDOW, 1.0]],
        [[7, 8, 0, WINDOW, "1"]],
        [[7, 8, 0, WINDOW, float("nan")]],
        [row(0), [7, 8, 0, WINDOW, float("inf")]],
    ],
)
async def test_what_is_no_heat_is_refused_whole(tmp_path: Path, rows: object) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        with pytest.raises(MummufsError):
            await pages(e).recall(rows)
        assert await all_of(pages(e)) == []


async def test_paths_as_far_as_they_are_known(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        folder = await e.overlay.look_up(e.overlay.nodes.root, b"models")
        node = await e.overlay.look_up(folder, b"a")
        assert known_paths(e.overlay.nodes, [[*node.file], [9, 9]]) == [b"models/a", None]
        node.mark_stale()
        assert known_paths(e.overlay.nodes, [[*node.file]]) == [None]
        for wrong in (None, [[1]], [[1, -1]], [[1, 2]] * (PAGE_RANGES + 1)):
            with pytest.raises(MummufsError):
                known_paths(e.overlay.nodes, wrong)
