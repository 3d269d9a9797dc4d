"""Runs of written bytes: never one left out, and never more runs than allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.core import extents
from mummufs.core.extents import FILE_END, Extents

END = 200
runs = st.lists(st.tuples(st.integers(0, END), st.integers(0, 20)), max_size=40)


@given(runs, st.integers(0, END), st.integers(1, 30))
def test_what_was_added_overlaps_and_nothing_else(added: list[tuple[int, int]], start: int, size: int) -> None:
    found, bytes_of = Extents(), set[int]()
    for at, length in added:
        found.add(at, at + length)
        found._check()
        bytes_of.update(range(at, at + length))
    assert found.overlap(start, start + size) == bool(bytes_of & set(range(start, start + size)))


def test_too_many_runs_are_joined_where_they_are_closest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extents, "EXTENTS_MAX", 3)
    found = Extents()
    for at in (0, 100, 110, 200):
        found.add(at, at + 5)
        found._check()
    assert len(found) == 3 and found.overlap(105, 110)
    assert not found.overlap(5, 100) and not found.overlap(115, 200)
    found.add(300, FILE_END)
    found._check()
    assert found.overlap(1 << 60, (1 << 60) + 1)
