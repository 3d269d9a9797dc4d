"""What disks that spin are told: of a read all that it has them read, in order, and what belongs to it."""

from __future__ import annotations

import errno
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mummufs.core import around
from mummufs.core.around import ROWS_MAX
from mummufs.core.manifest import Manifest, ManifestRange, RangeKind, RangeTable
from mummufs.core.ranges import ByteRange
from mummufs.engine import bringing, flight, hinting
from mummufs.engine.flight import PIECE_MAX_BYTES
from mummufs.engine.hinting import HINTING_MAX, HOLE_BYTES, PASS_PIECE_BYTES, PASS_WINDOW_BYTES, joined
from mummufs.engine.overlay import Handle
from mummufs.source.memory import MemorySource
from tests.engine.harness import KIB, PAGE, Engine, FakeParser, contents, engine, make_table

MIB = 1 << 20
WINDOW = 64 * KIB
FAR = 64
"""Windows between what two rows came for."""
EXPERTS = 48
"""Slices of a tensor: so many that the next tensor's are another row."""


def neighbours(count: int) -> RangeTable:
    return make_table(count * WINDOW, [(i * WINDOW, WINDOW) for i in range(count)])


def layer(size: int = WINDOW) -> RangeTable:
    names = [
        f"blk.0.ffn_{projection}_exps.weight[{i}]" for projection in ("gate", "up", "down") for i in range(EXPERTS)
    ]
    ranges = [ManifestRange(i * size, size, name, RangeKind.EXPERT) for i, name in enumerate(names)]
    return RangeTable.from_manifest(Manifest("test", len(names) * size, ranges))


def sources(table: RangeTable) -> tuple[MemorySource, FakeParser]:
    return MemorySource({b"model": contents(table.file_size)}), FakeParser({b"model": table})


