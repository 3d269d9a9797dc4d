"""Policies side by side on a real mount over slow disks, with a store that holds a share of the model.

Each policy has a mount and a store of its own, new each time. The workload's first steps warm it up, with the disks'
timing off, since nothing there is timed; the last ones are timed one by one, each with caches dropped and memory
pre-touched. Everything is read by O_DIRECT pread, so that each read reaches the mount and the kernel's read-ahead helps
nobody. Rounds begin with another policy each.

Beside the seconds stands what `mummufs.core.simulate` makes of the same steps. The order is as simulated if of any two
policies whose missed bytes differ there by more than a noise, the one that misses less takes less time. It is told for
each model, and for all of them, by geometric means over LRU's, as `scripts/bench/policy` tells missed bytes.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click

from mummufs.core.simulate import BELADY
from scripts.bench import deepmem_sim, workloads
from scripts.bench.bench_mount import BenchMount, is_known
from scripts.bench.places import Mode
from scripts.bench.read_rows import DEFAULT, VARIANTS
from scripts.bench.replay import StepTime, program, replay
from scripts.bench.results import Results, RowResult, number, print_table
from scripts.bench.timing import prepare
from scripts.bench.traces import write_model
from scripts.bench.workloads import Workload

POLICIES = ("hotness", "lru", "lfu", "decay")
REFERENCE = "lru"
NOISE = 0.03
"""Missed bytes that differ by less are as good as equal."""
MODEL_BYTES = 512 << 20
BUDGET_SHARE = 0.25
TOKENS = 40
BENCH = "policies"
ALL = "All models, geometric mean"
COLUMNS = (
    *("model", "policy", "s/token", "over lru's", "hit ratio", "simulated", "from disks, MB/token"),
    *("seeks/token", "written, MB/token"),
)


@dataclass
class PoliciesBench:
    """One run over one workload."""

    name: str
    work: Path
    slow: Path
    fast: Path
    mode: Mode
    rounds: int
    budget_share: float
    tokens: int
    options: tuple[str, ...]
    results: Results
    json_path: Path | None
    """Written after each measurement, so that a run that is cut short can be taken up."""

    def run(self, size: int) -> None:
        """Make the model and measure every policy in every round; what was made is removed."""
        workload = workloads.make(self.name, size, self.tokens)
        budget = int(self.budget_share * workload.layout.size)
        self._tell(workload, budget)
        row = self.results.row(self.name, workloads.TITLES[self.name])
        path = self.slow / f"{self.name}.bin"
        self.mode("fast")
        try:
            write_model(workload.layout, path)
            for _ in range(self.rounds * len(POLICIES)):
                policy = next_policy(row)
                click.echo(f"{self.name}: {policy}", err=True)
                row.add(policy, self._measure(workload, budget, path.name, policy))
                self.results.write(self.json_path)
        finally:
            self.mode("fast")
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.mummufs.json").unlink(missing_ok=True)

    def _tell(self, workload: Workload, budget: int) -> None:
        simulated = {policy: workload.simulated(budget, policy) for policy in (*POLICIES, BELADY)}
        self.results.facts["traces"][self.name] = {
            "model_bytes": workload.layout.size,
            "sizes_divided_by": workload.layout.factor,
            "ranges": len(workload.layout.ranges()),
            "budget_bytes": budget,
            "token_bytes": workload.token_bytes,
            "warmup_steps": len(workload.warmup),
            "simulated": {
                policy: {
                    "hit_ratio": one.hit_ratio,
                    "missed_bytes": one.miss_bytes / self.tokens,
                    "written_bytes": one.written_bytes / self.tokens,
                }
                for policy, one in simulated.items()
            },
        }

    def _measure(self, workload: Workload, budget: int, name: str, policy: str) -> dict[str, Any]:
        """One policy from an empty store."""
        options = [*filter(is_known, VARIANTS[DEFAULT]), f"policy={policy}", *self.options]
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self.fast / "store", ignore_errors=True)
            mount = stack.enter_context(
                BenchMount(self.slow, self.work / "mount", self.fast / "store", budget, options)
            )
            mount.wait_known(name)
            path = mount.mountpoint / name
            self.mode("fast")
            replay(program(self.work), path, "direct", workload.warmup)
            mount.wait_filled()
            self.mode("slow")
            before, disks_before = mount.use(), deepmem_sim.counters(self.slow)
            prepare(0)
            times, command = replay(program(self.work), path, "direct", workload.timed, between=lambda: prepare(0))
            mount.wait_filled()
            disks = {key: value - disks_before[key] for key, value in deepmem_sim.counters(self.slow).items()}
            figures = _figures(times, mount.use().since(before).counters, disks)
            return {**figures, "command": f"{shlex.join(mount.command)}; {shlex.join(command)}"}


def _figures(times: Sequence[StepTime], counters: Mapping[str, float], disks: Mapping[str, float]) -> dict[str, Any]:
    seconds, wanted = sum(time.seconds for time in times), sum(time.wanted_bytes for time in times)
    hit = counters.get("reads.hit_bytes", 0)
    missed = counters.get("reads.miss_bytes", 0) + counters.get("reads.bypass_bytes", 0)
    return {
        "mb_s": wanted / seconds / 1e6,
        "bytes": wanted,
        "s_per_token": seconds / len(times),
        "s_of_tokens": [time.seconds for time in times],
        "hit_ratio": hit / (hit + missed),
        "missed_bytes": missed / len(times),
        "written_bytes": counters.get("fills.bytes", 0) / len(times),
        "disk_bytes": disks["bytes"] / len(times),
        "disk_seeks": disks["seeks"] / len(times),
        "disk_busy_s": disks["busy_s"] / deepmem_sim.DISKS / len(times),
        "counters": dict(counters),
    }


def next_policy(row: RowResult) -> str:
    """Whose turn it is: of those measured least often the first, in an order that is another in each round."""
    counts = [len(row.rounds.get(policy, ())) for policy in POLICIES]
    turn = min(counts)
    order = range(turn, turn + len(POLICIES))
    return next(POLICIES[i % len(POLICIES)] for i in order if counts[i % len(POLICIES)] == turn)


def faults(seconds: Mapping[str, float], missed: Mapping[str, float]) -> list[str]:
    """The pairs of policies that are the other way round than simulated; those that nearly tie there do not count.

    Args:
        seconds: each policy's seconds per token, measured.
        missed: each policy's missed bytes, simulated.
    """
    told = []
    for pair in combinations(seconds, 2):
        less, more = sorted(pair, key=lambda policy: missed[policy])
        if missed[less] * (1 + NOISE) < missed[more] and seconds[less] >= seconds[more]:
            told.append(f"{less} should be faster than {more}")
    return told


def rows(figures: Mapping[str, Any]) -> list[list[str]]:
    """The table, from the JSON: medians over the rounds, the quickest policy of each model first."""
    table = []
    for name, row in figures["rows"].items():
        result, simulated = RowResult(row["title"], None, row["rounds"]), figures["traces"][name]["simulated"]
        title, seconds = row["title"], seconds_of(result)
        for policy in sorted(seconds, key=seconds.__getitem__):
            over = seconds[policy] / seconds[REFERENCE] if REFERENCE in seconds else None
            megabytes = [(result.median(policy, key) or 0.0) / 1e6 for key in ("disk_bytes", "written_bytes")]
            table.append(
                [
                    *(title, policy, number(seconds[policy], 3), number(over, 3)),
                    *(number(result.median(policy, "hit_ratio"), 3), number(simulated[policy]["hit_ratio"], 3)),
                    *(number(megabytes[0], 1), number(result.median(policy, "disk_seeks"), 0)),
                    number(megabytes[1], 1),
                ]
            )
            title = ""
    title, (seconds, _) = ALL, overall(figures)
    for policy in sorted(seconds, key=seconds.__getitem__):
        table.append([title, policy, "", number(seconds[policy], 3), *[""] * (len(COLUMNS) - 4)])
        title = ""
    return table


def overall(figures: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """Each policy's seconds measured and its missed bytes simulated, both over LRU's: geometric means over the models.

    Of the policies that every model has; of none where there is one model only, or one has no LRU.
    """
    models = []
    for name, row in figures["rows"].items():
        seconds = seconds_of(RowResult(row["title"], None, row["rounds"]))
        models.append((seconds, figures["traces"][name]["simulated"]))
    if len(models) < 2 or any(REFERENCE not in seconds for seconds, _ in models):
        return {}, {}
    everywhere = [policy for policy in POLICIES if all(policy in seconds for seconds, _ in models)]
    measured, missed = {}, {}
    for policy in everywhere:
        measured[policy] = geometric_mean([of[policy] / of[REFERENCE] for of, _ in models])
        missed[policy] = geometric_mean(
            [of[policy]["missed_bytes"] / of[REFERENCE]["missed_bytes"] for _, of in models]
        )
    return measured, missed


def seconds_of(row: RowResult) -> dict[str, float]:
    """Each policy's seconds per token, medians over the rounds."""
    medians = {policy: row.median(policy, "s_per_token") for policy in row.rounds}
    return {policy: seconds for policy, seconds in medians.items() if seconds is not None}


