"""The routing traces, and the model file that is laid out for them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from scripts.bench import traces

SIZE = 8 << 20


@pytest.mark.parametrize(("name", "layers", "tokens", "chosen"), [("qwen", 48, 128, 6), ("gptoss", 36, 64, 2)])
def test_every_token_chooses_in_every_layer(name: str, layers: int, tokens: int, chosen: int) -> None:
    trace = traces.load(name)
    assert (trace.experts, len(trace.layers), len(trace.tokens)) == (128, layers, tokens)
    assert {len(of_layer) for token in trace.tokens for of_layer in token} == {chosen}
    assert all(0 <= expert < trace.experts for token in trace.tokens for of_layer in token for expert in of_layer)


@pytest.mark.parametrize("name", traces.NAMES)
@pytest.mark.parametrize("size", [SIZE, 1 << 31, 1 << 40])
def test_the_ranges_fill_the_file_without_gap_or_overlap(name: str, size: int) -> None:
    layout = traces.lay_out(traces.load(name), size)
    ranges = layout.ranges()
    assert all(before.offset + before.size == after.offset for before, after in pairwise(ranges))
    assert ranges[0].offset == 0 and ranges[-1].offset + ranges[-1].size == layout.size <= size
    assert len(layout.layers) >= traces.LAYERS_MIN


def test_real_sizes_are_kept_where_the_layers_fit() -> None:
    trace = traces.load("qwen")
    assert traces.lay_out(trace, 2 << 30).factor == 1
    assert len(traces.lay_out(trace, 1 << 40).layers) == len(trace.layers)
    assert traces.lay_out(trace, SIZE).factor > 1


def test_a_token_reads_dense_ranges_then_its_experts() -> None:
    trace = traces.load("qwen")
    layout = traces.lay_out(trace, SIZE)
    (step,) = traces.steps(trace, layout, 1)
    layer = layout.layers[0]
    experts = [part for expert in trace.tokens[0][layout.chosen[0]] for part in layer.experts[expert]]
    assert list(step[: len(layer.dense) + len(experts)]) == [*layer.dense, *experts]
    assert len(step) == len(layout.layers) * (len(layer.dense) + len(experts))


def test_the_manifest_names_every_range(tmp_path: Path) -> None:
    layout = traces.lay_out(traces.load("gptoss"), SIZE)
    path = tmp_path / "model.bin"
    traces.write_model(layout, path)
    assert path.stat().st_size == layout.size
    manifest = json.loads((tmp_path / "model.bin.mummufs.json").read_text())
    assert (manifest["file"], manifest["size"]) == ("model.bin", layout.size)
    assert sorted((entry["offset"], entry["length"]) for entry in manifest["ranges"]) == [
        (part.offset, part.size) for part in layout.ranges()
    ]
    names = {entry["offset"]: entry["name"] for entry in manifest["ranges"]}
    assert len(set(names.values())) == len(names)
    assert [names[part.offset] for part in layout.layers[1].experts[3]] == [
        f"blk.1.ffn_{projection}_exps.weight[3]" for projection in ("gate", "up", "down")
    ], "as in a GGUF, by which siblings are known"
    assert {entry["kind"] for entry in manifest["ranges"]} == {"dense", "expert"}
