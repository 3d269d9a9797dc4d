"""plan_segments and is_wanted against a model that looks at every page of the request."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mummufs.core.index import CacheIndex
from mummufs.core.manifest import Manifest, ManifestRange, RangeTable
from mummufs.core.plan import NO_WINDOW, ReadPlan, Segment, SegmentKind, is_wanted, plan_segments, window_key
from mummufs.core.policy import HotnessPolicy
from mummufs.core.ranges import PAGE_SIZE, ByteRange, FileId, Version, page_ceil, page_floor

HIT, BYPASS, MISS = SegmentKind.HIT, SegmentKind.BYPASS, SegmentKind.MISS
SHARED = -1
FILE, VERSION = FileId(1, 2), Version(1 << 20, 3, 4)


def table_of(windows: list[tuple[int, int]], file_size: int) -> RangeTable:
    """A table with these windows `[start, end)` as they are, in bytes."""
    starts, ends = array("Q", [w[0] for w in windows]), array("Q", [w[1] for w in windows])
    count = len(windows)
    table = RangeTable("test", file_size, (starts, ends, starts, ends), bytes(count), array("Q", [0] * count), b"")
    table._check()
    return table


@st.composite
def _cases(draw: st.DrawFn) -> tuple[RangeTable, frozenset[int], int, int]:
    """A table, the resident windows, and a request inside the file."""
    steps = draw(st.lists(st.tuples(st.sampled_from([SHARED, 0, 1, 2]), st.integers(2, 4)), max_size=7))
    windows: list[tuple[int, int]] = []
    at = 0
    for gap, pages in steps:
        start = max(0, at + gap)
        windows.append((start * PAGE_SIZE, (start + pages) * PAGE_SIZE))
        at = start + pages
    cut = draw(st.integers(0, PAGE_SIZE - 1))
    file_size = at * PAGE_SIZE - cut if at else draw(st.integers(1, 3 * PAGE_SIZE))
    if windows:  # the last one ends with the file
        windows[-1] = (windows[-1][0], file_size)
        file_size += draw(st.sampled_from([0, 5000])) if cut == 0 else 0
    resident = draw(st.frozensets(st.integers(0, max(0, len(windows) - 1))))
    places = st.one_of(st.integers(0, file_size), st.integers(0, at).map(lambda page: min(file_size, page * PAGE_SIZE)))
    first, last = sorted((draw(places), draw(places)))
    return table_of(windows, file_size), resident, first, last - first


def _pieces(segment: Segment) -> list[ByteRange]:
    """The segment, cut at every page."""
    cuts = [segment.offset, *range(page_floor(segment.offset) + PAGE_SIZE, segment.end, PAGE_SIZE), segment.end]
    return [ByteRange(a, b - a) for a, b in pairwise(cuts)]


def _windows_with(table: RangeTable, piece: ByteRange) -> list[int]:
    return [i for i, window in enumerate(table) if window.range.contains(piece)]


@given(_cases())
def test_segments_are_the_request_in_order_without_gap_or_overlap(
    case: tuple[RangeTable, frozenset[int], int, int],
) -> None:
    table, resident, offset, size = case
    segments = list(plan_segments(table, offset, size, resident.__contains__))
    assert all(segment.size > 0 for segment in segments)
    assert [s.offset for s in segments] + [offset + size] == [offset] + [s.end for s in segments]


@given(_cases())
def test_each_page_comes_from_the_right_place(case: tuple[RangeTable, frozenset[int], int, int]) -> None:
    table, resident, offset, size = case
    for segment in plan_segments(table, offset, size, resident.__contains__):
        for piece in _pieces(segment):
            holders = _windows_with(table, piece)
            if segment.kind is BYPASS:
                assert segment.window == NO_WINDOW
                assert not any(w.range.intersection(piece).size for w in table)
                continue
            assert segment.window in holders
            assert (segment.window in resident) == (segment.kind is HIT)
            assert segment.kind is HIT or not resident.intersection(holders)


@given(_cases())
def test_a_request_in_one_absent_window_is_one_segment(case: tuple[RangeTable, frozenset[int], int, int]) -> None:
    table, resident, offset, size = case
    request = ByteRange(offset, size)
    holders = _windows_with(table, request)
    rounded = ByteRange(page_floor(offset), page_ceil(offset + size) - page_floor(offset))
    touching = {i for i, w in enumerate(table) if w.range.intersection(rounded).size}
    segments = list(plan_segments(table, offset, size, resident.__contains__))
    if size and holders and not resident & touching:
        assert [(s.kind, s.window in holders) for s in segments] == [(MISS, True)]
    if size and resident.intersection(holders):
        assert segments[0].kind is HIT and all(s.kind is HIT for s in segments)


@pytest.mark.parametrize("resident", [set(), {0}, {1}, {0, 1}])
def test_a_shared_page_comes_from_whichever_window_is_resident(resident: set[int]) -> None:
    table = table_of([(0, 2 * PAGE_SIZE), (PAGE_SIZE, 4 * PAGE_SIZE)], 4 * PAGE_SIZE)
    segments = list(plan_segments(table, PAGE_SIZE + 10, 100, resident.__contains__))
    assert len(segments) == 1
    assert segments[0].kind is (HIT if resident else MISS)


def test_a_miss_stops_where_a_resident_neighbour_begins() -> None:
    table = table_of([(0, 2 * PAGE_SIZE), (PAGE_SIZE, 4 * PAGE_SIZE)], 4 * PAGE_SIZE)
    assert list(plan_segments(table, 0, 4 * PAGE_SIZE, {1}.__contains__)) == [
        Segment(MISS, 0, PAGE_SIZE, 0),
        Segment(HIT, PAGE_SIZE, 3 * PAGE_SIZE, 1),
    ]


@pytest.mark.parametrize("table", [None, table_of([], 1000)])
def test_without_windows_everything_is_a_bypass(table: RangeTable | None) -> None:
    assert list(plan_segments(table, 10, 500, lambda _: True)) == [Segment(BYPASS, 10, 500, NO_WINDOW)]
    assert list(plan_segments(table, 10, 0, lambda _: True)) == []


def test_a_plan_of_the_index_changes_nothing_and_names_its_keys() -> None:
    manifest = Manifest("test", 1 << 20, [ManifestRange(5000, 200_000, "a"), ManifestRange(300_000, 100_000, "b")])
    table = RangeTable.from_manifest(manifest)
    index = CacheIndex(1 << 30, HotnessPolicy(1 << 30))
    key = window_key(FILE, table, 0)
    index.restore(key, key.size + PAGE_SIZE, VERSION)
    before = index.statistics()
    plan = index.plan_read(FILE, VERSION, table, 0, 1 << 20)
    assert [s.kind for s in plan.segments] == [BYPASS, HIT, BYPASS, MISS, BYPASS]
    assert plan.worst is MISS and sum(s.size for s in plan.segments) == 1 << 20
    assert plan.key(plan.segments[1]) == key and plan.key(plan.segments[3]) == window_key(FILE, table, 1)
    assert index.statistics() == before
    stale = index.plan_read(FILE, VERSION._replace(ctime_ns=5), table, 0, 1 << 20)
    assert HIT not in {s.kind for s in stale.segments}


@pytest.mark.parametrize(
    ("kinds", "worst"),
    [([], BYPASS), ([HIT], HIT), ([HIT, BYPASS], BYPASS), ([BYPASS, MISS, HIT], MISS), ([HIT, MISS], MISS)],
)
def test_a_request_counts_by_its_worst_segment(kinds: list[SegmentKind], worst: SegmentKind) -> None:
    segments = tuple(Segment(kind, i, 1, NO_WINDOW) for i, kind in enumerate(kinds))
    assert ReadPlan(FILE, VERSION, None, 0, len(kinds), segments).worst is worst


@given(st.integers(0, 40), st.integers(1, 40), st.integers(0, 80), st.integers(1, 80), st.integers(0, 80))
@example(10, 11, 0, 11, 5)
@example(10, 11, 0, 11, 6)
def test_a_fill_is_wanted_of_a_read_inside_or_around_a_window_or_of_half_of_it(
    start: int, length: int, offset: int, size: int, read: int
) -> None:
    window, request = set(range(start, start + length)), set(range(offset, offset + size))
    distinct = max(min(read, length), len(window & request))
    expected = request <= window or window <= request or distinct >= length / 2
    assert is_wanted(ByteRange(start, length), ByteRange(offset, size), distinct) == expected
