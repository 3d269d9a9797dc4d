"""Make a small mixture-of-experts safetensors file with random weights, in the engines' own environment.

    python make_safetensors.py OUT.safetensors

2 layers of 8 experts in F16, 768 KiB per projection: some 38 MB.
"""

from __future__ import annotations

import importlib
import sys

import numpy as np

Weights = np.ndarray[tuple[int, ...], np.dtype[np.float16]]

LAYERS, EXPERTS, EMBD, FF = 2, 8, 768, 512


def tensors() -> dict[str, Weights]:
    """The weights by name, from one seeded generator."""
    rng = np.random.default_rng(1)
    made: dict[str, Weights] = {}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        made[f"{prefix}.input_layernorm.weight"] = np.ones(EMBD, np.float16)
        made[f"{prefix}.mlp.gate.weight"] = rng.standard_normal((EXPERTS, EMBD)).astype(np.float16)
        for expert in range(EXPERTS):
            for name, shape in (("gate_proj", (FF, EMBD)), ("up_proj", (FF, EMBD)), ("down_proj", (EMBD, FF))):
                weights = rng.standard_normal(shape, dtype=np.float32).astype(np.float16)
                made[f"{prefix}.mlp.experts.{expert}.{name}.weight"] = weights
    return made


if __name__ == "__main__":
    importlib.import_module("safetensors.numpy").save_file(tensors(), sys.argv[1])
