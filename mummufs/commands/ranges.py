"""`mummufs ranges`: the ranges that a file's own header names. The header is parsed in a child process."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

from mummufs.commands.showranges import ranges_command
from mummufs.core.errors import ManifestError, MummufsError, UsageError
from mummufs.core.manifest import TABLE_BYTES_MAX, RangeTable
from mummufs.launch import child_environment

PARSE_S = 120.0
"""How long a header may take; the slow volume may have to spin up first."""


def read_table(file: Path, manifest: Path | None) -> RangeTable | None:
    """The range table of a file, or None where no format recognises it.

    Raises:
        UsageError: a path is no regular file.
        MummufsError: the header is not good, or could not be read in time.
    """
    fds: list[int] = []
    try:
        fds.append(_open_regular(file))
        fds.append(_open_directory(file))
        if manifest is not None:
            fds.append(_open_regular(manifest))
        output = _run_child(file, fds)
    finally:
        for fd in fds:
            os.close(fd)
    status, payload = output[:1], output[1:]
    if status == b"N":
        return None
    if status == b"T":
        try:
            return RangeTable.from_bytes(payload)
        except ManifestError as error:
            raise MummufsError(f"'{file}': the table of its ranges cannot be read: {error}") from error
    raise MummufsError(f"'{file}' has no usable ranges: {os.fsdecode(payload) or 'its header could not be parsed'}")


def _run_child(file: Path, fds: list[int]) -> bytes:
    given = [str(fds[0]), str(fds[1]), os.fsencode(file.name).hex(), *map(str, fds[2:])]
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "mummufs.manifests.child", *given],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=fds,
            env=child_environment(os.environ),
            timeout=PARSE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MummufsError(f"'{file}': its header could not be read within {PARSE_S:g} s") from error
    if done.returncode != 0 or not 0 < len(done.stdout) <= TABLE_BYTES_MAX + 1:
        raise MummufsError(f"'{file}': its header could not be parsed (exit code {done.returncode})")
    return done.stdout


def _open_regular(file: Path) -> int:
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a fifo would wait for a writer
    except (OSError, ValueError) as error:
        raise UsageError(f"'{file}' cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise UsageError(f"'{file}' is not a regular file")
    return fd


def _open_directory(file: Path) -> int:
    try:
        return os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"'{file.parent}' cannot be read: {error.strerror}") from error


ranges = ranges_command(read_table)
