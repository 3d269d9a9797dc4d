"""One cell of the comparison: a trace, a budget, and what every policy makes of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np

from mummufs.core.simulate import BELADY, Access, Outcome, Result, cache_of, run, tally
from scripts.bench import policy_traces
from scripts.bench.launch import REPOSITORY
from scripts.bench.policy_judge import OPTIMUM, RIVALS, Judge
from scripts.bench.policy_traces import Phase, Trace, lru_hits

OURS = "hotness"
SHARES = (0.10, 0.25, 0.50, 0.75)
"""Budgets, of the bytes that the trace reads at all."""
PROCESSES = 2
DIGITS = 6

MADE_BY = (
    *(f"mummufs/core/{name}.py" for name in ("hotness", "index", "policy", "ratings", "simulate")),
    *(f"scripts/bench/policy_{name}.py" for name in ("cells", "judge", "models", "router", "traces")),
    "scripts/bench/traces.py",
)
"""What a cell's figures depend on: cells of an earlier run are kept while none of it has changed."""


@dataclass(frozen=True)
class Cell:
    """The figures of one trace at one budget, all after the warm-up, in bytes of bytes read.

    Attributes:
        miss: by policy: ours, libcachesim's, and our optimum (`belady`).
        answer_miss: ours and LRU's, of what was read for answers alone.
        written: what ours wrote to the store; LRU writes what it misses.
    """

    seed_set: int
    trace: str
    share: float
    budget_bytes: int
    requests: int
    miss: dict[str, float]
    answer_miss: dict[str, float]
    written: float


@dataclass(frozen=True)
class Job:
    """One trace, all budgets."""

    seed_set: int
    trace: str
    thin: int

    @property
    def name(self) -> str:
        """For the file that its cells are kept in."""
        return f"{self.seed_set}-{self.trace}-{self.thin}"


def measure(job: Job) -> list[Cell]:
    """Make the trace and replay it."""
    trace = policy_traces.make(job.trace, job.seed_set, job.thin)
    accesses = trace.accesses()
    with Judge(trace) as judge:
        return [_cell(job, trace, accesses, judge, share) for share in SHARES]


def _cell(job: Job, trace: Trace, accesses: list[Access], judge: Judge, share: float) -> Cell:
    budget = int(share * trace.footprint_bytes)
    ours, outcomes = replayed(trace, accesses, budget, OURS)
    best, _ = replayed(trace, accesses, budget, BELADY)
    miss = {OURS: 1 - ours.hit_ratio, BELADY: 1 - best.hit_ratio}
    miss |= {policy: judge.miss_ratio(policy, budget) for policy in (*RIVALS, OPTIMUM)}
    lru = lru_hits(trace.ranges.tolist(), trace.sizes.tolist(), budget)
    our_hits = np.array([outcome is Outcome.HIT for outcome in outcomes])
    answers = {OURS: answer_miss(trace, our_hits), "LRU": answer_miss(trace, lru)}
    written = ours.written_bytes / ours.read_bytes
    return Cell(job.seed_set, job.trace, share, budget, ours.requests, miss, answers, written)


def replayed(trace: Trace, accesses: list[Access], budget: int, policy: str) -> tuple[Result, list[Outcome]]:
    """A replay with our own code."""
    outcomes = list(run(cache_of(accesses, budget, policy), accesses))
    return tally(policy, budget, accesses, outcomes, trace.warmup), outcomes


def answer_miss(trace: Trace, hits: Any) -> float:
    """Missed bytes over bytes read, of what was read for answers after the warm-up."""
    counted = (trace.phases == Phase.ANSWER) & (np.arange(len(trace.ranges)) >= trace.warmup)
    sizes = trace.sizes[trace.ranges]
    return float(sizes[counted & ~hits].sum() / max(1, sizes[counted].sum()))


def rounded(cell: Cell) -> dict[str, Any]:
    """A cell as JSON, in DIGITS digits after the point."""

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: short(one) for key, one in value.items()}
        return round(value, DIGITS) if isinstance(value, float) else value

    return {key: short(value) for key, value in asdict(cell).items()}


def fingerprint() -> str:
    """Of the code that the figures depend on."""
    digest = hashlib.blake2b(digest_size=8)
    for name in MADE_BY:
        digest.update((REPOSITORY / name).read_bytes())
    return digest.hexdigest()


def measure_all(jobs: Iterable[Job], kept: Path | None) -> Iterator[tuple[Job, list[Cell]]]:
    """Every job's cells, as they are done, over PROCESSES processes.

    Args:
        kept: a directory of cells by job; those of this very code are taken from it, new ones are added.
    """
    waiting = []
    for job in jobs:
        found = None if kept is None else _load(kept, job)
        if found is None:
            waiting.append(job)
        else:
            yield job, found
    if not waiting:
        return
    with Pool(PROCESSES) as pool:
        for job, cells in pool.imap_unordered(_measure, waiting):
            if kept is not None:
                _save(kept, job, cells)
            yield job, cells


def _measure(job: Job) -> tuple[Job, list[Cell]]:
    return job, measure(job)


def _load(kept: Path, job: Job) -> list[Cell] | None:
    path = kept / f"{job.name}.json"
    if not path.exists():
        return None
    record = json.loads(path.read_text())
    return [Cell(**cell) for cell in record["cells"]] if record["fingerprint"] == fingerprint() else None


def _save(kept: Path, job: Job, cells: list[Cell]) -> None:
    kept.mkdir(parents=True, exist_ok=True)
    record = {"fingerprint": fingerprint(), "cells": [rounded(cell) for cell in cells]}
    path = kept / f"{job.name}.json"
    partial = path.with_suffix(".new")
    partial.write_text(json.dumps(record))
    partial.replace(path)
