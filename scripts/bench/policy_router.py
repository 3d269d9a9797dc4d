"""A router of experts that behaves as published traces of real ones do, from seeds.

For each token and layer the experts with the largest scores are chosen. A score is a sum of independent normal parts,
each with its share of the variance:

    popular       the expert, always
    conversation  the expert in this conversation: half from one of a few topics, half its own
    slow          drifts over tens of tokens
    fast          lasts a token or two
    token         the token's identity: a Zipf vocabulary, with some words that this conversation keeps repeating
    the rest      noise

Shares vary a little from layer to layer. The first layer sees hardly more than the token; the next few and the last
depend less on what came before. The shares were fitted to published hit ratios of small caches per layer, to the
overlap of successive tokens and to the entropy of each layer's choices (docs/policy.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOPIC_PART = 0.5
"""Of a conversation's variance, what it shares with the others on its topic."""
REPEATED_WORDS = 60
REPEATED_SHARE = 0.4
"""Of the tokens of a conversation, those that are one of its repeated words."""
JITTER, JITTER_MAX = 0.12, 0.3
PARTS_MAX = 0.97
"""At least 3 % of each layer is noise."""

Floats = NDArray[np.float32]
Chosen = NDArray[np.int16]


@dataclass(frozen=True)
class Preset:
    """Shares of the variance in a middle layer, and how many tokens the drifting parts remember."""

    popular: float
    conversation: float
    slow: float
    fast: float
    token: float
    slow_tokens: float
    fast_tokens: float = 1.5


PRESETS = {
    "qwen3": Preset(0.24, 0.26, 0.18, 0.20, 0.04, 20),
    "gptoss": Preset(0.20, 0.25, 0.12, 0.12, 0.10, 30),
    "skew": Preset(0.46, 0.05, 0.03, 0.02, 0.10, 30),
    "flash": Preset(0.03, 0.33, 0.24, 0.20, 0.06, 20),
    "glm": Preset(0.20, 0.24, 0.14, 0.16, 0.06, 25),
    "mixtral": Preset(0.04, 0.10, 0.06, 0.10, 0.20, 25),
}


def layer_shares(preset: Preset, layers: int, generator: np.random.Generator) -> dict[str, NDArray[np.float64]]:
    """Each part's share in each layer; with "noise" they add up to 1."""
    jitter = 1 + generator.normal(0, JITTER, layers).clip(-JITTER_MAX, JITTER_MAX)
    names = ("popular", "conversation", "slow", "fast")
    shares = {name: getattr(preset, name) * jitter for name in names}
    shares["token"] = np.full(layers, preset.token)
    first = {"popular": 0.5, "conversation": 0.1, "slow": 0.05, "fast": 0.0}
    last = {"conversation": 0.5, "slow": 0.5, "fast": 0.3}
    for name, factor in first.items():
        shares[name][0] *= factor
    shares["token"][0] = 0.75
    for name in ("conversation", "fast"):
        shares[name][1:4] *= 0.6
    for name, factor in last.items():
        shares[name][-1] *= factor
    total = np.sum(list(shares.values()), axis=0)
    shares = {name: share * np.minimum(1, PARTS_MAX / total) for name, share in shares.items()}
    shares["noise"] = 1 - np.sum(list(shares.values()), axis=0)
    return shares


class Router:
    """One model's router. Everything is drawn from its seed, conversation after conversation."""

    def __init__(
        self, preset: Preset, layers: int, experts: int, chosen: int, seed: int, *, vocabulary: int, topics: int
    ) -> None:
        self.layers, self.experts, self.chosen = layers, experts, chosen
        self._generator = np.random.default_rng(seed)
        self._preset = preset
        shares = layer_shares(preset, layers, self._generator)
        self._scale = {name: np.sqrt(share).astype(np.float32)[:, None] for name, share in shares.items()}
        self._popular = self._normals()
        self._topics = self._normals(topics)
        self._tokens = self._normals(vocabulary).astype(np.float16)
        self._topic_odds = _zipf(topics)
        self._token_odds = _zipf(vocabulary)

    def conversation(self, tokens: int) -> Chosen:
        """The experts of each token of a new conversation, in each layer, ascending: shape [tokens, layers, chosen]."""
        draw, scale = self._generator, self._scale
        topic = self._topics[draw.choice(len(self._topic_odds), p=self._topic_odds)]
        own = np.sqrt(TOPIC_PART) * topic + np.sqrt(1 - TOPIC_PART) * self._normals()
        lasting = (scale["popular"] * self._popular + scale["conversation"] * own).astype(np.float32)
        words = self._words(tokens)
        slow, fast, noise = self._normals(), self._normals(), self._normals()
        chosen = np.empty((tokens, self.layers, self.chosen), np.int16)
        for number, word in enumerate(words):
            self._drift(slow, noise, self._preset.slow_tokens)
            self._drift(fast, noise, self._preset.fast_tokens)
            draw.standard_normal(out=noise, dtype=np.float32)
            scores = lasting + scale["slow"] * slow
            scores += scale["fast"] * fast
            scores += scale["token"] * self._tokens[word]
            scores += scale["noise"] * noise
            chosen[number] = np.argpartition(scores, -self.chosen, axis=1)[:, -self.chosen :]
        chosen.sort(axis=2)
        return chosen

    def _words(self, tokens: int) -> NDArray[np.int64]:
        draw, odds = self._generator, self._token_odds
        repeated = draw.choice(len(odds), REPEATED_WORDS, p=odds)
        any_word = draw.choice(len(odds), tokens, p=odds)
        return np.where(draw.random(tokens) < REPEATED_SHARE, draw.choice(repeated, tokens), any_word)

    def _normals(self, *count: int) -> Floats:
        shape = (*count, self.layers, self.experts)
        return self._generator.standard_normal(shape, dtype=np.float32)

    def _drift(self, state: Floats, scratch: Floats, tokens: float) -> None:
        """One step of a first-order autoregression of unit variance that forgets over so many tokens."""
        keep = np.float32(np.exp(-1 / tokens))
        self._generator.standard_normal(out=scratch, dtype=np.float32)
        scratch *= np.sqrt(1 - keep * keep)
        state *= keep
        state += scratch


def _zipf(count: int) -> NDArray[np.float64]:
    odds = 1 / np.arange(1, count + 1)
    return np.asarray(odds / odds.sum())


def used(chosen: Chosen, experts: int) -> NDArray[Any]:
    """Whether a token uses an expert: booleans of shape [tokens, layers, experts]."""
    marks = np.zeros((*chosen.shape[:2], experts), bool)
    np.put_along_axis(marks, chosen.astype(np.int64), values=True, axis=2)
    return marks


def lag_overlap(chosen: Chosen, experts: int, lag: int = 1) -> float:
    """The share of a token's experts that the token `lag` before it used too."""
    marks = used(chosen, experts)
    return float((marks[:-lag] & marks[lag:]).sum() / marks[lag:].sum())


def entropy(chosen: Chosen, experts: int) -> float:
    """How evenly a layer's choices fall on its experts, mean over the layers: 1 is evenly, 0 is always one."""
    odds = used(chosen, experts).sum(axis=0) / (chosen.shape[0] * chosen.shape[2])
    logs = np.log(odds, out=np.zeros_like(odds), where=odds > 0)
    return float(-(odds * logs).sum(axis=1).mean() / np.log(experts))
