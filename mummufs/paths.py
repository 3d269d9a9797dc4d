"""The checks of the paths that a mount is made of. Each refusal is a `UsageError` with one sentence."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mummufs.core.errors import UsageError
from mummufs.mountinfo import FSTYPE, is_dead, mount_at, read_mountinfo, resolve_mountpoint


def source_directory(text: str) -> Path:
    """The source as an absolute path without symlinks.

    Raises:
        UsageError: it is missing, cannot be read, or is no directory.
    """
    try:
        path = Path(os.path.realpath(_named("the source", text), strict=True))
        is_directory = stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError) as error:
        raise UsageError(f"the source {text!r} cannot be used: {_reason(error)}") from error
    if not is_directory:
        raise UsageError(f"the source {text!r} is not a directory: give the directory that the file lies in")
    if not os.access(path, os.R_OK | os.X_OK):
        raise UsageError(f"the source {text!r} may not be read by this user")
    return path


def usable_mountpoint(text: str) -> Path:
    """The mountpoint as an absolute path without symlinks. A dead mount of mummufs there counts as free.

    Raises:
        UsageError: it is missing, is no directory, or something is mounted there.
    """
    path = _named("the mountpoint", text)
    try:
        entries = read_mountinfo()
        path = resolve_mountpoint(path, entries)
        there = mount_at(path, entries)
    except (OSError, ValueError) as error:
        raise UsageError(f"the mountpoint {text!r} cannot be used: {_reason(error)}") from error
    if there is not None:
        if there.fstype == FSTYPE and is_dead(path):
            return path
        raise UsageError(f"the mountpoint {text!r} is in use: {there.source!r} ({there.fstype}) is mounted there")
    require_directory(path)
    return path


def require_directory(mountpoint: Path) -> None:
    """Check that a mountpoint with nothing mounted on it is a directory.

    Raises:
        UsageError: it is not.
    """
    try:
        is_directory = stat.S_ISDIR(mountpoint.stat().st_mode)
    except OSError as error:
        raise UsageError(
            f"the mountpoint '{mountpoint}' cannot be used: {_reason(error)}; make the directory"
        ) from error
    if not is_directory:
        raise UsageError(f"the mountpoint '{mountpoint}' is not a directory")


def writable_place(what: str, text: str, *, directory: bool) -> Path:
    """A path, absolute and without symlinks, at which a directory or file is or may be made.

    Raises:
        UsageError: something of another kind is there, or a part of the path is no directory.
    """
    try:
        path = Path(os.path.realpath(_named(what, text)))
        mode = _mode(path)
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"{what} {text!r} cannot be used: {_reason(error)}") from error
    if directory and mode is not None and not stat.S_ISDIR(mode):
        raise UsageError(f"{what} {text!r} is not a directory")
    if not directory and mode is not None and stat.S_ISDIR(mode):
        raise UsageError(f"{what} {text!r} is a directory")
    return path


def existing_file(what: str, text: str) -> Path:
    """A regular file, as an absolute path without symlinks.

    Raises:
        UsageError: it is missing or no regular file.
    """
    try:
        path = Path(os.path.realpath(_named(what, text), strict=True))
        regular = stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError) as error:
        raise UsageError(f"{what} {text!r} cannot be used: {_reason(error)}") from error
    if not regular:
        raise UsageError(f"{what} {text!r} is not a regular file")
    return path


def check_places(source: Path, mountpoint: Path, store: Path | None) -> None:
    """Check that source, mountpoint and store lie apart: else the mount reads or caches itself.

    Raises:
        UsageError: one lies in another.
    """
    if source == mountpoint or _is_inside(mountpoint, source):
        raise UsageError(f"the mountpoint '{mountpoint}' lies in the source '{source}': the mount would show itself")
    if _is_inside(source, mountpoint):
        raise UsageError(f"the source '{source}' lies in the mountpoint '{mountpoint}': the mount would hide it")
    if store is None:
        return
    for name, place in (("source", source), ("mountpoint", mountpoint)):
        if store == place or _is_inside(store, place):
            raise UsageError(f"the store '{store}' lies in the {name} '{place}': put it elsewhere, on the fast device")
        if _is_inside(place, store):
            raise UsageError(f"the {name} '{place}' lies in the store '{store}': give the store a directory of its own")


def _is_inside(inner: Path, outer: Path) -> bool:
    """Whether `inner` is `outer` or below it, by name or, past bind mounts, by inode."""
    if inner.is_relative_to(outer):
        return True
    wanted = _identity(outer)
    return wanted is not None and any(_identity(place) == wanted for place in (inner, *inner.parents))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _named(what: str, text: str) -> Path:
    if not text:
        raise UsageError(f"{what} has no name: give a path that is not empty")
    return Path(text)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
