"""The ratings of absent ranges: by range, and in the order in which they are to be forgotten.

A ghost is listed nowhere else, so its neighbours in that order have the place of those in a pack's order: an ordered
dict would take 50 bytes more for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from mummufs.core.order import Place
from mummufs.core.ranges import RangeKey

if TYPE_CHECKING:
    from mummufs.core.ratings import Rating


class Ghosts:
    """Ratings, the one to be forgotten first before the others. O(1) per call."""

    __slots__ = ("_ends", "_ratings")

    def __init__(self) -> None:
        self._ratings: dict[RangeKey, Rating] = {}
        self._ends = Place()
        self._ends.after = self._ends.before = self._ends

    def __len__(self) -> int:
        return len(self._ratings)

    def __contains__(self, key: RangeKey) -> bool:
        return key in self._ratings

    def __iter__(self) -> Iterator[Rating]:
        """In order. Not to be gone on with after a change."""
        place = self._ends.after
        while place is not self._ends:
            ghost = cast("Rating", place)
            yield ghost
            place = ghost.after

    def keys(self) -> list[RangeKey]:
        """Their ranges, in no order. O(n)."""
        return list(self._ratings)

    def get(self, key: RangeKey) -> Rating | None:
        """The rating of a range, to look at."""
        return self._ratings.get(key)

    def pop(self, key: RangeKey) -> Rating | None:
        """The rating of a range, which is no ghost any more."""
        ghost = self._ratings.pop(key, None)
        if ghost is not None:
            _leave(ghost)
        return ghost

    def add(self, ghost: Rating) -> None:
        """One that was none before. It is forgotten after all others."""
        self._enter(cast(Place, self._ends.before), ghost)

    def add_first(self, ghost: Rating) -> None:
        """The same, but it is forgotten before all others."""
        self._enter(self._ends, ghost)

    def forget(self) -> None:
        """Forget the first."""
        ghost = cast("Rating", self._ends.after)
        del self._ratings[ghost.key]
        _leave(ghost)

    def _enter(self, before: Place, ghost: Rating) -> None:
        after = cast(Place, before.after)
        ghost.before, ghost.after = before, after
        before.after = after.before = ghost
        self._ratings[ghost.key] = ghost

    def _check(self) -> None:
        """Assert every invariant."""
        assert {ghost.key: ghost for ghost in self} == self._ratings, "every ghost has a place, and nobody else"
        assert all(cast(Place, ghost.after).before is ghost for ghost in self), "neighbours know one another"


def _leave(ghost: Rating) -> None:
    before, after = cast(Place, ghost.before), cast(Place, ghost.after)
    before.after, after.before = after, before
    ghost.before = ghost.after = None
