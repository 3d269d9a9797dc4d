"""`mummufs verify`: have a mount prove what its store holds, and show how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from mummufs.commands.output import print_json
from mummufs.core.errors import MummufsError
from mummufs.units import parse_size

POLL_S = 0.2

Ask = Callable[..., dict[str, Any]]
"""Asks the daemon of a mount: the name of the request, and its arguments by their names."""


def verify_command(reach: Callable[[str], Ask]) -> click.Command:
    """The command, where this is how the daemon of a mountpoint is reached."""

    @click.command()
    @click.argument("mountpoint")
    @click.option("--against-source", is_flag=True, help="Compare with the source's bytes too; reads the slow volume.")
    @click.option("--sample", type=click.IntRange(min=1), metavar="N", help="N ranges at random, not all.")
    @click.option("--resume", is_flag=True, help="Go on where the last one was interrupted.")
    @click.option("--rate", metavar="SIZE", default="200M", show_default=True, help="Read at most so much a second.")
    @click.option("--background", is_flag=True, help="Start it and return; `status` shows how far it is.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    def verify(mountpoint: str, rate: str, background: bool, as_json: bool, **what: Any) -> None:
        """Prove every range file of the mount at MOUNTPOINT by its checksum.

        What fails is dropped; exit code 1 then.
        """
        ask = reach(mountpoint)
        ask("verify", rate_bytes_per_s=parse_size("rate", rate), **what)
        if background:
            return
        try:
            progress = _watch(partial(ask, "verify_progress"), quiet=as_json)
        except KeyboardInterrupt:
            ask("verify_stop")
            raise MummufsError("interrupted; `mummufs verify --resume` goes on from here") from None
        if as_json:
            print_json(progress)
        else:
            click.echo(
                f"{progress['ranges']} ranges proved, {progress['corrupt']} corrupt, {progress['different']} different"
                f" from the source, {progress['skipped']} skipped"
            )
        if progress["corrupt"] or progress["different"]:
            raise MummufsError("what failed has been dropped from the store; the source answers for it")

    return verify


def _by_socket(mountpoint: str) -> Ask:
    from mummufs import control
    from mummufs.unmount import mummufs_mount, resolved

    path = resolved(mountpoint)
    mummufs_mount(path)
    return partial(control.request, path)


verify = verify_command(_by_socket)


def _watch(ask: Any, *, quiet: bool) -> dict[str, Any]:
    from rich.console import Console  # not with every other command and daemon
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task("verify", total=None)
        while True:
            found: dict[str, Any] = ask()
            bar.update(task, completed=found["bytes"], total=found["bytes_total"])
            if not found["running"]:
                return found
            time.sleep(POLL_S)
