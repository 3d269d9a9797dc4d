"""`mummufs` on Windows: mount, umount, status, verify and ranges, over WinFsp and the control pipe."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Any

import click

from mummufs import config as configuration
from mummufs import pipes, winpaths
from mummufs.commands.mountoptions import mount_options
from mummufs.commands.output import print_json, print_table, printable
from mummufs.commands.showranges import ranges_command
from mummufs.commands.status import ANSWER_S, Asked, _details, _row
from mummufs.commands.verify import Ask, verify_command
from mummufs.config import PASS_THROUGH_NOTE, MountConfig
from mummufs.core.errors import ManifestError, MummufsError, UsageError
from mummufs.core.manifest import RangeTable
from mummufs.options import OWN_OPTIONS
from mummufs.win32.api import Win32

POLL_S = 0.1
"""How often it is looked whether a daemon is ready, or gone."""
GONE_S = 15.0
"""How long `umount` waits for the daemon to end."""
_NO_WINDOW, _NEW_GROUP = 0x08000000, 0x00000200
"""CREATE_NO_WINDOW and CREATE_NEW_PROCESS_GROUP."""
_COLUMNS = ("mountpoint", "source", "state", "used", "budget", "ranges", "hits", "misses", "bypasses", "hit bytes")


@click.command(epilog="Options of -o: " + ", ".join(f"{name}={value}" for name, value in OWN_OPTIONS.items()))
@mount_options("%{}%", "More options.")
@click.option("--daemon", is_flag=True, hidden=True)
def mount(
    source: str, mountpoint: str, options: tuple[str, ...], foreground: bool, daemon: bool, **overrides: str | None
) -> None:
    """Mirror SOURCE at MOUNTPOINT, a free drive such as M:, its models' ranges served from the store."""
    config = configuration.build(
        source,
        mountpoint,
        options=options,
        environ=os.environ,
        overrides=overrides,
        foreground=foreground or daemon,
        places=winpaths,
    )
    for note in [*config.warnings, *([] if config.store_dir else [PASS_THROUGH_NOTE])]:
        click.echo(f"mummufs: {printable(note)}", err=True)
    if not config.foreground:
        start(config, sys.argv[1:])
        return
    from mummufs.winmount import run  # it brings the engine, which no other command needs

    at = printable(str(config.mountpoint))
    ready = (lambda _: None) if daemon else (lambda _: click.echo(f"mummufs: mounted at {at}", err=True))
    raise SystemExit(run(config, ready, background=daemon))


@click.command()
@click.argument("mountpoint")
def umount(mountpoint: str) -> None:
    """Unmount MOUNTPOINT and wait until its daemon is gone."""
    leave(pipes.pipe_of(_absolute(mountpoint)), mountpoint)


