"""Which range is worth its place. The index keeps the order; a policy says what the order is.

Two policies, by name. `hotness`: coldest first on decaying hotness, the least recently used of equals first. `lru`:
least recently used first, for comparison. Both see every touch, of resident ranges and absent ones, so that heat
survives eviction.

Clock. Hotness decays with hit bytes: a burst of misses (a prompt, a loader's sweep, a copied file) does not age what
is hot, and neither does a night without traffic. The half-life is HALF_LIFE_BUDGETS times the budget, so that one
pass over everything that is resident costs half a half-life.
"""

from __future__ import annotations

from typing import Protocol

from mummufs.core import hotness

HALF_LIFE_BUDGETS = 2


class Policy(Protocol):
    """How touches become an order. Dates compare: the smallest is evicted first."""

    name: str

    def hit(self, size: int) -> None:
        """`size` bytes were served from range files: the clock moves on."""

    def date(self, date: float, weight: float, seq: int) -> float:
        """The date of a range after a touch.

        Args:
            date: its date before, or hotness.COLD.
            weight: bytes read over the window's length, in (0, 1].
            seq: the number of this touch; later touches have larger numbers.
        """
        ...

    def admits(self, date: float, victim: float) -> bool:
        """Whether a range of this date may take the place of a victim of that date."""
        ...


class HotnessPolicy:
    """Coldest first on decaying hotness."""

    name = "hotness"

    def __init__(self, budget_bytes: int) -> None:
        self._half_life = max(1, HALF_LIFE_BUDGETS * budget_bytes)
        self._hit_bytes = 0

    def hit(self, size: int) -> None:
        self._hit_bytes += size

    def date(self, date: float, weight: float, seq: int) -> float:  # noqa: ARG002 - the protocol's
        return hotness.touched(date, weight, self._hit_bytes / self._half_life)

    def admits(self, date: float, victim: float) -> bool:  # noqa: ARG002 - the place of the admission rule
        return True


class LruPolicy:
    """Least recently used first: the date is the number of the touch."""

    name = "lru"

    def __init__(self, budget_bytes: int) -> None:
        del budget_bytes

    def hit(self, size: int) -> None:
        pass

    def date(self, date: float, weight: float, seq: int) -> float:  # noqa: ARG002 - the protocol's
        return float(seq)

    def admits(self, date: float, victim: float) -> bool:  # noqa: ARG002 - the protocol's
        return True


POLICIES = {policy.name: policy for policy in (HotnessPolicy, LruPolicy)}
"""By the name that `-o policy=` takes; each is made with the budget in bytes."""
