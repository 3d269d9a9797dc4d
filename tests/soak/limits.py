"""The limits of resources, measured: `scripts/soak limits`. It fails where one is passed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest

from mummufs.core.ratings import GHOSTS_MAX
from mummufs.engine.filler import IN_FLIGHT_BYTES_MAX
from mummufs.mount import HEAT_SAVE_ENV
from tests.mounts.harness import REPOSITORY, opened, why_no_mounts
from tests.soak import leaks
from tests.soak.big import WINDOW_BYTES, write_heat, write_model, write_store
from tests.soak.findings import STOCK_S, Finding, Timed, disk_bytes, memory_bytes
from tests.support.models import write_gguf, write_gguf_split
from tests.support.waiting import wait_for

STORED = 500_000
MODEL_RANGES = 100_000
HOT_RESIDENT, HOT_ABSENT = 100_000, 100_000
HOT_MAX = GHOSTS_MAX
"""Ranges of which a mount takes in the heat. Those that are absent take most memory."""
READERS = 64
RSS_BYTES = 300_000_000
FIRST_STAT_S = 2.0
LAG_P99_MS = 10.0
DESCRIPTORS = 128
SHARDS = 36
MIB = 1 << 20
DU_PAUSE_S = 0.003
READ_RANGES = 16_384
"""Ranges that the cold readers of the large model read: a GiB."""
LAG_S = 180
MARGIN_BYTES = 20_000_000
SAVE_S = 5
TREE_FILES, FOLDER_FILES = 100_000, 1000
NODE_BYTES = 700
"""Of what a file costs that the kernel knows a tenth depends on how full the tables are."""


def check_budget(root: Path) -> list[Finding]:
    """64 cold readers of a model that is four times the budget."""
    source, store = root / "source", root / "store"
    source.mkdir()
    write_gguf(source / "model", layers=range(8), experts=16, dense_bytes=2 * MIB, expert_bytes=512 << 10)
    size = (source / "model").stat().st_size
    budget = size // 4
    peak, done = 0, threading.Event()
    options = ("settle=0", "store_reserve=0", "policy=lru")  # lru, because it fills for as long as it is read
    with Timed(source, store=store, store_size=str(budget), options=options) as m:
        model = m.path("model")

        def read(number: int) -> None:
            with opened(model) as fd:
                for turn in range(2):
                    start = (number * size // READERS + turn * size // 3) % size
                    for at in range(start, start + size // 4, 256 << 10):
                        os.pread(fd, 256 << 10, at % size)

        def watch() -> None:
            nonlocal peak
            while not done.wait(DU_PAUSE_S):
                peak = max(peak, disk_bytes(os.fspath(store)))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            with ThreadPoolExecutor(READERS) as readers:
                list(readers.map(read, range(READERS)))
            status = m.settle()
        finally:
            done.set()
            watcher.join()
    assert status["evictions"]["ranges"] > 0, "nothing was evicted: this has proved nothing"
    return [
        Finding(
            "64 cold readers: most that du saw of the store",
            peak / MIB,
            f"MiB of a budget of {budget / MIB:.0f}",
            (budget + IN_FLIGHT_BYTES_MAX) / MIB,
        ),
        Finding(
            "most bytes in flight meanwhile",
            status["gauges"]["fill_bytes_in_flight_max"] / MIB,
            "MiB",
            IN_FLIGHT_BYTES_MAX / MIB,
        ),
    ]


def check_size(root: Path) -> list[Finding]:
    """A store of half a million ranges, all the heat there can be, a model of 100,000: memory, and the first look.

    Half of the bound is for what is in flight, which is never more than it is said to be. So when nothing is, and
    everything else is as large as it gets at one time, there must be the other half left, and a margin.
    """
    source, store = root / "source", root / "store"
    source.mkdir()
    write_store(store, STORED)
    write_heat(store, 0, HOT_MAX, STORED)
    write_model(source / "model", MODEL_RANGES)
    options = ("settle=0", "store_reserve=0")
    m = Timed(source, store=store, store_size="64G", options=options, check_books=False)
    m.first_path = "model"
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv(HEAT_SAVE_ENV, str(SAVE_S))
        stack.enter_context(m)
        at_rest = memory_bytes(m.pid, "VmRSS")
        assert m.status()["store"]["ranges"] == STORED
        with opened(m.path("model")):
            m.settle()
        with_model = memory_bytes(m.pid, "VmRSS")
        with opened(m.path("model")) as fd, ThreadPoolExecutor(READERS) as readers:
            saves = m.status()["heat"]["saves"]

            def read(number: int) -> None:
                for i in range(number, READ_RANGES, READERS):
                    os.pread(fd, WINDOW_BYTES, i * (MODEL_RANGES // READ_RANGES) * WINDOW_BYTES)

            list(readers.map(read, range(READERS)))
            m.settle()
            status = wait_for(m.status, lambda s: s["heat"]["saves"] > saves, STOCK_S)
            assert status["fills"]["completed"] > 0 and status["errors"]["handler"] == 0, status
            known = status["heat"]["saved_ranges"]
            after, most = memory_bytes(m.pid, "VmRSS"), memory_bytes(m.pid, "VmHWM")
    assert known > 0.95 * HOT_MAX, f"the heat of {known} ranges is known: that is not the most"
    limit = (RSS_BYTES + IN_FLIGHT_BYTES_MAX) / 1e6
    return [
        Finding("500,000 ranges: first stat, after the mount command returned", m.first_stat_s, "s", FIRST_STAT_S),
        Finding("the mount command itself", m.mounted_s, "s"),
        Finding("all ranges accounted for after", m.stock_s, "s"),
        Finding(f"RSS then, with the heat of {HOT_MAX:,}", at_rest / 1e6, "MB", limit),
        Finding("and with a model of 100,000 ranges open", with_model / 1e6, "MB", limit),
        Finding("most RSS, with 64 cold readers", most / 1e6, "MB", limit),
        Finding("RSS then, with nothing in flight", after / 1e6, "MB", (RSS_BYTES - MARGIN_BYTES) / 1e6),
    ]


def check_nodes(root: Path) -> list[Finding]:
    """A tree of 100,000 files that find(1) has walked."""
    source = root / "source"
    for folder in range(TREE_FILES // FOLDER_FILES):
        (source / f"{folder:03}").mkdir(parents=True)
        for i in range(FOLDER_FILES):
            os.close(os.open(source / f"{folder:03}" / f"file-{i:05}.bin", os.O_WRONLY | os.O_CREAT, 0o644))
    m = Timed(source, store=root / "store", options=("settle=0", "store_reserve=0"))
    with m:
        before = memory_bytes(m.pid, "VmRSS")
        subprocess.run(["find", m.path(""), "-size", "+1", "-type", "f"], check=True, timeout=STOCK_S)
        grown = memory_bytes(m.pid, "VmRSS") - before
        nodes = m.status()["gauges"]["nodes"]
    assert nodes > TREE_FILES, f"the kernel knows {nodes} of them: this has proved nothing"
    return [Finding("each of 100,000 files that the kernel knows: RSS", grown / nodes, "bytes", NODE_BYTES)]


def check_lag(root: Path) -> list[Finding]:
    """A million ranges in an index that evicts."""
    store = root / "store"
    write_store(store, STORED)
    write_heat(store, HOT_RESIDENT, HOT_ABSENT, STORED)
    command = [sys.executable, "-m", "tests.soak.lag", os.fspath(store), str(STORED)]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True, timeout=LAG_S)
    found = json.loads(done.stdout)
    assert found["fills"] and found["evictions"], found
    rows = []
    for phase, lag in found["phases"].items():
        limit = LAG_P99_MS if "evict" in phase or phase == "stock-taking" else None
        rows.append(Finding(f"a million ranges, {phase}: lag of the event loop, p99", lag["p99_ms"], "ms", limit))
        rows.append(
            Finding(f"{phase}: most; longest garbage collection {lag['gc_max_ms']:.1f} ms", lag["max_ms"], "ms")
        )
    return rows


def check_descriptors(root: Path) -> list[Finding]:
    """An engine with a split model under a limit of 128 descriptors: every byte right, cold and warm."""
    source, store = root / "source", root / "store"
    source.mkdir()
    shards = write_gguf_split(source, SHARDS, layers=SHARDS, experts=4, dense_bytes=128 << 10, expert_bytes=64 << 10)
    m = Timed(source, store=store, options=("settle=0", "store_reserve=0"))
    m.nofile = DESCRIPTORS
    most = 0
    with m:
        at_rest = len(os.listdir(f"/proc/{m.pid}/fd"))
        fds = [os.open(m.path(path.name), os.O_RDONLY) for path in shards]
        try:
            for _ in range(2):
                for fd, (path, written) in zip(fds, shards.items(), strict=True):
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    for piece in written:
                        assert piece.matches(os.pread(fd, piece.size, piece.offset)), (path, piece.name)
                    most = max(most, len(os.listdir(f"/proc/{m.pid}/fd")))
                status = m.settle()
        finally:
            for fd in fds:
                os.close(fd)
    assert status["fills"]["completed"] and status["reads"]["hits"], "nothing was stored or served: it did not go on"
    return [
        Finding(
            f"descriptors with {SHARDS} files open and read, under a limit of {DESCRIPTORS}", most, "", DESCRIPTORS
        ),
        Finding("descriptors at rest", at_rest, ""),
        Finding("faults of the store meanwhile", status["errors"]["store"], "", 0),
    ]


CHECKS: dict[str, Callable[[Path], list[Finding]]] = {
    "budget": check_budget,
    "size": check_size,
    "nodes": check_nodes,
    "lag": check_lag,
    "descriptors": check_descriptors,
}


@click.command()
@click.option(
    "--hours", default=0.02, show_default=True, help="How long the traffic lasts after which nothing is left."
)
@click.option("--only", multiple=True, type=click.Choice([*CHECKS, "leaks"]), help="These alone.")
@click.option("--seed", default=0, show_default=True, help="Another seed, another order of the traffic.")
def main(hours: float, only: tuple[str, ...], seed: int) -> None:
    """Measure what a mount takes at most, and fail where a limit is passed."""
    reason = why_no_mounts()
    if reason is not None:
        raise click.ClickException(reason)
    checks = dict(CHECKS) | {"leaks": lambda root: leaks.check(root, hours, seed)}
    missed = []
    click.echo("| | measured | at most | |\n| --- | --- | --- | --- |")
    for name, check in checks.items():
        if only and name not in only:
            continue
        with tempfile.TemporaryDirectory(prefix=f"limits-{name}-") as root:
            for finding in check(Path(root)):
                click.echo(finding.row())
                if not finding.passed:
                    missed.append(finding.name)
    if missed:
        raise click.ClickException("passed its limit: " + "; ".join(missed))


if __name__ == "__main__":
    main()
