"""A model file for benchmarks: random bytes, with a native manifest of equal expert ranges."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import IO

RANGE_BYTES = 2 << 20
NAME = "bench-model.bin"


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
        {"offset": i * RANGE_BYTES, "length": RANGE_BYTES, "name": f"expert {i}", "kind": "expert"}
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
