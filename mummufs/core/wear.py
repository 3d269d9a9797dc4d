"""How much may be written to the NVMe: an allowance per day, and who gets what is left of it.

Theory of operation. The allowance is a bucket that holds one day's bytes. It starts full, what is written to the store
is taken out, and it fills up evenly, a whole one in a day. So in the long run no more is written than the allowance,
and a day after quiet ones may take up to twice of it.

Writing is declined coldest first. While half of the bucket is left every fill may go on. Below that a range needs
heat, and the more the less is left: one more for each halving (heat is a logarithm of base 2):

    left of the bucket      1 .. 1/2    1/2    1/4    1/8    1/16   ...   0
    heat that is needed     none        0      1      2      3            nothing is admitted

Heat 0 is one whole read just now, 1 are two of them. So the second half of a day's bytes is for what is read more than
once, and where more is wanted than the allowance, the level settles where just the hottest ranges get what comes in.

`now` is a time of day in seconds: the bucket goes on filling while nothing is mounted. A clock that is set back fills
nothing, one that is set forward fills at most the bucket.
"""

from __future__ import annotations

from math import inf, log2

DAY_S = 86400.0
FREE_SHARE = 0.5
"""While more than this share of the bucket is left, heat does not matter."""


class WriteBudget:
    """The bucket. Sizes are bytes."""

    def __init__(self, bytes_per_day: int, now: float) -> None:
        """A full bucket."""
        assert bytes_per_day > 0, "no allowance is no budget"
        self.bytes_per_day = bytes_per_day
        self._spent = 0.0
        self._at = now

    def spend(self, size: float, now: float) -> None:
        """So many bytes were written. More than is left is owed."""
        self._fill(now)
        self._spent += size

    def spent(self, now: float) -> float:
        """Bytes that are missing in the bucket."""
        self._fill(now)
        return self._spent

    def recall(self, spent: float, at: float, now: float) -> None:
        """At an earlier time `at`, before this bucket was made, so much was missing: what has come in since is not."""
        came_in = max(0.0, now - at) / DAY_S * self.bytes_per_day
        self.spend(max(0.0, spent - came_in), now)

    def heat_needed(self, now: float, promised: int = 0) -> float:
        """The log2 heat that a range needs for its fill: -inf for none, inf where nothing is admitted.

        Args:
            promised: bytes of fills that have been admitted and not been written yet.
        """
        left = 1.0 - (self.spent(now) + promised) / self.bytes_per_day
        if left >= FREE_SHARE:
            return -inf
        return inf if left <= 0 else log2(FREE_SHARE / left)

    def admits(self, size: int, heat: float, now: float, promised: int = 0) -> bool:
        """Whether a range of this heat may be filled, with a file of `size` bytes."""
        if self.spent(now) + promised + size > self.bytes_per_day:
            return False
        return heat >= self.heat_needed(now, promised)

    def _fill(self, now: float) -> None:
        """Let come in what has come in since the last look."""
        came_in = max(0.0, now - self._at) / DAY_S * self.bytes_per_day
        self._spent = max(0.0, self._spent - came_in)
        self._at = now
