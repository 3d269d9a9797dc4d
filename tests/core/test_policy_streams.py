"""Workloads on which LRU or LFU is the better one: the default policy keeps up with whichever it is."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest

from mummufs.core.policy import POLICIES
from mummufs.core.ranges import FileId, RangeKey
from mummufs.core.simulate import Access, replay

FILE = FileId(1, 1)
SIZE = 1 << 16
BUDGET = 100
"""In ranges of one size."""
RANGES = 400
READS = 12_000
KEPT_UP = 0.95


def zipf(rng: random.Random, ranges: int, count: int) -> list[int]:
    """Numbers of ranges, the i-th read 1/i as often as the first."""
    return rng.choices(range(ranges), cum_weights=list(accumulate(1 / (i + 1) for i in range(ranges))), k=count)


def cyclic(_: random.Random) -> list[int]:
    """One range more than there is room for, in turn."""
    return list(range(BUDGET + 1)) * 60


def static(rng: random.Random) -> list[int]:
    """Some are hot, always the same."""
    return zipf(rng, RANGES, READS)


def drifting(rng: random.Random) -> list[int]:
    """What is hot becomes something else, bit by bit."""
    return [(number + i // 100) % RANGES for i, number in enumerate(zipf(rng, RANGES, READS))]


def bursts(rng: random.Random) -> list[int]:
    """A hot set, and now and then a walk over what is read once."""
    found: list[int] = []
    for first in range(RANGES, RANGES + 3000, 150):
        found += [*zipf(rng, 80, 400), *range(first, first + 150)]
    return found


@pytest.mark.parametrize("stream", [cyclic, static, drifting, bursts], ids=lambda stream: stream.__name__)
def test_it_keeps_up_with_the_better_of_lru_and_lfu(stream: object) -> None:
    assert callable(stream)
    accesses = [Access(RangeKey(FILE, number * SIZE, SIZE), b"model") for number in stream(random.Random(1))]
    hits = {policy: replay(accesses, BUDGET * SIZE, policy).hits for policy in POLICIES}
    assert hits["hotness"] >= KEPT_UP * max(hits["lru"], hits["lfu"]), hits
    assert hits["hotness"] > len(accesses) / 2, hits


def test_neither_of_the_two_is_always_the_better_one() -> None:
    """So the test before asks for something."""
    better = set()
    for stream in (static, drifting):
        accesses = [Access(RangeKey(FILE, number * SIZE, SIZE), b"model") for number in stream(random.Random(1))]
        better.add(max(("lru", "lfu"), key=lambda policy: replay(accesses, BUDGET * SIZE, policy).hits))
    assert better == {"lru", "lfu"}
