"""The bench of the policy: its traces are like the published ones, and its judge and we agree."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from mummufs.core.simulate import BELADY, BeladyCache, IndexCache, replay, run, tally
from scripts.bench import plots_bench, policy_traces
from scripts.bench.policy_cells import OURS, SHARES, Cell, Job, answer_miss, measure_all, rounded
from scripts.bench.policy_judge import NEVER, OPTIMUM, Judge, records
from scripts.bench.policy_models import SHAPES, Model
from scripts.bench.policy_router import PRESETS, Router, entropy, lag_overlap, layer_shares
from scripts.bench.policy_section import policy_section
from scripts.bench.policy_traces import Phase, Trace, lru_hits
from scripts.bench.policy_verdict import figures_of_cells, gap_closed, miss_to_lru, to_best_rival

SMALL = 1 << 20


def trace_of(numbers: Sequence[int], sizes: Sequence[int], warmup: int = 0) -> Trace:
    phases = np.full(len(numbers), Phase.ANSWER, np.uint8)
    packs = np.zeros(len(sizes), np.uint8)
    return Trace(np.array(numbers), phases, np.array(sizes, np.int64), packs, warmup)


def skewed(count: int, ranges: int, seed: int = 1) -> Trace:
    draw = np.random.default_rng(seed)
    numbers = (ranges * draw.random(count) ** 3).astype(np.int64)
    return trace_of(numbers.tolist(), (SMALL * (1 + draw.integers(4, size=ranges))).tolist(), warmup=count // 5)


@pytest.mark.parametrize(
    ("preset", "layers", "experts", "chosen", "overlap", "even"),
    [
        ("qwen3", 48, 128, 8, 0.45, 0.766),
        ("gptoss", 36, 128, 2, 0.21, 0.625),
        ("skew", 16, 256, 6, 0.18, None),
        ("mixtral", 32, 8, 2, 0.35, None),
    ],
)
def test_the_router_is_like_published_ones(
    preset: str, layers: int, experts: int, chosen: int, overlap: float, even: float | None
) -> None:
    router = Router(PRESETS[preset], layers, experts, chosen, seed=1, vocabulary=200, topics=8)
    talks = [router.conversation(96) for _ in range(3)]
    assert np.mean([lag_overlap(talk, experts) for talk in talks]) == pytest.approx(overlap, abs=0.04)
    if even is not None:
        assert np.mean([entropy(talk, experts) for talk in talks]) == pytest.approx(even, abs=0.03)


@pytest.mark.parametrize("preset", list(PRESETS))
def test_the_parts_of_a_score_add_up(preset: str) -> None:
    shares = layer_shares(PRESETS[preset], 32, np.random.default_rng(1))
    assert np.sum(list(shares.values()), axis=0) == pytest.approx(np.ones(32))
    assert all((share >= 0).all() for share in shares.values())


def test_a_token_reads_dense_ranges_and_its_experts_layer_by_layer() -> None:
    shape = SHAPES["qwen30"].thinned(12)
    prompt, *answer = Model(shape, 1).conversation(20, 2)
    assert (prompt.is_prompt, [step.is_prompt for step in answer]) == (True, [False, False])
    assert {len(step.layers) for step in answer} == {shape.layers + 1}, "one run for each layer, and the head"
    assert {len(run) for run in answer[0].layers[:-1]} == {2 + shape.chosen * len(shape.parts)}
    assert sum(map(len, prompt.layers)) > sum(map(len, answer[0].layers))


def test_traces_come_from_their_seed() -> None:
    one, same, other = (policy_traces.make("mixtral", seed, 8) for seed in (1, 1, 2))
    assert np.array_equal(one.ranges, same.ranges)
    assert not np.array_equal(one.ranges[:1000], other.ranges[:1000])


def test_clients_that_are_served_together_read_in_turn() -> None:
    alone = policy_traces.Chat("mixtral", 2, 20, 20).make(1, 8)
    together = policy_traces.Chat("mixtral", 2, 20, 20, clients=2).make(1, 8)
    assert len(alone.ranges) == len(together.ranges)
    dense = np.flatnonzero(together.ranges == 0)
    assert np.diff(dense).min() < len(together.ranges) / 100


def test_two_models_are_two_packs() -> None:
    trace = policy_traces.TwoModels(("gptoss", "glm"), 4, 20, 20).make(1, 8)
    assert {access.pack for access in trace.accesses()} == {b"pack 0", b"pack 1"}
    assert {access.key.file.inode for access in trace.accesses()} == {1, 2}


def test_behind_ram_only_misses_are_left() -> None:
    chat = policy_traces.Chat("gptoss", 2, 20, 40, dense_is_read=False)
    whole, behind = chat.make(1, 8), policy_traces.BehindRam(chat).make(1, 8)
    hits = lru_hits(whole.ranges.tolist(), whole.sizes.tolist(), int(0.12 * whole.footprint_bytes))
    assert len(behind.ranges) == (~hits).sum() < len(whole.ranges)


def test_a_real_trace_reads_every_layer_of_every_token() -> None:
    trace = policy_traces.make("real_qwen", 1)
    answers = trace.ranges[trace.phases == Phase.ANSWER]
    assert len(answers) == 128 * 48 * (1 + 6)
    assert (answers < 48).sum() == 128 * 48


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_the_judge_agrees_about_lru_and_belady_to_three_digits(share: float) -> None:
    pytest.importorskip("libcachesim")
    for trace in (skewed(20_000, 400), policy_traces.make("real_gptoss", 1)):
        accesses, budget = trace.accesses(), int(share * trace.footprint_bytes)
        caches = (("LRU", IndexCache(budget, "lru")), (OPTIMUM, BeladyCache(accesses, budget, bypass=False)))
        with Judge(trace) as judge:
            for theirs, ours in caches:
                result = tally(theirs, budget, accesses, run(ours, accesses), trace.warmup)
                assert 1 - result.hit_ratio == pytest.approx(judge.miss_ratio(theirs, budget), abs=0.0005)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_index_under_lru_is_lru(share: float) -> None:
    trace = skewed(5_000, 200)
    budget = int(share * trace.footprint_bytes)
    hits = lru_hits(trace.ranges.tolist(), trace.sizes.tolist(), budget)
    assert replay(trace.accesses(), budget, "lru").hits == hits.sum()


def test_records_state_the_next_use() -> None:
    rows = records(trace_of([0, 1, 0, 1, 2], [4096, 8192, 4096]), 4096)
    assert rows["next_use"].tolist() == [3, 4, NEVER, NEVER, NEVER]
    assert rows["size"].tolist() == [1, 2, 1, 2, 1]


def test_what_answers_miss_is_counted_alone_and_after_the_warm_up() -> None:
    trace = trace_of([0, 1, 0, 1], [1, 3], warmup=1)
    trace.phases[3] = Phase.PROMPT
    assert answer_miss(trace, np.array([False, False, True, False])) == 3 / 4


def test_cells_are_kept_until_the_code_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("libcachesim")
    job = Job(1, "real_gptoss", 1)
    ((_, cells),) = measure_all([job], tmp_path)
    assert [cell.share for cell in cells] == [0.10, 0.25, 0.50, 0.75]
    path = tmp_path / f"{job.name}.json"
    written = path.stat().st_mtime_ns
    ((_, again),) = measure_all([job], tmp_path)
    assert again == [Cell(**rounded(cell)) for cell in cells] and path.stat().st_mtime_ns == written
    monkeypatch.setattr("scripts.bench.policy_cells.fingerprint", lambda: "other code")
    ((_, anew),) = measure_all([job], tmp_path)
    assert anew == cells and path.stat().st_mtime_ns > written


def cell(trace: str, ours: float, written: float, share: float = 0.25) -> Cell:
    miss = {OURS: ours, BELADY: 0.2, "Belady": 0.2, "LRU": 0.6, "ARC": 0.5}
    miss |= dict.fromkeys(("S3FIFO", "Sieve", "WTinyLFU"), 0.55)
    return Cell(1, trace, share, 100, 10, miss, {}, written)


def test_the_table_says_what_is_missed() -> None:
    good, bad = cell("q235_behind_ram", 0.4, 0.2), cell("q235_behind_ram", 0.63, 0.6)
    assert miss_to_lru(good) == pytest.approx(2 / 3)
    assert gap_closed(good) == pytest.approx(0.5)
    assert to_best_rival(good) == pytest.approx(0.6 / 0.5)
    assert [figure.ok for figure in figures_of_cells([good])] == [True] * 5
    assert [figure.ok for figure in figures_of_cells([bad])] == [False] * 5


def test_the_document_gets_the_table_and_a_plot_of_the_cells(tmp_path: Path) -> None:
    cells = [cell("q235", 0.3, 0.1, share) for share in SHARES]
    figures = {
        "seed_sets": [1],
        "layers": "one of 1",
        "judge": "libcachesim",
        "figures": [{**asdict(one), "ok": one.ok} for one in figures_of_cells(cells)],
        "miss_to_lru": {"hotness": 0.5},
        "cells": [rounded(one) for one in cells],
    }
    text, bars = policy_section(json.loads(json.dumps(figures)))
    assert "| bytes written to the store against LRU | 0.167 | <= 0.4 | PASS |" in text
    assert "| q235 | 25% | 40.0 | 70.0 |" in text
    assert bars.values["25%"] == [pytest.approx(0.5)]


def test_the_document_has_a_place_for_the_table() -> None:
    plots_bench.replace_section(plots_bench.POLICY_DOCUMENT.read_text(), "policy", "")
