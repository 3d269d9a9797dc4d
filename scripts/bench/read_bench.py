"""The read benchmark: the store's own file system, a mummufs hit and a mummufs cold miss, side by side in one run.

Every run starts with the kernel's page cache dropped and memory pre-touched. The columns take turns in each round, and
the table shows the medians. native: a copy of the model on the file system that the store is on. hit: every byte comes
from a range file (asserted by the mount's counters). miss: a new mount with an empty store, the file's ranges known.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from scripts.bench import deepmem_sim, nvme_standin
from scripts.bench.bench_model import make_model
from scripts.bench.bench_mount import BenchMount
from scripts.bench.benchlib import SIZE, require_root, signals_raise
from scripts.bench.fio_load import LOADS, Load, measure

COLUMNS = ("native", "hit", "miss")
RUNTIME_S = 5
QUICK_RUNTIME_S = 2
QUICK_MODEL_BYTES = 256 << 20
MODEL_BYTES_MIN = 64 << 20
MARGIN_BYTES = 256 << 20
STORE_COPIES = 3.3
"""What the store's file system holds: the native copy, the full store, and one that a miss run fills."""

SOURCE_COPIES = 1.3
SIMULATION_COPIES = STORE_COPIES + SOURCE_COPIES

Rates = dict[str, dict[str, list[float]]]
"""MB/s of each round, by load and column."""


