"""End a mount: unmount it, wait for its daemon, and say who stands in the way."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from mummufs.core.errors import MummufsError, UsageError
from mummufs.mountinfo import (
    FSTYPE,
    Holder,
    MountEntry,
    holders,
    is_stopped,
    mount_at,
    read_mountinfo,
    resolve_mountpoint,
)

GONE_S = 10.0
"""How long the daemon may take to end after its mount has gone."""

LOOK_AFTER_S = 1.0
"""A daemon that is still there after so long may be held by somebody: from then on that is looked at."""

BUSY_S = 2.0
"""How long a mount that is busy is tried again while nobody is found to hold it: whoever looks at it, a `df` or a
`stat`, keeps it for a moment, and no list shows him."""

BUSY_PAUSE_S = 0.02

FUSERMOUNT = "fusermount3"
FUSERMOUNT_S = 10.0
"""How long fusermount3 may take: it only makes one system call."""

FUSERMOUNT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"

HOLDERS_SHOWN_MAX = 8
"""More holders than this are counted, not listed."""

_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8


class BusyError(MummufsError):
    """The mount is in use."""


@dataclass(frozen=True)
class Ended:
    """How an unmount went.

    Attributes:
        daemon_pid: the daemon's process id, or None where it could not be known.
        gone: the daemon has ended (taken for true where its pid is not known and nothing holds the mount).
        left: the processes that still hold the file system, and so keep the daemon alive.
        elsewhere: where the caller's own namespace still has it mounted (bind mounts).
        stopped: a signal or a debugger has stopped the daemon: it does nothing, so it cannot end.
    """

    mountpoint: Path
    daemon_pid: int | None
    gone: bool
    left: list[Holder] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    stopped: bool = False

    @property
    def note(self) -> str | None:
        """A sentence on what keeps the daemon alive, or None."""
        if self.gone:
            return None
        daemon = f"its daemon (pid {self.daemon_pid})" if self.daemon_pid else "its daemon"
        what = f"'{self.mountpoint}' is unmounted, but {daemon}"
        held = [f"it is also mounted at '{path}'" for path in self.elsewhere]
        if self.left:
            held.append(f"held by {listing(self.left)}")
        lives = f"lives until the last holder lets go: {'; '.join(held)}"
        if self.stopped:
            then = f"; after that it {lives}" if held else ""
            return f"{what} is stopped, so it cannot end: let it go on with `kill -CONT {self.daemon_pid}`{then}"
        if held:
            return f"{what} {lives}"
        return (
            f"{what} has not ended yet, and nothing that may be looked at holds it:"
            " it may be waiting for its source or its store"
        )


def end_mount(mountpoint: Path, daemon_pid: int | None, *, lazy: bool, wait_s: float = GONE_S) -> Ended:
    """Unmount and wait until the daemon is gone, `wait_s` at most.

    Args:
        mountpoint: as `mummufs_mount` gave it.
        daemon_pid: whom to wait for, or None where nobody knows.
        lazy: detach at once, even where the mount is in use.

    Raises:
        BusyError: it is in use; the sentence names the processes.
        MummufsError: it cannot be unmounted.
    """
    entry = mummufs_mount(mountpoint)
    ids = {e.mount_id for e in read_mountinfo() if e.device == entry.device}
    skip = {daemon_pid} if daemon_pid else set()
    process_fd = _open_process(daemon_pid)
    try:
        _detach_unheld(mountpoint, entry, ids, skip, lazy=lazy)
        return _wait_gone(mountpoint, entry, ids, daemon_pid, process_fd, wait_s)
    finally:
        if process_fd is not None:
            os.close(process_fd)


def _detach_unheld(mountpoint: Path, entry: MountEntry, ids: set[int], skip: set[int], *, lazy: bool) -> None:
    """Unmount; where it is busy and nobody is found to hold it, again and again for BUSY_S.

    Raises:
        BusyError, MummufsError: as `end_mount`.
    """
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            return detach(mountpoint, lazy=lazy)
        except BusyError as error:
            names = listing(holders(entry.device, mount_ids=ids, skip_pids=skip))
            if names or time.monotonic() >= deadline:
                names = names or "a mount below it or the kernel"
                raise BusyError(
                    f"'{mountpoint}' is busy: it is held by {names}; end that, or detach the mount with --lazy"
                ) from error
        time.sleep(BUSY_PAUSE_S)


def mummufs_mount(mountpoint: Path) -> MountEntry:
    """The mummufs mount at a resolved mountpoint.

    Raises:
        UsageError: something else is mounted there.
        MummufsError: nothing is.
    """
    entry = mount_at(mountpoint, read_mountinfo())
    if entry is None:
        raise MummufsError(f"nothing is mounted at '{mountpoint}'")
    if entry.fstype != FSTYPE:
        raise UsageError(f"'{mountpoint}' is a mount of type {entry.fstype}, not of mummufs: use umount")
    return entry


def resolved(text: str) -> Path:
    """A mountpoint as the user wrote it, absolute and without symlinks. It is not touched if something is mounted.

    Raises:
        UsageError: it is no path.
    """
    try:
        return resolve_mountpoint(Path(text), read_mountinfo())
    except (OSError, ValueError) as error:
        raise UsageError(f"the mountpoint {text!r} cannot be used: {error}") from error


def detach(mountpoint: Path, *, lazy: bool) -> None:
    """Unmount, as root by the system call, otherwise by fusermount3.

    Raises:
        BusyError: the mount is in use.
        MummufsError: any other failure.
    """
    error = _umount2(mountpoint, lazy)
    if error in (errno.EPERM, errno.EACCES):
        _fusermount(mountpoint, lazy)
    elif error == errno.EBUSY:
        raise BusyError(f"'{mountpoint}' is busy")
    elif error:
        raise MummufsError(f"'{mountpoint}' cannot be unmounted: {os.strerror(error)}")


def listing(found: list[Holder]) -> str:
    """The holders in one line; "" where there are none."""
    shown = "; ".join(str(holder) for holder in found[:HOLDERS_SHOWN_MAX])
    more = len(found) - HOLDERS_SHOWN_MAX
    return f"{shown}; and {more} more" if more > 0 else shown


def _umount2(mountpoint: Path, lazy: bool) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)
    if libc.umount2(os.fsencode(mountpoint), flags) == 0:
        return 0
    return ctypes.get_errno()


def _fusermount(mountpoint: Path, lazy: bool) -> None:
    program = shutil.which(FUSERMOUNT, path=os.environ.get("PATH") or FUSERMOUNT_PATH)
    if program is None:
        raise MummufsError(f"'{mountpoint}' cannot be unmounted by this user: {FUSERMOUNT} is not installed")
    command = [program, "-u", *(["-z"] if lazy else []), "--", str(mountpoint)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=FUSERMOUNT_S,
            check=False,
            env={"LC_ALL": "C", "PATH": FUSERMOUNT_PATH},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MummufsError(f"'{mountpoint}' cannot be unmounted: {FUSERMOUNT} failed: {error}") from error
    if done.returncode == 0:
        return
    said = os.fsdecode(done.stderr).strip().removeprefix(f"{program}: ") or f"exit code {done.returncode}"
    if os.strerror(errno.EBUSY) in said:
        raise BusyError(f"'{mountpoint}' is busy")
    raise MummufsError(f"'{mountpoint}' cannot be unmounted: {said}")


def _open_process(pid: int | None) -> int | None:
    """A descriptor of a process, so that a later process with the same id is not mistaken for it."""
    if pid is None:
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _wait_gone(
    mountpoint: Path, entry: MountEntry, ids: set[int], pid: int | None, process_fd: int | None, wait_s: float
) -> Ended:
    stopped = False
    if process_fd is not None:
        deadline = time.monotonic() + wait_s
        if _ended(process_fd, min(LOOK_AFTER_S, wait_s)):
            return Ended(mountpoint, pid, gone=True)
        stopped = pid is not None and is_stopped(pid)
        left, elsewhere = _still_held(entry, ids, pid)
        held = stopped or left or elsewhere
        if not held and _ended(process_fd, max(0.0, deadline - time.monotonic())):
            return Ended(mountpoint, pid, gone=True)
    left, elsewhere = _still_held(entry, ids, pid)
    gone = process_fd is None and not left and not elsewhere
    return Ended(mountpoint, pid, gone, left, elsewhere, stopped)


def _still_held(entry: MountEntry, ids: set[int], pid: int | None) -> tuple[list[Holder], list[str]]:
    left = holders(entry.device, source=entry.source, mount_ids=ids, skip_pids={pid} if pid else ())
    same = [e for e in read_mountinfo() if (e.device, e.source) == (entry.device, entry.source)]
    return left, [e.mountpoint for e in same]


def _ended(process_fd: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(process_fd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))
