"""From paths as a user writes them to a mount and paths in it, and jobs of its daemon."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mummufs.core.errors import MummufsError, UsageError
from mummufs.mountinfo import FSTYPE, PROBE_S, MountEntry, probe, read_mountinfo
from mummufs.store.pins import PATTERN_CHARS_MAX

PATHS_MAX = 256
PATHS_BYTES_MAX = 48 << 10
"""What a request has room for (`storecontrol`)."""
POLL_S = 0.1


class Located(NamedTuple):
    """Where paths lie.

    Attributes:
        mountpoint: of the mount that they are all in; its daemon answers for them.
        paths: below it, "" for all of it. What is a pattern stays one.
    """

    mountpoint: Path
    paths: list[str]


def located(words: Sequence[str]) -> Located:
    """The mount that these paths and patterns are in.

    Raises:
        UsageError: one of them is in no mummufs mount, or they are in several.
        MummufsError: a mount on the way does not answer.
    """
    if not words:
        raise UsageError("name at least one path in a mummufs mount")
    entries = read_mountinfo()
    found = [(word, *_located(word, entries)) for word in words]
    first = found[0]
    for word, mountpoint, _ in found:
        if mountpoint != first[1]:
            raise UsageError(f"'{first[0]}' and '{word}' are in different mounts: name them in a command each")
    paths = list(dict.fromkeys(path for _, _, path in found))
    if len(paths) > PATHS_MAX or sum(len(os.fsencode(path)) + 4 for path in paths) > PATHS_BYTES_MAX:
        raise UsageError(f"{len(paths)} paths are too many at once: name a folder, or a pattern in quotes")
    return Located(first[1], paths)


def checked_pattern(pattern: str) -> str:
    """A pattern for the names of ranges, as it was given.

    Raises:
        UsageError: it is none.
    """
    if not 0 < len(pattern) <= PATTERN_CHARS_MAX:
        raise UsageError(f"--ranges takes a pattern of 1 to {PATTERN_CHARS_MAX} characters, such as 'blk.0.*'")
    return pattern


def _located(word: str, entries: Sequence[MountEntry]) -> tuple[Path, str]:
    real = _real(word)
    entry = _mount_of(real, entries)
    if entry is None or entry.fstype != FSTYPE:
        raise UsageError(f"'{word}' is not in a mummufs mount: `mummufs status` lists those that there are")
    below = _below(real, entry.mountpoint)
    path = "/".join(part for part in (entry.root.strip("/"), below) if part)
    return _answering(entry, entries), path


def _real(word: str) -> str:
    """The absolute path with symlinks resolved, as far as it exists: a pattern does not."""
    if not word or "\0" in word:
        raise UsageError(f"{word!r} is no path")
    found: list[str] = []
    error = probe(Path(word), ask=lambda path: found.append(os.path.realpath(path)))
    if error is not None:
        raise MummufsError(f"'{word}' does not answer within {PROBE_S:g} s: is what is mounted there hung?")
    return found[0]


def _mount_of(path: str, entries: Iterable[MountEntry]) -> MountEntry | None:
    """The mount that a path is in: the one with the longest mountpoint, the later of equals."""
    best: MountEntry | None = None
    for entry in entries:
        if _is_below(path, entry.mountpoint) and (best is None or len(entry.mountpoint) >= len(best.mountpoint)):
            best = entry
    return best


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _below(path: str, folder: str) -> str:
    return path[len(folder.rstrip("/")) :].strip("/")


def _answering(entry: MountEntry, entries: Iterable[MountEntry]) -> Path:
    """The mountpoint that the daemon goes by: that of a bind mount has no socket."""
    from mummufs import control

    same = [other.mountpoint for other in entries if other.device == entry.device and other.fstype == FSTYPE]
    for mountpoint in dict.fromkeys([entry.mountpoint, *same]):
        if control.socket_path(Path(mountpoint)).exists():
            return Path(mountpoint)
    return Path(entry.mountpoint)


def looked(mountpoint: Path, op: str, **args: Any) -> list[dict[str, Any]]:
    """Have a daemon carry a request out, wait for it, and return what it has found, page by page.

    Raises:
        MummufsError: it refuses, or it comes to nothing.
    """
    from mummufs import control

    job = control.request(mountpoint, op, **args)["job"]
    try:
        while True:
            answer = control.request(mountpoint, "look", job=job)
            if answer["state"] == "ended":
                break
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        control.request(mountpoint, "look_stop", job=job)
        raise MummufsError("interrupted; what was done up to now stays done") from None
    if answer["failure"] is not None:
        raise MummufsError(str(answer["failure"]))
    if answer["stopped"]:
        raise MummufsError("somebody has stopped it; what was done up to then stays done")
    pages = [answer["found"]]
    while answer["next"] is not None:
        answer = control.request(mountpoint, "look", job=job, **_from(answer["next"]))
        pages.append(answer["found"])
    return pages


def _from(first: int) -> dict[str, Any]:
    """The argument that asks for a later page; its name is a word of the language."""
    return {"from": first}
