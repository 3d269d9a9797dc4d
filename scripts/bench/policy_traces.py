"""Traces of range reads to judge a policy by: conversations with generated models, and two real routings.

Every trace is drawn from a seed; another seed gives other weights of the router, other conversations and other lengths.
The real ones are the same for every seed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from mummufs.core.ranges import FileId, RangeKey
from mummufs.core.simulate import Access
from scripts.bench import traces
from scripts.bench.policy_models import SHAPES, Model, Ranges, Step

WARMUP_SHARE = 0.2
"""Of a generated trace; the real ones are short and start cold."""
RAM_SHARE = 0.12
"""What an engine's own LRU cache in memory holds of the experts, in the traces behind one."""


class Phase(IntEnum):
    """Why something is read."""

    PROMPT = 0
    ANSWER = 1
    SCAN = 2
    """Somebody reads the whole file."""


@dataclass(frozen=True)
class Trace:
    """Which ranges are read, in order.

    Attributes:
        ranges: their numbers, shape [accesses].
        phases: a Phase for each access.
        sizes: bytes of each range, shape [ranges].
        packs: the number of each range's pack.
        warmup: accesses at the start that are not counted.
    """

    ranges: Ranges
    phases: NDArray[np.uint8]
    sizes: NDArray[np.int64]
    packs: NDArray[np.uint8]
    warmup: int

    @property
    def footprint_bytes(self) -> int:
        """Bytes of all ranges that are read at all."""
        return int(self.sizes[np.unique(self.ranges)].sum())

    def accesses(self) -> list[Access]:
        """For the product's replay: each pack is one file."""
        starts = np.cumsum(self.sizes) - self.sizes
        places = zip(self.packs.tolist(), starts.tolist(), self.sizes.tolist(), strict=True)
        of_range = [
            Access(RangeKey(FileId(1, 1 + pack), start, size), b"pack %d" % pack) for pack, start, size in places
        ]
        return [of_range[number] for number in self.ranges.tolist()]


@dataclass
class _Recorder:
    """Collects what is read, of several models."""

    models: Sequence[Model]

    def __post_init__(self) -> None:
        counts = [len(model.sizes) for model in self.models]
        self._starts = np.cumsum([0, *counts])
        self._ranges: list[Ranges] = []
        self._phases: list[NDArray[np.uint8]] = []

    def add(self, model: int, ranges: Ranges, phase: Phase) -> None:
        self._ranges.append(ranges + self._starts[model])
        self._phases.append(np.full(len(ranges), phase, np.uint8))

    def add_step(self, model: int, step: Step) -> None:
        for of_layer in step.layers:
            self.add(model, of_layer, Phase.PROMPT if step.is_prompt else Phase.ANSWER)

    def trace(self) -> Trace:
        ranges = np.concatenate(self._ranges)
        sizes = np.concatenate([model.sizes for model in self.models])
        counts = [len(model.sizes) for model in self.models]
        packs = np.repeat(np.arange(len(counts), dtype=np.uint8), counts)
        return Trace(ranges, np.concatenate(self._phases), sizes, packs, int(WARMUP_SHARE * len(ranges)))


Lengths = tuple[int, int]
"""Tokens of a prompt and of its answer."""


def lengths(generator: np.random.Generator, count: int, prompt: int, answer: int) -> list[Lengths]:
    """Of so many conversations: lognormal around these medians."""
    prompts = generator.lognormal(np.log(prompt), 0.8, count).clip(8, 4 * prompt)
    answers = generator.lognormal(np.log(answer), 0.5, count).clip(16, 4 * answer)
    return [(int(one), int(other)) for one, other in zip(prompts, answers, strict=True)]


@dataclass(frozen=True)
class Chat:
    """Conversations with one model, one after the other."""

    shape: str
    conversations: int
    prompt: int
    answer: int
    dense_is_read: bool = True
    scan_every: int = 0
    """Before each of so many conversations somebody reads the whole file; 0 is never."""
    clients: int = 1
    """Served at the same time, layer by layer in turn; each has its share of the conversations."""

    def make(self, seed: int, thin: int) -> Trace:
        """The trace of this seed."""
        generator = np.random.default_rng(seed)
        model_seed = int(generator.integers(1 << 31))
        model = Model(SHAPES[self.shape].thinned(thin), model_seed, dense_is_read=self.dense_is_read)
        recorder = _Recorder([model])
        talks = lengths(generator, self.conversations, self.prompt, self.answer)
        if self.clients > 1:
            self._interleave(recorder, talks)
            return recorder.trace()
        for number, talk in enumerate(talks):
            if self.scan_every and number and number % self.scan_every == 0:
                recorder.add(0, model.everything(), Phase.SCAN)
            for step in model.conversation(*talk):
                recorder.add_step(0, step)
        return recorder.trace()

    def _interleave(self, recorder: _Recorder, talks: Sequence[Lengths]) -> None:
        (model,) = recorder.models
        steps = [
            [s for talk in talks[i :: self.clients] for s in model.conversation(*talk)] for i in range(self.clients)
        ]
        for together in zip_longest(*steps):
            running = [step for step in together if step is not None]
            for of_layer in zip_longest(*(step.layers for step in running)):
                for step, ranges in zip(running, of_layer, strict=True):
                    if ranges is not None:
                        recorder.add(0, ranges, Phase.PROMPT if step.is_prompt else Phase.ANSWER)


