"""What policies are compared by on a real mount: a model's file, what goes before, and the tokens that are timed.

Two are real, the routings in tests/data/traces: the prompt in one pass, then the answer. Two are drawn from a seed that
nothing was chosen on, as scripts/bench/policy draws them: conversations one after the other, with a model of many small
experts and one of few large ones; there an expert's matrices lie together, as in safetensors, and in the real ones each
matrix beside those of other experts, as in GGUF.

All have few layers, and sizes divided by one number, so that the file has the size that was asked for: the shares of
the bytes, and so what fits, are nearly those of the whole model.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from mummufs.core.manifest import Manifest, ManifestRange, RangeTable
from mummufs.core.plan import window_key
from mummufs.core.ranges import ByteRange, FileId
from mummufs.core.simulate import Access, Result, replay
from mummufs.simulation import room_of
from mummufs.store.layout import charge_of
from scripts.bench import traces
from scripts.bench.replay import Range, Step
from scripts.bench.traces import ALIGNMENT_BYTES, Layer, Layout

SEED = 5000
"""No constant of any policy was chosen by looking at it."""


@dataclass(frozen=True)
class Chats:
    """Conversations with one model of scripts/bench/policy. `prompt` and `answer` are tokens in the median."""

    shape: str
    conversations: int
    prompt: int
    answer: int


CHATS = {"qwen_chats": Chats("qwen30", 4, 150, 30), "mixtral_chats": Chats("mixtral", 2, 150, 30)}
TITLES = {
    "qwen": "Qwen3-30B-A3B, real routing",
    "gptoss": "gpt-oss-120b, real routing",
    "qwen_chats": "Qwen3-30B-like, conversations",
    "mixtral_chats": "Mixtral-like, conversations",
}
NAMES = tuple(TITLES)


@dataclass(frozen=True)
class Workload:
    """A model's file, the steps that warm a new mount, and those that are timed: a step is a token or a prompt."""

    layout: Layout
    warmup: Sequence[Step]
    timed: Sequence[Step]

    @property
    def token_bytes(self) -> int:
        """Bytes that a timed step reads, on average."""
        return sum(part.size for step in self.timed for part in step) // len(self.timed)

    def simulated(self, budget_bytes: int, policy: str) -> Result:
        """What the product's own index makes of it with a store of this size; the timed steps alone are counted."""
        listed = [ManifestRange(part.offset, part.size, "") for part in self.layout.ranges()]
        table = RangeTable.from_manifest(Manifest("bench", self.layout.size, listed))
        warmup = [one for step in self.warmup for one in _accesses(table, step)]
        timed = [one for step in self.timed for one in _accesses(table, step)]
        return replay([*warmup, *timed], room_of(budget_bytes), policy, len(warmup), charge_of)


def _accesses(table: RangeTable, step: Step) -> list[Access]:
    """The windows that a step reads, each with the bytes that are asked for and lie in what it was made of."""
    accesses = []
    for part in step:
        wanted = ByteRange(part.offset, part.size)
        for i in table.overlapping(part.offset, part.size):
            window = table.window(i)
            size = wanted.intersection(ByteRange(window.span_offset, window.span_size)).size
            if size:
                whole = 0 if size == window.span_size else size
                accesses.append(Access(window_key(FileId(1, 1), table, i), b"model", whole))
    return accesses


def make(name: str, size: int, tokens: int) -> Workload:
    """A workload by name: a file of at most `size` bytes, of whose trace the last `tokens` steps are timed."""
    layout, steps = _chats(CHATS[name], size) if name in CHATS else _real(name, size)
    if tokens >= len(steps):
        raise click.UsageError(f"--tokens: {name} has only {len(steps)} steps, and some warm the cache")
    return Workload(layout, steps[:-tokens], steps[-tokens:])


def _real(name: str, size: int) -> tuple[Layout, list[Step]]:
    trace = traces.load(name)
    layout = traces.lay_out(trace, size)
    return layout, [traces.prompt_step(trace, layout), *traces.steps(trace, layout, len(trace.tokens))]


def _chats(chats: Chats, size: int) -> tuple[Layout, list[Step]]:
    try:
        models: Any = importlib.import_module("scripts.bench.policy_models")
        recipes: Any = importlib.import_module("scripts.bench.policy_traces")
        random: Any = importlib.import_module("numpy.random")
    except ImportError:
        raise click.ClickException("conversations are drawn with numpy: pip install '.[bench]'") from None
    generator = random.default_rng(SEED)
    shape = models.SHAPES[chats.shape]
    model = models.Model(shape.thinned(shape.layers // traces.LAYERS_MIN), int(generator.integers(1 << 31)))
    factor = max(1.0, int(model.sizes.sum()) / size)
    ranges, end = list[Range](), 0
    for of_range in model.sizes.tolist():
        ranges.append(Range(end, max(1, int(of_range / factor) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES))
        end += ranges[-1].size
    steps: list[Step] = [
        [ranges[number] for of_layer in step.layers for number in of_layer.tolist()]
        for talk in recipes.lengths(generator, chats.conversations, chats.prompt, chats.answer)
        for step in model.conversation(*talk)
    ]
    dense, experts = ranges[: model.experts_start], ranges[model.experts_start :]
    layer = Layer(dense, [[part] for part in experts])
    return Layout(end, [layer], list(range(model.shape.layers)), round(factor)), steps
