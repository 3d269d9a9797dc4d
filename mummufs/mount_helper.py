"""The helper that mount(8) runs for the types `mummufs` and `fuse.mummufs`:

    mount.mummufs SOURCE MOUNTPOINT [-o OPT,...] [-t TYPE] [-nsfvhV]

mount(8) may give an empty environment and any directory. The exit codes are its own: 0 mounted, 1 wrong call or
missing permission, 2 system error, 32 the mount failed.
"""

from __future__ import annotations

import errno
import getopt
import os
import sys
from collections.abc import Mapping, Sequence

import click

import mummufs
from mummufs import config as configuration
from mummufs.commands.output import printable
from mummufs.core.errors import MummufsError, UsageError
from mummufs.launch import mount_in_background

EXIT_OK = 0
EXIT_USAGE = 1
EXIT_SYSTEM = 2
EXIT_FAILED = 32

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


def _failed(sentence: str, code: int) -> int:
    click.echo(f"{NAME}: {printable(sentence)}", err=True)
    return code
