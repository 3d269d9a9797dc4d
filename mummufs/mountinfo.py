"""What is mounted where, and who holds it: `/proc/*/mountinfo` and the rest of `/proc`.

Nothing here sends a request to a mounted file system, except `probe`, so that a hung daemon hangs nobody: a file's
mount is known by the mount id in `fdinfo`, never by a stat.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

FSTYPE = "fuse.mummufs"
PROC = Path("/proc")

PROBE_S = 5.0
"""How long a mountpoint may take to answer a stat before it counts as hung."""

COMMAND_CHARS_MAX = 80
"""A longer command line is cut."""

DEAD_ERRNOS = frozenset({errno.ENOTCONN, errno.ECONNABORTED})
"""What every access to a FUSE mount gives once its daemon is gone."""

View = tuple[str, str]
"""A mount namespace and the identity of a root in it: processes that share both see the same mounts."""

_OCTAL = re.compile(rb"\\([0-7]{3})")
_MOUNT_ID = re.compile(r"^mnt_id:\s*(\d+)$", re.MULTILINE)
_INODE = re.compile(r"^ino:\s*(\d+)$", re.MULTILINE)


class MountEntry(NamedTuple):
    """One line of mountinfo. `device` is (major, minor); it is the same for every bind mount of a file system."""

    mount_id: int
    parent_id: int
    device: tuple[int, int]
    root: str
    mountpoint: str
    options: str
    fstype: str
    source: str
    super_options: str


class Holder(NamedTuple):
    """A process that keeps a mount in use. `use` is what for: "open file", "mount namespace", ..."""

    pid: int
    command: str
    use: str
    path: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command}), {self.use} {self.path}"


def parse_mountinfo(data: bytes) -> list[MountEntry]:
    """The entries of a mountinfo file, in its order. A line that cannot be read is left out."""
    entries = []
    for line in data.splitlines():
        left, dash, right = line.partition(b" - ")
        fields, tail = left.split(b" "), right.split(b" ")
        if not dash or len(fields) < 6 or len(tail) < 2:
            continue
        major, _, minor = fields[2].partition(b":")
        try:
            numbers = [int(text) for text in (fields[0], fields[1], major, minor)]
        except ValueError:
            continue
        texts = [_text(field) for field in (*fields[3:6], tail[0], tail[1], tail[2] if len(tail) > 2 else b"")]
        entries.append(MountEntry(numbers[0], numbers[1], (numbers[2], numbers[3]), *texts))
    return entries


def read_mountinfo(pid: int | str = "self", proc: Path = PROC) -> list[MountEntry]:
    """The mounts that a process sees.

    Raises:
        OSError: there is no such process, or it may not be looked at.
    """
    return parse_mountinfo((proc / str(pid) / "mountinfo").read_bytes())


def mount_at(mountpoint: Path, entries: Iterable[MountEntry]) -> MountEntry | None:
    """The topmost mount at exactly this path, or None."""
    path = os.fspath(mountpoint)
    found: MountEntry | None = None
    for entry in entries:
        if entry.mountpoint == path:
            found = entry  # a later line lies over an earlier one
    return found


def resolve_mountpoint(path: Path, entries: Iterable[MountEntry]) -> Path:
    """The absolute path of a mountpoint, symlinks resolved, without a look at what is mounted there."""
    absolute = path.absolute()
    if absolute.name not in ("", ".."):
        near = Path(os.path.realpath(absolute.parent), absolute.name)
        if mount_at(near, entries) is not None:
            return near
    return Path(os.path.realpath(absolute))


def probe(
    path: Path, timeout_s: float = PROBE_S, ask: Callable[[Path], object] = lambda path: path.stat()
) -> OSError | None:
    """Ask a path for its attributes. None where it answers; else its error, ETIMEDOUT where there is no answer.

    The call runs in a thread of its own: where it hangs, only that thread does.
    """
    outcome: list[OSError | None] = []

    def call() -> None:
        try:
            ask(path)
        except OSError as error:
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=call, name="probe", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return outcome[0] if outcome else TimeoutError(errno.ETIMEDOUT, "no answer")


def is_dead(path: Path) -> bool:
    """Whether the mount there has lost its daemon ("Transport endpoint is not connected")."""
    error = probe(path, ask=_ask_past_the_cache)
    return error is not None and error.errno in DEAD_ERRNOS


def _ask_past_the_cache(path: Path) -> None:
    path.stat()
    os.statvfs(path)  # the kernel answers a stat by itself for a time, of a dead mount too, but never this


def holders(
    device: tuple[int, int],
    *,
    source: str | None = None,
    mount_ids: Iterable[int] = (),
    skip_pids: Iterable[int] = (),
    proc: Path = PROC,
) -> list[Holder]:
    """The processes that keep a file system mounted, in all mount namespaces, in order of pid.

    A process in a namespace of others that merely has the mount there counts once per namespace: the one with the
    lowest pid stands for all. Processes that may not be looked at are left out.

    Args:
        device: the file system's device number.
        source: its source, where it may have gone: the kernel gives the number of one that has gone to a new one.
        mount_ids: ids of mounts of it that mountinfo may no longer list (after a lazy unmount).
        skip_pids: processes that do not count.
    """
    own = _namespace(proc, os.getpid() if proc == PROC else 0)
    skip = {os.getpid(), *skip_pids}
    views: dict[View, list[MountEntry]] = {}
    processes: list[tuple[int, View]] = []
    for pid in _pids(proc):
        view = _namespace(proc, pid)
        if view is not None:
            processes.append((pid, view))
            views.setdefault(view, _mounts(proc, pid))
    seen = [entry for entries in views.values() for entry in entries]
    there = [entry for entry in seen if entry.device == device]
    if source is not None and any(entry.source != source for entry in there):
        return []
    ids = {entry.mount_id for entry in there}
    ids |= set(mount_ids) - {entry.mount_id for entry in seen}  # the kernel gives the ids of gone mounts to new ones
    found: list[Holder] = []
    idle: dict[View, Holder] = {}
    busy_views: set[View] = set()
    for pid, view in processes:
        if pid in skip:
            continue
        command = _command(proc, pid)
        uses = [Holder(pid, command, use, path) for use, path in _uses(device, ids, proc, pid)]
        found.extend(uses)
        place = next((entry.mountpoint for entry in views[view] if entry.device == device), None)
        if uses:
            busy_views.add(view)
        elif place is not None and (own is None or view[0] != own[0]):
            idle.setdefault(view, Holder(pid, command, "mount namespace with it at", place))
    found.extend(holder for view, holder in idle.items() if view not in busy_views)
    return sorted(found)


def is_stopped(pid: int, proc: Path = PROC) -> bool:
    """Whether a signal (SIGSTOP) or a debugger has stopped a process: it does nothing until it is let go on."""
    fields = _read_text(proc / str(pid) / "stat").rpartition(")")[2].split()  # a command's name may have any bytes
    return fields[:1] in (["T"], ["t"])


def _pids(proc: Path) -> list[int]:
    return sorted(int(entry.name) for entry in os.scandir(proc) if entry.name.isdecimal())


def _namespace(proc: Path, pid: int) -> View | None:
    """What a process sees, or None where it may not be looked at. Pid 0 stands for this process."""
    base = proc / (str(pid) if pid else "self")
    info = _info_of_link(base / "root")  # its path would not do: from within a chroot, the machine's root is "/" too
    root = " ".join(found[1] for found in (_MOUNT_ID.search(info), _INODE.search(info)) if found)
    try:
        return (os.readlink(base / "ns" / "mnt"), root) if root else None
    except OSError:
        return None


def _mounts(proc: Path, pid: int) -> list[MountEntry]:
    try:
        return read_mountinfo(pid, proc)
    except OSError:
        return []


def _uses(device: tuple[int, int], mount_ids: set[int], proc: Path, pid: int) -> Iterator[tuple[str, str]]:
    """What a process uses of the mounts, one of each kind: (use, path)."""
    base = proc / str(pid)
    if mount_ids:
        for link, use in (("cwd", "working directory"), ("root", "root directory")):
            if _mount_id_of_link(base / link) in mount_ids:
                yield use, _link_text(base / link)
        for number in _listed(base / "fdinfo"):
            match = _MOUNT_ID.search(_read_text(base / "fdinfo" / number))
            if match and int(match[1]) in mount_ids:
                yield "open file", _link_text(base / "fd" / number)
                break
    wanted = f"{device[0]:02x}:{device[1]:02x}"
    for line in _read_text(base / "maps").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[3] == wanted:
            yield "mapped file", fields[5]
            break


def _mount_id_of_link(link: Path) -> int | None:
    """The id of the mount that a link of /proc leads into."""
    match = _MOUNT_ID.search(_info_of_link(link))
    return int(match[1]) if match else None


def _info_of_link(link: Path) -> str:
    """The fdinfo of what a link of /proc leads to; "" where that may not be looked at. O_PATH asks no file system."""
    try:
        fd = os.open(link, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return _read_text(PROC / "self" / "fdinfo" / str(fd))
    finally:
        os.close(fd)


def _command(proc: Path, pid: int) -> str:
    words = _read_text(proc / str(pid) / "cmdline").replace("\0", " ").strip()
    command = words or _read_text(proc / str(pid) / "comm").strip() or "?"
    return command if len(command) <= COMMAND_CHARS_MAX else command[: COMMAND_CHARS_MAX - 3] + "..."


def _listed(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _read_text(path: Path) -> str:
    try:
        return os.fsdecode(path.read_bytes())
    except OSError:
        return ""


def _link_text(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return "?"


def _text(field: bytes) -> str:
    return os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), field))
