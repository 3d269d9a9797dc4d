"""Policies compared on a real mount: what is read, whose turn it is, and what is made of the figures."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest

from mummufs.core.simulate import BELADY
from scripts.bench import plots_bench, tokens_policies, workloads
from scripts.bench.results import Results, RowResult
from scripts.bench.tokens_policies import POLICIES, faults, next_policy, taken_up

SIZE = 8 << 20
SIMULATED = {"hotness": 10.0, "lru": 20.0, "lfu": 15.0, "decay": 10.1, BELADY: 5.0}
FACTS = {"model_bytes": SIZE, "budget_share": 0.25, "tokens": 4}


def results_of(seconds: dict[str, list[float]], names: tuple[str, ...] = ("qwen",)) -> Results:
    """Results of models with these seconds per token, and what SIMULATED says of each."""
    simulated = {
        policy: {"hit_ratio": 1 - missed / 100, "missed_bytes": missed} for policy, missed in SIMULATED.items()
    }
    results = Results(tokens_policies.BENCH, {**FACTS, "traces": {name: {"simulated": simulated} for name in names}})
    for name in names:
        for policy, of_policy in seconds.items():
            for one in of_policy:
                figures: dict[str, Any] = {"mb_s": 1 / one, "s_per_token": one, "hit_ratio": 0.5, "disk_seeks": 7.0}
                results.row(name, "a model").add(policy, {**figures, "disk_bytes": 2e6, "written_bytes": 1e6})
    return results


@pytest.mark.parametrize("name", workloads.NAMES)
def test_a_workload_reads_ranges_of_its_file(name: str) -> None:
    pytest.importorskip("numpy")
    workload = workloads.make(name, SIZE, 4)
    ranges = workload.layout.ranges()
    assert all(before.offset + before.size == after.offset for before, after in pairwise(ranges))
    assert workload.layout.size == ranges[-1].offset + ranges[-1].size <= SIZE
    assert len(workload.timed) == 4 and len(workload.warmup) > 4
    known = set(ranges)
    assert all(part in known for step in (*workload.warmup, *workload.timed) for part in step)
    assert workloads.make(name, SIZE, 4) == workload


def test_a_simulation_counts_what_the_timed_steps_read() -> None:
    workload = workloads.make("gptoss", SIZE, 4)
    result = workload.simulated(workload.layout.size // 4, "lru")
    assert result.read_bytes == 4 * workload.token_bytes
    assert 0 < result.hit_bytes < result.read_bytes
    assert workload.simulated(2 * workload.layout.size, BELADY).miss_bytes <= result.miss_bytes


def test_more_tokens_than_there_are_is_told() -> None:
    with pytest.raises(click.UsageError, match="gptoss has only 65 steps"):
        workloads.make("gptoss", SIZE, 65)


def test_every_round_begins_with_another_policy() -> None:
    row, turns = RowResult("a model"), []
    for _ in range(3 * len(POLICIES)):
        turns.append(next_policy(row))
        row.add(turns[-1], {})
    rounds = [turns[i : i + len(POLICIES)] for i in range(0, len(turns), len(POLICIES))]
    assert all(set(of_round) == set(POLICIES) for of_round in rounds)
    assert [of_round[0] for of_round in rounds] == list(POLICIES[:3])


def test_only_a_clear_difference_has_an_order() -> None:
    seconds = {"hotness": 1.1, "decay": 1.0, "lfu": 1.2, "lru": 1.15}
    assert faults(seconds, SIMULATED) == ["lfu should be faster than lru"]
    assert faults({**seconds, "lru": 1.3}, SIMULATED) == []


def test_rounds_are_added_to_those_of_a_run_with_the_same_options(tmp_path: Path) -> None:
    path = tmp_path / "policies.json"
    assert taken_up(path, FACTS).rows == {}
    results_of({"lru": [1.0]}).write(path)
    again = taken_up(path, FACTS)
    again.row("qwen", "a model").add("lru", {"mb_s": 1, "s_per_token": 3.0})
    assert again.rows["qwen"].median("lru", "s_per_token") == 2.0
    assert again.facts["traces"] == results_of({}).facts["traces"]
    with pytest.raises(click.ClickException, match="another run"):
        taken_up(path, {**FACTS, "tokens": 5})


def test_tables_and_plot_come_from_the_json() -> None:
    figures = json.loads(json.dumps(results_of({"lru": [2.0, 4.0], "hotness": [1.5]}).as_json()))
    table, bars = plots_bench.policies_section(figures)
    assert "| a model | hotness | 1.500 | 0.500 | 0.500 | 0.900 | 2.0 | 7 | 1.0 |" in table
    assert "|  | lru | 3.000 | 1.000 | 0.500 | 0.800 | 2.0 | 7 | 1.0 |" in table
    assert "simulated order hotness, lru; measured the same." in table
    assert (bars.labels, bars.values["hotness"]) == (["a model"], [0.5])


def test_all_models_have_an_order_too() -> None:
    """A pair that one model has the other way round need not be so for all; a policy that one has not is left out."""
    results = results_of({"lru": [2.0], "lfu": [2.1], "hotness": [1.0]}, ("qwen", "qwen_chats"))
    results.rows["qwen_chats"].rounds["lfu"][0]["s_per_token"] = 1.5
    results.row("qwen", "a model").add("decay", {"mb_s": 1.0, "s_per_token": 9.0})
    figures = json.loads(json.dumps(results.as_json()))
    seconds, missed = tokens_policies.overall(figures)
    assert seconds == pytest.approx({"hotness": 0.5, "lfu": (1.05 * 0.75) ** 0.5, "lru": 1.0})
    assert missed == pytest.approx({"hotness": 0.5, "lfu": 0.75, "lru": 1.0})
    table, _ = plots_bench.policies_section(figures)
    assert "| All models, geometric mean | hotness |  | 0.500 |  |  |  |  |  |" in table
    assert "lfu should be faster than lru" in table  # of the one
    assert (
        "mean: simulated order hotness, lfu, lru; measured the same. Missed bytes over lru's, simulated: hotness"
        in table
    )


def test_the_documents_have_a_place_for_the_table() -> None:
    for document in (plots_bench.DOCUMENT, plots_bench.POLICY_DOCUMENT):
        plots_bench.replace_section(document.read_text(), "policies", "")
