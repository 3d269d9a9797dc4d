"""What a cache would have done: replays a stream of range reads, with the product's own index and policies.

Theory of operation. An access is one pass over one range, and happens at once: the range is touched, and if it is
absent a fill is planned, its victims go and it comes, before the next access. So a replay knows no waiting, no two
reads at the same time and no watermarks; what it measures is the policy. A range takes its own size of the budget,
unless the caller says what it is charged.

Belady's optimum is the yardstick. It knows the future: the victim is the range whose next use is furthest away, and a
range that would itself be the victim is not filled (bypass). With ranges of different sizes this is not the very
optimum, but nothing that knows only the past comes near it.

    results = miss_curve(accesses, [16 << 30, 32 << 30], "hotness")
    best = replay(accesses, 16 << 30, BELADY)
    smallest_budget = sum(cycle.cycle_bytes for cycle in cycles(accesses).values())
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import NamedTuple, Protocol

from mummufs.core.around import GAP_MAX_BYTES
from mummufs.core.index import CacheIndex
from mummufs.core.policy import POLICIES
from mummufs.core.ranges import PAGE_SIZE, FileId, RangeKey, Version
from mummufs.core.states import Decision

BELADY = "belady"
"""The name of the optimum; the other names are those of POLICIES."""

PROMPT_SHARE = 0.1
"""The longest tenth of the cycles of a pack is left out of its mean: prompts read many tokens' experts in one pass."""

HEAP_SLACK = 1024
"""Places out of date that the optimum's heap may have beside as many as there are ranges."""

_VERSION = Version(0, 0, 0)
"""Of every file: a replay knows no changes."""

Charge = Callable[[int], int]
"""What a range of this size takes of the budget, in bytes."""


def own_size(size: int) -> int:
    """The charge of a cache that keeps nothing beside the bytes themselves."""
    return size


class Access(NamedTuple):
    """One pass over one range, as a rule over the whole of it."""

    key: RangeKey
    pack: bytes
    """The name of what the file belongs to: one model, whose ranges are compared with one another."""
    size: int = 0
    """Bytes read of it, where that is not the whole range; 0 stands for the whole."""
    fills: bool = True
    """False for a read that only grazes the range: it is answered, and is no reason to fill it."""


class Outcome(Enum):
    """What became of an access."""

    HIT = "hit"
    FILLED = "filled"
    """A miss, after which the range is resident."""
    DECLINED = "declined"
    """A miss that is passed through: the range stays absent."""


