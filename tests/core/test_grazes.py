"""Grazes against a set of bytes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mummufs.core import grazes as module
from mummufs.core.grazes import RUNS_MAX, WINDOWS_MAX, Grazes
from mummufs.core.ranges import FileId, RangeKey


def _key(i: int) -> RangeKey:
    return RangeKey(FileId(1, i), 0, 1 << 20)


_reads = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(1, 12)), max_size=40)


@given(_reads)
def test_the_same_bytes_count_once(reads: list[tuple[int, int, int]]) -> None:
    grazes = Grazes()
    model: dict[int, set[int]] = {}
    for i, start, size in reads:
        seen = model.setdefault(i, set())
        seen.update(range(start, start + size))
        assert grazes.add(_key(i), start, start + size) == len(seen)
        assert {b for a, z in grazes.runs(_key(i)) for b in range(a, z)} == seen
        grazes._check()
    assert len(grazes) == len(model)


@given(_reads, st.integers(0, 2))
def test_what_is_forgotten_is_counted_from_nothing(reads: list[tuple[int, int, int]], i: int) -> None:
    grazes = Grazes()
    for j, start, size in reads:
        grazes.add(_key(j), start, start + size)
    grazes.forget(_key(i))
    assert grazes.runs(_key(i)) == []
    assert grazes.add(_key(i), 5, 9) == 4
    grazes.forget(_key(77))


def test_runs_that_touch_are_one() -> None:
    grazes = Grazes()
    for start, end in ((0, 4), (8, 12), (4, 8)):
        grazes.add(_key(0), start, end)
    assert grazes.runs(_key(0)) == [(0, 12)]


def test_one_window_remembers_a_limited_number_of_runs() -> None:
    grazes = Grazes()
    for i in range(RUNS_MAX + 10):
        counted = grazes.add(_key(0), 10 * i, 10 * i + 5)
        assert counted == 5 * min(i + 1, RUNS_MAX)
        grazes._check()
    # The last of them is not known, but what joins a known one still counts.
    assert grazes.add(_key(0), 3, 12) == 5 * RUNS_MAX + 5
    assert all(a[1] < b[0] for a, b in pairwise(grazes.runs(_key(0))))


def test_the_window_grazed_longest_ago_is_forgotten_first() -> None:
    grazes = Grazes()
    for i in range(WINDOWS_MAX):
        grazes.add(_key(i), 0, 1)
    grazes.add(_key(0), 0, 1)
    grazes.add(_key(WINDOWS_MAX), 0, 1)
    assert len(grazes) == WINDOWS_MAX == module.WINDOWS_MAX
    assert grazes.runs(_key(0)) and grazes.runs(_key(WINDOWS_MAX))
    assert grazes.runs(_key(1)) == []
    grazes._check()
