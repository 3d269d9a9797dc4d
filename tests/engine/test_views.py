"""What may be read without asking the engine: the pieces of any read, and who takes in what was read."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.index import CacheIndex
from mummufs.core.manifest import Manifest, ManifestRange, RangeTable
from mummufs.core.policy import HotnessPolicy
from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.core.stats import Counters
from mummufs.engine.resident import Resident
from mummufs.engine.tracing import Tracing
from mummufs.engine.views import FileView, HitReports, OpenRanges
from mummufs.store.rangestore import RangeStore
from mummufs.store.storedrange import StoredRange
from tests.engine.harness import PAGE, FaultyOs, contents, make_table

FILE = FileId(7, 8)
FILE_SIZE = 60 * PAGE - 777
VERSION = Version(FILE_SIZE, 5, 6)
SPANS = st.lists(st.tuples(st.integers(0, 3 * PAGE), st.integers(1, 9 * PAGE)), max_size=12)


class Named:
    """Stands for the open range file of a window."""

    def __init__(self, offset: int, size: int) -> None:
        self.key = RangeKey(FILE, offset, size)


def table_of(spans: Sequence[tuple[int, int]]) -> RangeTable:
    """The windows of ranges with these gaps and sizes, joined and rounded as ever."""
    at, ranges = 0, []
    for gap, size in spans:
        at += gap
        if at + size <= FILE_SIZE:
            ranges.append(ManifestRange(at, size, ""))
        at += size
    return RangeTable.from_manifest(Manifest("test", FILE_SIZE, ranges))


@given(spans=SPANS, has=st.sets(st.integers(0, 11)), offset=st.integers(0, FILE_SIZE), size=st.integers(0, 20 * PAGE))
def test_the_pieces_of_a_read(spans: list[tuple[int, int]], has: set[int], offset: int, size: int) -> None:
    """They are the bytes asked for, in order, each out of an open window; if each byte is in one, they are found."""
    table = table_of(spans)
    open_ranges = OpenRanges()
    for i in range(len(table)):
        if i in has:
            window = table.window(i)
            open_ranges[window.offset, window.size] = cast(StoredRange, Named(window.offset, window.size))
    end = min(offset + size, FILE_SIZE)
    pieces = FileView(VERSION, table, open_ranges).pieces(offset, end)
    kept = [table.window(i).range for i in range(len(table)) if i in has]
    if pieces is None:
        covered = offset
        for found in kept:
            covered = max(covered, found.end) if found.offset <= covered < found.end else covered
        assert covered < end, "a read that lies in open windows is found"
        return
    at = offset
    for stored, number, within, length in pieces:
        window = table.window(number)
        assert (stored.key.offset, stored.key.size) == (window.offset, window.size)
        assert window.offset + within == at
        assert 0 < length <= window.size - within
        at += length
    assert at == max(offset, end)


def test_a_view_shows_what_is_resident_as_it_changes(tmp_path: Path) -> None:
    """Put in, evicted, of another version: the view that was taken before sees it."""
    store = RangeStore(FaultyOs(tmp_path))
    resident = Resident(store, lambda _: None)
    table = make_table(4 * PAGE, [(0, 2 * PAGE), (2 * PAGE, 2 * PAGE)])
    version = Version(4 * PAGE, 1, 1)
    view = resident.view(FILE, version, table)
    other = resident.view(FILE, Version(4 * PAGE, 2, 2), table)
    keys = [RangeKey(FILE, at, 2 * PAGE) for at in (0, 2 * PAGE)]
    assert view.pieces(0, PAGE) is None
    for key in keys:
        resident.add(key, version, store.write_range(key, version, memoryview(contents(2 * PAGE))))
    whole = view.pieces(PAGE, 3 * PAGE)
    assert whole is not None
    assert [(stored.key, at, size) for stored, _, at, size in whole] == [(keys[0], PAGE, PAGE), (keys[1], 0, PAGE)]
    assert other.pieces(PAGE, 3 * PAGE) is None
    resident.remove(keys[0])
    assert view.pieces(PAGE, 3 * PAGE) is None
    assert view.pieces(2 * PAGE, 3 * PAGE) is not None
    assert whole[0][0].key == keys[0], "who has a piece in hand may finish"
    assert resident.view(FILE, version, table).stored is view.stored


def test_a_file_that_is_let_go_is_in_no_view(tmp_path: Path) -> None:
    store = RangeStore(FaultyOs(tmp_path))
    version = Version(2 * PAGE, 1, 1)
    resident = Resident(store, lambda _: version, open_max=1)
    view = resident.view(FILE, version, make_table(2 * PAGE, [(0, PAGE), (PAGE, PAGE)]))
    for at in (0, PAGE):
        key = RangeKey(FILE, at, PAGE)
        resident.add(key, version, store.write_range(key, version, memoryview(contents(PAGE))))
    assert view.pieces(0, PAGE) is None
    assert view.pieces(PAGE, 2 * PAGE) is not None
    assert resident.acquire(RangeKey(FILE, 0, PAGE), version) is not None
    assert view.pieces(0, PAGE) is not None
    assert view.pieces(PAGE, 2 * PAGE) is None


def test_what_was_served_is_counted_and_touched() -> None:
    index = CacheIndex(1 << 30, HotnessPolicy(1 << 30))
    counters = Counters()
    reports = HitReports(index, counters, Tracing())
    key, gone = RangeKey(FILE, 0, 4 * PAGE), RangeKey(FILE, 8 * PAGE, 4 * PAGE)
    index.restore(key, 5 * PAGE, VERSION)
    before = index.statistics()
    stored, evicted = (cast(StoredRange, Named(k.offset, k.size)) for k in (key, gone))
    reports.take(3, {stored: 5 * PAGE, evicted: PAGE})
    assert (counters.reads.hits, counters.reads.hit_bytes, counters.reads.replied_bytes) == (3, 6 * PAGE, 6 * PAGE)
    assert index.statistics().resident == before.resident == 1
    index._check()


def test_what_was_pushed_is_touched_and_not_counted() -> None:
    """The first page by a request and the rest pushed: one touch, and one page of replies."""
    index, counters = CacheIndex(1 << 30, HotnessPolicy(1 << 30)), Counters()
    reports = HitReports(index, counters, Tracing())
    key, gone = RangeKey(FILE, 0, 4 * PAGE), RangeKey(FILE, 8 * PAGE, 4 * PAGE)
    index.restore(key, 5 * PAGE, VERSION)
    stored, evicted = (cast(StoredRange, Named(k.offset, k.size)) for k in (key, gone))
    reports.take(1, {stored: PAGE})
    reports.take_pushed({stored: 3 * PAGE, evicted: PAGE})
    assert (counters.reads.hits, counters.reads.hit_bytes, counters.reads.replied_bytes) == (1, PAGE, PAGE)
    assert index.heat(key) == pytest.approx(0, abs=1e-4), "of a budget as large, it has hardly cooled"
    assert index.heat(gone) == -inf
    index._check()
