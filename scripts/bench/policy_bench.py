"""The eviction policy, by the product's own code, against LRU, its rivals and the optimum.

Traces of mixture-of-experts models (scripts/bench/policy_router.py says how they are made, tests/data/traces holds two
real ones) are replayed at budgets of 10, 25, 50 and 75 % of the bytes they read. Libcachesim plays LRU, ARC, S3-FIFO,
SIEVE, W-TinyLFU and Belady on the same traces. Exits 1 if a figure of the table is missed.

The whole run takes about twenty minutes on two cores, with --thin 4 about five. It can be cut short and taken up again:
with --kept DIR the cells that are done are kept there, and used for as long as the code that they depend on has not
changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from scripts.bench.policy_cells import OURS, Cell, Job, measure_all, rounded
from scripts.bench.policy_checks import check_all
from scripts.bench.policy_judge import LABELS, OPTIMUM, RIVALS, library
from scripts.bench.policy_traces import BEHIND_RAM, RECIPES
from scripts.bench.policy_verdict import (
    Figure,
    figures_of_cells,
    figures_of_checks,
    mean_miss_to_lru,
    summaries,
)
from scripts.bench.results import Results, print_table

SEED_SETS = (2000, 3000, 4000)
"""None of them was tuned on: constants were chosen on seed set 0."""
LONGEST_FIRST = ("q235_clients", "q235", "qwen30", "q235_scan", "gptoss_agent", "flash512", "q235_experts")
QUICK_THIN = 4
QUICK_TRACES = ("gptoss_agent", "dsv_skew", "two_models", "mixtral", *BEHIND_RAM, "real_qwen", "real_gptoss")


def jobs_of(seed_sets: Sequence[int], names: Sequence[str], thin: int) -> list[Job]:
    """The traces to make, the long ones first, so that both processes end together."""
    order = sorted(names, key=lambda name: LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST))
    return [Job(seed_set, name, thin) for name in order for seed_set in seed_sets]


def in_order(cells: Sequence[Cell]) -> list[Cell]:
    """By seed set, trace and budget."""
    names = list(RECIPES)
    return sorted(cells, key=lambda cell: (cell.seed_set, names.index(cell.trace), cell.share))


def verdict_rows(figures: Sequence[Figure]) -> list[list[str]]:
    """For a table."""
    return [
        [one.title, f"{one.value:.3f}", f"{'<=' if one.at_most else '>='} {one.wanted:g}", one.verdict]
        for one in figures
    ]


def hit_rows(cells: Sequence[Cell]) -> list[list[str]]:
    """Hit ratios in percent, means over the seed sets, for a table."""
    return [
        [one.trace, f"{one.share:.0%}", *(f"{100 * one.hit_ratio[policy]:.1f}" for policy in COLUMNS)]
        for one in summaries(cells)
    ]


COLUMNS = ("LRU", OURS, *(rival for rival in RIVALS if rival != "LRU"), OPTIMUM)


def mean_rows(cells: Sequence[Cell]) -> dict[str, float]:
    """Missed bytes against LRU by policy, geometric means over all cells."""
    return {LABELS.get(policy, policy): mean_miss_to_lru(cells, policy) for policy in COLUMNS}


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="One seed set, a quarter of the layers, fewer traces: a minute.")
@click.option("--seeds", "seed_sets", type=int, multiple=True, default=SEED_SETS, show_default=True, help="Seed sets.")
@click.option("--thin", type=click.IntRange(1), default=1, show_default=True, help="Take one layer of so many.")
@click.option("--trace", "names", type=click.Choice(list(RECIPES)), multiple=True, help="Only these; default all.")
@click.option("--kept", type=click.Path(path_type=Path, file_okay=False), help="Keep the cells that are done here.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write all figures here.")
def main(
    quick: bool,
    seed_sets: tuple[int, ...],
    thin: int,
    names: tuple[str, ...],
    kept: Path | None,
    json_path: Path | None,
) -> None:
    """The command line."""
    version = library().__version__
    names = names or (QUICK_TRACES if quick else tuple(RECIPES))
    seed_sets = seed_sets[:1] if quick else seed_sets
    jobs = jobs_of(seed_sets, names, max(thin, QUICK_THIN) if quick else thin)
    cells: list[Cell] = []
    for number, (job, done) in enumerate(measure_all(jobs, kept), start=1):
        cells += done
        click.echo(f"{number} of {len(jobs)}: {job.trace}, seed set {job.seed_set}", err=True)
    cells = in_order(cells)
    checks = check_all(OURS)
    figures = [*figures_of_cells(cells), *figures_of_checks(checks)]
    print_table("hit ratio, % of bytes", ("trace", "budget", *(LABELS.get(c, c) for c in COLUMNS)), hit_rows(cells))
    print_table("", ("figure", "value", "wanted", ""), verdict_rows(figures))
    facts: dict[str, Any] = {
        "judge": f"libcachesim {version}",
        "layers": f"one of {jobs[0].thin}",
        "seed_sets": seed_sets,
        "figures": [{**asdict(one), "ok": one.ok} for one in figures],
        "miss_to_lru": mean_rows(cells),
        "checks": checks,
        "cells": [rounded(cell) for cell in cells],
    }
    Results("policy", facts).finish(json_path)
    missed = [one.title for one in figures if not one.ok]
    if missed:
        raise click.ClickException(f"missed: {'; '.join(missed)}")
