"""Hotness as a date, against exact arithmetic."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.hotness import COLD, heat, log2_sum, touched

_dates = st.floats(-1e6, 1e6)
_weights = st.floats(1e-9, 1.0)
_gaps = st.floats(0, 200)


def _exact(a: float, b: float) -> float:
    """log2(2^a + 2^b) with 60 digits."""
    with localcontext() as context:
        context.prec = 60
        high, low = Decimal(max(a, b)), Decimal(min(a, b))
        two = Decimal(2)
        return float(high + (1 + two ** (low - high)).ln() / two.ln())


@given(_dates, _gaps)
def test_log2_sum_is_exact_to_the_last_bits(a: float, gap: float) -> None:
    expected = _exact(a, a - gap)
    assert math.isclose(log2_sum(a, a - gap), expected, rel_tol=1e-15, abs_tol=1e-15)
    assert log2_sum(a, a - gap) == log2_sum(a - gap, a)


@given(_dates)
def test_a_cold_range_adds_nothing(a: float) -> None:
    assert log2_sum(a, COLD) == log2_sum(COLD, a) == a
    assert log2_sum(COLD, COLD) == COLD


@pytest.mark.parametrize("clock", [0.0, 1e3, 1e9, 1e15, 1e300])
def test_no_clock_is_too_large(clock: float) -> None:
    date = touched(COLD, 1.0, clock)
    assert date == clock
    again = touched(date, 1.0, clock)
    assert math.isfinite(again) and again >= date
    assert touched(date, 1.0, 2 * clock) >= date
    assert touched(0.0, 1e-9, clock) >= 0.0


@given(_weights, _weights, st.floats(0, 1e4), st.floats(0, 1e4))
def test_letting_time_pass_never_changes_the_order(w: float, v: float, t: float, later: float) -> None:
    a, b = touched(COLD, w, t), touched(COLD, v, t)
    assert (a < b) == (w < v) or math.isclose(w, v, rel_tol=1e-9)
    assert (heat(a, t + later) < heat(b, t + later)) <= (a < b)


@given(st.lists(st.tuples(_weights, st.floats(0, 5)), min_size=1, max_size=30))
def test_a_date_is_the_sum_of_its_touches_each_decayed(touches: list[tuple[float, float]]) -> None:
    clock, date, model = 0.0, COLD, 0.0
    for weight, pause in touches:
        clock += pause
        model = model * 2.0**-pause + weight
        date = touched(date, weight, clock)
    assert math.isclose(heat(date, clock), math.log2(model), rel_tol=1e-9, abs_tol=1e-9)


def test_one_half_life_halves() -> None:
    assert heat(touched(COLD, 1.0, 7.0), 8.0) == -1.0
