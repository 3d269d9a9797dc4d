"""The ways of reading a file that the benchmarks time, each over one file: by fio, and by `replay` where pages are
mapped. Whoever calls has dropped the caches."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import click

from scripts.bench.bench_model import RANGE_BYTES, routed
from scripts.bench.benchlib import run
from scripts.bench.replay import Mode, program, replay, shuffled, whole_in_pieces

START_TIMEOUT_S = 120.0
"""What a load may take beyond its run time."""


@dataclass(frozen=True)
class Sample:
    """One timed run. `seconds` is the time in which `bytes` were read."""

    bytes: int
    seconds: float
    command: str

    @property
    def mb_s(self) -> float:
        """10^6 bytes per second."""
        return self.bytes / self.seconds / 1e6


@dataclass(frozen=True)
class Run:
    """What a load is run with.

    Attributes:
        path: the file.
        limit_s: when to stop, unless the whole file has been read before.
        seed: of what is random; the same for everybody who is compared.
        work: where the compiled program is.
    """

    path: Path
    limit_s: float
    seed: int
    work: Path


class Load(Protocol):
    """One way of reading a file."""

    @property
    def cached(self) -> bool:
        """Whether the data goes through the page cache, so that memory for it has to be touched before."""
        ...

    def measure(self, setup: Run) -> Sample:
        """One run. Raises ClickException if it cannot be done."""
        ...


@dataclass(frozen=True)
class FioLoad:
    """Blocks of one size. With several readers each has a part of the file to itself, so that no block is read twice
    and nothing comes out of the page cache but what read-ahead brought."""

    pattern: str
    block_bytes: int
    readers: int = 1
    direct: bool = False

    @property
    def cached(self) -> bool:
        """Not with O_DIRECT."""
        return not self.direct

    def arguments(self, setup: Run) -> list[str]:
        """fio's command line."""
        part = setup.path.stat().st_size // self.readers
        part -= part % self.block_bytes
        # With --thread no other process is left reading if fio is killed. --invalidate=0: the caller says what is hot.
        return [
            *("fio", "--name=load", f"--filename={setup.path}", "--readonly", "--thread", "--ioengine=psync"),
            *(f"--rw={self.pattern}", f"--bs={self.block_bytes}", f"--direct={int(self.direct)}", "--invalidate=0"),
            *(f"--numjobs={self.readers}", f"--size={part}", f"--offset_increment={part}", "--group_reporting"),
            *(f"--randseed={setup.seed}", f"--runtime={setup.limit_s * 1000:.0f}ms", "--output-format=json"),
        ]

    def measure(self, setup: Run) -> Sample:
        """See Load."""
        command = self.arguments(setup)
        output = run(*command, timeout_s=setup.limit_s * 2 + START_TIMEOUT_S)
        read = json.loads(output[output.index("{") :])["jobs"][0]["read"]
        if not read["io_bytes"] or not read["bw_bytes"]:
            raise click.ClickException(f"fio read nothing: {shlex.join(command)}")
        return Sample(read["io_bytes"], read["io_bytes"] / read["bw_bytes"], shlex.join(command))


@dataclass(frozen=True)
class PageLoad:
    """Every page of the model's ranges touched in a mapping; the ranges in order, in a random one, or those of experts
    as a router has them read.

    With several passes each starts with nothing mapped, and the median pass is what it took: for what is in RAM, where
    one pass is a matter of milliseconds. `whole` reads every byte, as arithmetic on it would; otherwise it is one word
    of every page.
    """

    mode: Mode
    random: bool = False
    routed: bool = False
    passes: int = 1
    whole: bool = False

    @property
    def cached(self) -> bool:
        """Always."""
        return True

    def measure(self, setup: Run) -> Sample:
        """See Load."""
        ranges = whole_in_pieces(setup.path.stat().st_size, RANGE_BYTES)
        if self.random:
            ranges = shuffled(ranges, setup.seed)
        if self.routed:
            ranges = [ranges[i] for i in routed(len(ranges), setup.seed)]
        between = None if self.passes == 1 else _nothing
        mode: Mode = "mmap-whole" if self.whole else self.mode
        steps = [ranges] * self.passes
        times, command = replay(program(setup.work), setup.path, mode, steps, limit_s=setup.limit_s, between=between)
        times.sort(key=lambda time: time.seconds)
        median = times[len(times) // 2]
        return Sample(median.done_bytes, median.seconds, shlex.join(command))


def _nothing() -> None:
    """Between two passes over what is in RAM."""


def read_through(path: Path) -> None:
    """Read a whole file through the page cache, untimed."""
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while file.read(8 << 20):
            pass
