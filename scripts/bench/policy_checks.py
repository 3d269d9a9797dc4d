"""What a policy has to do in three plain cases, and what an access costs in the index."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import chain

from mummufs.core.index import CacheIndex
from mummufs.core.policy import POLICIES
from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.core.simulate import BELADY, Access, IndexCache, replay
from mummufs.core.states import Decision

RANGE_BYTES = 1 << 20
LOOP_RANGES, LOOP_BUDGET_RANGES, LOOP_CYCLES, LOOP_WARMUP_CYCLES = 300, 200, 20, 4
HOT_RANGES, HOT_CYCLES, BURST_BUDGETS = 200, 8, 10
COST_RANGES, COST_ROUNDS, COST_ACCESSES = 100_000, 5, 40_000
COST_SMALL_RANGES = 1_000

MODEL, OTHER = b"model", b"other"
VERSION = Version(0, 0, 0)
FILES = {MODEL: FileId(1, 1), OTHER: FileId(1, 2)}


def one(number: int, pack: bytes = MODEL) -> Access:
    """A read of a range of RANGE_BYTES."""
    return Access(RangeKey(FILES[pack], number * RANGE_BYTES, RANGE_BYTES), pack)


def loop_hit_ratios(policy: str) -> tuple[float, float]:
    """Of a loop over 1.5 times the budget, as the dense weights of a large model are read: a policy's and Belady's."""
    accesses = [one(number) for number in range(LOOP_RANGES)] * LOOP_CYCLES
    warmup, budget = LOOP_WARMUP_CYCLES * LOOP_RANGES, LOOP_BUDGET_RANGES * RANGE_BYTES
    ours, best = (replay(accesses, budget, name, warmup).hit_ratio for name in (policy, BELADY))
    return ours, best


def burst_survivors(policy: str, pack: bytes) -> float:
    """The share of a hot set as large as the budget that is resident after ten budgets of ranges read once.

    Args:
        pack: whose ranges they are: MODEL's own (a prompt, a loader's sweep), or OTHER's (a file that is copied).
    """
    cache = IndexCache(HOT_RANGES * RANGE_BYTES, policy)
    hot = [one(number) for number in range(HOT_RANGES)]
    burst = [one(HOT_RANGES + number, pack) for number in range(BURST_BUDGETS * HOT_RANGES)]
    for access in chain(hot * HOT_CYCLES, burst):
        cache.access(access)
    resident = set(cache.index.resident_keys())
    return sum(access.key in resident for access in hot) / HOT_RANGES


def access_costs(policy: str, ranges: int) -> dict[str, float]:
    """Microseconds of one access in an index of so many resident ranges and as many remembered ones.

    An access is what a read has the index do: look whether the range is resident, and touch it; after a miss, plan a
    fill, and if it is not declined see the victims out and the range in.

    Returns:
        "median" over all accesses, "hit", "miss", and of these "filled" and "declined": medians over each kind that
        there was; of COST_ROUNDS rounds the quickest. In the last one most misses are declined: what is hot is known.
    """
    budget = ranges * RANGE_BYTES
    index = CacheIndex(budget, POLICIES[policy](budget))
    index.join(FILES[MODEL], MODEL)
    draw = random.Random(ranges)
    known = [one(number).key for number in range(2 * ranges)]
    for key in known:
        if not _looked_up(index, key):
            _fill(index, key)
    popular = draw.sample(known, len(known))  # most reads fall on few ranges, as with experts
    keys = [[popular[int(len(known) * draw.random() ** 2)] for _ in range(COST_ACCESSES)] for _ in range(COST_ROUNDS)]
    gc.collect()
    gc.freeze()  # the daemon's ranges are not what its collector looks at either
    try:
        rounds = [_timed(index, of_round) for of_round in keys]
    finally:
        gc.unfreeze()
    kinds = dict.fromkeys(chain.from_iterable(rounds))
    return {kind: min(of_round[kind] for of_round in rounds if kind in of_round) for kind in kinds}


def _timed(index: CacheIndex, keys: Sequence[RangeKey]) -> dict[str, float]:
    took: dict[str, list[float]] = {"hit": [], "filled": [], "declined": []}
    for key in keys:
        start = time.perf_counter_ns()
        kind = "hit" if _looked_up(index, key) else "filled" if _fill(index, key) else "declined"
        took[kind].append((time.perf_counter_ns() - start) / 1000)
    took["miss"] = took["filled"] + took["declined"]
    took["median"] = took["hit"] + took["miss"]
    return {kind: statistics.median(times) for kind, times in took.items() if times}


def _looked_up(index: CacheIndex, key: RangeKey) -> bool:
    hit = index.is_resident(key, VERSION)
    index.touch(key, key.size, hit=hit)
    return hit


def _fill(index: CacheIndex, key: RangeKey) -> bool:
    """See a missing range in, if it is not declined: whether it is resident now."""
    decision = Decision.ROOM
    while decision is Decision.ROOM:
        decision, victims = index.plan_fill(key, key.size, VERSION)
        for victim in victims:
            index.begin_evict(victim)
            index.finish_evict(victim)
    if decision is Decision.READY:
        index.begin_fill(key, key.size, VERSION)
        index.commit_fill(key)
    return decision is Decision.READY


Checks = dict[str, dict[str, float]]

CHECKS: dict[str, Callable[[str], dict[str, float]]] = {
    "loop": lambda policy: dict(zip(("ours", "belady"), loop_hit_ratios(policy), strict=True)),
    "burst": lambda policy: {pack.decode(): burst_survivors(policy, pack) for pack in (MODEL, OTHER)},
    "cost": lambda policy: access_costs(policy, COST_RANGES),
    "cost_small": lambda policy: access_costs(policy, COST_SMALL_RANGES),
}


def check_all(policy: str) -> Checks:
    """All of them, by name."""
    return {name: check(policy) for name, check in CHECKS.items()}
