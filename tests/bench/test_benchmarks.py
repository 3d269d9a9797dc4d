"""The benchmarks, as small as they can be: that they run, that what they write is whole, and that nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.benchlib import STATE_DIRECTORY, wait_until
from tests.faultfs.client import REPOSITORY

pytestmark = [
    pytest.mark.mount,
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(os.geteuid() != 0, reason="loop devices and mounts are for root"),
]

SIZE = "128M"
RUN_TIMEOUT_S = 240.0


def mounted_below(directory: Path) -> list[str]:
    """The mountpoints inside a directory."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [point for point in (line.split()[4] for line in lines) if point.startswith(f"{directory}/")]


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """Where a benchmark works. Afterwards nothing is mounted there, no file is left, and no stand-in is known there."""
    work = tmp_path / "work"
    work.mkdir()
    yield work
    assert mounted_below(work) == []
    assert list(work.iterdir()) == []
    assert [path for path in STATE_DIRECTORY.glob("*.json") if str(work) in path.read_text()] == []


def command(name: str, *arguments: str) -> list[str]:
    """A benchmark's command line."""
    return [sys.executable, str(REPOSITORY / "scripts" / "bench" / name), "--size", SIZE, "--rounds", "1", *arguments]


def run(work: Path, name: str, *arguments: str) -> dict[str, Any]:
    """Run a benchmark; the figures that it wrote."""
    path = work.parent / "figures.json"
    words = command(name, "--json", str(path), *arguments)
    environment = {**os.environ, "TMPDIR": str(work)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=RUN_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures: dict[str, Any] = json.loads(path.read_text())
    return figures


def check_rows(figures: dict[str, Any], names: set[str], everybody: set[str]) -> None:
    """Every row is there, with a rate of everybody and what was run."""
    assert set(figures["rows"]) == names
    for row in figures["rows"].values():
        assert set(row["rounds"]) == everybody
        for rounds in row["rounds"].values():
            (one,) = rounds
            assert one["mb_s"] > 0 and one["bytes"] > 0 and one["command"]
        assert set(row["ratio"]) == everybody - {"native"}


def test_read(work: Path) -> None:
    names = {"sequential_8m_buffered", "hot_mmap", "busy_mmap_sequential", "cold_mmap_experts"}
    figures = run(work, "read", *(word for name in names for word in ("--row", name)))
    check_rows(figures, names, {"native", "mount"})
    warm = figures["rows"]["sequential_8m_buffered"]["rounds"]["mount"][0]
    assert warm["bytes"] == 128 << 20
    assert warm["cpu_s_per_gb"] > 0
    assert figures["rows"]["cold_mmap_experts"]["rounds"]["mount"][0]["counters"]["reads.miss_bytes"] > 0
    assert len(figures["cached_to_read"]) == 1
    assert figures["rows"]["busy_mmap_sequential"]["rounds"]["mount"][0]["headers_parsed"] > 0


def test_tokens(work: Path) -> None:
    figures = run(work, "tokens", "--trace", "gptoss", "--tokens", "1", "--cold-tokens", "1", "--mode", "direct")
    check_rows(figures, {"gptoss_warm_direct", "gptoss_cold_direct"}, {"native", "mount"})
    assert figures["traces"]["gptoss"]["ranges"] > 1000


@pytest.mark.skipif(shutil.which("mergerfs") is None, reason="mergerfs is not installed")
def test_peers(work: Path) -> None:
    figures = run(work, "peers", "--peer", "mergerfs", "--row", "random_1m_x4_direct")
    everybody = {"native", "mummufs", "mergerfs"}
    check_rows(figures, {"random_1m_x4_direct"}, everybody)
    rounds = figures["rows"]["random_1m_x4_direct"]["rounds"]
    assert rounds["mergerfs"][0]["source_read_bytes"] >= rounds["mergerfs"][0]["bytes"]
    # A hit that is late, on a busy machine, is answered by the source.
    assert rounds["mummufs"][0]["source_read_bytes"] < rounds["mummufs"][0]["bytes"] // 4


def test_a_benchmark_that_is_ended_leaves_nothing(work: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(work)}
    words = command("read", "--row", "sequential_8m_buffered")
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    with process:
        wait_until(lambda: any(point.endswith("/mount") for point in mounted_below(work)), "the mount", 60.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("read", ("--size", "127M"), "at least 128 MiB, which is 64 ranges"),
        ("peers", ("--size", "64M"), "at least 128 MiB, which is 64 ranges"),
        ("tokens", ("--size", "64M"), "at least 128 MiB"),
        ("read", ("--row", "nonsense"), "no row has nonsense in its name"),
        ("read", ("--size", "many"), "size"),
    ],
)
def test_a_wrong_command_line_is_told(name: str, words: tuple[str, ...], said: str) -> None:
    done = subprocess.run(command(name, *words), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
