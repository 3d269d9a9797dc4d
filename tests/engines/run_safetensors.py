"""Load a safetensors file, in the engines' own environment: prints one JSON object, a hash per tensor by its name.

    python run_safetensors.py FILE safe_open|load_file

`safe_open` gets the tensors one by one in a random (seeded) order; `load_file` reads the file as a whole.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import random
import sys
from collections.abc import Iterator
from typing import Any


def one_by_one(path: str) -> Iterator[tuple[str, Any]]:
    """The tensors in a random order, read only when they are asked for."""
    with importlib.import_module("safetensors").safe_open(path, "np") as file:
        names = sorted(file.keys())
        random.Random(7).shuffle(names)
        for name in names:
            yield name, file.get_tensor(name)


def at_once(path: str) -> Iterator[tuple[str, Any]]:
    """The tensors of the whole file."""
    yield from importlib.import_module("safetensors.numpy").load_file(path).items()


def digest(tensor: Any) -> str:
    """A hash of a tensor's type, shape and bytes."""
    return hashlib.sha256(f"{tensor.dtype} {tensor.shape} ".encode() + tensor.tobytes()).hexdigest()


if __name__ == "__main__":
    load = {"safe_open": one_by_one, "load_file": at_once}[sys.argv[2]]
    print(json.dumps({name: digest(tensor) for name, tensor in load(sys.argv[1])}, sort_keys=True))
