"""Routing traces of real mixture-of-experts models, and a model file that is laid out as theirs are.

A trace says which experts each token chose in each layer, and how large a layer's parts are. The file holds as many of
the layers as fit, evenly spaced; where fewer than `LAYERS_MIN` would fit, everything is made smaller by one factor. In
each layer come the dense tensors, then one tensor each of all the experts' gate, up and down matrices, as in GGUF: an
expert is three ranges, and hardly any range begins on a page.
"""

from __future__ import annotations

import csv
import json
import lzma
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from scripts.bench.bench_model import sync_file
from scripts.bench.launch import REPOSITORY
from scripts.bench.replay import Range, Step

DIRECTORY = REPOSITORY / "tests" / "data" / "traces"
NAMES = ("qwen", "gptoss")
LAYERS_MIN = 4
DECODING = "1"
PROJECTIONS = ("gate", "up", "down")
ALIGNMENT_BYTES = 32
NORM_BYTES = 8192
DENSE_PARTS = ("attn_q", "attn_k", "attn_v", "attn_output")
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class LayerSize:
    """Bytes of one layer."""

    expert_bytes: int
    dense_bytes: int


@dataclass(frozen=True)
class Trace:
    """What a model did.

    Attributes:
        experts: in each layer.
        layers: their sizes.
        prompt: of each layer, the experts that any token of the prompt chose.
        tokens: of each decoded token, of each layer, the experts it chose.
    """

    experts: int
    layers: list[LayerSize]
    prompt: list[list[int]]
    tokens: list[list[list[int]]]


@dataclass(frozen=True)
class Layer:
    """Where a layer lies in the file. `experts[e]` is what expert `e` consists of."""

    dense: list[Range]
    experts: list[list[Range]]


@dataclass(frozen=True)
class Layout:
    """A model file. `chosen` are the trace's layers that it has; sizes are the model's over `factor`."""

    size: int
    layers: list[Layer]
    chosen: list[int]
    factor: int

    def ranges(self) -> list[Range]:
        """All of them, in order."""
        every = [part for layer in self.layers for part in layer.dense]
        every += [part for layer in self.layers for expert in layer.experts for part in expert]
        return sorted(every, key=lambda part: part.offset)


def load(name: str) -> Trace:
    """Read a trace. Raises ClickException if it is not in the repository."""
    path = DIRECTORY / f"{name}.route.csv.xz"
    if not path.exists():
        raise click.ClickException(f"{path} is not there")
    experts, layers, choices = 0, list[LayerSize](), dict[int, dict[int, list[int]]]()
    prompt: dict[int, set[int]] = {}
    with lzma.open(path, "rt") as file:
        for line in file:
            if not line.startswith("#"):
                break  # the column names
            words = dict(word.split("=", 1) for word in line[1:].split() if "=" in word)
            experts = int(words.get("n_expert", experts))
            if "layer" in words:
                layers.append(LayerSize(int(words["expert_bytes"]), int(words["dense_bytes"])))
        for _turn, phase, step, layer, _slot, expert, *_rest in csv.reader(file):
            if phase == DECODING:
                choices.setdefault(int(step), {}).setdefault(int(layer), []).append(int(expert))
            else:
                prompt.setdefault(int(layer), set()).add(int(expert))
    tokens = [[by_layer[layer] for layer in range(len(layers))] for _step, by_layer in sorted(choices.items())]
    return Trace(experts, layers, [sorted(prompt[layer]) for layer in range(len(layers))], tokens)


def lay_out(trace: Trace, size: int, layers_min: int = LAYERS_MIN) -> Layout:
    """The layers of a trace in a file of at most `size` bytes, so many at least."""
    largest = max(layer.expert_bytes * trace.experts + layer.dense_bytes for layer in trace.layers)
    factor = max(1, -(-largest * layers_min // size))
    count = min(len(trace.layers), size * factor // largest)
    chosen = [i * len(trace.layers) // count for i in range(count)]
    layers, end = [], 0
    for number in chosen:
        layer, end = _lay_out_layer(trace.layers[number], trace.experts, factor, end)
        layers.append(layer)
    return Layout(end, layers, chosen, factor)


def _lay_out_layer(size: LayerSize, experts: int, factor: int, start: int) -> tuple[Layer, int]:
    end = start

    def take(size: int) -> Range:
        nonlocal end
        part = Range(end, size // ALIGNMENT_BYTES * ALIGNMENT_BYTES)
        end += part.size
        return part

    rest = max(size.dense_bytes // factor - NORM_BYTES, len(DENSE_PARTS) * ALIGNMENT_BYTES)
    dense = [take(NORM_BYTES), *(take(rest // len(DENSE_PARTS)) for _ in DENSE_PARTS)]
    part_bytes = size.expert_bytes // factor // len(PROJECTIONS)
    parts = [[take(part_bytes) for _ in range(experts)] for _ in PROJECTIONS]
    return Layer(dense, [list(of_expert) for of_expert in zip(*parts, strict=True)]), end


def steps(trace: Trace, layout: Layout, count: int) -> list[Step]:
    """What is read for each of the first `count` decoded tokens: layer by layer the dense ranges, then the experts."""
    return [list(_token(layout, token)) for token in trace.tokens[:count]]


def prompt_step(trace: Trace, layout: Layout) -> Step:
    """The prompt in one pass: layer by layer the dense ranges, then each expert that any of its tokens chose."""
    return list(_token(layout, trace.prompt))


def _token(layout: Layout, token: Sequence[Sequence[int]]) -> Iterator[Range]:
    for layer, number in zip(layout.layers, layout.chosen, strict=True):
        yield from layer.dense
        for expert in token[number]:
            yield from layer.experts[expert]


def write_model(layout: Layout, path: Path) -> None:
    """Write the file, random bytes, and its native manifest; both synced."""
    generator = random.Random(3)
    with path.open("wb") as file:
        for left in range(layout.size, 0, -BLOCK_BYTES):
            file.write(generator.randbytes(min(left, BLOCK_BYTES)))
        sync_file(file)
    ranges = [
        {"offset": part.offset, "length": part.size, "name": name, "kind": kind} for name, kind, part in _named(layout)
    ]
    manifest = {"version": 1, "file": path.name, "size": layout.size, "ranges": ranges}
    with path.with_name(f"{path.name}.mummufs.json").open("wb") as file:
        file.write(json.dumps(manifest).encode())
        sync_file(file)


def _named(layout: Layout) -> Iterator[tuple[str, str, Range]]:
    """The ranges with their names, which are those of a GGUF, and their kinds."""
    for number, layer in enumerate(layout.layers):
        for i, part in enumerate(layer.dense):
            yield f"blk.{number}.dense_{i}.weight", "dense", part
        for expert, parts in enumerate(layer.experts):
            for i, part in enumerate(parts):
                projection = PROJECTIONS[i] if len(parts) == len(PROJECTIONS) else f"part_{i}"
                yield f"blk.{number}.ffn_{projection}_exps.weight[{expert}]", "expert", part
