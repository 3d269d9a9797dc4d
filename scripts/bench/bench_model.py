"""A model file for benchmarks: random bytes, with a native manifest of equal ranges.

They are those of a GGUF: in each layer a slice of each expert's gate, then of each one's up, then of each one's down.
What is left at the end is dense.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import IO

RANGE_BYTES = 2 << 20
NAME = "bench-model.bin"
EXPERTS = 32
"""Of a layer. A file that has not as many ranges is one layer of fewer."""
PROJECTIONS = ("gate", "up", "down")


def _experts(count: int) -> int:
    return max(1, min(EXPERTS, count // len(PROJECTIONS)))


def range_name(i: int, count: int) -> str:
    """The name of the i-th of so many ranges."""
    experts = _experts(count)
    layer, at = divmod(i, experts * len(PROJECTIONS))
    if (layer + 1) * experts * len(PROJECTIONS) > count:
        return f"dense_{i}.weight"
    return f"blk.{layer}.ffn_{PROJECTIONS[at // experts]}_exps.weight[{at % experts}]"


def routed(count: int, seed: int) -> list[int]:
    """The numbers of the expert ranges as a router has them read: experts in a random order, of each all slices."""
    experts, slices = _experts(count), len(PROJECTIONS)
    layers = range(count // (experts * slices))
    chosen = [(layer * slices * experts) + expert for layer in layers for expert in range(experts)]
    random.Random(seed).shuffle(chosen)
    return [first + i * experts for first in chosen for i in range(slices)]


def make_model(directory: Path, size: int) -> Path:
    """Write the model and its manifest, synced; `size` is rounded down to whole ranges. Returns the model's path."""
    count = size // RANGE_BYTES
    generator = random.Random(2)
    path = directory / NAME
    with path.open("wb") as file:
        for _ in range(count):
            file.write(generator.randbytes(RANGE_BYTES))
        sync_file(file)
    ranges = [
        {"offset": i * RANGE_BYTES, "length": RANGE_BYTES, "name": range_name(i, count), "kind": "expert"}
        for i in range(count)
    ]
    manifest = {"version": 1, "file": NAME, "size": count * RANGE_BYTES, "ranges": ranges}
    with path.with_name(f"{NAME}.mummufs.json").open("wb") as file:
        file.write(json.dumps(manifest).encode())
        sync_file(file)
    return path


def sync_file(file: IO[bytes]) -> None:
    """Put what was written to a file on its device."""
    file.flush()
    os.fsync(file.fileno())