def verdicts(figures: Mapping[str, Any]) -> list[str]:
    """For each model, and for all of them, whether the order is as simulated."""
    sentences = []
    for name, row in figures["rows"].items():
        simulated = figures["traces"][name]["simulated"]
        missed = {policy: simulated[policy]["missed_bytes"] for policy in row["rounds"]}
        sentences.append(_verdict(row["title"], seconds_of(RowResult(row["title"], None, row["rounds"])), missed))
    seconds, missed = overall(figures)
    if seconds:
        over = ", ".join(f"{policy} {missed[policy]:.3f}" for policy in sorted(missed, key=missed.__getitem__))
        sentences.append(f"{_verdict(ALL, seconds, missed)} Missed bytes over lru's, simulated: {over}.")
    return sentences


def _verdict(title: str, seconds: Mapping[str, float], missed: Mapping[str, float]) -> str:
    order = ", ".join(sorted(missed, key=missed.__getitem__))
    return f"{title}: simulated order {order}; {'; '.join(faults(seconds, missed)) or 'measured the same'}."


def taken_up(path: Path | None, facts: dict[str, Any]) -> Results:
    """New results, or those of an earlier run with the same facts, to add rounds to. Raises ClickException else."""
    results = Results(BENCH, {**facts, "traces": {}})
    if path is None or not path.exists():
        return results
    before = json.loads(path.read_text())
    if before["bench"] != BENCH or any(before.get(key) != value for key, value in facts.items()):
        raise click.ClickException(f"{path} has the figures of another run; remove it, or give its options again")
    results.facts["traces"] = before["traces"]
    results.notes = before["notes"]
    for name, row in before["rows"].items():
        results.rows[name] = RowResult(row["title"], None, row["rounds"])
    return results


def show(results: Results) -> None:
    """The table that people read."""
    figures = results.as_json()
    about = f"{figures['model_bytes'] >> 20} MiB, {figures['budget_share']:.0%} of it in the store, medians"
    print_table(f"policies, {about}", COLUMNS, rows(figures))
    for sentence in verdicts(figures):
        click.echo(sentence)
