"""Ranges in the order of their dates, by steps, and in a step in the order in which they were listed.

Theory of operation. A touch takes a range out and puts it in again, some thousand times a second, and a victim is asked
for now and then. A sorted list costs more than all else that a touch does, and keeps apart what is as good as equal.
So dates are cut into steps of a sixteenth of a halving, far less than a policy's margin. Each step is a queue: who is
listed goes to its end, so of those in a step the least recently used goes first. There are some hundred steps however
many ranges there are. O(1) for each change, but for a step that begins or ends: O(log steps).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from math import floor
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from mummufs.core.hotness import COLD

if TYPE_CHECKING:
    from mummufs.core.ratings import Rating

COLD_STEP = -(1 << 62)
"""The step of ranges that were never touched, below all others."""


class Order:
    """The ranges of one pack that may be victims."""

    __slots__ = ("_queues", "steps")

    def __init__(self, steps: float) -> None:
        """An empty order.

        Args:
            steps: how many there are to a date's unit.
        """
        self.steps = steps
        self._queues: SortedDict = SortedDict()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[Rating]:
        """The coldest first. Not to be gone on with after a change."""
        for queue in self._queues.values():
            yield from queue

    def add(self, rating: Rating) -> None:
        """List a range by its date, behind all others of its step."""
        date = rating.date
        rating.step = step = COLD_STEP if date == COLD else floor(date * self.steps)
        queue = self._queues.get(step)
        if queue is None:
            queue = self._queues[step] = OrderedDict()
        queue[rating] = None

    def remove(self, rating: Rating) -> None:
        """Take a range out that is listed."""
        queue = self._queues[rating.step]
        del queue[rating]
        if not queue:
            del self._queues[rating.step]

    def date(self, rating: Rating) -> float:
        """The date that a listed range is listed by: where its step begins."""
        return COLD if rating.step == COLD_STEP else rating.step / self.steps

    def _check(self) -> None:
        """Assert every invariant."""
        assert all(self._queues.values()), "a step that nobody is at has ended"
        for step, queue in self._queues.items():
            for rating in queue:
                assert rating.step == step, "a range is in the queue of its step"
                wanted = COLD_STEP if rating.date == COLD else floor(rating.date * self.steps)
                assert step == wanted, "which is that of its last touch"
