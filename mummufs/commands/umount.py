"""`mummufs umount`: end a mount, wait for its daemon, name whoever stands in the way."""

from __future__ import annotations

from pathlib import Path

import click

from mummufs.commands.output import printable
from mummufs.core.errors import MummufsError
from mummufs.unmount import end_mount, mummufs_mount, resolved

STATUS_S = 2.0
"""How long the daemon may take to tell its pid. A hung one is unmounted without."""


@click.command()
@click.argument("mountpoint")
@click.option("--lazy", is_flag=True, help="Detach at once, even where it is in use.")
def umount(mountpoint: str, lazy: bool) -> None:
    """Unmount MOUNTPOINT and wait until its daemon is gone."""
    path = resolved(mountpoint)
    mummufs_mount(path)
    ended = end_mount(path, _daemon_pid(path), lazy=lazy)
    if ended.note is None:
        return
    if not lazy:
        raise MummufsError(ended.note)
    click.echo(f"mummufs: {printable(ended.note)}", err=True)


def _daemon_pid(mountpoint: Path) -> int | None:
    from mummufs import control

    return control.daemon_pid(mountpoint, timeout_s=STATUS_S)
