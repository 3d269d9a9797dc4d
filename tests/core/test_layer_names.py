"""Layers by name, and their sums."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.layers import HEADER, OTHER, LayerSums, layer_of
from mummufs.core.manifest import RangeKind


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("blk.3.attn_q.weight", "3"),
        ("blk.12.ffn_gate_exps.weight [7/64]", "12"),
        ("model.layers.03.mlp.experts.7.up_proj.weight", "3"),
        ("model.layers.0.norm.weight .. model.layers.1.norm.weight (9)", "0"),
        ("layer3.expert7.gate", "3"),
        ("transformer.h.11.attn.c_attn.weight", "11"),
        ("encoder.block.2.layer.0.q.weight", "2"),
        ("token_embd.weight", OTHER),
        ("blk.x.weight", OTHER),
        ("blk.٣.weight", OTHER),
        ("blk.1234567.weight", OTHER),
        ("blk", OTHER),
        ("layers", OTHER),
        ("", OTHER),
    ],
)
def test_layer_of(name: str, layer: str) -> None:
    assert layer_of(name, RangeKind.DENSE) == layer
    assert layer_of(name, RangeKind.HEADER) == HEADER


WINDOWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(["blk.0.a", "blk.2.b", "blk.10.c", "output"]),
        st.sampled_from(RangeKind),
        st.integers(1, 1 << 40),
        st.booleans(),
    )
)


@given(WINDOWS)
def test_nothing_is_lost_or_counted_twice(windows: list[tuple[str, str, RangeKind, int, bool]]) -> None:
    sums = LayerSums()
    for model, name, kind, size, resident in windows:
        sums.add(model, name, kind, size, resident=resident)
    rows = sums.rows()
    assert len(rows) == len({(row.model, row.layer) for row in rows}) == len(sums)
    experts = [w for w in windows if w[2] is RangeKind.EXPERT]
    assert sum(row.expert_bytes for row in rows) == sum(w[3] for w in experts)
    assert sum(row.expert_resident_bytes for row in rows) == sum(w[3] for w in experts if w[4])
    assert sum(row.dense_bytes + row.expert_bytes for row in rows) == sum(w[3] for w in windows)
    assert sum(row.dense_resident_bytes + row.expert_resident_bytes for row in rows) == sum(
        w[3] for w in windows if w[4]
    )
    places = {HEADER: -1, OTHER: 1 << 20}
    order = [(row.model, places.get(row.layer, -2) if row.layer in places else int(row.layer)) for row in rows]
    assert order == sorted(order)
