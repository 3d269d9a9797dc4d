"""Replays against brute-force models of LRU and of Belady, and the estimate of one token's bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.around import GAP_MAX_BYTES
from mummufs.core.policy import POLICIES
from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.core.simulate import (
    BELADY,
    Access,
    BeladyCache,
    Charge,
    IndexCache,
    Outcome,
    cycles,
    miss_curve,
    next_uses,
    own_size,
    replay,
    run,
    tally,
)

FILE = FileId(1, 1)
VERSION = Version(0, 0, 0)


def access(number: int, size: int = 1, pack: bytes = b"a") -> Access:
    return Access(RangeKey(FILE if pack == b"a" else FileId(1, 2), number << 20, size), pack)


def accesses_of(numbers: Sequence[int], sizes: Sequence[int] = ()) -> list[Access]:
    return [access(number, sizes[number] if sizes else 1) for number in numbers]


NUMBERS = st.lists(st.integers(0, 5), min_size=1, max_size=24)
SIZES = st.lists(st.integers(1, 4), min_size=6, max_size=6)


def lru(accesses: Sequence[Access], budget: int, charge: Charge = own_size) -> Iterator[bool]:
    """The plainest LRU: a list, the least recent first."""
    held: list[RangeKey] = []
    for key, *_ in accesses:
        yield key in held
        if key in held:
            held.remove(key)
        elif charge(key.size) > budget:
            continue
        while sum(charge(other.size) for other in held) + charge(key.size) > budget:
            held.pop(0)
        held.append(key)


def most_hits(accesses: Sequence[Access], budget: int) -> int:
    """The best that any replacement with bypass can do with ranges of one size: every choice is tried."""
    states = {frozenset[RangeKey](): 0}
    for key, *_ in accesses:
        following: dict[frozenset[RangeKey], int] = {}
        for held, hits in states.items():
            if key in held:
                choices = [held]
            else:
                room = min(budget - 1, len(held))
                kept = [held] if len(held) < budget else [frozenset(c) for c in combinations(sorted(held), room)]
                choices = [held, *(one | {key} for one in kept if budget)]
            for choice in choices:
                following[choice] = max(following.get(choice, 0), hits + (key in held))
        states = following
    return max(states.values())


@given(NUMBERS, SIZES, st.integers(1, 12))
def test_lru_is_lru(numbers: list[int], sizes: list[int], budget: int) -> None:
    accesses = accesses_of(numbers, sizes)
    hits = list(lru(accesses, budget))
    result = replay(accesses, budget, "lru")
    assert result.hits == sum(hits)
    assert result.hit_bytes == sum(one.key.size for one, hit in zip(accesses, hits, strict=True) if hit)


@given(NUMBERS, st.integers(1, 5))
def test_belady_is_the_best_with_ranges_of_one_size(numbers: list[int], budget: int) -> None:
    accesses = accesses_of(numbers)
    assert replay(accesses, budget, BELADY).hits == most_hits(accesses, budget)


@given(NUMBERS, SIZES, st.integers(1, 12), st.sampled_from([*POLICIES, BELADY]), st.integers(0, 30))
def test_every_byte_is_a_hit_or_a_miss_and_none_is_filled_that_was_not_missed(
    numbers: list[int], sizes: list[int], budget: int, policy: str, warmup: int
) -> None:
    accesses = accesses_of(numbers, sizes)
    result = replay(accesses, budget, policy, warmup)
    assert (result.policy, result.budget_bytes) == (policy, budget)
    assert result.requests == max(0, len(accesses) - warmup)
    assert result.read_bytes == sum(one.key.size for one in accesses[warmup:]) == result.hit_bytes + result.miss_bytes
    assert 0 <= result.written_bytes <= result.miss_bytes
    assert 0 <= result.hit_ratio <= 1


@given(NUMBERS, SIZES, st.integers(1, 12))
def test_belady_never_holds_more_than_the_budget(numbers: list[int], sizes: list[int], budget: int) -> None:
    accesses = accesses_of(numbers, sizes)
    cache = BeladyCache(accesses, budget, charge=lambda size: size + 1)
    for outcome, _ in zip(run(cache, accesses), accesses, strict=True):
        assert cache._free + sum(key.size + 1 for key in cache._resident) == budget and cache._free >= 0
        assert outcome in Outcome


@given(NUMBERS, SIZES, st.integers(1, 24), st.integers(0, 4))
def test_lru_holds_as_much_as_is_charged(numbers: list[int], sizes: list[int], budget: int, header: int) -> None:
    accesses = accesses_of(numbers, sizes)
    result = replay(accesses, budget, "lru", charge=lambda size: size + header)
    assert result.hits == sum(lru(accesses, budget, lambda size: size + header))


@given(NUMBERS, SIZES, st.integers(1, 24), st.integers(0, 4), st.sampled_from(list(POLICIES)))
def test_no_policy_holds_more_than_the_budget_by_what_is_charged(
    numbers: list[int], sizes: list[int], budget: int, header: int, policy: str
) -> None:
    """What is charged more than the budget is never filled; all else may be, and is held by its charge."""
    accesses = accesses_of(numbers, sizes)
    cache = IndexCache(budget, policy, lambda size: size + header)
    for one, outcome in zip(accesses, run(cache, accesses), strict=True):
        held = sum(key.size + header for key in cache.index.resident_keys())
        assert held == cache.index.statistics().used_bytes <= budget
        assert cache.index.is_resident(one.key, VERSION) == (outcome is not Outcome.DECLINED)
        assert outcome is Outcome.DECLINED or one.key.size + header <= budget


def test_belady_does_not_fill_what_it_would_evict_first() -> None:
    accesses = accesses_of([0, 1, 2, 0, 1, 2, 0, 1])
    outcomes = list(run(BeladyCache(accesses, 2), accesses))
    assert outcomes[2] is Outcome.DECLINED
    assert [outcome is Outcome.HIT for outcome in outcomes[3:]] == [True, True, False, True, True]


def test_next_uses() -> None:
    assert next_uses(accesses_of([0, 1, 0, 2, 1])) == [2, 4, 5, 5, 5]


def test_a_warm_up_changes_the_cache_and_is_not_counted() -> None:
    result = replay(accesses_of([0, 1, 0, 1]), 2, "lru", warmup=2)
    assert (result.requests, result.hits, result.written_bytes) == (2, 2, 0)


def test_a_curve_has_a_result_for_each_budget() -> None:
    results = miss_curve(accesses_of([0, 1, 2] * 4), [1, 3], "lru")
    assert [(result.budget_bytes, result.miss_bytes) for result in results] == [(1, 12), (3, 3)]


def test_what_is_larger_than_the_budget_is_declined() -> None:
    for policy in (*POLICIES, BELADY):
        result = replay([access(0, 9)] * 3, 8, policy)
        assert (result.hits, result.written_bytes) == (0, 0)


def test_misses_that_follow_one_another_cost_one_seek() -> None:
    """Over a gap that is passed over more quickly, and over hits; not backwards, and not into another file."""
    gap = GAP_MAX_BYTES >> 20
    places = [5, 6, 5, 7, 8 + gap, 10 + 2 * gap, 4]
    accesses = [access(number, 1 << 20) for number in places]
    assert replay(accesses, 1 << 40, "lru").seeks == 3
    assert replay(accesses, 1, "lru").seeks == 4, "nothing is a hit: there and back again"
    assert replay(accesses, 1 << 40, "lru", warmup=2).seeks == 3, "what was before is not known"
    assert replay([access(1, 1 << 20), access(2, 1 << 20, b"b")], 1 << 40, "lru").seeks == 2


def test_a_replay_that_ends_early_is_not_tallied() -> None:
    accesses = accesses_of([0, 1, 2])
    with pytest.raises(ValueError, match="zip"):
        tally("lru", 3, accesses, [Outcome.FILLED])


def test_an_unknown_policy_is_an_error() -> None:
    with pytest.raises(KeyError):
        replay(accesses_of([0]), 1, "guess")


def test_a_cycle_is_one_tokens_bytes() -> None:
    """A dense range of 10 and two experts of 3 for each token; one prompt in ten tokens reads 6 experts."""
    stream: list[Access] = []
    for token in range(40):
        stream.append(access(0, 10))
        stream += [access(1 + (token * 2 + i) % 12, 3) for i in range(6 if token % 10 == 0 else 2)]
        stream.append(access(7, 1000, b"b"))
    assert cycles(stream)[b"a"] == (16, 40)
    assert cycles(stream)[b"b"] == (1000, 40)


def test_a_token_reads_no_more_than_there_is() -> None:
    """What comes out of order, or is read again at once, makes the bytes between two marks more than that."""
    parts = [access(1, 3)._replace(size=1)] * 15
    assert cycles([access(0, 10), *parts] * 6)[b"a"].cycle_bytes == 13


def test_what_is_read_once_has_no_cycle() -> None:
    assert cycles(accesses_of([0, 1, 2])) == {}
