"""`mummufs mount`: check, start the daemon, return when the mount answers; or be the daemon with --foreground."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import click

from mummufs import config as configuration
from mummufs.commands.mountoptions import mount_options
from mummufs.commands.output import printable
from mummufs.config import MountConfig
from mummufs.core.errors import MummufsError, UsageError
from mummufs.launch import mount_in_background, prepare
from mummufs.options import OWN_OPTIONS

_EPILOG = "Options of -o, besides mount(8)'s: " + ", ".join(
    ["allow_other", "offline_reads", *(f"{name}={value}" for name, value in OWN_OPTIONS.items())]
)


@click.command(epilog=_EPILOG)
@mount_options("${}", "Mount options, as in an fstab line.")
@click.option("--ready-fd", type=click.IntRange(min=3), hidden=True)
def mount(
    source: str,
    mountpoint: str,
    options: tuple[str, ...],
    foreground: bool,
    ready_fd: int | None,
    **overrides: str | None,
) -> None:
    """Mirror SOURCE at MOUNTPOINT, its models' ranges served from the store."""
    if ready_fd is not None:
        os.set_inheritable(ready_fd, False)  # a child of the daemon must not keep the pipe open
    try:
        config = configuration.build(
            source,
            mountpoint,
            options=options,
            environ=os.environ,
            overrides=overrides,
            foreground=foreground,
        )
        if not foreground:
            for note in mount_in_background(config, os.environ):
                click.echo(f"mummufs: {printable(note)}", err=True)
            return
        code = run_daemon(config, ready_fd)
    except MummufsError as error:
        if ready_fd is not None:
            send(
                ready_fd,
                {"ok": False, "message": str(error), "exit": 2 if isinstance(error, UsageError) else 1},
            )
        raise
    raise SystemExit(code)


def run_daemon(config: MountConfig, ready_fd: int | None) -> int:
    """Be the daemon until the mount ends. Gives its exit code.

    Raises:
        MummufsError: it failed before it was ready.
    """
    from mummufs.mount import run  # it brings the FUSE library, which no other command needs

    if ready_fd is not None:
        return run(config, _through(ready_fd, config), background=True)
    for note in prepare(config):
        click.echo(f"mummufs: {printable(note)}", err=True)
    return run(config, lambda _: click.echo(f"mummufs: mounted at {printable(str(config.mountpoint))}", err=True))


def send(fd: int, message: dict[str, object]) -> None:
    """Write one message for the starting process and close the descriptor. It may have gone: that is no failure."""
    data = json.dumps(message).encode() + b"\n"
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        pass
    try:
        os.close(fd)
    except OSError:
        pass


def _through(ready_fd: int, config: MountConfig) -> Callable[[dict[str, object]], None]:
    """The callback that tells the starting process, then lets go of what it listens to."""

    def ready(message: dict[str, object]) -> None:
        send(ready_fd, message)
        if config.log_file is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 1)
            os.dup2(null, 2)
            os.close(null)

    return ready
