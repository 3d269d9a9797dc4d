"""Make a small ONNX model whose weights lie in a file of their own, in the engines' own environment.

    python make_onnx.py DIRECTORY

Writes model.onnx, its weights in model.onnx.data (some 33 MB), and model.onnx.data.mummufs.json, the native manifest
made from the offset and length that each initializer names.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

LAYERS, WIDTH, FF = 4, 768, 1344
MODEL, WEIGHTS = "model.onnx", "model.onnx.data"


def graph(onnx: Any) -> Any:
    """A stack of MatMul, Add, Relu, MatMul."""
    helper, rng = onnx.helper, np.random.default_rng(1)
    nodes: list[Any] = []
    weights: list[Any] = []

    def weight(name: str, *shape: int, scale: float) -> str:
        values = rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        weights.append(onnx.numpy_helper.from_array(values, name))
        return name

    at = "x"
    for layer in range(LAYERS):
        up = weight(f"layer{layer}.up", WIDTH, FF, scale=WIDTH**-0.5)
        bias = weight(f"layer{layer}.bias", FF, scale=0.1)
        down = weight(f"layer{layer}.down", FF, WIDTH, scale=FF**-0.5)
        hidden, biased, active, out = (f"layer{layer}.{step}" for step in ("hidden", "biased", "active", "out"))
        nodes += [
            helper.make_node("MatMul", [at, up], [hidden]),
            helper.make_node("Add", [hidden, bias], [biased]),
            helper.make_node("Relu", [biased], [active]),
            helper.make_node("MatMul", [active, down], [out]),
        ]
        at = out
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, WIDTH]) for name in ("x", at)]
    return helper.make_graph(nodes, "stack", ends[:1], ends[1:], weights)


def manifest(onnx: Any, directory: Path) -> dict[str, Any]:
    """The native manifest of the weights' file."""
    ranges = []
    for tensor in onnx.load(directory / MODEL, load_external_data=False).graph.initializer:
        place = {entry.key: entry.value for entry in tensor.external_data}
        ranges.append({"offset": int(place["offset"]), "length": int(place["length"]), "name": tensor.name})
    return {"version": 1, "file": WEIGHTS, "size": (directory / WEIGHTS).stat().st_size, "ranges": ranges}


def main() -> None:
    """The three files."""
    onnx: Any = importlib.import_module("onnx")
    directory = Path(sys.argv[1])
    model = onnx.helper.make_model(graph(onnx), opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.save_model(model, directory / MODEL, save_as_external_data=True, location=WEIGHTS, size_threshold=1024)
    (directory / f"{WEIGHTS}.mummufs.json").write_text(json.dumps(manifest(onnx, directory)))


if __name__ == "__main__":
    main()
