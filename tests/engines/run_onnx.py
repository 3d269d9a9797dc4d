"""Run onnxruntime on a model, in the engines' own environment: prints one JSON object with its output.

python run_onnx.py MODEL
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import numpy as np


def outputs(path: str) -> list[float]:
    """What the model makes of a fixed input, on one thread."""
    ort: Any = importlib.import_module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    entry = session.get_inputs()[0]
    x = np.linspace(-1, 1, entry.shape[-1], dtype=np.float32)[None]
    values: list[float] = session.run(None, {entry.name: x})[0].ravel().tolist()
    return values


if __name__ == "__main__":
    print(json.dumps({"output": outputs(sys.argv[1])}))
