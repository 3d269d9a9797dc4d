"""The walk over the heat of all ranges: in steps, each of which is bounded, with changes between them."""

from __future__ import annotations

from mummufs.core.index import CacheIndex
from mummufs.core.policy import POLICIES
from mummufs.core.ranges import PAGE_SIZE, FileId, RangeKey, Version
from mummufs.core.ratings import HeatRecord

BUDGET = 1 << 20
VERSION = Version(1 << 30, 1, 1)
CHARGE = 2 * PAGE_SIZE


def _key(i: int) -> RangeKey:
    return RangeKey(FileId(1, 2), i * PAGE_SIZE, PAGE_SIZE)


def _index(resident: int, *, touched: int) -> CacheIndex:
    """So many resident ranges, of which the last `touched` have heat, and as many absent ones that have heat."""
    index = CacheIndex(BUDGET, POLICIES["hotness"](BUDGET))
    for i in range(resident):
        index.restore(_key(i), CHARGE, VERSION)
    for i in range(resident - touched, resident + touched):
        index.touch(_key(i), PAGE_SIZE, hit=i < resident)
    return index


def test_a_step_looks_at_so_many_ranges_whether_they_have_heat_or_not() -> None:
    steps = list(_index(30, touched=5).hot_steps(10))
    assert [len(step) for step in steps] == [0, 0, 5, 5], "30 that are resident, 5 that are not"
    assert {record.key for step in steps for record in step} == {_key(i) for i in range(25, 35)}


def test_a_range_that_leaves_or_comes_meanwhile_is_in_it_once() -> None:
    index = _index(10, touched=10)
    steps = index.hot_steps(5)
    found = [record.key for record in next(steps)]
    for key in (_key(0), _key(9)):  # one that was seen and one that was not
        index.begin_evict(key)
        index.finish_evict(key)
    for key in (_key(10), _key(19)):
        index.begin_fill(key, CHARGE, VERSION)
    found += [record.key for step in steps for record in step]
    assert sorted(found) == [_key(i) for i in range(20)]
    assert len(found) == len(set(found))


def test_what_was_recalled_comes_before_what_was_touched() -> None:
    """However often: the order of a record is that of its touch, mount after mount."""
    order: list[RangeKey] = []
    records: dict[RangeKey, HeatRecord] = {}
    for mount in range(4):
        index = CacheIndex(BUDGET, POLICIES["hotness"](BUDGET))
        latest = max((record.seq for record in records.values()), default=0)
        for record in records.values():
            index.recall(record._replace(seq=record.seq - latest))
        for i in (2 * mount + 1, 2 * mount):
            index.touch(_key(i), PAGE_SIZE, hit=False)
            order.append(_key(i))
        records = {record.key: record for step in index.hot_steps(256) for record in step}
        assert sorted(records, key=lambda key: records[key].seq) == order
