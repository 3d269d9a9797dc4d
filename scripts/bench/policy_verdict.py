"""The table: what was wanted of the policy, what came out, and whether that is enough."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mummufs.core.simulate import BELADY
from scripts.bench.policy_cells import OURS, Cell
from scripts.bench.policy_checks import Checks
from scripts.bench.policy_judge import RIVALS
from scripts.bench.policy_traces import BEHIND_RAM

LRU = "LRU"
RAM_SHARE_JUDGED = 0.25
SCALE_MAX = 3.0
"""An access among a hundred times the ranges may cost so many times as much; an O(n) step would cost a hundred."""


@dataclass(frozen=True)
class Figure:
    """One line of the table. `at_most` says which way `wanted` counts."""

    title: str
    value: float
    wanted: float
    at_most: bool

    @property
    def ok(self) -> bool:
        """Whether it is enough."""
        return self.value <= self.wanted if self.at_most else self.value >= self.wanted

    @property
    def verdict(self) -> str:
        """For the table."""
        return "PASS" if self.ok else "miss"


def miss_to_lru(cell: Cell) -> float:
    """Missed bytes over LRU's."""
    return cell.miss[OURS] / cell.miss[LRU]


def gap_closed(cell: Cell) -> float | None:
    """Of what Belady saves over LRU, what ours saves; None where there is nothing to save."""
    gap = cell.miss[LRU] - cell.miss[BELADY]
    return (cell.miss[LRU] - cell.miss[OURS]) / gap if gap > 0 else None


def to_best_rival(cell: Cell) -> float:
    """Hit ratio over the best that any online policy of libcachesim has."""
    return (1 - cell.miss[OURS]) / (1 - min(cell.miss[rival] for rival in RIVALS))


def mean_miss_to_lru(cells: Iterable[Cell], policy: str = OURS) -> float:
    """Geometric mean over the cells."""
    return statistics.geometric_mean(cell.miss[policy] / cell.miss[LRU] for cell in cells)


def figures_of_cells(cells: Sequence[Cell]) -> list[Figure]:
    """The lines that come from traces. Each seed set has its own mean; the others are over all of them."""
    lines = []
    for seed_set in sorted({cell.seed_set for cell in cells}):
        of_set = [cell for cell in cells if cell.seed_set == seed_set]
        title = f"miss bytes against LRU, geometric mean of {len(of_set)} cells, seed set {seed_set}"
        lines.append(Figure(title, mean_miss_to_lru(of_set), 0.83, at_most=True))
    worst = max(cells, key=miss_to_lru)
    where = f"{worst.trace} at {worst.share:.0%}, seed set {worst.seed_set}"
    lines.append(Figure(f"worst cell against LRU ({where})", miss_to_lru(worst), 1.02, at_most=True))
    written = sum(cell.written for cell in cells) / sum(cell.miss[LRU] for cell in cells)
    lines.append(Figure("bytes written to the store against LRU", written, 0.40, at_most=True))
    gaps = [gap for cell in cells if (gap := gap_closed(cell)) is not None]
    lines.append(
        Figure("share of the gap from LRU to Belady that is closed, median", _median(gaps), 0.20, at_most=False)
    )
    lines += _figures_behind_ram(cells)
    return lines


def _figures_behind_ram(cells: Sequence[Cell]) -> list[Figure]:
    lines = []
    for name in BEHIND_RAM:
        judged = [to_best_rival(c) for c in cells if c.trace == name and c.share == RAM_SHARE_JUDGED]
        if judged:
            title = f"{name} at {RAM_SHARE_JUDGED:.0%}: hit ratio over the best rival's, worst seed set"
            lines.append(Figure(title, min(judged), 0.95, at_most=False))
    return lines


def figures_of_checks(checks: Checks) -> list[Figure]:
    """The lines that need no trace."""
    loop, burst, cost, small = (checks[name] for name in ("loop", "burst", "cost", "cost_small"))
    below = 100 * (loop["belady"] - loop["ours"])
    return [
        Figure("loop of 1.5 x the budget: points of hit ratio below Belady", below, 2.0, at_most=True),
        Figure("hot set resident after a cold burst of 10 budgets, same pack", burst["model"], 1.0, at_most=False),
        Figure("hot set resident after a cold burst of 10 budgets, another pack", burst["other"], 1.0, at_most=False),
        Figure("access at 100,000 ranges, in the index, median, us", cost["median"], 5.0, at_most=True),
        Figure(
            "filled miss at 100,000 ranges over one at 1,000", cost["filled"] / small["filled"], SCALE_MAX, at_most=True
        ),
    ]


@dataclass(frozen=True)
class Summary:
    """One trace over the seed sets, for the table of hit ratios."""

    trace: str
    share: float
    hit_ratio: dict[str, float]


def summaries(cells: Sequence[Cell]) -> list[Summary]:
    """Mean hit ratios by policy over the seed sets, in the order of the cells."""
    groups: dict[tuple[str, float], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.trace, cell.share), []).append(cell)
    return [
        Summary(*place, {policy: _hit_ratio(group, policy) for policy in group[0].miss})
        for place, group in groups.items()
    ]


def _hit_ratio(cells: Sequence[Cell], policy: str) -> float:
    return 1 - statistics.fmean(cell.miss[policy] for cell in cells)


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0
