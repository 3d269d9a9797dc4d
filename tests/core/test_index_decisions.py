"""What the index decides, case by case."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mummufs.core import ratings as module
from mummufs.core.index import HEADROOM_SHARE, VICTIMS_MAX, CacheIndex
from mummufs.core.policy import HotnessPolicy, LruPolicy, Policy
from mummufs.core.ranges import PAGE_SIZE, FileId, RangeKey, Version
from mummufs.core.states import Decision, FillPlan, State

BUDGET = 24 * PAGE_SIZE
OLD, NEW = Version(1 << 20, 1, 1), Version(1 << 20, 2, 2)


def _key(i: int, pages: int = 3) -> RangeKey:
    return RangeKey(FileId(1, i), 0, pages * PAGE_SIZE)


KEYS = [_key(i, 1 + i % 5) for i in range(14)]


def _charge(key: RangeKey) -> int:
    return key.size + PAGE_SIZE


def _fill(index: CacheIndex, key: RangeKey, version: Version = OLD) -> tuple[RangeKey, ...]:
    """Fill a range as the engine does; the victims that made room for it."""
    plan = index.plan_fill(key, _charge(key), version)
    for victim in plan.victims:
        index.begin_evict(victim)
        index.finish_evict(victim)
    assert index.plan_fill(key, _charge(key), version).decision is Decision.READY
    index.begin_fill(key, _charge(key), version)
    index.commit_fill(key)
    index._check()
    return plan.victims


def test_what_is_larger_than_the_budget_is_declined_at_once() -> None:
    index = CacheIndex(BUDGET, HotnessPolicy(BUDGET))
    assert index.plan_fill(KEYS[0], BUDGET, OLD) == FillPlan(Decision.READY)
    assert index.plan_fill(KEYS[0], BUDGET + 1, OLD) == FillPlan(Decision.TOO_LARGE)
    index.set_overhead(PAGE_SIZE)
    assert index.plan_fill(KEYS[0], BUDGET, OLD) == FillPlan(Decision.TOO_LARGE)


def test_a_store_full_of_fills_has_no_victims() -> None:
    index = CacheIndex(4 * PAGE_SIZE, HotnessPolicy(BUDGET))
    index.begin_fill(_key(0), 4 * PAGE_SIZE, OLD)
    assert index.plan_fill(_key(1), PAGE_SIZE, OLD) == FillPlan(Decision.NO_VICTIMS)
    index.commit_fill(_key(0))
    assert index.plan_fill(_key(1), PAGE_SIZE, OLD) == FillPlan(Decision.ROOM, (_key(0),))
    index.begin_evict(_key(0))
    assert index.plan_fill(_key(1), PAGE_SIZE, OLD) == FillPlan(Decision.ROOM), "it only has to wait"


def test_another_version_is_filled_in_place_of_the_stale_file() -> None:
    index = CacheIndex(BUDGET, HotnessPolicy(BUDGET))
    _fill(index, KEYS[1], OLD)
    assert index.plan_fill(KEYS[1], _charge(KEYS[1]), OLD) == FillPlan(Decision.PRESENT)
    assert index.plan_fill(KEYS[1], _charge(KEYS[1]), NEW) == FillPlan(Decision.ROOM, (KEYS[1],))
    assert _fill(index, KEYS[1], NEW) == (KEYS[1],)
    assert index.is_resident(KEYS[1], NEW) and not index.is_resident(KEYS[1], OLD)


def test_after_a_restore_over_the_budget_no_fill_begins_until_it_is_met() -> None:
    index = CacheIndex(8 * PAGE_SIZE, HotnessPolicy(BUDGET))
    keys = [_key(i, 1) for i in range(20)]
    for key in keys[:10]:
        index.restore(key, _charge(key), OLD)
    assert index.free_bytes == -12 * PAGE_SIZE
    assert index.plan_fill(keys[10], _charge(keys[10]), OLD).decision is Decision.ROOM
    with pytest.raises(AssertionError, match="no room"):
        index.begin_fill(keys[10], _charge(keys[10]), OLD)
    for key in index.plan_eviction():
        index.begin_evict(key)
        assert index.plan_fill(keys[10], _charge(keys[10]), OLD).decision is not Decision.READY
    for key in keys[:10]:
        if index.state(key) is State.EVICTING:
            index.finish_evict(key)
    assert index.statistics().used_bytes <= 8 * PAGE_SIZE
    assert len(_fill(index, keys[10])) <= 1
    assert index.free_bytes >= 0


def test_one_plan_names_a_bounded_number_of_victims() -> None:
    count = VICTIMS_MAX + 50
    index = CacheIndex(count * 2 * PAGE_SIZE, HotnessPolicy(BUDGET))
    for i in range(count):
        index.restore(_key(i, 1), 2 * PAGE_SIZE, OLD)
    whole = index.budget_bytes - index.headroom_bytes
    assert len(index.plan_fill(_key(9999), whole, OLD).victims) == VICTIMS_MAX
    index.set_overhead(index.budget_bytes)
    assert len(index.plan_eviction()) == VICTIMS_MAX


def test_heat_survives_eviction() -> None:
    index = CacheIndex(BUDGET, HotnessPolicy(BUDGET))
    hot, once = _key(0), _key(1)
    for _ in range(5):
        index.touch(hot, hot.size, hit=False)
    _fill(index, hot)
    index.begin_evict(hot)
    index.finish_evict(hot)
    index.touch(once, once.size, hit=False)
    _fill(index, once)
    _fill(index, hot)
    assert list(index.resident_keys()) == [once, hot]


def test_an_aborted_fill_keeps_its_heat() -> None:
    index = CacheIndex(BUDGET, HotnessPolicy(BUDGET))
    hot, once = _key(0), _key(1)
    for _ in range(2):
        index.touch(hot, hot.size, hit=False)
    index.begin_fill(hot, _charge(hot), OLD)
    index.touch(hot, hot.size, hit=False)
    index.abort_fill(hot)
    _fill(index, hot)
    for _ in range(2):
        index.touch(once, once.size, hit=False)
    _fill(index, once)
    assert list(index.resident_keys()) == [once, hot]


@pytest.mark.parametrize("hit", [False, True])
def test_forty_requests_of_one_pass_are_one_touch(hit: bool) -> None:
    index = CacheIndex(BUDGET, HotnessPolicy(1 << 40))
    pieces, whole, twice = _key(0, 40), _key(1, 40), _key(2, 40)
    for key in (pieces, whole, twice):
        index.restore(key, PAGE_SIZE, OLD)
    for _ in range(40):
        index.touch(pieces, PAGE_SIZE, hit=hit)
    index.touch(whole, whole.size, hit=hit)
    for _ in range(80):
        index.touch(twice, PAGE_SIZE, hit=hit)
    assert index.heat(pieces) == pytest.approx(index.heat(whole), abs=1e-6)
    assert index.heat(twice) == pytest.approx(index.heat(whole) + 1, abs=1e-6)


def test_of_equally_hot_ranges_the_least_recently_used_goes_first() -> None:
    index = CacheIndex(BUDGET, HotnessPolicy(BUDGET))
    for i in (2, 0, 1):
        index.restore(_key(i), PAGE_SIZE, OLD)
        index.touch(_key(i), _key(i).size, hit=False)
    assert list(index.resident_keys()) == [_key(2), _key(0), _key(1)]


@pytest.mark.parametrize(("policy", "survives"), [(HotnessPolicy, True), (LruPolicy, False)])
def test_a_hot_expert_survives_a_sweep_under_hotness_and_not_under_lru(
    policy: Callable[[int], Policy], survives: bool
) -> None:
    index = CacheIndex(4 * 4 * PAGE_SIZE, policy(4 * 4 * PAGE_SIZE))
    hot, others = _key(0), [_key(i) for i in range(1, 5)]
    index.touch(hot, hot.size, hit=False)
    _fill(index, hot)
    for _ in range(10):
        index.touch(hot, hot.size, hit=True)
    victims: list[RangeKey] = []
    for key in others:
        index.touch(key, key.size, hit=False)
        victims += _fill(index, key)
    assert victims == [others[0] if survives else hot]
    assert index.is_resident(hot, OLD) == survives


def test_restored_ranges_each_have_a_place_of_their_own() -> None:
    """So that taking one out of the order of a big store does not search through its equals."""
    index = CacheIndex(BUDGET, HotnessPolicy(BUDGET))
    for key in KEYS:
        index.restore(key, PAGE_SIZE, OLD)
    index._check()
    index.begin_evict(KEYS[7])
    assert KEYS[7] not in set(index.resident_keys()) and len(list(index.resident_keys())) == len(KEYS) - 1


def test_the_number_of_ghosts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GHOSTS_MAX", 3)
    monkeypatch.setattr(module, "GHOSTS_MIN", 3)
    index = CacheIndex(BUDGET, HotnessPolicy(BUDGET))
    for i in (0, 1, 2, 0, 3):
        index.touch(_key(i), 1, hit=False)
    index._check()
    assert {record.key for step in index.hot_steps(256) for record in step} == {_key(0), _key(2), _key(3)}


def test_the_more_ranges_are_known_that_are_not_absent_the_fewer_ghosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GHOSTS_MAX", 6)
    monkeypatch.setattr(module, "GHOSTS_MIN", 2)
    index = CacheIndex(BUDGET, HotnessPolicy(BUDGET))
    for i in range(8):
        index.touch(_key(i), 1, hit=False)
    assert index.statistics().ghosts == 6
    for i in range(2, 7):  # of ghosts: the sum does not change until no fewer are kept
        assert not _fill(index, _key(i))
        index._check()
    assert index.statistics().ghosts == 1
    for i in range(8, 12):
        index.touch(_key(i), 1, hit=False)
        index._check()
    assert index.statistics().ghosts == 2
    assert not _fill(index, _key(20))  # one that nobody knew
    index._check()
    assert index.statistics().ghosts == 2
    index.begin_evict(_key(2))
    index.finish_evict(_key(2))
    index._check()
    assert index.statistics().ghosts == 2


def test_the_headroom_is_kept_free_without_anybody_waiting() -> None:
    budget = int(8 * PAGE_SIZE / HEADROOM_SHARE)
    index = CacheIndex(budget, LruPolicy(budget))
    assert index.headroom_bytes == 8 * PAGE_SIZE
    keys = [_key(i, 3) for i in range(budget // _charge(_key(0, 3)) - 2)]
    assert not any(_fill(index, key) for key in keys)
    assert index.free_bytes == 8 * PAGE_SIZE
    one_more = _key(9999, 3)
    index.touch(one_more, one_more.size, hit=False)
    assert index.plan_fill(one_more, _charge(one_more), OLD) == FillPlan(Decision.READY, (keys[0],))
    assert index.plan_fill(one_more, 9 * PAGE_SIZE, OLD) == FillPlan(Decision.ROOM, tuple(keys[:3]))
    assert index.plan_fill(one_more, budget - PAGE_SIZE, OLD) == FillPlan(Decision.TOO_LARGE)


def test_room_that_is_free_for_a_moment_admits_nobody() -> None:
    """Else a crawl over cold files would be written to the store, range by range, to be evicted at once."""
    budget = int(8 * PAGE_SIZE / HEADROOM_SHARE)
    index = CacheIndex(budget, HotnessPolicy(budget))
    keys = [_key(i, 3) for i in range(budget // _charge(_key(0, 3)) - 2)]
    for key in keys:
        for _ in range(3):
            index.touch(key, key.size, hit=False)
        _fill(index, key)
    cold = _key(9999, 3)
    index.touch(cold, cold.size, hit=False)
    assert _charge(cold) < index.free_bytes
    assert index.plan_fill(cold, _charge(cold), OLD) == FillPlan(Decision.COLDER)


def test_what_is_pinned_stays_and_is_let_in() -> None:
    index = CacheIndex(BUDGET, HotnessPolicy(BUDGET))
    kept, hot, wanted = _key(0, 7), [_key(i, 7) for i in (1, 2)], _key(3, 7)
    index.pin(kept)
    _fill(index, kept)
    for key in hot:
        for _ in range(9):
            index.touch(key, key.size, hit=False)
        _fill(index, key)
    index.touch(wanted, wanted.size, hit=False)
    assert index.plan_fill(wanted, _charge(wanted), OLD) == FillPlan(Decision.COLDER)
    index.pin(wanted)
    assert _fill(index, wanted) == (hot[0],)
    assert index.pinned_bytes == _charge(kept) + _charge(wanted)
    index.set_overhead(BUDGET)
    assert index.plan_eviction() == (hot[1],), "nothing that is pinned, whatever the need"
    index.unpin(kept)
    assert index.plan_eviction() == (kept, hot[1])
    assert index.plan_fill(_key(4, 1), _charge(_key(4, 1)), OLD).decision is Decision.TOO_LARGE
