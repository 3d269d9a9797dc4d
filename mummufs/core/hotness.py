"""Hotness as a date.

Theory of operation. The heat of a range is a sum of touches, each of which halves every `half_life` of a clock `t`:
heat(t) = sum of w_i * 2^((t_i - t) / half_life). Its logarithm is log2(sum of w_i * 2^(t_i / half_life)) - t /
half_life, and the last term is the same for all ranges. So what is stored is the first term, the *date*:

- letting everything cool costs nothing, because no stored number changes;
- the order of two ranges that nobody touches never changes, so they can stay where they stand in an order;
- a touch is one addition in the logarithm: `log2_sum(date, log2(w) + t / half_life)`.

This holds for any clock that never runs backwards. Ours counts hit bytes (policy.py says why).
"""

from __future__ import annotations

from math import inf, log2

COLD = -inf
"""The date of a range that was never touched."""

_NEGLIGIBLE = -60.0
"""2^-60 added to 1 is lost in a double."""


def log2_sum(a: float, b: float) -> float:
    """log2(2^a + 2^b), without leaving the range of a double."""
    if a < b:
        a, b = b, a
    gap = b - a
    if gap >= _NEGLIGIBLE:  # the gap of two that are cold is no number
        return a + log2(1.0 + 2.0**gap)
    return a


def touched(date: float, weight: float, half_lives: float) -> float:
    """The date after a touch.

    Args:
        date: the date before it, or COLD.
        weight: bytes read over the window's length, in (0, 1].
        half_lives: the clock, in half-lives.
    """
    return log2_sum(date, log2(weight) + half_lives)


def heat(date: float, half_lives: float) -> float:
    """log2 of the heat that a date stands for at this time: 0 for a range just touched once."""
    return date - half_lives
