"""Replays of reads of parts of ranges: weighed and counted by their bytes, while what they fill is the range."""

from __future__ import annotations

import pytest

from mummufs.core.ranges import FileId, RangeKey
from mummufs.core.simulate import BELADY, HEAP_SLACK, Access, BeladyCache, IndexCache, Outcome, cycles, replay

KEYS = [RangeKey(FileId(1, 1), number << 20, 1 << 20) for number in range(4)]


def part(number: int, size: int, *, fills: bool = True) -> Access:
    return Access(KEYS[number], b"a", size, fills)


def whole(number: int) -> Access:
    return Access(KEYS[number], b"a")


@pytest.mark.parametrize("policy", ["hotness", "lru", BELADY])
def test_bytes_are_those_that_were_read_and_fills_those_of_the_range(policy: str) -> None:
    accesses = [part(0, 1000), part(0, 24), whole(0), part(1, 3 << 20)]
    result = replay(accesses, 8 << 20, policy)
    assert (result.requests, result.hits) == (4, 2)
    assert result.read_bytes == 1024 + (1 << 20) + (3 << 20)
    assert result.hit_bytes == 24 + (1 << 20)
    assert result.written_bytes == 2 << 20


@pytest.mark.parametrize("policy", ["hotness", "lru", BELADY])
def test_a_graze_does_not_fill_and_hits_what_is_there(policy: str) -> None:
    graze = part(0, 4096, fills=False)
    assert replay([graze, graze, whole(0), graze], 8 << 20, policy).hits == 1


def test_a_part_weighs_less() -> None:
    """Of two ranges read equally often, the one read by parts is evicted, though it was read last."""
    cache = IndexCache((2 << 20) + (64 << 10), "hotness")
    for one in (whole(0), part(1, 1000), whole(0), part(1, 1000)):
        cache.access(one)
    assert cache.access(whole(2)) is Outcome.FILLED
    assert cache.access(whole(0)) is Outcome.HIT


def test_a_loop_in_pieces_keeps_a_stable_part_of_it() -> None:
    """Requests run side by side, so the small rest of a window comes after those that follow; and the page that it
    shares with its neighbour is read once for both. None of it is a pass of its own, nor makes the next one shorter."""
    pages, windows, turns = 200, 60, 12
    keys = [RangeKey(FileId(1, 1), number * pages << 12, pages << 12) for number in range(windows)]
    cache = IndexCache(windows // 3 * pages << 12, "hotness")
    late = 3
    for turn in range(turns):
        outcomes = []
        for number in range(windows + late):
            if number < windows:
                outcomes.append(cache.access(Access(keys[number], b"a", 100 << 12)))
                outcomes.append(cache.access(Access(keys[number], b"a", 81 << 12)))
            if number >= late:
                outcomes.append(cache.access(Access(keys[number - late], b"a", 18 << 12)))
        if turn >= turns // 2:
            assert outcomes.count(Outcome.FILLED) == 0, turn
            assert outcomes.count(Outcome.HIT) == len(outcomes) // 3


def test_the_cycle_of_a_pack_is_not_marked_by_parts() -> None:
    """A neighbour that is grazed twice for each token does not make half tokens."""
    token = [part(1, 4096, fills=False), whole(0), part(1, 4096, fills=False), part(2, 600 << 10)]
    found = cycles(token * 5)[b"a"]
    assert (found.cycles, found.cycle_bytes) == (5, (1 << 20) + (600 << 10) + 8192)


def test_the_heap_of_the_optimum_is_bounded() -> None:
    accesses = [whole(0), whole(1)] * (2 * HEAP_SLACK)
    cache = BeladyCache(accesses, 8 << 20)
    for one in accesses:
        cache.access(one)
    assert len(cache._furthest) <= 2 * len(KEYS) + HEAP_SLACK
    assert replay(accesses, 8 << 20, BELADY).hits == len(accesses) - 2