class Cache(Protocol):
    """What is replayed against."""

    def access(self, one: Access) -> Outcome:
        """Read one range; whatever follows has happened when this returns."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """What one replay came to. Accesses before the end of the warm-up changed the cache and are not counted.

    Attributes:
        policy: its name.
        budget_bytes: of the cache.
        requests: accesses.
        hits: those of them that found their range resident.
        read_bytes: of all accesses.
        hit_bytes: of the hits.
        written_bytes: of the fills, which is what the store's device has to write.
        seeks: misses that do not lie where the miss before them ended.
    """

    policy: str
    budget_bytes: int
    requests: int
    hits: int
    read_bytes: int
    hit_bytes: int
    written_bytes: int
    seeks: int = 0

    @property
    def miss_bytes(self) -> int:
        """What the source had to read."""
        return self.read_bytes - self.hit_bytes

    @property
    def hit_ratio(self) -> float:
        """Hit bytes over bytes read, in [0, 1]; 0 if nothing was read."""
        return self.hit_bytes / self.read_bytes if self.read_bytes else 0.0


def replay(
    accesses: Sequence[Access], budget_bytes: int, policy: str, warmup: int = 0, charge: Charge = own_size
) -> Result:
    """Replay a stream through one cache.

    Args:
        budget_bytes: at least 1.
        policy: a name of POLICIES, or BELADY.
        warmup: so many accesses at the start are not counted.
        charge: what a range takes of the budget.

    Raises:
        KeyError: there is no such policy.
    """
    outcomes = run(cache_of(accesses, budget_bytes, policy, charge), accesses)
    return tally(policy, budget_bytes, accesses, outcomes, warmup)


def miss_curve(accesses: Sequence[Access], budgets: Iterable[int], policy: str, warmup: int = 0) -> list[Result]:
    """One replay for each budget, in their order. Arguments and errors as for `replay`."""
    return [replay(accesses, budget, policy, warmup) for budget in budgets]


def cache_of(accesses: Sequence[Access], budget_bytes: int, policy: str, charge: Charge = own_size) -> Cache:
    """A new cache for one replay of these accesses. Raises KeyError for an unknown policy."""
    if policy == BELADY:
        return BeladyCache(accesses, budget_bytes, charge=charge)
    return IndexCache(budget_bytes, policy, charge)


def run(cache: Cache, accesses: Iterable[Access]) -> Iterator[Outcome]:
    """Replay; the outcome of each access as it happens, so that a caller can stop between two or count otherwise."""
    return map(cache.access, accesses)


def tally(
    policy: str, budget_bytes: int, accesses: Sequence[Access], outcomes: Iterable[Outcome], warmup: int = 0
) -> Result:
    """Add up outcomes, of which there are as many as accesses."""
    requests = hits = read = hit = written = seeks = 0
    last: RangeKey | None = None
    for number, (one, outcome) in enumerate(zip(accesses, outcomes, strict=True)):
        if number < warmup:
            continue
        size = one.size or one.key.size
        requests += 1
        read += size
        if outcome is Outcome.HIT:
            hits += 1
            hit += size
            continue
        seeks += last is None or not _follows(one.key, last)
        last = one.key
        if outcome is Outcome.FILLED:
            written += one.key.size
    return Result(policy, budget_bytes, requests, hits, read, hit, written, seeks)


def _follows(key: RangeKey, last: RangeKey) -> bool:
    """Whether disks read a range without a seek after another. Neighbours may share a page."""
    end = last.offset + last.size
    return key.file == last.file and end - PAGE_SIZE <= key.offset <= end + GAP_MAX_BYTES


class IndexCache:
    """The product's index under one of its policies.

    There is no headroom: victims go before the fill begins, so all of the budget can hold ranges.
    """

    def __init__(self, budget_bytes: int, policy: str, charge: Charge = own_size) -> None:
        self._charge = charge
        self.index = CacheIndex(budget_bytes, POLICIES[policy](budget_bytes))
        self.index.headroom_bytes = 0
        self._joined: set[FileId] = set()

    def access(self, one: Access) -> Outcome:
        """See Cache."""
        index, key = self.index, one.key
        if key.file not in self._joined:
            self._joined.add(key.file)
            index.join(key.file, one.pack)
        hit = index.is_resident(key, _VERSION)
        index.touch(key, one.size or key.size, hit=hit)
        if hit:
            return Outcome.HIT
        if not one.fills:
            return Outcome.DECLINED
        decision, charge = Decision.ROOM, self._charge(key.size)
        while decision is Decision.ROOM:
            decision, victims = index.plan_fill(key, charge, _VERSION)
            for victim in victims:
                index.begin_evict(victim)
                index.finish_evict(victim)
        if decision is not Decision.READY:
            return Outcome.DECLINED
        index.begin_fill(key, charge, _VERSION)
        index.commit_fill(key)
        return Outcome.FILLED


class BeladyCache:
    """The optimum. It has to be given the very accesses it was made with, in order, once."""

    def __init__(
        self, accesses: Sequence[Access], budget_bytes: int, *, bypass: bool = True, charge: Charge = own_size
    ) -> None:
        """`bypass=False` fills every miss, as Belady's own rule does: what is not to be used again goes first."""
        self._next_use = next_uses(accesses)
        self._bypass = bypass
        self._charge = charge
        self._budget = budget_bytes
        self._at = 0
        self._free = budget_bytes
        self._resident: dict[RangeKey, int] = {}
        """The next use of each resident range."""
        self._furthest: list[tuple[int, RangeKey]] = []
        """A heap of (-next use, range). What no longer agrees with `_resident` is out of date."""

    def access(self, one: Access) -> Outcome:
        """See Cache. O(log n), spread over the calls."""
        key, next_use = one.key, self._next_use[self._at]
        self._at += 1
        hit = key in self._resident
        following = next_use if self._bypass else 0
        charge = self._charge(key.size)
        if not hit and not (one.fills and self._make_room(charge, following)):
            return Outcome.DECLINED
        if not hit:
            self._free -= charge
        self._resident[key] = next_use
        heappush(self._furthest, (-next_use, key))
        if len(self._furthest) > 2 * len(self._resident) + HEAP_SLACK:
            self._furthest = [(-use, resident) for resident, use in self._resident.items()]
            heapify(self._furthest)
        return Outcome.HIT if hit else Outcome.FILLED

    def _make_room(self, charge: int, next_use: int) -> bool:
        """Evict what is used later than `next_use`; nothing if that would not be enough."""
        if charge > self._budget:
            return False
        taken, free = list[tuple[int, RangeKey]](), self._free
        while free < charge and self._furthest and -self._furthest[0][0] > next_use:
            place = heappop(self._furthest)
            if self._resident.get(place[1]) == -place[0]:
                taken.append(place)
                free += self._charge(place[1].size)
        if free < charge:
            for place in taken:
                heappush(self._furthest, place)
            return False
        for _, victim in taken:
            del self._resident[victim]
        self._free = free
        return True