@dataclass(frozen=True)
class Bench:
    """Where everything is. `mode` sets the source's timing: "fast" while it is written, "slow" otherwise."""

    source: Path
    store: Path
    work: Path
    model_bytes: int
    rounds: int
    runtime_s: int
    columns: tuple[str, ...]
    mode: Callable[[str], None]
    rates: Rates = field(default_factory=dict)

    @property
    def pretouch_bytes(self) -> int:
        """Room for the model in the page cache twice over (source and mount), within what is free."""
        return min(2 * self.model_bytes, memory_available_bytes() // 2)


def memory_available_bytes() -> int:
    """What can be allocated now."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise click.ClickException("/proc/meminfo has no MemAvailable")


def run_bench(bench: Bench) -> None:
    """Fill the source, warm the hit mount, and measure every round."""
    bench.mode("fast")
    model = make_model(bench.source, bench.model_bytes)
    native = bench.store / model.name
    if "native" in bench.columns:
        shutil.copyfile(model, native)
    with ExitStack() as stack:
        hit: BenchMount | None = None
        if "hit" in bench.columns:
            mount = BenchMount(bench.source, bench.work / "hit", bench.store / "hit-store", 2 * bench.model_bytes)
            hit = stack.enter_context(mount)
            click.echo("warming the store", err=True)
            hit.warm(model.name)
        bench.mode("slow")
        for number in range(bench.rounds):
            for load in LOADS:
                click.echo(f"round {number + 1} of {bench.rounds}: {load.title}", err=True)
                rates = bench.rates.setdefault(load.name, {column: [] for column in bench.columns})
                if "native" in bench.columns:
                    rates["native"].append(measure(load, native, bench.runtime_s, bench.pretouch_bytes))
                if hit is not None:
                    rates["hit"].append(_measure_hit(bench, load, hit, model.name))
                if "miss" in bench.columns:
                    rates["miss"].append(_measure_miss(bench, load, model.name))


def _measure_hit(bench: Bench, load: Load, mount: BenchMount, name: str) -> float:
    """One run whose every byte has to come from the store."""
    before = mount.reads()
    rate = measure(load, mount.mountpoint / name, bench.runtime_s, bench.pretouch_bytes)
    after = mount.reads()
    for key in ("miss_bytes", "bypass_bytes"):
        if after[key] != before[key]:
            raise click.ClickException(f"{after[key] - before[key]} {key} in a run of hits: {load.title}")
    if after["hit_bytes"] == before["hit_bytes"]:
        raise click.ClickException(f"no byte reached mummufs: {load.title}")
    return rate


def _measure_miss(bench: Bench, load: Load, name: str) -> float:
    """One run on a new mount with an empty store."""
    store = bench.store / "miss-store"
    try:
        with BenchMount(bench.source, bench.work / "miss", store, 2 * bench.model_bytes) as mount:
            mount.wait_known(name)
            before = mount.reads()
            rate = measure(load, mount.mountpoint / name, bench.runtime_s, bench.pretouch_bytes)
            if mount.reads()["miss_bytes"] == before["miss_bytes"]:
                raise click.ClickException(f"no byte was a miss in a run of misses: {load.title}")
        return rate
    finally:
        shutil.rmtree(store, ignore_errors=True)


@contextmanager
def simulated(work: Path, model_bytes: int) -> Iterator[tuple[Path, Path, Callable[[str], None]]]:
    """A slow source and an NVMe stand-in of their own: (source, store, mode)."""
    needed = int(SIMULATION_COPIES * model_bytes) + 2 * MARGIN_BYTES
    if needed + 2 * model_bytes > memory_available_bytes():
        raise click.ClickException(
            f"the stand-ins and the page cache need {needed + 2 * model_bytes >> 20} MiB of memory; use a smaller"
            " --model-size, or --source and --store"
        )
    source, store = work / "source", work / "store"
    with ExitStack() as stack:
        per_disk = int(SOURCE_COPIES * model_bytes + MARGIN_BYTES) // deepmem_sim.DISKS
        deepmem_sim.start(source, max(per_disk, 2 * MARGIN_BYTES), fast=True)
        stack.callback(deepmem_sim.stop, source)
        nvme_standin.start(store, int(STORE_COPIES * model_bytes) + MARGIN_BYTES)
        stack.callback(nvme_standin.stop, store)
        yield source, store, lambda mode: deepmem_sim.set_mode(source, mode)


@contextmanager
def given(source: Path, store: Path) -> Iterator[tuple[Path, Path, Callable[[str], None]]]:
    """New directories in a source and a store that are there already, removed afterwards."""
    with ExitStack() as stack:
        inner = [Path(tempfile.mkdtemp(prefix="mummufs-bench-", dir=directory)) for directory in (source, store)]
        for directory in inner:
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
        yield inner[0], inner[1], lambda _mode: os.sync()


def _remove_if_empty(directory: Path) -> None:
    """All below it is removed by what made it. If that failed, deleting here might delete into a mount."""
    try:
        directory.rmdir()
    except OSError as error:
        click.echo(f"{directory} is left: {error.strerror}", err=True)


def medians(rates: Rates) -> dict[str, dict[str, float]]:
    """The median MB/s of each load and column, and each column's ratio to native as `<column>_to_native`."""
    summary = {load: {column: statistics.median(values) for column, values in by.items()} for load, by in rates.items()}
    for by in summary.values():
        if "native" in by:
            by.update({f"{column}_to_native": by[column] / by["native"] for column in ("hit", "miss") if column in by})
    return summary


def show(summary: dict[str, dict[str, float]], columns: tuple[str, ...]) -> None:
    """The table that people read."""
    table = Table("cold read", *(f"{column} MB/s" for column in columns), "hit/native", "miss/native")
    for load in LOADS:
        by = summary[load.name]
        ratios = [by.get(f"{column}_to_native") for column in ("hit", "miss")]
        cells = [f"{by[column]:.1f}" for column in columns] + [f"{r:.3g}" if r is not None else "" for r in ratios]
        table.add_row(load.title, *cells)
    Console().print(table)


EXISTING = click.Path(path_type=Path, resolve_path=True, exists=True, file_okay=False)


@click.command(help=__doc__)
@click.option("--source", type=EXISTING, help="A directory on a slow volume; a simulated one otherwise.")
@click.option("--store", type=EXISTING, help="A directory on an NVMe; a simulated one otherwise.")
@click.option("--model-size", type=SIZE, default=None, help="1G by default, 256M with --quick.")
@click.option("--rounds", type=click.IntRange(1, 100), default=None, help="3 by default, 1 with --quick.")
@click.option("--quick", is_flag=True, help="A small model, one round, short runs.")
@click.option("--column", "columns", type=click.Choice(COLUMNS), multiple=True, help="Only these columns.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there.")
def main(
    source: Path | None,
    store: Path | None,
    model_size: int | None,
    rounds: int | None,
    quick: bool,
    columns: tuple[str, ...],
    json_path: Path | None,
) -> None:
    """The command line."""
    require_root("the read benchmark")
    if (source is None) != (store is None):
        raise click.UsageError("give both --source and --store, or neither")
    if shutil.which("fio") is None:
        raise click.ClickException("fio is not installed: apt-get install fio")
    model_bytes = model_size or (QUICK_MODEL_BYTES if quick else 1 << 30)
    if model_bytes < MODEL_BYTES_MIN:
        raise click.UsageError(f"--model-size is at least {MODEL_BYTES_MIN >> 20} MiB")
    with signals_raise(), ExitStack() as stack:
        work = Path(tempfile.mkdtemp(prefix="mummufs-bench-"))
        stack.callback(_remove_if_empty, work)
        places = given(source, store) if source and store else simulated(work, model_bytes)
        inner_source, inner_store, mode = stack.enter_context(places)
        bench = Bench(
            source=inner_source,
            store=inner_store,
            work=work,
            model_bytes=model_bytes,
            rounds=rounds or (1 if quick else 3),
            runtime_s=QUICK_RUNTIME_S if quick else RUNTIME_S,
            columns=tuple(column for column in COLUMNS if not columns or column in columns),
            mode=mode,
        )
        run_bench(bench)
    summary = medians(bench.rates)
    show(summary, bench.columns)
    if json_path is not None:
        figures = {"model_bytes": model_bytes, "rounds_mb_s": bench.rates, "medians": summary}
        json_path.write_text(json.dumps(figures, indent=2) + "\n")