@click.command()
@click.argument("mountpoint", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(mountpoint: str | None, as_json: bool) -> None:
    """Show what the mount at MOUNTPOINT does, or all mounts."""
    if mountpoint is not None:
        answer = ask(pipes.pipe_of(_absolute(mountpoint)), mountpoint, "status")
        if as_json:
            print_json(answer)
        else:
            print_table(("what", "value"), _details(answer))
        return
    asked = []
    for pipe in pipes.pipes():
        try:
            asked.append(Asked(pipe, pipes.request(pipe, "status", timeout_s=ANSWER_S), ""))
        except (MummufsError, OSError) as error:  # another user's, most likely
            asked.append(Asked(pipe, None, str(error)))
    if as_json:
        missing = [{"mountpoint": a.name, "state": "no answer", "error": a.error} for a in asked if a.status is None]
        print_json({"schema": 1, "mounts": [*(a.status for a in asked if a.status is not None), *missing]})
    elif not asked:
        click.echo("no mounts")
    else:
        print_table(_COLUMNS, [_row(a) for a in asked], right=frozenset(_COLUMNS[3:]))


def _by_pipe(mountpoint: str) -> Ask:
    return partial(ask, pipes.pipe_of(_absolute(mountpoint)), mountpoint)


verify = verify_command(_by_pipe)


def read_table(file: Path, manifest: Path | None, win32: Win32 | None = None) -> RangeTable | None:
    """The range table of a file, read past the file cache: a mount may have it open so.

    Raises:
        UsageError: it is no regular file that can be read.
        MummufsError: its header is not good, or could not be read in time.
    """
    from mummufs.engine.readtable import read_table
    from mummufs.source.windows import WindowsSource
    from mummufs.win32.calls import real_win32

    path = PureWindowsPath(os.path.abspath(file) if os.name == "nt" else file)
    try:
        source = WindowsSource(str(path.parent), win32 or real_win32(), unbuffered=True)
        return read_table(source, path.name.encode("utf-8", "surrogatepass"), manifest)
    except OSError as error:
        raise UsageError(f"'{file}' cannot be read: {error.strerror or error}") from None
    except ManifestError as error:
        raise MummufsError(f"'{file}' has no usable ranges: {error}") from None


ranges = ranges_command(read_table)


def ask(pipe: str, mountpoint: str, op: str, **arguments: object) -> dict[str, Any]:
    """Ask the daemon of a mount.

    Raises:
        MummufsError: there is none, or it does not answer.
    """
    try:
        return pipes.request(pipe, op, timeout_s=ANSWER_S, **arguments)
    except (FileNotFoundError, ConnectionRefusedError):
        raise MummufsError(f"no mummufs is mounted at {mountpoint}: see `mummufs status`") from None
    except PermissionError:
        raise MummufsError(f"the mount at {mountpoint} is another user's") from None


def leave(pipe: str, mountpoint: str, wait_s: float = GONE_S) -> None:
    """Have a daemon end, and wait until it has.

    Raises:
        MummufsError: there is none, or it has not ended in time.
    """
    ask(pipe, mountpoint, "leave")
    give_up = time.monotonic() + wait_s
    while time.monotonic() < give_up:
        try:
            pipes.request(pipe, "status", timeout_s=POLL_S)
        except OSError:
            return
        except MummufsError:
            pass  # it is busy with ending
        time.sleep(POLL_S)
    raise MummufsError(f"the daemon of {mountpoint} has not ended within {wait_s:g} s")


def start(config: MountConfig, arguments: Sequence[str]) -> None:
    """Start the daemon and wait until the mount answers.

    Args:
        arguments: this command's own; the daemon's are the same.

    Raises:
        UsageError, MummufsError: as the daemon found; none is left running then.
    """
    at = list(arguments).index("mount") + 1
    command = [sys.executable, "-P", "-m", "mummufs", *arguments[:at], "--daemon", *arguments[at:]]
    pipe = pipes.pipe_of(os.fspath(config.mountpoint))
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            creationflags=_NO_WINDOW | _NEW_GROUP if os.name == "nt" else 0,
        )
        try:
            if _is_ready(process, pipe, config):
                process.returncode = 0  # it lives on by design: subprocess shall not warn that nobody waits for it
                return
        except BaseException:
            process.kill()
            process.wait()
            raise
        output.seek(0)
        lines = output.read().decode("utf-8", "replace").strip().splitlines()
    sentence = lines[-1].removeprefix("mummufs: ") if lines else f"the daemon ended with exit code {process.returncode}"
    raise UsageError(sentence) if process.returncode == 2 else MummufsError(sentence)


def _is_ready(process: subprocess.Popen[bytes], pipe: str, config: MountConfig) -> bool:
    """Whether a daemon answers, and has not ended. Raises MummufsError where it does neither in time."""
    give_up = time.monotonic() + config.mount_timeout_s
    while process.poll() is None:
        try:
            pipes.request(pipe, "status", timeout_s=1.0)
            return True
        except (OSError, MummufsError):
            time.sleep(POLL_S)
        if time.monotonic() >= give_up:
            raise MummufsError(f"'{config.mountpoint}' did not answer within {config.mount_timeout_s:g} s")
    return False


def _absolute(mountpoint: str) -> str:
    return mountpoint if mountpoint.rstrip("\\/").endswith(":") else os.fspath(Path(os.path.abspath(mountpoint)))
