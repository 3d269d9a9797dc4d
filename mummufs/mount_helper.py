"""The helper that mount(8) runs for the types `mummufs` and `fuse.mummufs`:

    mount.mummufs SOURCE MOUNTPOINT [-o OPT,...] [-t TYPE] [-nsfvhV]

mount(8) may give an empty environment and any directory. The exit codes are its own: 0 mounted, 1 wrong call or
missing permission, 2 system error, 32 the mount failed.
"""

from __future__ import annotations

import errno
import getopt
import os
import pathlib
import re
import sys
import time
from collections.abc import Mapping, Sequence

import click

import mummufs
from mummufs import config as configuration
from mummufs.commands.output import printable
from mummufs.core.errors import MummufsError, UsageError
from mummufs.launch import mount_in_background
from mummufs.mountinfo import mount_at, read_mountinfo

EXIT_OK = 0
EXIT_USAGE = 1
EXIT_SYSTEM = 2
EXIT_FAILED = 32

SOURCE_WAIT_S = 60.0
"""How long a source that fstab mounts is waited for. systemd gives a mount 90 s."""
POLL_S = 0.2
_OCTAL = re.compile(r"\\([0-7]{3})")

NAME = "mount.mummufs"
USAGE = f"usage: {NAME} SOURCE MOUNTPOINT [-o OPT,...] [-t fuse.mummufs] [-nsfvhV]"
TYPES = frozenset({"mummufs", "fuse.mummufs"})


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:], os.environ))


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Do what mount(8) asks for. Gives the exit code; what went wrong is on stderr."""
    try:
        return _run(arguments, environ)
    except UsageError as error:
        return _failed(str(error), EXIT_USAGE)
    except MummufsError as error:
        return _failed(str(error), EXIT_FAILED)
    except OSError as error:
        denied = error.errno in (errno.EPERM, errno.EACCES)
        return _failed(f"the system refused: {error}", EXIT_USAGE if denied else EXIT_SYSTEM)


def _run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    try:
        pairs, places = getopt.gnu_getopt(list(arguments), "o:t:nsfvhV", ["help", "version"])
    except getopt.GetoptError as error:
        raise UsageError(f"{error.msg}; {USAGE}") from error
    given = {name for name, _ in pairs}
    if given & {"-h", "--help"}:
        click.echo(USAGE)
        return EXIT_OK
    if given & {"-V", "--version"}:
        click.echo(f"{NAME} {mummufs.__version__}")
        return EXIT_OK
    if len(places) != 2:
        raise UsageError(f"a source and a mountpoint are needed; {USAGE}")
    for kind in (value for name, value in pairs if name == "-t"):
        if kind not in TYPES:
            raise UsageError(f"type {kind!r} is not of mummufs: it is one of {', '.join(sorted(TYPES))}")
    await_source(places[0], pathlib.Path("/etc/fstab"))
    config = configuration.build(
        places[0],
        places[1],
        options=[value for name, value in pairs if name == "-o"],
        environ=environ,
        sloppy="-s" in given,
    )
    fake = "-f" in given  # only the checks
    notes = list(config.warnings) if fake else mount_in_background(config, environ)
    for note in notes:
        click.echo(f"{NAME}: {printable(note)}", err=True)
    if "-v" in given:
        done = "would be mounted" if fake else "is mounted"
        click.echo(f"{NAME}: '{printable(config.fsname)}' {done} at '{printable(str(config.mountpoint))}'")
    return EXIT_OK


def await_source(source: str, fstab: pathlib.Path, wait_s: float = SOURCE_WAIT_S) -> None:
    """Wait until what fstab mounts at the source, or above it, is there: at boot nothing else puts us behind it.

    Raises:
        MummufsError: it has not been mounted within `wait_s`.
    """
    path = os.path.abspath(source)
    give_up = time.monotonic() + wait_s
    while (missing := _unmounted_above(path, fstab)) is not None:
        if time.monotonic() > give_up:
            raise MummufsError(f"'{missing}' is in {fstab} but was not mounted within {wait_s:g} s: mount it first")
        time.sleep(POLL_S)


def _unmounted_above(path: str, fstab: pathlib.Path) -> str | None:
    """A mountpoint of fstab that the path is on or below, that is to be mounted at boot, and that is not mounted."""
    try:
        lines = fstab.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    entries = read_mountinfo()
    for line in lines:
        fields = line.split()
        if len(fields) < 4 or line.lstrip().startswith("#") or "noauto" in fields[3].split(","):
            continue
        at = os.path.normpath(_OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[1]))
        inside = path == at or path.startswith(at.rstrip("/") + "/")
        if fields[1].startswith("/") and at != "/" and inside and mount_at(pathlib.Path(at), entries) is None:
            return at
    return None


def _failed(sentence: str, code: int) -> int:
    click.echo(f"{NAME}: {printable(sentence)}", err=True)
    return code
