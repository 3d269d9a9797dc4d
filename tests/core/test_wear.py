"""The allowance of writes: never more than it, the coldest declined first."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.wear import DAY_S, WriteBudget

DAY = 1 << 20


def test_a_bucket_fills_up_in_a_day() -> None:
    budget = WriteBudget(DAY, 0.0)
    budget.spend(DAY, 0.0)
    assert budget.spent(0.0) == DAY
    assert budget.spent(DAY_S / 4) == DAY * 3 / 4
    assert budget.spent(DAY_S) == 0
    assert budget.spent(9 * DAY_S) == 0, "it holds a day's bytes, no more"


@pytest.mark.parametrize(
    ("spent", "needed"), [(0, -inf), (DAY // 2, -inf), (DAY * 3 // 4, 1.0), (DAY * 7 // 8, 2.0), (DAY, inf)]
)
def test_the_less_is_left_the_more_heat_is_needed(spent: int, needed: float) -> None:
    budget = WriteBudget(DAY, 5.0)
    budget.spend(spent, 5.0)
    assert budget.heat_needed(5.0) == needed
    assert WriteBudget(DAY, 5.0).heat_needed(5.0, promised=spent) == needed, "what is promised is as good as written"


def test_the_coldest_are_declined_first() -> None:
    budget = WriteBudget(DAY, 0.0)
    budget.spend(DAY * 3 // 4, 0.0)
    assert not budget.admits(1, 0.0, 0.0)
    assert not budget.admits(1, -inf, 0.0)
    assert budget.admits(1, 1.0, 0.0)
    assert budget.admits(1, 0.0, DAY_S / 4), "when a quarter of a day has come in, half is left"


def test_not_even_the_hottest_passes_the_allowance() -> None:
    budget = WriteBudget(DAY, 0.0)
    budget.spend(DAY - 10, 0.0)
    assert budget.admits(10, inf, 0.0)
    assert not budget.admits(11, inf, 0.0)
    assert not budget.admits(10, inf, 0.0, promised=1)


def test_a_clock_that_is_set_back_gives_nothing() -> None:
    budget = WriteBudget(DAY, 100 * DAY_S)
    budget.spend(DAY, 100 * DAY_S)
    assert budget.spent(50 * DAY_S) == DAY
    assert budget.spent(50.5 * DAY_S) == DAY / 2, "and goes on from there"


@pytest.mark.parametrize(("away_days", "left"), [(0.0, 0.25), (0.5, 0.75), (3.0, 1.0), (-1.0, 0.25)])
def test_what_an_earlier_mount_has_spent_counts(away_days: float, left: float) -> None:
    now = 100 * DAY_S
    budget = WriteBudget(DAY, now)
    budget.recall(DAY * 3 / 4, now - away_days * DAY_S, now)
    assert 1 - budget.spent(now) / DAY == pytest.approx(left)


@given(
    st.lists(st.tuples(st.floats(0, DAY_S), st.integers(1, DAY), st.floats(-5, 5)), max_size=60),
)
def test_no_time_takes_more_than_a_bucket_and_what_comes_in(wanted: list[tuple[float, int, float]]) -> None:
    """A bucket and what comes in: over any time, at most a day's bytes and those of that time."""
    budget, now, written = WriteBudget(DAY, 0.0), 0.0, 0
    for pause, size, heat in wanted:
        now += pause
        if budget.admits(size, heat, now):
            budget.spend(size, now)
            written += size
        assert written <= DAY * (1 + now / DAY_S) + 1e-3


@given(st.floats(0, 1), st.floats(-10, 10), st.floats(-10, 10), st.integers(1, 100))
def test_who_is_hotter_is_never_declined_before_who_is_colder(
    share: float, heat: float, other: float, size: int
) -> None:
    budget = WriteBudget(DAY, 0.0)
    budget.spend(share * DAY, 0.0)
    low, high = sorted((heat, other))
    assert budget.admits(size, high, 0.0) or not budget.admits(size, low, 0.0)
