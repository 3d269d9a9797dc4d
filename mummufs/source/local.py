"""What is known of files on local file systems alone: that reads of them are whole, and whether somebody writes.

One write(2) moves a file's times when it begins, and may take longer than any pause that we keep; a writable mapping
may not move them at all. What is read meanwhile looks like a version that it is not. So a file that somebody has open
for writing is not stored. A read lease tells: the kernel gives none on such a file. It is given back at once; whoever
opens the file for writing in between waits for that moment, or is told EWOULDBLOCK where he does not want to.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import signal

from mummufs.source.base import SourceFile

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

LOCAL = frozenset((0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0xCA451A4E, 0x01021994))
"""statfs(2)'s f_type of: ext2 to ext4, xfs, btrfs, f2fs, bcachefs, tmpfs. On others, networks and FUSE above all, a
read may be short, a file may not be mapped, and a lease says nothing."""
_STATFS_BYTES_MAX = 256
"""More than a struct statfs has on any machine."""


def is_local(fd: int) -> bool:
    """Whether an open file is on one of these file systems; False where that cannot be told."""
    found = ctypes.create_string_buffer(_STATFS_BYTES_MAX)
    libc = _libc()
    if not hasattr(libc, "fstatfs") or libc.fstatfs(fd, found) != 0:
        return False
    return ctypes.c_long.from_buffer(found).value & 0xFFFFFFFF in LOCAL


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def ignore_broken_leases() -> None:
    """Once a process, in its main thread: the kernel tells of a lease that is in somebody's way by a deadly signal."""
    if hasattr(signal, "SIGIO"):
        signal.signal(signal.SIGIO, signal.SIG_IGN)


def is_being_written(file: SourceFile) -> bool:
    """Whether somebody has a file open for writing; False where that cannot be told. Blocks.

    Nothing can be told in a process that does not ignore broken leases.
    """
    if not hasattr(fcntl, "F_SETLEASE") or signal.getsignal(signal.SIGIO) is not signal.SIG_IGN:
        return False
    with contextlib.suppress(OSError):
        fd = file.fileno()
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except OSError as error:  # EACCES: somebody else's file
            return error.errno == errno.EAGAIN and is_local(fd)  # in this order: a network is asked what it is
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def refuse_written(file: SourceFile) -> None:
    """Raise EBUSY if somebody has it open for writing."""
    if is_being_written(file):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
