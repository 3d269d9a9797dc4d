"""Runs `replay.c`: ranges of a file read as an engine reads them, each step timed, at the speed of compiled code."""

from __future__ import annotations

import functools
import os
import random
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from scripts.bench.benchlib import run

Mode = Literal["mmap", "mmap-random", "mmap-whole", "pread", "direct"]

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = ("-std=gnu11", "-O3", "-Wall", "-Wextra", "-Werror")
END_OF_STEP = (0, 0)


@dataclass(frozen=True)
class Range:
    """Bytes of a file."""

    offset: int
    size: int


Step = Sequence[Range]


@dataclass(frozen=True)
class StepTime:
    """What one step took. `done_bytes` is less than `wanted_bytes` where the time limit cut it short."""

    wanted_bytes: int
    done_bytes: int
    seconds: float


@functools.cache
def program(directory: Path) -> Path:
    """Compile the program into `directory`, once. Raises ClickException in the compiler's words."""
    path = directory / "replay"
    run("gcc", *FLAGS, "-o", path, SOURCE)
    return path


def shuffled(ranges: Sequence[Range], seed: int) -> list[Range]:
    """The same ranges in a random order that is the same for the same seed."""
    order = list(ranges)
    random.Random(seed).shuffle(order)
    return order


def whole_in_pieces(size: int, piece_bytes: int) -> list[Range]:
    """A file of `size` bytes as ranges of `piece_bytes`, in order; the last one may be shorter."""
    return [Range(offset, min(piece_bytes, size - offset)) for offset in range(0, size, piece_bytes)]


def replay(
    executable: Path,
    path: Path,
    mode: Mode,
    steps: Iterable[Step],
    *,
    limit_s: float = 0.0,
    between: Callable[[], None] | None = None,
) -> tuple[list[StepTime], list[str]]:
    """Read the steps' ranges of `path`; the time of each, and the command line.

    Args:
        executable: what `program` gave.
        path: the file.
        mode: how it is read.
        steps: each non-empty, timed on its own.
        limit_s: a step that takes longer is cut short; 0 for no limit.
        between: called between two steps, while the reader holds no page of the file.

    Raises:
        ClickException: with the program's words.
    """
    with _plan_file(executable.parent, steps) as plan:
        command = [os.fspath(executable), os.fspath(path), mode, f"{limit_s:g}", str(int(between is not None))]
        process = subprocess.Popen(
            [*command, os.fspath(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                times = list(_times(process, between))
            except BaseException:
                process.kill()
                raise
            told = process.stderr.read().strip() if process.stderr is not None else ""
    if process.returncode:
        raise click.ClickException(f"{' '.join(command)} failed: {told or process.returncode}")
    return times, [*command, "PLAN"]


def _times(process: subprocess.Popen[str], between: Callable[[], None] | None) -> Iterator[StepTime]:
    assert process.stdout is not None and process.stdin is not None
    for line in process.stdout:
        wanted, done, nanoseconds = map(int, line.split())
        yield StepTime(wanted, done, nanoseconds / 1e9)
        if between is not None:
            between()
            try:
                process.stdin.write("\n")
                process.stdin.flush()
            except BrokenPipeError:
                return  # that was the last step
    process.stdin.close()


@contextmanager
def _plan_file(directory: Path, steps: Iterable[Step]) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(dir=directory, prefix="plan-") as file:
        for step in steps:
            for part in step:
                file.write(struct.pack("=QQ", part.offset, part.size))
            file.write(struct.pack("=QQ", *END_OF_STEP))
        file.flush()
        yield Path(file.name)