def next_uses(accesses: Sequence[Access]) -> list[int]:
    """For each access the number of the next one of the same range; as many as there are accesses if there is none."""
    never = len(accesses)
    following: dict[RangeKey, int] = {}
    uses = [never] * never
    for number in range(never - 1, -1, -1):
        key = accesses[number].key
        uses[number] = following.get(key, never)
        following[key] = number
    return uses


class Cycle(NamedTuple):
    """How a pack is read: over and over, one cycle for each token (or for each batch of a prompt)."""

    cycle_bytes: int
    """Bytes of one token, repeats counted once each time. A smaller budget cannot hold even one token."""
    cycles: int
    """How many there were."""


def cycles(accesses: Iterable[Access]) -> dict[bytes, Cycle]:
    """An estimate of each pack's cycle, from what is read most often of it.

    Dense weights are read once for each token, so the bytes of the pack between two reads of its most-read range are
    one token's, whoever else reads what in between. An engine that keeps the dense weights in memory hides them: then
    the estimate is too large, by how rarely its favourite expert is chosen. Packs that are read only once are left out.
    """
    read: dict[bytes, int] = {}
    marks: dict[bytes, dict[RangeKey, list[int]]] = {}
    seen: dict[bytes, set[RangeKey]] = {}
    for key, pack, size, _ in accesses:
        at = read.get(pack, 0)
        seen.setdefault(pack, set()).add(key)
        if size == 0 or 2 * size >= key.size:
            marks.setdefault(pack, {}).setdefault(key, []).append(at)
        read[pack] = at + (size or key.size)
    found: dict[bytes, Cycle] = {}
    for pack, of_pack in marks.items():
        cycle = _cycle(max(of_pack.values(), key=len), sum(key.size for key in seen[pack]))
        if cycle is not None:
            found[pack] = cycle
    return found


def _cycle(marks: Sequence[int], bytes_max: int) -> Cycle | None:
    """From the places of its marks in what was read of a pack. No more than there is of it is read for one token."""
    gaps = sorted(after - before for before, after in pairwise(marks))
    if not gaps:
        return None
    kept = gaps[: max(1, round(len(gaps) * (1 - PROMPT_SHARE)))]
    return Cycle(min(bytes_max, sum(kept) // len(kept)), len(marks))
