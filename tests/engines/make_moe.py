"""Make a small mixture-of-experts GGUF with random weights that llama.cpp loads, in the engines' own environment.

    python make_moe.py OUT.gguf [--split-tensors N]

The architecture is qwen3moe, the weights Q8_0, 2 layers of 16 experts: some 35 MB. The same weights each time; split,
they lie in several files, named OUT-00001-of-0000M.gguf.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

import numpy as np

LAYERS, EXPERTS, EXPERTS_USED = 2, 16, 4
EMBD, FF = 512, 640
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64
VOCABULARY = 512
CONTEXT = 512
BYTE_TOKENS = 256
UNKNOWN, CONTROL, BYTE, NORMAL = 2, 3, 6, 1  # llama.cpp's kinds of token
FILE_TYPE_Q8_0 = 7


class MoeWriter:
    """Adds random tensors to a GGUF writer, in order, from one seeded generator."""

    def __init__(self, path: str, split_tensors: int) -> None:
        self._gguf: Any = importlib.import_module("gguf")
        self._rng = np.random.default_rng(1)
        self._writer = self._gguf.GGUFWriter(path, "qwen3moe", split_max_tensors=split_tensors)

    def add_architecture(self) -> None:
        """What llama.cpp must know of the model."""
        writer = self._writer
        writer.add_name("random mixture of experts")
        writer.add_file_type(FILE_TYPE_Q8_0)
        writer.add_context_length(CONTEXT)
        writer.add_embedding_length(EMBD)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(FF)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(10000.0)
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(EXPERTS_USED)
        writer.add_expert_feed_forward_length(FF)

    def add_vocabulary(self) -> None:
        """A token per byte and made-up words."""
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(BYTE_TOKENS))]
        kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * BYTE_TOKENS
        words = VOCABULARY - len(tokens)
        writer = self._writer
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens + [f"\u2581word{number}" for number in range(words)])
        writer.add_token_types(kinds + [NORMAL] * words)
        writer.add_token_scores([-float(number) for number in range(VOCABULARY)])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_add_bos_token(True)

    def add_ones(self, name: str, size: int) -> None:
        """A norm's weights."""
        self._writer.add_tensor(name, np.ones(size, np.float32))

    def add_random(self, name: str, *shape: int, scale: float, exact: bool = False) -> None:
        """Normally distributed weights, in Q8_0 or, if `exact`, in F32."""
        weights = self._rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        if exact:
            self._writer.add_tensor(name, weights)
            return
        kind = self._gguf.GGMLQuantizationType.Q8_0
        self._writer.add_tensor(name, self._gguf.quants.quantize(weights, kind), raw_dtype=kind)

    def add_layer(self, layer: int) -> None:
        """Attention, router and experts of one layer."""
        prefix, scale = f"blk.{layer}", EMBD**-0.5
        self.add_ones(f"{prefix}.attn_norm.weight", EMBD)
        self.add_random(f"{prefix}.attn_q.weight", HEADS * HEAD_DIM, EMBD, scale=scale)
        self.add_random(f"{prefix}.attn_k.weight", KV_HEADS * HEAD_DIM, EMBD, scale=scale)
        self.add_random(f"{prefix}.attn_v.weight", KV_HEADS * HEAD_DIM, EMBD, scale=scale)
        self.add_ones(f"{prefix}.attn_q_norm.weight", HEAD_DIM)
        self.add_ones(f"{prefix}.attn_k_norm.weight", HEAD_DIM)
        self.add_random(f"{prefix}.attn_output.weight", EMBD, HEADS * HEAD_DIM, scale=scale)
        self.add_ones(f"{prefix}.ffn_norm.weight", EMBD)
        self.add_random(f"{prefix}.ffn_gate_inp.weight", EXPERTS, EMBD, scale=2 * scale, exact=True)
        self.add_random(f"{prefix}.ffn_gate_exps.weight", EXPERTS, FF, EMBD, scale=2 * scale)
        self.add_random(f"{prefix}.ffn_up_exps.weight", EXPERTS, FF, EMBD, scale=2 * scale)
        self.add_random(f"{prefix}.ffn_down_exps.weight", EXPERTS, EMBD, FF, scale=2 * FF**-0.5)

    def write(self) -> None:
        """The whole model, to its file or files."""
        self.add_architecture()
        self.add_vocabulary()
        self.add_random("token_embd.weight", VOCABULARY, EMBD, scale=1.0)
        for layer in range(LAYERS):
            self.add_layer(layer)
        self.add_ones("output_norm.weight", EMBD)
        self.add_random("output.weight", VOCABULARY, EMBD, scale=3 * EMBD**-0.5)
        self._writer.write_header_to_file()
        self._writer.write_kv_data_to_file()
        self._writer.write_tensors_to_file()
        self._writer.close()


def main() -> None:
    """One model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--split-tensors", type=int, default=0, help="tensors per file; 0: one file")
    arguments = parser.parse_args()
    MoeWriter(arguments.out, arguments.split_tensors).write()


if __name__ == "__main__":
    main()
