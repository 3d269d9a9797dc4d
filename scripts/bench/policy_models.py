"""Models as byte ranges, and what one step of an engine reads of them: a token, or a batch of a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scripts.bench.policy_router import PRESETS, Chosen, Router

MIB = 1 << 20
BATCH_TOKENS = 512
"""Tokens of a prompt that an engine computes in one pass."""
LEAN_SHARE = 0.9
"""Half of the layers of a model of three parts have experts of this size, as in mixed quantisation."""
TOPICS = 8

Ranges = NDArray[np.int64]
"""Numbers of ranges, in reading order."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one model, in bytes. `parts` are the proportions of the ranges that one expert consists of."""

    preset: str
    layers: int
    experts: int
    chosen: int
    expert_bytes: int
    attention_bytes: int
    norm_bytes: int
    head_bytes: int
    vocabulary: int
    """Distinct words that the router tells apart."""
    parts: tuple[float, ...] = (1,)
    shared_bytes: int = 0
    dense_layers: int = 0
    """Layers without experts, in front of the others."""
    dense_layer_bytes: int = 0
    topics: int = TOPICS

    def thinned(self, factor: int) -> Shape:
        """The same with fewer layers and a head that is smaller by as much: the shares of the bytes stay."""
        layers, head_bytes = max(4, self.layers // factor), self.head_bytes // factor
        return Shape(**{**self.__dict__, "layers": layers, "head_bytes": head_bytes})


SHAPES = {
    "qwen30": Shape("qwen3", 48, 128, 8, 3059712, 11115955, 600000, 200 * MIB, 400, parts=(1, 1, 1.46)),
    "q235": Shape("qwen3", 94, 128, 8, 11 * MIB, 40 * MIB, 1258291, 350 * MIB, 200),
    "gptoss": Shape("gptoss", 36, 128, 4, 13219200, 22 * MIB, 1572864, 580 * MIB, 400, parts=(2, 1)),
    "glm": Shape(
        *("glm", 45, 128, 8, 10 * MIB, 55 * MIB, 2 * MIB, 350 * MIB, 400),
        shared_bytes=10 * MIB,
        dense_layers=1,
        dense_layer_bytes=70 * MIB,
    ),
    "dsv": Shape(
        *("skew", 58, 256, 6, 25 * MIB, 105 * MIB, 2 * MIB, 500 * MIB, 120),
        shared_bytes=25 * MIB,
        dense_layers=3,
        dense_layer_bytes=220 * MIB,
    ),
    "flash": Shape("flash", 48, 512, 10, 3 * MIB, 30 * MIB, 2 * MIB, 250 * MIB, 60, shared_bytes=3 * MIB, topics=6),
    "mixtral": Shape("mixtral", 32, 8, 2, 100 * MIB, 24 * MIB, 100000, 75 * MIB, 400, parts=(1, 1, 1)),
}


@dataclass(frozen=True)
class Step:
    """What is read for one token or one batch, layer by layer. Each run of a layer starts with its dense ranges."""

    layers: list[Ranges]
    is_prompt: bool


class Model:
    """The ranges of one model, numbered from 0, and its router. The experts come last, from `experts_start` on."""

    def __init__(self, shape: Shape, seed: int, *, dense_is_read: bool = True) -> None:
        """`dense_is_read=False`: the engine keeps everything but the experts in memory."""
        self.shape = shape
        self._dense_is_read = dense_is_read
        self._router = Router(
            *(PRESETS[shape.preset], shape.layers, shape.experts, shape.chosen, seed),
            vocabulary=shape.vocabulary,
            topics=shape.topics,
        )
        sizes: list[int] = []

        def add(*of_ranges: int) -> Ranges:
            first = len(sizes)
            sizes.extend(size for size in of_ranges if size)
            return np.arange(first, len(sizes))

        self._front = add(*[shape.attention_bytes, shape.dense_layer_bytes] * shape.dense_layers)
        of_layer = (shape.norm_bytes, shape.attention_bytes, shape.shared_bytes)
        self._dense = [add(*of_layer) for _ in range(shape.layers)]
        self._head, self._embedding = add(shape.head_bytes), add(shape.head_bytes)
        self.experts_start = len(sizes)
        for layer in range(shape.layers):
            lean = LEAN_SHARE if len(shape.parts) >= 3 and layer % 2 == 0 else 1.0
            whole = shape.expert_bytes * lean / sum(shape.parts)
            add(*[int(whole * part) for part in shape.parts] * shape.experts)
        self.sizes = np.array(sizes, np.int64)

    def conversation(self, prompt_tokens: int, answer_tokens: int) -> Iterator[Step]:
        """A new conversation: the prompt in batches, then the answer token by token."""
        chosen = self._router.conversation(prompt_tokens + answer_tokens)
        for start in range(0, prompt_tokens, BATCH_TOKENS):
            end = min(start + BATCH_TOKENS, prompt_tokens)
            yield Step(self._read(chosen[start:end], with_embedding=start == 0), is_prompt=True)
        for token in range(prompt_tokens, prompt_tokens + answer_tokens):
            yield Step(self._read(chosen[token : token + 1]), is_prompt=False)

    def everything(self) -> Ranges:
        """The whole file, in its order."""
        return np.arange(len(self.sizes))

    def _read(self, chosen: Chosen, *, with_embedding: bool = False) -> list[Ranges]:
        experts = [self._experts(layer, np.unique(chosen[:, layer])) for layer in range(self.shape.layers)]
        if not self._dense_is_read:
            return experts
        front = [self._embedding, self._front] if with_embedding else [self._front]
        layers = [np.concatenate(pair) for pair in zip(self._dense, experts, strict=True)]
        return [np.concatenate([*front, layers[0]]), *layers[1:], self._head]

    def _experts(self, layer: int, chosen: NDArray[np.int16]) -> Ranges:
        parts = len(self.shape.parts)
        first = self.experts_start + (layer * self.shape.experts + chosen.astype(np.int64)) * parts
        return np.asarray((first[:, None] + np.arange(parts)).ravel())
