"""Where a benchmark runs: new simulated volumes, or new directories on real ones; all of it gone afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from scripts.bench import deepmem_sim, nvme_standin

MARGIN_BYTES = 256 << 20
DISK_BYTES_MIN = 2 * MARGIN_BYTES

Mode = Callable[[str], None]
"""Sets a slow volume's timing: "fast" while it is written, "slow" while it is measured."""


def memory_available_bytes() -> int:
    """What can be allocated now."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise click.ClickException("/proc/meminfo has no MemAvailable")


def require_memory(needed: int) -> None:
    """Raise ClickException unless that much can be allocated."""
    if needed > memory_available_bytes():
        raise click.ClickException(
            f"the stand-ins and the page cache need {needed >> 20} MiB of memory; use a smaller --size"
        )


@contextmanager
def work_directory() -> Iterator[Path]:
    """A new directory. Compiled programs and plans in it are removed; mounts below it have been taken down by what
    made them, and if that failed nothing here deletes into one."""
    work = Path(tempfile.mkdtemp(prefix="mummufs-bench-"))
    try:
        yield work
    finally:
        for path in work.iterdir():
            if path.is_file():
                path.unlink()
        try:
            work.rmdir()
        except OSError as error:
            click.echo(f"{work} is left: {error.strerror}", err=True)


@contextmanager
def fast_volume(work: Path, name: str, size: int, given: Path | None = None) -> Iterator[Path]:
    """A file system as fast as an NVMe's: a stand-in of `size` bytes, or a new directory in the one given."""
    if given is not None:
        with _inside(given) as directory:
            yield directory
        return
    directory = work / name
    nvme_standin.start(directory, size)
    try:
        yield directory
    finally:
        nvme_standin.stop(directory)


@contextmanager
def slow_volume(work: Path, name: str, size: int, given: Path | None = None) -> Iterator[tuple[Path, Mode]]:
    """A volume as slow as spinning disks, with room for `size` bytes, or a new directory in the one given."""
    if given is not None:
        with _inside(given) as directory:
            yield directory, lambda _mode: os.sync()
        return
    directory = work / name
    with ExitStack() as stack:
        per_disk = max((size + MARGIN_BYTES) // deepmem_sim.DISKS, DISK_BYTES_MIN)
        deepmem_sim.start(directory, per_disk, fast=True)
        stack.callback(deepmem_sim.stop, directory)
        yield directory, lambda mode: deepmem_sim.set_mode(directory, mode)


@contextmanager
def _inside(parent: Path) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="mummufs-bench-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
