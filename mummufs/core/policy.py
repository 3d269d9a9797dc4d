"""Which range is worth its place. `ratings` keeps the order; a policy says what the order is.

Theory of operation. What one would like to evict is the range that will be read last of all; what is known is how
often, and how lately, each was read. `hotness` is coldest first on decaying hotness, the least recently used of equals
first, with four things that make it better than LRU and not merely as good (figures: docs/policy.md):

- *Heat outlives eviction.* A range that comes back has the heat that it had, so a policy can learn of more ranges than
  fit. Without this, decayed hotness measures as LRU.
- *The clock counts hit bytes.* Heat decays while budgets' worth of hits go by. A burst of misses (a prompt, a loader's
  sweep, a copied file) does not age what is hot, and neither does a night without traffic. No constant needs tuning: a
  larger cache sees farther back.
- *Two memories.* What a conversation uses changes in a few tokens, what a model uses never. So heat is the geometric
  mean of a recent one (half-life RECENT_BUDGETS budgets of hits) and a lasting one (LASTING_BUDGETS), LASTING_PART of
  it the latter. In the logarithm both cool at a constant rate, so the mean does too, and a date still never changes
  by itself.
- *A margin.* A range that is not resident takes the place of a hot one only if it is hotter by MARGIN. In a loop over
  more than the budget at most one budget of hits goes by per turn, so equally hot ranges never differ by more than
  TURN, which is less: a stable part of the loop stays, as the optimum has it, where LRU keeps nothing. And
  the NVMe is spared: what is declined is served by the source and keeps its heat. A victim that was touched once, or
  has cooled to that, has no margin: among such it is LRU.
- *Packs.* A model's ranges (the files of a directory) share a clock, and are compared with another model's by how many
  bytes of each were lately read *again* (half-life: ACTIVITY_BUDGETS budgets of such bytes). A model that nobody reads
  any more gives way at once, and remembers the order of its ranges for the day it is read again. The first reads of a
  range are no activity, unless they come within AGAIN_BUDGETS budgets of one another: so a populate, or a backup that
  crawls over other models, however large, moves no clock at all, and finds nothing that it could push out.

`lru`, `lfu` (never forgets) and `decay` (decaying hotness, forgotten at eviction, no admission) are there for
comparison.
"""

from __future__ import annotations

from math import log2
from typing import TYPE_CHECKING, Protocol

from mummufs.core import hotness
from mummufs.core.hotness import COLD, log2_sum
from mummufs.core.order import Order

if TYPE_CHECKING:
    from mummufs.core.ratings import Rating

RECENT_BUDGETS = 1.5
LASTING_BUDGETS = 24
LASTING_PART = 0.4
RECENT_PART = 1 - LASTING_PART
TURN = RECENT_PART / RECENT_BUDGETS + LASTING_PART / LASTING_BUDGETS
"""How much heat cools, in log2, while one budget of hits goes by."""
MARGIN = 0.5
"""log2 of how much hotter than a hot victim a range must be. Not less than TURN."""
ACTIVITY_BUDGETS = 1 / 8
AGAIN_BUDGETS = 8
STEPS = 16.0
"""Dates that differ by less than a sixteenth are as good as equal: the least recently used goes first."""
KNOWN = 1.1
"""log2 of the heat of a range that has been read more than twice."""
ONCE = 0.5
"""log2 of the heat up to which a range counts as touched once: windows are rounded, and readers overlap a little."""
SLACK = 0.02
"""Two ranges whose heat differs by less are as good as equal, for the same reason."""
DECAY_BUDGETS = 4


class Pack:
    """The ranges that belong together (a model): their clock, their share of the traffic, and the resident in order.

    Attributes:
        touched: the number of the last touch of one of them in this mount; 0 if there was none.
    """

    __slots__ = ("activity", "hit_bytes", "name", "order", "touched")

    def __init__(self, name: bytes, order: Order) -> None:
        self.name = name
        self.order = order
        self.hit_bytes = 0
        self.activity = 0.0
        self.touched = 0


class Policy(Protocol):
    """How touches become an order. Dates compare within a pack and scores everywhere: the smallest is evicted first."""

    name: str
    remembers: bool
    """Whether the date of a range outlives its eviction."""
    has_packs: bool
    """Whether models are told apart."""
    steps: float
    """How finely dates are told apart: how many steps there are to a unit of them."""
    again_bytes: int
    """A range is read *again* if no more than this was read of everything since its last pass began."""

    def touch(self, rating: Rating, size: int, weight: float, hit: bool) -> None:
        """`size` bytes of a range were read, from its range file or not: clocks move on, and it gets a new date.

        Args:
            rating: says which pack, which touch this is, and whether the range is read again.
            weight: bytes read over the window's length, in (0, 1].
        """

    def score(self, pack: Pack, date: float) -> float:
        """A range's place among those of all packs. What is added to a date is the same for a whole pack."""
        ...

    def admits(self, pack: Pack, heat: float, victim: Rating) -> bool:
        """Whether a range that has this heat may take the place of a victim."""
        ...

    def heat(self, pack: Pack, date: float) -> float:
        """log2 of the heat that a date stands for now: 0 for a range that was just touched once."""
        ...

    def recall(self, rating: Rating, heat: float) -> None:
        """A range had this heat in another pack or an earlier mount: it gets the date that stands for it now."""

    def activity(self, pack: Pack) -> float:
        """log2 of the bytes of a pack that were lately read again; little over 0 if none were."""
        ...

    def recall_activity(self, pack: Pack, activity: float) -> None:
        """A pack had this activity when an earlier mount ended."""


