"""An NVMe stand-in: ext4 on a loop device with direct I/O over a file in a tmpfs.

Reads of it cost what an NVMe's own file system costs in the kernel (page cache, block layer, O_DIRECT rules), at about
the speed of memory.
"""

from __future__ import annotations

from pathlib import Path

import click

from scripts.bench.benchlib import (
    SIZE,
    STATE_DIRECTORY,
    UndoList,
    attach_loop,
    empty_directory,
    mount_tmpfs,
    run,
    signals_raise,
)

KIND = "nvme"
TMPFS_MARGIN_BYTES = 64 << 20


def start(directory: Path, size: int) -> None:
    """Mount a new one of `size` bytes at `directory`. Raises ClickException, and leaves nothing, if it cannot."""
    undo = UndoList(KIND, directory)
    if undo.load():
        raise click.UsageError(f"one is set up at {directory} already; stop it first")
    try:
        empty_directory(directory, undo)
        work = STATE_DIRECTORY / undo.name
        mount_tmpfs(work, size + TMPFS_MARGIN_BYTES, undo)
        image = work / "image"
        with image.open("wb") as file:
            file.truncate(size)
        device = attach_loop(image, undo)
        run("mkfs.ext4", "-q", "-m", "0", "-E", "nodiscard", device)
        undo.add("umount", directory)
        # noinit_itable: no background thread writes inode tables while something is measured.
        run("mount", "-t", "ext4", "-o", "noatime,noinit_itable", device, directory)
        directory.chmod(0o777)
    except BaseException:
        undo.undo()
        raise


def stop(directory: Path) -> None:
    """Take it down with all it holds. Raises ClickException if it is in use; it can then be tried again."""
    undo = UndoList(KIND, directory)
    if not undo.load():
        raise click.UsageError(f"no {KIND} stand-in is set up at {directory}")
    undo.undo()


@click.group(help=__doc__)
def main() -> None:
    """The command line."""


@main.command("start")
@click.argument("directory", type=click.Path(path_type=Path, resolve_path=True))
@click.option("--size", type=SIZE, default="8G", show_default=True)
def start_command(directory: Path, size: int) -> None:
    """Set one up, mounted at DIRECTORY (new or empty)."""
    with signals_raise():
        start(directory, size)


@main.command("stop")
@click.argument("directory", type=click.Path(path_type=Path, resolve_path=True))
def stop_command(directory: Path) -> None:
    """Take it down; all it holds is lost."""
    stop(directory)
