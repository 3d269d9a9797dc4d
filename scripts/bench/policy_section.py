"""The tables and the plot of docs/policy.md, from the JSON that scripts/bench/policy wrote."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from scripts.bench.figures import Bars
from scripts.bench.policy_bench import COLUMNS, hit_rows, verdict_rows
from scripts.bench.policy_cells import SHARES, Cell
from scripts.bench.policy_judge import LABELS
from scripts.bench.policy_verdict import Figure, miss_to_lru
from scripts.bench.results import markdown


def policy_section(figures: dict[str, Any]) -> tuple[str, Bars]:
    """The verdicts, the policies' means, the hit ratios, and a plot of missed bytes over LRU's."""
    cells = [Cell(**cell) for cell in figures["cells"]]
    lines = [Figure(**{key: one[key] for key in Figure.__dataclass_fields__}) for one in figures["figures"]]
    seeds = ", ".join(map(str, figures["seed_sets"]))
    means = [[name, f"{value:.3f}"] for name, value in figures["miss_to_lru"].items()]
    names = [LABELS.get(column, column) for column in COLUMNS]
    text = [
        f"Seed sets {seeds}; layers: {figures['layers']}; {len(cells)} cells; judge: {figures['judge']}.",
        markdown(("figure", "value", "wanted", ""), verdict_rows(lines)),
        "Missed bytes over LRU's, geometric mean of all cells:",
        markdown(("policy", "missed over LRU's"), means),
        "Hit ratio, % of bytes, means over the seed sets:",
        markdown(("trace", "budget", *names), hit_rows(cells)),
    ]
    return "\n\n".join(text), bars_of(cells)


def bars_of(cells: Sequence[Cell]) -> Bars:
    """A group of bars for each trace, one for each budget: geometric means over the seed sets."""
    bars = Bars("Missed bytes over LRU's, by trace and budget", "times LRU's missed bytes (logarithmic)")
    for trace in dict.fromkeys(cell.trace for cell in cells):
        means: dict[str, float | None] = {}
        for share in SHARES:
            ratios = [miss_to_lru(cell) for cell in cells if (cell.trace, cell.share) == (trace, share)]
            means[f"{share:.0%}"] = statistics.geometric_mean(ratios) if ratios else None
        bars.add(trace, means, None)
    return bars
