"""The wear of the NVMe: what is written to the store is taken out of the day's allowance, if there is one."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from mummufs.core.index import CacheIndex
from mummufs.core.ranges import RangeKey
from mummufs.core.states import Decision
from mummufs.core.wear import WriteBudget
from mummufs.store.heatfile import NOTHING_SPENT, Spent
from mummufs.store.layout import charge_of
from mummufs.store.rangestore import RangeStore

NS = 1e9
HEAT_MAX = 64.0
"""More heat than any range has."""
WRITES = (Decision.READY, Decision.ROOM)
"""What is accepted with one of these is written."""


class WearStatistics(NamedTuple):
    """The allowance: bytes that are left, and the log2 heat that a fill needs now.

    None while it needs none, HEAT_MAX where not even the hottest is admitted.
    """

    left_bytes: int
    heat_needed: float | None


class Wear:
    """Has a say in what is filled. Without an allowance every one may."""

    def __init__(self, store: RangeStore, index: CacheIndex, bytes_per_day: int, wall_ns: Callable[[], int]) -> None:
        """Make it with a full bucket.

        Args:
            bytes_per_day: the allowance; 0 for none.
            wall_ns: the time of day, in ns since 1970.
        """
        self._written = store.written
        self._index = index
        self._wall_ns = wall_ns
        self._metered = store.written.total
        self._budget = WriteBudget(bytes_per_day, wall_ns() / NS) if bytes_per_day else None

    def declines(self, key: RangeKey, decision: Decision, promised: int) -> bool:
        """Whether a range that the index lets in may not be filled all the same.

        A range is asked for at the first piece of a pass, so it counts as if the pass were over. One that is pinned
        needs no heat, only bytes. A suspended one is most likely only restamped.

        Args:
            promised: window bytes of fills that are under way.
        """
        if self._budget is None or decision not in WRITES:
            return False
        now = self._meter(self._budget)
        heat = inf if self._index.is_pinned(key) else max(0.0, self._index.heat(key))
        return not self._budget.admits(charge_of(key.size), heat, now, promised)

    def recall(self, spent: Spent) -> None:
        """What an earlier mount had spent when it was last saved."""
        if self._budget is not None:
            self._budget.recall(spent.size, spent.at_ns / NS, self._meter(self._budget))

    def mark(self) -> Spent:
        """What is spent now, for a later mount."""
        if self._budget is None:
            return NOTHING_SPENT
        return Spent(int(self._budget.spent(self._meter(self._budget))), self._wall_ns())

    def statistics(self) -> WearStatistics | None:
        """The allowance, if there is one."""
        if self._budget is None:
            return None
        now = self._meter(self._budget)
        needed = self._budget.heat_needed(now)
        left = max(0, int(self._budget.bytes_per_day - self._budget.spent(now)))
        return WearStatistics(left, None if needed == -inf else round(min(HEAT_MAX, needed), 3))

    def _meter(self, budget: WriteBudget) -> float:
        """Take out what has been written since the last look; the time of that."""
        now, total = self._wall_ns() / NS, self._written.total
        budget.spend(total - self._metered, now)
        self._metered = total
        return now
