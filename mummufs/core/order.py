"""Ranges in the order of their dates, by steps, and in a step in the order in which they were listed.

Theory of operation. A touch takes a range out and puts it in again, some thousand times a second, and a victim is asked
for now and then. A sorted list costs more than all else that a touch does, and keeps apart what is as good as equal.
So dates are cut into steps of a sixteenth of a halving, far less than a policy's margin. Each step is a queue: who is
listed goes to its end, so of those in a step the least recently used goes first. There are some hundred steps however
many ranges there are. O(1) for each change, but for a step that begins or ends: O(log steps).

A queue is a ring of neighbours, closed by the step itself. Whoever leaves has only its neighbours told: what an access
costs is mostly memory that no cache has any more, and a table of those in a queue would be several more places of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import floor
from typing import TYPE_CHECKING, cast

from sortedcontainers import SortedDict

from mummufs.core.hotness import COLD

if TYPE_CHECKING:
    from mummufs.core.ratings import Rating

COLD_STEP = -(1 << 62)
"""The step of ranges that were never touched, below all others."""


class Place:
    """Who stands before and after in a ring. Both are None of a range that is not listed."""

    __slots__ = ("after", "before")
    after: Place | None
    before: Place | None


class _Step(Place):
    """Closes the ring of those of one step: the first comes after it, the last before it."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number
        self.after = self.before = self


class Order:
    """The ranges of one pack that may be victims."""

    __slots__ = ("_steps", "steps")

    def __init__(self, steps: float) -> None:
        """An empty order.

        Args:
            steps: how many there are to a date's unit.
        """
        self.steps = steps
        self._steps: SortedDict = SortedDict()

    def __bool__(self) -> bool:
        return bool(self._steps)

    def __iter__(self) -> Iterator[Rating]:
        """The coldest first. Not to be gone on with after a change."""
        for number in self._steps:
            step = self._steps[number]
            place = step.after
            while place is not step:
                yield place
                place = place.after

    def add(self, rating: Rating) -> None:
        """List a range by its date, behind all others of its step. It is not listed yet."""
        number = self._number(rating)
        step = self._steps.get(number)
        if step is None:
            step = self._steps[number] = _Step(number)
        last = step.before
        rating.before, rating.after = last, step
        last.after = step.before = rating

    def remove(self, rating: Rating) -> None:
        """Take a range out that is listed."""
        self._leave(rating)
        rating.before = rating.after = None

    def move(self, rating: Rating) -> None:
        """List a range anew that is listed: it may have another date since."""
        self._leave(rating)
        self.add(rating)

    def _leave(self, rating: Rating) -> None:
        before, after = rating.before, rating.after
        assert before is not None and after is not None, "it is listed"
        before.after, after.before = after, before
        if before is after:  # it was alone in its step
            step = cast(_Step, after)
            del self._steps[step.number]
            step.after = step.before = None  # else it would keep itself for ever

    def date(self, rating: Rating) -> float:
        """The date that a listed range is listed by: where its step begins."""
        number = self._number(rating)
        return COLD if number == COLD_STEP else number / self.steps

    def _number(self, rating: Rating) -> int:
        return COLD_STEP if rating.date == COLD else floor(rating.date * self.steps)

    def _check(self) -> None:
        """Assert every invariant."""
        for number, step in self._steps.items():
            assert step.number == number and step.after is not step, "a step that nobody is at has ended"
            place = step
            while (following := place.after) is not step:
                assert following.before is place, "neighbours know one another"
                assert self._number(following) == number, "a range is at the step of its last touch"
                place = following
            assert step.before is place, "the last one closes the ring"