class HotnessPolicy:
    """Coldest first on decaying hotness, as the theory above has it."""

    name = "hotness"
    remembers = True
    has_packs = True
    steps = STEPS

    def __init__(self, budget_bytes: int) -> None:
        self._recent_rate = 1.0 / max(1.0, RECENT_BUDGETS * budget_bytes)
        self._lasting_rate = 1.0 / max(1.0, LASTING_BUDGETS * budget_bytes)
        self._rate = (1 - LASTING_PART) * self._recent_rate + LASTING_PART * self._lasting_rate
        self._activity_rate = 1.0 / max(1.0, ACTIVITY_BUDGETS * budget_bytes)
        self.again_bytes = AGAIN_BUDGETS * budget_bytes
        self._read_again = 0

    def touch(self, rating: Rating, size: int, weight: float, hit: bool) -> None:
        pack = rating.pack
        if rating.again:
            self._read_again += size
            pack.activity = log2_sum(pack.activity, log2(size) + self._read_again * self._activity_rate)
        if hit:
            pack.hit_bytes += size
        clock, touch = pack.hit_bytes, log2(weight) if weight < 1.0 else 0.0
        rating.recent = recent = log2_sum(clock * self._recent_rate + touch, rating.recent)
        rating.lasting = lasting = log2_sum(clock * self._lasting_rate + touch, rating.lasting)
        rating.date = RECENT_PART * recent + LASTING_PART * lasting

    def score(self, pack: Pack, date: float) -> float:
        return date - pack.hit_bytes * self._rate + pack.activity

    def admits(self, pack: Pack, heat: float, victim: Rating) -> bool:
        its_heat = self.heat(victim.pack, victim.date)
        mine, its = heat + pack.activity, its_heat + victim.pack.activity
        return its <= mine + SLACK if its_heat <= ONCE else its + MARGIN < mine

    def heat(self, pack: Pack, date: float) -> float:
        return date - pack.hit_bytes * self._rate

    def recall(self, rating: Rating, heat: float) -> None:
        clock = rating.pack.hit_bytes
        rating.recent = recent = heat + clock * self._recent_rate
        rating.lasting = lasting = heat + clock * self._lasting_rate
        rating.date = RECENT_PART * recent + LASTING_PART * lasting

    def activity(self, pack: Pack) -> float:
        return pack.activity - self._read_again * self._activity_rate

    def recall_activity(self, pack: Pack, activity: float) -> None:
        pack.activity = log2_sum(pack.activity, activity + self._read_again * self._activity_rate)


class _Plain:
    """What the policies for comparison share: no packs, and whoever comes is let in."""

    remembers = True
    has_packs = False
    steps = STEPS
    again_bytes = 0

    def __init__(self, budget_bytes: int) -> None:
        del budget_bytes

    def score(self, pack: Pack, date: float) -> float:  # noqa: ARG002 - the protocol's
        return date

    def admits(self, pack: Pack, heat: float, victim: Rating) -> bool:  # noqa: ARG002 - the protocol's
        return True

    def activity(self, pack: Pack) -> float:  # noqa: ARG002
        return 0.0

    def recall_activity(self, pack: Pack, activity: float) -> None:
        pass


class LruPolicy(_Plain):
    """Least recently used first: the date is the number of the touch."""

    name = "lru"
    steps = 1.0

    def touch(self, rating: Rating, size: int, weight: float, hit: bool) -> None:  # noqa: ARG002
        rating.date = float(rating.seq)

    def heat(self, pack: Pack, date: float) -> float:  # noqa: ARG002
        return COLD if date == COLD else 0.0

    def recall(self, rating: Rating, heat: float) -> None:
        rating.date = COLD if heat == COLD else float(rating.seq)


class LfuPolicy(_Plain):
    """Least frequently used first, and nothing is ever forgotten: the date is the sum of the touches."""

    name = "lfu"

    def touch(self, rating: Rating, size: int, weight: float, hit: bool) -> None:  # noqa: ARG002
        rating.date = max(0.0, rating.date) + weight

    def heat(self, pack: Pack, date: float) -> float:  # noqa: ARG002
        return log2(date) if date > 0 else COLD

    def recall(self, rating: Rating, heat: float) -> None:
        rating.date = COLD if heat == COLD else 2.0 ** min(heat, 1000.0)


class DecayPolicy(_Plain):
    """Decaying hotness on a clock of all bytes, forgotten at eviction: what one writes first."""

    name = "decay"
    remembers = False

    def __init__(self, budget_bytes: int) -> None:
        self._half_life = max(1, DECAY_BUDGETS * budget_bytes)
        self._read_bytes = 0

    def touch(self, rating: Rating, size: int, weight: float, hit: bool) -> None:  # noqa: ARG002
        self._read_bytes += size
        rating.date = hotness.touched(rating.date, weight, self._read_bytes / self._half_life)

    def heat(self, pack: Pack, date: float) -> float:  # noqa: ARG002
        return date - self._read_bytes / self._half_life

    def recall(self, rating: Rating, heat: float) -> None:
        rating.date = heat + self._read_bytes / self._half_life


POLICIES: dict[str, type[HotnessPolicy | LruPolicy | LfuPolicy | DecayPolicy]] = {
    policy.name: policy for policy in (HotnessPolicy, LruPolicy, LfuPolicy, DecayPolicy)
}
"""By the name that `-o policy=` takes; each is made with the budget in bytes."""