class Told:
    """What was told by threads that read, and in threads that nobody waits for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reading: list[list[ByteRange]] = []
        self.beside: list[list[ByteRange]] = []
        monkeypatch.setattr(flight, "will_need", lambda _, runs: self._add(self.reading, runs))
        monkeypatch.setattr(hinting, "will_need", lambda _, runs: self._add(self.beside, runs))

    def _add(self, told: list[list[ByteRange]], runs: Sequence[ByteRange]) -> None:
        if runs:
            told.append(list(runs))

    def clear(self) -> None:
        self.reading.clear()
        self.beside.clear()


@asynccontextmanager
async def hinted(
    table: RangeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *filled: int, budget_bytes: int = 64 * MIB
) -> AsyncIterator[tuple[Engine, Handle, Told, MemorySource]]:
    """An engine whose disks spin, with an open file that has these windows, of which some are in the store."""
    source, parser = sources(table)
    told = Told(monkeypatch)
    async with engine(source, tmp_path, parser, budget_bytes=budget_bytes, read_around=True) as e:
        handle = await e.open(b"model")
        await e.fill(handle, *filled)
        await e.idle()
        told.clear()
        yield e, handle, told, source
        await e.idle()
        e.check()


def windows(first: int, count: int = 1) -> ByteRange:
    return ByteRange(first * WINDOW, count * WINDOW)


async def test_a_window_is_asked_for_whole_before_its_first_piece_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = MIB
    source, parser = sources(make_table(2 * window, [(window, window)]))
    told: list[tuple[int, list[ByteRange]]] = []
    monkeypatch.setattr(flight, "will_need", lambda _, runs: told.append((len(source.reads), list(runs))))
    async with engine(source, tmp_path, parser, read_around=True) as e:
        handle = await e.open(b"model")
        told.clear()
        await e.read(handle, window + window // 2, PAGE)
        await e.idle()
        assert told[0] == (0, [ByteRange(window, window)]), "in its order, not from the middle"
        e.check()


async def test_each_read_of_a_row_asks_for_it_from_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, parser = sources(neighbours(16))
    told: list[list[ByteRange]] = []
    gate, begun = threading.Event(), [trio.Event() for _ in range(3)]
    token = trio.lowlevel.current_trio_token()

    def will_need(_: object, runs: Sequence[ByteRange]) -> None:
        told.append(list(runs))
        if len(told) <= len(begun):
            token.run_sync_soon(begun[len(told) - 1].set)
            gate.wait(20.0)

    async with engine(source, tmp_path, parser, read_around=True) as e:
        handle = await e.open(b"model")
        await e.idle()
        monkeypatch.setattr(flight, "will_need", will_need)
        async with trio.open_nursery() as nursery:
            for i, event in zip((4, 6, 5), begun, strict=True):  # as threads of the kernel come
                nursery.start_soon(e.read, handle, i * WINDOW, PAGE)
                await event.wait()
            gate.set()
        assert told[:3] == [[windows(4)], [windows(4), windows(6)], [windows(4, 2)]], (
            "whoever is first, disks go forward"
        )
        await e.idle()
        assert source.read_bytes() == 3 * WINDOW
        assert e.counters.source_reads.along_bytes == 0
        e.check()


async def test_what_rows_reach_around_their_windows_is_asked_for_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hinted(neighbours((ROWS_MAX + 3) * FAR), tmp_path, monkeypatch) as (e, handle, told, _):
        for row in range(1, ROWS_MAX + 2):
            for i in (0, -1, 1):  # what a reader came for, and what the kernel reads around it
                await e.read(handle, (row * FAR + i) * WINDOW, PAGE)
                await e.idle()
        told.clear()
        last = (ROWS_MAX + 2) * FAR
        await e.read(handle, last * WINDOW, PAGE)
        await e.idle()
        assert told.reading[0] == [windows(last - 1, 2), windows(last + 1)]
        assert e.index.statistics().resident == 3 * (ROWS_MAX + 1) + 1, "and nothing of it is stored"
        assert e.counters.source_reads.along_bytes == 3 * WINDOW, "one window of them with the row before"
        assert e.cache.filler.hinter is not None
        assert e.cache.filler.hinter.share_used == 1 / 3, "which was read"


async def test_when_a_slice_is_missed_its_siblings_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hinted(layer(), tmp_path, monkeypatch, 2 * EXPERTS + 8) as (e, handle, told, source):
        await e.read(handle, 7 * WINDOW, PAGE)
        await e.idle()
        assert sorted(told.beside) == [[windows(EXPERTS + 7)], [windows(2 * EXPERTS + 7)]]
        assert source.read_bytes() == 2 * WINDOW, "the disks read, and nothing more is fetched"
        told.clear()
        await e.read(handle, (EXPERTS + 7) * WINDOW, PAGE)
        await e.idle()
        assert told.beside == [], "once"
        await e.read(handle, 8 * WINDOW, PAGE)
        await e.idle()
        assert told.beside == [], "who reads on did not come for the next expert"
        hinter = e.cache.filler.hinter
        assert hinter is not None and (hinter.siblings_told, hinter.siblings_used) == (2, 1)


async def test_what_is_in_the_store_or_on_its_way_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hinted(layer(), tmp_path, monkeypatch, EXPERTS + 7) as (e, handle, told, _):
        await e.read(handle, 7 * WINDOW, PAGE)
        await e.idle()
        assert told.beside == [[windows(2 * EXPERTS + 7)]]


async def test_a_sibling_in_the_store_is_not_missing_for_the_page_that_it_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = WINDOW + 100
    async with hinted(layer(size), tmp_path, monkeypatch, EXPERTS + 7, 2 * EXPERTS + 7) as (e, handle, told, _):
        table = handle.node.ranges
        assert table is not None and table.ends[EXPERTS + 6] > table.starts[EXPERTS + 7], "the neighbour is missing"
        await e.read(handle, table.starts[7], size)
        await e.idle()
        assert told.beside == []
        assert e.cache.filler.hinter is not None and e.cache.filler.hinter.siblings_told == 0


async def test_what_was_passed_over_or_read_before_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows near each other are read one by one by who chooses some of them. Were the row between them asked for with
    each, disks would read many times of what is wanted, again after each time that the page cache has dropped it."""
    async with hinted(neighbours(16), tmp_path, monkeypatch, budget_bytes=WINDOW // 2) as (e, handle, told, source):
        for i in (2, 5, 9):
            await e.read(handle, i * WINDOW, WINDOW)
            await e.idle()
        assert e.index.statistics().resident == 0, "the store takes none of them"
        assert (told.reading, told.beside) == ([], [])
        assert source.read_bytes() == 3 * WINDOW


async def test_who_walks_through_slices_too_large_to_be_asked_for_at_once_came_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(around, "GAP_MAX_BYTES", PAGE)
    monkeypatch.setattr(hinting, "FOREGROUND_BYTES", WINDOW // 4)
    monkeypatch.setattr(bringing, "FOREGROUND_BYTES", WINDOW // 4)
    monkeypatch.setattr(hinting, "PIECE_MAX_BYTES", PAGE)
    async with hinted(layer(), tmp_path, monkeypatch) as (e, handle, told, _):
        for at in range(8 * WINDOW, 12 * WINDOW, WINDOW // 4):
            await e.read(handle, at, WINDOW // 4)
        await e.idle()
        assert sorted(told.beside) == [[windows(EXPERTS + 8)], [windows(2 * EXPERTS + 8)]]


async def test_what_follows_is_told_even_if_the_window_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel cuts a pass over a window into requests, and its second one may come first."""
    gate = threading.Event()
    async with hinted(layer(), tmp_path, monkeypatch) as (e, handle, told, _):
        monkeypatch.setattr(flight, "will_need", lambda *_: gate.wait(20.0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(e.read, handle, 7 * WINDOW + 2 * PAGE, PAGE)
            await trio.testing.wait_all_tasks_blocked()
            assert e.cache.filler.flights == 1
            nursery.start_soon(e.read, handle, 7 * WINDOW, PAGE)
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
        await e.idle()
        assert sorted(told.beside) == [[windows(EXPERTS + 7)], [windows(2 * EXPERTS + 7)]]


async def test_no_more_threads_tell_than_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(around, "GAP_MAX_BYTES", PAGE)  # slices that are not neighbours are rows of their own
    gate = threading.Event()
    async with hinted(layer(), tmp_path, monkeypatch) as (e, handle, _, _):
        monkeypatch.setattr(hinting, "will_need", lambda *_: gate.wait(20.0))
        hinter = e.cache.filler.hinter
        assert hinter is not None
        for i in range(HINTING_MAX // 2 + 1):
            await e.read(handle, 8 * i * WINDOW, PAGE)
        assert (hinter.hinting, hinter.dropped) == (HINTING_MAX, 2)
        gate.set()
        await e.idle()
        assert hinter.hinting == 0


@pytest.mark.parametrize(
    ("fault", "counted"), [(OSError(errno.EBADF, "closed"), 0), (RuntimeError("planted"), 2)], ids=["source", "ours"]
)
async def test_a_hint_that_fails_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, counted: int
) -> None:
    source, parser = sources(layer())

    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(hinting, "will_need", fail)
    async with engine(source, tmp_path, parser, read_around=True) as e:
        handle = await e.open(b"model")
        assert (
            await e.read(handle, 7 * WINDOW, PAGE)
            == contents(parser.tables[b"model"].file_size)[7 * WINDOW : 7 * WINDOW + PAGE]
        )
        await e.idle()
        assert e.counters.errors.handler == counted
        assert e.cache.filler.hinter is not None and e.cache.filler.hinter.hinting == 0
        e.check()


@pytest.mark.parametrize(
    ("window", "read", "asked"),
    [
        (MIB, ByteRange(512 * KIB, PASS_PIECE_BYTES), [[ByteRange(0, MIB)]]),
        (MIB, ByteRange(512 * KIB, PASS_PIECE_BYTES - PAGE), []),
        (MIB, ByteRange(0, MIB), []),
        (2 * PASS_WINDOW_BYTES, ByteRange(MIB, MIB), [[ByteRange(MIB, MIB + PIECE_MAX_BYTES)]]),
    ],
    ids=["a piece", "too small to be one", "all of it", "a large window"],
)
@pytest.mark.parametrize("spins", [True, False])
async def test_a_declined_window_is_read_in_one_pass_however_it_is_cut(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    window: int,
    read: ByteRange,
    asked: list[list[ByteRange]],
    spins: bool,
) -> None:
    told = Told(monkeypatch)
    data = bytes(window)
    source, parser = MemorySource({b"model": data}), FakeParser({b"model": make_table(window, [(0, window)])})
    async with engine(source, tmp_path, parser, budget_bytes=window // 2, read_around=spins) as e:
        handle = await e.open(b"model")
        told.clear()
        assert await e.read(handle, *read) == data[: read.size]
        await e.idle()
        assert e.counters.fills.declined == 1
        assert told.reading == (asked if spins else [])
        assert source.read_bytes() == read.size, "the disks read, and nothing more is fetched"
        e.check()


async def test_a_read_that_tells_as_much_as_a_hint_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with hinted(neighbours(4), tmp_path, monkeypatch, 0) as (e, handle, told, _):
        await e.read(handle, WINDOW - PAGE, 2 * PAGE)  # the kernel's read-ahead runs over the end of a window
        await e.idle()
        assert told.reading == []


def test_runs_are_joined_over_holes_that_cost_less_than_a_seek() -> None:
    one, two = ByteRange(0, MIB), ByteRange(MIB + HOLE_BYTES, MIB)
    assert joined([one, two], HOLE_BYTES) == [ByteRange(0, two.end)]
    assert joined([one, two], HOLE_BYTES - 1) == [one, two]
    assert joined([one, ByteRange(MIB, MIB), ByteRange(0, PAGE)]) == [ByteRange(0, 2 * MIB)]
    assert joined([two, one]) == [two, one], "what lies before is another run"