@dataclass(frozen=True)
class TwoModels:
    """Two models that take turns: each is used for one to three conversations."""

    shapes: tuple[str, str]
    conversations: int
    prompt: int
    answer: int

    def make(self, seed: int, thin: int) -> Trace:
        """The trace of this seed."""
        generator = np.random.default_rng(seed)
        seeds = generator.integers(1 << 31, size=2).tolist()
        models = [Model(SHAPES[shape].thinned(thin), one) for shape, one in zip(self.shapes, seeds, strict=True)]
        recorder, turn = _Recorder(models), 0
        for number, talk in enumerate(lengths(generator, self.conversations, self.prompt, self.answer)):
            if number % 3 == 0 or generator.random() < 0.3:
                turn = 1 - turn
            for step in models[turn].conversation(*talk):
                recorder.add_step(turn, step)
        return recorder.trace()


@dataclass(frozen=True)
class BehindRam:
    """What reaches the mount of a model whose engine keeps the dense ranges and an LRU cache of experts in memory."""

    chat: Chat

    def make(self, seed: int, thin: int) -> Trace:
        """The trace of this seed."""
        trace = self.chat.make(seed, thin)
        budget = int(RAM_SHARE * trace.footprint_bytes)
        missed = ~lru_hits(trace.ranges.tolist(), trace.sizes.tolist(), budget)
        ranges = trace.ranges[missed]
        return Trace(ranges, trace.phases[missed], trace.sizes, trace.packs, int(WARMUP_SHARE * len(ranges)))


@dataclass(frozen=True)
class Real:
    """A real routing: the prompt as one batch, then each token, one range for an expert and one for what is dense."""

    name: str

    def make(self, seed: int, thin: int) -> Trace:
        """The trace, whatever the seed."""
        del seed, thin
        routing = traces.load(self.name)
        layers, experts = len(routing.layers), routing.experts
        sizes = [layer.dense_bytes for layer in routing.layers]
        sizes += [layer.expert_bytes for layer in routing.layers for _ in range(experts)]
        ranges: list[int] = []
        phases: list[int] = []
        for number, step in enumerate([routing.prompt, *routing.tokens]):
            for layer, chosen in enumerate(step):
                read = [layer, *(layers + layer * experts + expert for expert in sorted(chosen))]
                ranges += read
                phases += [Phase.ANSWER if number else Phase.PROMPT] * len(read)
        packs = np.zeros(len(sizes), np.uint8)
        return Trace(np.array(ranges), np.array(phases, np.uint8), np.array(sizes, np.int64), packs, 0)


def lru_hits(ranges: Iterable[int], sizes: Sequence[int], budget_bytes: int) -> NDArray[np.bool_]:
    """Which accesses an LRU cache of bytes would hit: the plain one, on numbers."""
    held: OrderedDict[int, None] = OrderedDict()
    free, hits = budget_bytes, []
    for number in ranges:
        hit = number in held
        hits.append(hit)
        if hit:
            held.move_to_end(number)
        elif sizes[number] <= budget_bytes:
            held[number] = None
            free -= sizes[number]
            while free < 0:
                free += sizes[held.popitem(last=False)[0]]
    return np.array(hits, bool)


Recipe = Chat | TwoModels | BehindRam | Real

RECIPES: dict[str, Recipe] = {
    "qwen30": Chat("qwen30", 16, 150, 70),
    "q235": Chat("q235", 14, 150, 90),
    "gptoss_agent": Chat("gptoss", 24, 1200, 70),
    "dsv_skew": Chat("dsv", 12, 120, 120),
    "flash512": Chat("flash", 12, 120, 130),
    "mixtral": Chat("mixtral", 16, 150, 130),
    "two_models": TwoModels(("gptoss", "glm"), 18, 200, 70),
    "q235_scan": Chat("q235", 14, 150, 80, scan_every=2),
    "q235_experts": Chat("q235", 14, 150, 90, dense_is_read=False),
    "q235_clients": Chat("q235", 14, 150, 90, clients=2),
    "q235_behind_ram": BehindRam(Chat("q235", 14, 150, 90, dense_is_read=False)),
    "gptoss_behind_ram": BehindRam(Chat("gptoss", 24, 1200, 70, dense_is_read=False)),
    "real_qwen": Real("qwen"),
    "real_gptoss": Real("gptoss"),
}
"""By name, in the order of tables."""

BEHIND_RAM = tuple(name for name, recipe in RECIPES.items() if isinstance(recipe, BehindRam))


def make(name: str, seed_set: int, thin: int = 1) -> Trace:
    """A trace by name. `thin` takes one layer of so many, for a quick look."""
    return RECIPES[name].make(seed_set * 100 + list(RECIPES).index(name), thin)
