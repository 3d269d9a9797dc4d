"""Reading in order: what follows is fetched once, in order, within bounds; other orders have nothing fetched."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.manifest import RangeTable
from mummufs.core.sequence import (
    AHEAD_BYTES_MAX,
    GAP_BYTES_MAX,
    PASS_BYTES,
    RUN_BYTES_MIN,
    RUN_WINDOWS_MIN,
    STREAMS_MAX,
    Order,
)
from tests.engine.harness import make_table

MIB = 1 << 20
PAGE = 4096


def table_of(*sizes: int, gap: int = 0) -> RangeTable:
    windows, at = [], 0
    for size in sizes:
        windows.append((at, size))
        at += size + gap
    return make_table(at, windows)


def taken(order: Order) -> list[int]:
    """Everything that is wanted now."""
    windows: list[int] = []
    while pass_ := order.take():
        windows += pass_
    return windows


def test_it_begins_after_a_run_and_goes_no_farther_than_the_run() -> None:
    order = Order(table_of(*(MIB,) * 200))
    fetched: list[int] = []
    for i in range(100):
        read = (i + 1) * MIB
        moved = order.touched(i)
        assert moved == (read >= RUN_BYTES_MIN)
        fetched += taken(order)
        if moved:
            left = read + min(read, AHEAD_BYTES_MAX) - (fetched[-1] + 1) * MIB
            assert 0 <= left < PASS_BYTES, "as far as it may, in whole passes"
        assert not order.touched(i), "another request for the same window"
        order._check()
    assert fetched == list(range(RUN_BYTES_MIN // MIB, fetched[-1] + 1)), "in order, and each once"


def test_few_large_windows_are_no_run() -> None:
    order = Order(table_of(*(32 * MIB,) * 20))
    assert [order.touched(i) for i in range(RUN_WINDOWS_MIN)] == [False] * (RUN_WINDOWS_MIN - 1) + [True]
    assert list(order.take()) == [RUN_WINDOWS_MIN], "a pass is one window at least"


def test_the_end_of_the_file() -> None:
    order = Order(table_of(*(4 * MIB,) * 8))
    for i in range(8):
        order.touched(i)
    assert taken(order) == []


def test_small_gaps_are_skipped_and_large_ones_are_not() -> None:
    small = Order(table_of(*(2 * MIB,) * 60, gap=GAP_BYTES_MAX))
    large = Order(table_of(*(2 * MIB,) * 60, gap=GAP_BYTES_MAX + PAGE))
    for i in range(30):
        small.touched(i)
        large.touched(i)
    assert taken(small)[0] == 30
    assert taken(large) == []
    skipping = Order(table_of(*(MIB // 2,) * 200))
    for i in range(0, 100, 2):
        skipping.touched(i)
    assert taken(skipping)[0] == 99


def test_touches_that_come_a_little_late_change_nothing() -> None:
    tidy, late = (Order(table_of(*(MIB,) * 100)) for _ in range(2))
    for i in range(0, 60, 3):
        for j in (i, i + 1, i + 2):
            tidy.touched(j)
        for j in (i + 1, i, i + 2):
            late.touched(j)
    assert taken(late) == taken(tidy) != []


def test_several_streams_and_no_more_than_the_limit() -> None:
    count = STREAMS_MAX + 1
    order = Order(table_of(*(MIB,) * 100 * count))
    for i in range(40):
        for stream in range(STREAMS_MAX):
            order.touched(100 * stream + i)
    windows = set(taken(order))
    assert all(100 * stream + 40 in windows for stream in range(STREAMS_MAX))
    crowded = Order(table_of(*(MIB,) * 100 * count))
    for i in range(40):
        for stream in range(count):
            crowded.touched(100 * stream + i)
            crowded._check()
    assert taken(crowded) == [], "each has pushed out the one that was to move next"


def test_who_catches_up_begins_anew() -> None:
    order = Order(table_of(*(MIB,) * 100))
    for i in range(20):
        order.touched(i)
    assert taken(order)
    order.late(20)
    assert order.touched(20), "it has not been there"
    order.late(20)
    run = RUN_BYTES_MIN // MIB
    assert [order.touched(i) for i in range(21, 20 + run)] == [False] * (run - 2) + [True]
    order._check()


def test_a_window_by_its_offset() -> None:
    order = Order(table_of(*(4 * MIB,) * 20))
    assert [order.touched_at(i * 4 * MIB) for i in range(5)] == [False, False, False, True, True]
    assert not order.touched_at(4 * MIB - 4096)
    assert not order.touched_at(1 << 40)


def test_random_order_has_nothing_fetched() -> None:
    numbers = list(range(2000))
    random.Random(5).shuffle(numbers)
    order = Order(table_of(*(2 * MIB,) * len(numbers)))
    for i in numbers:
        order.touched(i)
    assert taken(order) == []


SIZES = st.lists(st.sampled_from([4096, 64 << 10, MIB, 5 * MIB, 32 * MIB]), min_size=1, max_size=60)


@given(sizes=SIZES, gap=st.sampled_from([0, 4096, 2 * MIB]), data=st.data())
def test_what_always_holds(sizes: Sequence[int], gap: int, data: st.DataObject) -> None:
    """Whatever is touched: a window is fetched ahead of a place that was touched, and not farther than the limit."""
    table = table_of(*sizes, gap=gap)
    order = Order(table)
    runs = st.tuples(st.integers(0, len(sizes) - 1), st.integers(1, 30))
    touched: set[int] = set()
    for start, length in data.draw(st.lists(runs, max_size=6)):
        for i in range(start, min(start + length, len(sizes))):
            touched.add(i)
            moved = order.touched(i)
            order._check()
            windows = order.take() if moved else range(0)
            assert windows.step == 1
            if windows:
                size = table.ends[windows[-1]] - table.starts[windows[0]]
                assert len(windows) == 1 or size <= PASS_BYTES
                behind = [table.ends[j] for j in touched if j < windows[0]]
                assert any(0 <= table.starts[windows[0]] - end <= AHEAD_BYTES_MAX for end in behind)
