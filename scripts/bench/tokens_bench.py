"""Seconds per token: what real models read for each token, replayed as an engine reads it.

For each token, layer by layer, the dense ranges and then the experts that the router chose, by pread, by O_DIRECT pread
and through a mapping (default advice, and MADV_RANDOM). Nothing is computed. The page cache is dropped and memory
pre-touched before each token, as if the model were much larger than the memory.

Warm rows compare a mount that has the whole model in its store with a plain copy of the file beside that store. Cold
rows compare a new mount with an empty store, which fills as the tokens pass, with reading the slow volume directly. A
token that takes longer than a limit is cut short, and its time extrapolated by its bytes.

With --policies it is the policies of eviction that are compared: scripts/bench/tokens_policies.py.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from scripts.bench import tokens_policies, traces, workloads
from scripts.bench.bench_mount import STORE_MARGIN_BYTES, BenchMount, is_known
from scripts.bench.benchlib import SIZE, require_root, signals_raise
from scripts.bench.places import MARGIN_BYTES, Mode, fast_volume, require_memory, slow_volume, work_directory
from scripts.bench.read_rows import DEFAULT, VARIANTS
from scripts.bench.replay import Mode as ReadMode
from scripts.bench.replay import Step, StepTime, program, replay
from scripts.bench.results import NATIVE, Results, number, print_table
from scripts.bench.timing import prepare
from scripts.bench.tokens_policies import PoliciesBench

MOUNT = "mount"
MODES: dict[ReadMode, tuple[str, float | None]] = {
    "pread": ("pread", 1.1),
    "direct": ("O_DIRECT pread", 1.1),
    "mmap": ("mmap", 1.45),
    "mmap-random": ("mmap, MADV_RANDOM", 1.0),
}
"""How it is read, and the most that a warm token may take, over the plain copy."""

MODEL_BYTES = 2 << 30
TOKENS, ROUNDS = 6, 5
MODEL_BYTES_MIN = 128 << 20
TOKEN_LIMIT_S = 5.0
COPIES = 3.2
"""What the fast volume holds, in models: the plain copy, the store, and what cold runs fill."""


@dataclass
class TokensBench:
    """One run over one trace."""

    trace_name: str
    work: Path
    slow: Path
    fast: Path
    mode: Mode
    rounds: int
    warm_tokens: int
    cold_tokens: int
    read_modes: Sequence[ReadMode]
    layers_min: int
    options: tuple[str, ...]
    results: Results

    @property
    def _name(self) -> str:
        return f"{self.trace_name}.bin"

    def run(self, size: int) -> None:
        """Make the model, warm the store, and measure every round; what was made is removed."""
        trace = traces.load(self.trace_name)
        layout = traces.lay_out(trace, size, self.layers_min)
        plan = traces.steps(trace, layout, max(self.warm_tokens, self.cold_tokens))
        token_bytes = sum(part.size for step in plan for part in step) // len(plan)
        self.results.facts["traces"][self.trace_name] = {
            "model_bytes": layout.size,
            "layers": layout.chosen,
            "sizes_divided_by": layout.factor,
            "ranges": len(layout.ranges()),
            "token_bytes": token_bytes,
        }
        click.echo(f"{self.trace_name}: making the model", err=True)
        self.mode("fast")
        try:
            traces.write_model(layout, self.slow / self._name)
            shutil.copyfile(self.slow / self._name, self.fast / self._name)
            self._warm_rounds(plan[: self.warm_tokens], token_bytes)
            self.mode("slow")
            self._cold_rounds(plan[: self.cold_tokens], token_bytes)
        finally:
            for directory in (self.slow, self.fast):
                (directory / self._name).unlink(missing_ok=True)

    def _mount(self, store: str, size: int, stack: ExitStack) -> BenchMount:
        options = [*filter(is_known, VARIANTS[DEFAULT]), *self.options]
        stack.callback(shutil.rmtree, self.fast / store, ignore_errors=True)
        budget = size + STORE_MARGIN_BYTES
        mount = BenchMount(self.slow, self.work / "mount", self.fast / store, budget, options)
        self.results.facts["mount"] = shlex.join(mount.command)
        return stack.enter_context(mount)

    def _warm_rounds(self, plan: Sequence[Step], token_bytes: int) -> None:
        with ExitStack() as stack:
            mount = self._mount("store", (self.fast / self._name).stat().st_size, stack)
            click.echo(f"{self.trace_name}: warming the store", err=True)
            mount.warm(self._name)
            for turn in range(self.rounds):
                for read_mode in self.read_modes:
                    title, most = MODES[read_mode]
                    click.echo(f"round {turn + 1} of {self.rounds}: {self.trace_name}, warm, {title}", err=True)
                    wanted = None if most is None else 1 / most
                    row = self.results.row(f"{self.trace_name}_warm_{read_mode}", f"{self.trace_name}: {title}", wanted)
                    for who in (NATIVE, MOUNT) if turn % 2 == 0 else (MOUNT, NATIVE):
                        directory = self.fast if who == NATIVE else mount.mountpoint
                        before = mount.use()
                        one = self._measure(directory / self._name, read_mode, plan, token_bytes)
                        if who == MOUNT:
                            one["counters"] = mount.use().since(before).counters
                        row.add(who, one)

    def _cold_rounds(self, plan: Sequence[Step], token_bytes: int) -> None:
        size = (self.slow / self._name).stat().st_size
        for turn in range(self.rounds):
            for read_mode in self.read_modes:
                title = MODES[read_mode][0]
                click.echo(f"round {turn + 1} of {self.rounds}: {self.trace_name}, cold, {title}", err=True)
                row = self.results.row(f"{self.trace_name}_cold_{read_mode}", f"{self.trace_name}, cold: {title}")
                row.add(NATIVE, self._measure(self.slow / self._name, read_mode, plan, token_bytes))
                with ExitStack() as stack:
                    mount = self._mount("cold-store", size, stack)
                    mount.wait_known(self._name)
                    row.add(MOUNT, self._measure(mount.mountpoint / self._name, read_mode, plan, token_bytes))

    def _measure(self, path: Path, read_mode: ReadMode, plan: Sequence[Step], token_bytes: int) -> dict[str, Any]:
        """One pass over the tokens, each from a cold page cache."""
        data_bytes = 0 if read_mode == "direct" else token_bytes

        def between() -> None:
            prepare(data_bytes)

        between()
        times, command = replay(program(self.work), path, read_mode, plan, limit_s=TOKEN_LIMIT_S, between=between)
        seconds = [token_seconds(time) for time in times]
        wanted_bytes = sum(time.wanted_bytes for time in times)
        return {
            "mb_s": wanted_bytes / sum(seconds) / 1e6,
            "s_per_token": sum(seconds) / len(seconds),
            "s_of_tokens": seconds,
            "cut_short": sum(time.done_bytes < time.wanted_bytes for time in times),
            "bytes": wanted_bytes,
            "command": shlex.join(command),
        }


def token_seconds(time: StepTime) -> float:
    """What a token took, or would have taken at that rate had it not been cut short."""
    if time.done_bytes == 0:
        raise click.ClickException(f"not a byte was read in {time.seconds:.1f} s")
    return time.seconds * time.wanted_bytes / time.done_bytes


def show(results: Results) -> None:
    """The tables that people read: times of the mount over times of the plain copy; speed-ups over the slow volume."""
    about = f"{results.facts['model_bytes'] >> 20} MiB, {results.facts['rounds']} rounds, medians"
    warm, cold = [], []
    for name, row in results.rows.items():
        native, mount, ratio = row.median(NATIVE, "s_per_token"), row.median(MOUNT, "s_per_token"), row.ratio(MOUNT)
        if ratio is None:
            continue
        cells = [row.title, number(native, 4), number(mount, 4)]
        if "_warm_" in name:
            verdict = "" if row.wanted is None else "ok" if ratio >= row.wanted else "MISSED"
            most = "" if row.wanted is None else f"{1 / row.wanted:.3g}"
            warm.append([*cells, f"{1 / ratio:.3f} {verdict}", most])
        else:
            cold.append([*cells, f"{ratio:.2f} x"])
    print_table(f"tokens, warm, {about}", ("trace", "copy s/token", "mount s/token", "mount/copy", "at most"), warm)
    print_table(f"tokens, cold, {about}", ("trace", "direct s/token", "mount s/token", "faster by"), cold)


def run_tokens(
    results: Results, names: Sequence[str], size: int, modes: Sequence[ReadMode], options: tuple[str, ...]
) -> None:
    """Every trace: warm and cold, over a plain copy and over the slow volume."""
    facts = results.facts
    with _volumes(int(COPIES * size) + 2 * MARGIN_BYTES, size) as (work, fast, slow, mode):
        for name in names:
            bench = TokensBench(
                trace_name=name,
                work=work,
                slow=slow,
                fast=fast,
                mode=mode,
                rounds=facts["rounds"],
                warm_tokens=facts["tokens"],
                cold_tokens=facts["cold_tokens"],
                read_modes=modes,
                layers_min=facts["layers_min"],
                options=options,
                results=results,
            )
            with results.noting(name):
                bench.run(size)


def run_policies(
    results: Results, names: Sequence[str], size: int, rounds: int, options: tuple[str, ...], json_path: Path | None
) -> None:
    """Every workload, each policy in each round."""
    with _volumes(size + 2 * MARGIN_BYTES, size) as (work, fast, slow, mode):
        for name in names:
            bench = PoliciesBench(
                name=name,
                work=work,
                slow=slow,
                fast=fast,
                mode=mode,
                rounds=rounds,
                budget_share=results.facts["budget_share"],
                tokens=results.facts["tokens"],
                options=options,
                results=results,
                json_path=json_path,
            )
            with results.noting(name):
                bench.run(size)


@contextmanager
def _volumes(fast_bytes: int, size: int) -> Iterator[tuple[Path, Path, Path, Mode]]:
    require_memory(fast_bytes + int(2.5 * size))
    with signals_raise(), ExitStack() as stack:
        work = stack.enter_context(work_directory())
        fast = stack.enter_context(fast_volume(work, "fast", fast_bytes))
        slow, mode = stack.enter_context(slow_volume(work, "slow", int(1.2 * size)))
        yield work, fast, slow, mode


@click.command(help=__doc__)
@click.option("--size", "size", type=SIZE, help="Of each model. Default: 2G; with --policies 512M.")
@click.option("--rounds", type=click.IntRange(1, 100), help="Default: 5; with --policies 1.")
@click.option(
    "--tokens",
    type=click.IntRange(1, 64),
    help=f"In a warm run: {TOKENS}. With --policies those timed: {tokens_policies.TOKENS}.",
)
@click.option("--cold-tokens", type=click.IntRange(1, 64), default=2, show_default=True, help="In a cold run.")
@click.option(
    *("--layers", "layers_min"),
    type=click.IntRange(1, 64),
    default=traces.LAYERS_MIN,
    show_default=True,
    help="At least. Sizes are divided by what it takes; with one layer they are more like the model's own.",
)
@click.option("--trace", "names", type=click.Choice(workloads.NAMES), multiple=True, help="Only these.")
@click.option("--mode", "modes", type=click.Choice(tuple(MODES)), multiple=True, help="Only these ways of reading.")
@click.option("--policies", is_flag=True, help="Compare policies of eviction, with a store smaller than the model.")
@click.option(
    *("--budget-share", "share"),
    type=click.FloatRange(0.01, 1.0),
    default=tokens_policies.BUDGET_SHARE,
    show_default=True,
    help="With --policies: what the store holds of the model.",
)
@click.option(
    "--mount-option", "options", multiple=True, help="Handed to every `mummufs mount -o`. Can be given again."
)
@click.option(
    *("--json", "json_path"),
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the figures there. With --policies the rounds are added to those it has.",
)
def main(
    size: int | None,
    rounds: int | None,
    tokens: int | None,
    cold_tokens: int,
    layers_min: int,
    names: tuple[str, ...],
    modes: tuple[ReadMode, ...],
    policies: bool,
    share: float,
    options: tuple[str, ...],
    json_path: Path | None,
) -> None:
    """The command line."""
    require_root("the benchmark of tokens")
    size = size or (tokens_policies.MODEL_BYTES if policies else MODEL_BYTES)
    if size < MODEL_BYTES_MIN:
        raise click.UsageError(f"--size is at least {MODEL_BYTES_MIN >> 20} MiB")
    unknown = [name for name in names if not policies and name not in traces.NAMES]
    if unknown or (policies and modes):
        raise click.UsageError(f"--trace {unknown[0]} is for --policies" if unknown else "--policies has no --mode")
    if shutil.which("gcc") is None:
        raise click.ClickException("gcc is not installed: apt-get install gcc")
    if policies:
        facts = {"model_bytes": size, "budget_share": share, "tokens": tokens or tokens_policies.TOKENS}
        results = tokens_policies.taken_up(json_path, facts)
        run_policies(results, names or workloads.NAMES, size, rounds or 1, options, json_path)
        tokens_policies.show(results)
    else:
        facts = {"model_bytes": size, "rounds": rounds or ROUNDS, "tokens": tokens or TOKENS}
        results = Results("tokens", {**facts, "cold_tokens": cold_tokens, "layers_min": layers_min, "traces": {}})
        run_tokens(results, names or traces.NAMES, size, modes or tuple(MODES), options)
        show(results)
    results.finish(json_path)
