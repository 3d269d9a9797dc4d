"""The benchmarks' model: named as a GGUF is, and read as a router has it read."""

from __future__ import annotations

import pytest

from mummufs.core.manifest import Manifest, ManifestRange, RangeKind, RangeTable
from mummufs.core.siblings import siblings
from scripts.bench.bench_model import EXPERTS, PROJECTIONS, RANGE_BYTES, range_name, routed


@pytest.mark.parametrize("count", [64, 2 * EXPERTS * len(PROJECTIONS), 256])
def test_each_expert_is_read_slice_by_slice_once(count: int) -> None:
    names = [range_name(i, count) for i in range(count)]
    assert len(set(names)) == count
    order = routed(count, seed=1)
    assert sorted(order) == [i for i, name in enumerate(names) if not name.startswith("dense")]
    assert order != routed(count, seed=2)
    ranges = [ManifestRange(i * RANGE_BYTES, RANGE_BYTES, name, RangeKind.EXPERT) for i, name in enumerate(names)]
    table = RangeTable.from_manifest(Manifest("test", count * RANGE_BYTES, ranges))
    for at in range(0, len(order), len(PROJECTIONS)):
        first, *others = order[at : at + len(PROJECTIONS)]
        assert siblings(table, first) == others
