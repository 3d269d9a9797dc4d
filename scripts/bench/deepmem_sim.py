"""A slow volume: a real btrfs raid0 over four simulated spinning disks.

Each disk has one head, 8.3 ms for a request that does not follow the last one, and 180 MB/s (see disk_model.py). A loop
device with direct I/O lies on each, so that no page cache hides the model, and btrfs over the four.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from scripts.bench import disk_check
from scripts.bench.benchlib import (
    SIZE,
    STATE_DIRECTORY,
    UndoList,
    attach_loop,
    empty_directory,
    mount_tmpfs,
    run,
    signals_raise,
    spawn_mount,
)
from scripts.bench.launch import REPOSITORY

KIND = "deepmem"
DISKS = 4
TMPFS_MARGIN_BYTES = 64 << 20
DISK_SIZE_MIN_BYTES = 128 << 20


def start(directory: Path, size_per_disk: int, images: Path | None = None, *, fast: bool = False) -> None:
    """Mount a new one at `directory`. Raises ClickException, and leaves nothing, if it cannot."""
    undo = UndoList(KIND, directory)
    if undo.load():
        raise click.UsageError(f"one is set up at {directory} already; stop it first")
    if size_per_disk < DISK_SIZE_MIN_BYTES:
        raise click.UsageError(f"btrfs needs at least {DISK_SIZE_MIN_BYTES >> 20} MiB on each disk")
    try:
        empty_directory(directory, undo)
        work = STATE_DIRECTORY / undo.name
        mount_tmpfs(work, (0 if images else DISKS * size_per_disk) + TMPFS_MARGIN_BYTES, undo)
        devices = [_add_disk(number, images or work, work, size_per_disk, undo) for number in range(DISKS)]
        run("mkfs.btrfs", "--quiet", "--force", "--nodiscard", "-d", "raid0", "-m", "raid1", *devices)
        others = ",".join(f"device={device}" for device in devices[1:])
        undo.add("umount", directory)
        run("mount", "-t", "btrfs", "-o", f"noatime,nodiscard,{others}", devices[0], directory)
        directory.chmod(0o777)
        set_mode(directory, "fast" if fast else "slow")
    except BaseException:
        undo.undo()
        raise


def _add_disk(number: int, images: Path, work: Path, size: int, undo: UndoList) -> str:
    """One image, its FUSE disk and its loop device; returns the device."""
    image = images / f"disk{number}.img"
    if image.exists():
        raise click.UsageError(f"{image} is there already")
    undo.add("unlink", image)
    with image.open("wb") as file:
        file.truncate(size)
    mountpoint = work / f"disk{number}"
    mountpoint.mkdir()
    command: list[str | Path] = [
        "env",
        f"PYTHONPATH={REPOSITORY}",
        sys.executable,
        "-m",
        "scripts.bench.fuse_disk",
        image,
        mountpoint,
    ]
    spawn_mount(command, mountpoint, work / f"disk{number}.log", undo)
    undo.facts.setdefault("controls", []).append(str(mountpoint / "control"))
    device = attach_loop(mountpoint / "disk", undo)
    queue = Path(f"/sys/block/{Path(device).name}/queue")
    (queue / "rotational").write_text("1")
    if "mq-deadline" in (queue / "scheduler").read_text():
        (queue / "scheduler").write_text("mq-deadline")  # what sorts and merges for a real disk
    return device


def stop(directory: Path) -> None:
    """Take it down with all it holds. Raises ClickException if it is in use; it can then be tried again."""
    undo = _loaded(directory)
    before = mode_of(directory)
    set_mode(directory, "fast")  # what is still to be written need not take its time
    try:
        undo.undo()
    except click.ClickException:
        set_mode(directory, before)
        raise


def set_mode(directory: Path, mode: str) -> None:
    """ "slow": the disks take their time. "fast": they take none."""
    os.sync()
    for control in _loaded(directory).facts.get("controls", []):
        try:
            Path(control).write_text(mode)
        except OSError:
            pass  # a disk that a failed stop has taken down, or one that died


def counters(directory: Path) -> dict[str, float]:
    """What the disks have done together: "requests", "seeks", "bytes", and "busy_s" of their heads."""
    every = [json.loads(Path(control).read_text()) for control in _loaded(directory).facts.get("controls", [])]
    return {key: sum(of_disk[key] for of_disk in every) for key in ("requests", "seeks", "bytes", "busy_s")}


def mode_of(directory: Path) -> str:
    """ "slow" or "fast"; "fast" if the disks are gone."""
    for control in _loaded(directory).facts.get("controls", []):
        try:
            status: dict[str, str] = json.loads(Path(control).read_text())
        except OSError:
            continue
        return status["mode"]
    return "fast"


def _loaded(directory: Path) -> UndoList:
    undo = UndoList(KIND, directory)
    if not undo.load():
        raise click.UsageError(f"no deepmem-sim is set up at {directory}")
    return undo


DIRECTORY = click.argument("directory", type=click.Path(path_type=Path, resolve_path=True))


@click.group(help=__doc__)
def main() -> None:
    """The command line."""


@main.command("start")
@DIRECTORY
@click.option("--size-per-disk", type=SIZE, default="1G", show_default=True)
@click.option(
    "--images",
    type=click.Path(path_type=Path, resolve_path=True, exists=True, file_okay=False),
    help="Where the images go; memory otherwise.",
)
@click.option("--fast", is_flag=True, help="Start with the timing off, to be filled.")
def start_command(directory: Path, size_per_disk: int, images: Path | None, fast: bool) -> None:
    """Set one up, mounted at DIRECTORY (new or empty)."""
    with signals_raise():
        start(directory, size_per_disk, images, fast=fast)


@main.command("stop")
@DIRECTORY
def stop_command(directory: Path) -> None:
    """Take it down; all it holds is lost."""
    stop(directory)


@main.command("slow")
@DIRECTORY
def slow_command(directory: Path) -> None:
    """Turn the timing on. What was written before is on the disks first."""
    set_mode(directory, "slow")


@main.command("fast")
@DIRECTORY
def fast_command(directory: Path) -> None:
    """Turn the timing off, to fill it with data."""
    set_mode(directory, "fast")


@main.command("check")
@DIRECTORY
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--size", type=SIZE, default="512M", show_default=True, help="How large a file is read.")
def check_command(directory: Path, as_json: bool, size: int) -> None:
    """Measure it, and fail unless it behaves like spinning disks."""
    with signals_raise():
        before = mode_of(directory)
        try:
            figures = disk_check.measure(directory, size, lambda mode: set_mode(directory, mode))
        finally:
            set_mode(directory, before)
    faults = disk_check.faults(figures)
    if as_json:
        print(json.dumps({**figures.as_json(), "faults": faults}, indent=2))
    else:
        table = Table("read with O_DIRECT", "MB/s", "ratio", "wanted")
        for row in disk_check.rows(figures):
            table.add_row(*row)
        Console().print(table)
    if faults:
        raise click.ClickException("; ".join(faults))
