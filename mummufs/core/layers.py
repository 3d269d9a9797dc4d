"""Which layer of a model a range belongs to, by its name, and sums by layer.

Names are those of the headers: `blk.3.attn_q.weight`, `model.layers.3.mlp.up_proj.weight`, `layer3.expert7.gate`. A
window that was joined of small neighbours has the names of its first and last; the first one counts.
"""

from __future__ import annotations

from typing import NamedTuple

from mummufs.core.manifest import RangeKind

LAYER_WORDS = frozenset({"blk", "layers", "layer", "h", "block", "blocks"})
"""What stands before the number of a layer."""
LAYER_DIGITS_MAX = 6

HEADER = "header"
OTHER = "other"
"""Embeddings, the output, the last norm: what belongs to no layer."""


def layer_of(name: str, kind: RangeKind) -> str:
    """The layer of a range: its number as text, or HEADER or OTHER."""
    if kind is RangeKind.HEADER:
        return HEADER
    parts = name.partition(" ")[0].split(".")
    for word, number in zip(parts, [*parts[1:], ""], strict=True):
        if word in LAYER_WORDS and _is_number(number):
            return str(int(number))
        if word.startswith("layer") and _is_number(word.removeprefix("layer")):
            return str(int(word.removeprefix("layer")))
    return OTHER


class LayerRow(NamedTuple):
    """One layer of one model: bytes of its windows, and how many of them are in the store.

    Attributes:
        dense_bytes: of everything that is no expert's, headers too.
    """

    model: str
    layer: str
    dense_bytes: int
    dense_resident_bytes: int
    expert_bytes: int
    expert_resident_bytes: int


class LayerSums:
    """Adds windows up by model and layer."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], list[int]] = {}

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, model: str, name: str, kind: RangeKind, size: int, *, resident: bool) -> None:
        """Count a window of `size` bytes."""
        sums = self._sums.setdefault((model, layer_of(name, kind)), [0, 0, 0, 0])
        at = 2 if kind is RangeKind.EXPERT else 0
        sums[at] += size
        sums[at + 1] += size if resident else 0

    def rows(self) -> list[LayerRow]:
        """The sums, by model; in each the header, the layers by number, and the rest."""
        return [LayerRow(*key, *self._sums[key]) for key in sorted(self._sums, key=_place)]


def _place(key: tuple[str, str]) -> tuple[str, int, int]:
    model, layer = key
    if layer == HEADER:
        return model, 0, 0
    return (model, 2, 0) if layer == OTHER else (model, 1, int(layer))


def _is_number(text: str) -> bool:
    return 0 < len(text) <= LAYER_DIGITS_MAX and text.isascii() and text.isdecimal()
