"""Mounting for the lane: the descriptor of /dev/fuse is ours, and libfuse gets a socket in its place.

Root mounts by mount(2). Everybody else asks fusermount3, which mounts and hands the descriptor over a socket.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mummufs.backends.fuse import wire
from mummufs.core.errors import MummufsError
from mummufs.source.local import is_local

DEVICE = "/dev/fuse"
FUSERMOUNT = "fusermount3"
FUSERMOUNT_DEFAULT = "/usr/bin/fusermount3"
FUSERMOUNT_WAIT_S = 20.0
"""How long fusermount3 may take to mount."""

_MOUNT_FLAGS = {"ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8, "sync": 16, "noatime": 1024, "nodiratime": 2048}
_ALWAYS = ("nosuid", "nodev")
"""A mirrored tree may hold anybody's device nodes and setuid files: as libfuse does, unless the user says otherwise."""


class LaneUnavailableError(MummufsError):
    """The lane cannot mount here; pyfuse3 may still be able to."""


@dataclass(frozen=True)
class MountRequest:
    """What to mount.

    Attributes:
        fsname: what the mount table shows as the source.
        subtype: the file system is shown as "fuse.<subtype>".
        flags: of the words that mount(8) knows: ro, noexec, ...
    """

    mountpoint: Path
    fsname: str
    subtype: str
    allow_other: bool
    flags: Sequence[str]


def mount(request: MountRequest) -> int:
    """Mount and give the descriptor of the connection.

    Raises:
        LaneUnavailableError: it did not work; nothing is mounted.
    """
    try:
        return _by_system_call(request) if os.geteuid() == 0 else _by_fusermount(request)
    except OSError as error:
        raise LaneUnavailableError(
            f"{request.mountpoint} cannot be mounted for the fast lane: {error.strerror or error}"
        ) from None


def clone(fd: int) -> int:
    """Another descriptor of the same connection. A reply goes to the one that the request was read from.

    Raises:
        OSError: the kernel does not clone.
    """
    copy = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(copy, wire.IOC_CLONE, struct.pack("=I", fd))
    except OSError:
        os.close(copy)
        raise
    return copy


def open_backing(fd: int, backing_fd: int) -> int:
    """Register an open file as one to which opens may be passed through; its backing id.

    Raises:
        OSError: the kernel refuses: no right (EPERM), or a stacked file system (ELOOP), or it does not know how. Or we
            do: the file is not on a local file system (EOPNOTSUPP).
    """
    if not is_local(backing_fd):
        raise OSError(errno.EOPNOTSUPP, "its file system is not known for whole reads and mappings of every file")
    argument = bytearray(wire.BACKING_MAP.pack(backing_fd, 0, 0))
    return int(fcntl.ioctl(fd, wire.IOC_BACKING_OPEN, argument))


def close_backing(fd: int, backing_id: int) -> None:
    """Take a backing id back; open files go on with it."""
    with contextlib.suppress(OSError):  # the connection may be gone, and its ids with it
        fcntl.ioctl(fd, wire.IOC_BACKING_CLOSE, struct.pack("=I", backing_id))


def _by_system_call(request: MountRequest) -> int:
    fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    try:
        mode = os.stat(request.mountpoint).st_mode
        data = f"fd={fd},rootmode={mode:o},user_id=0,group_id={os.getegid()},default_permissions"
        if request.allow_other:
            data += ",allow_other"
        bits = 0
        for word in (*_ALWAYS, *request.flags):
            bits |= _MOUNT_FLAGS[word]
        libc = ctypes.CDLL(None, use_errno=True)
        name = os.fsencode(request.fsname)
        kind = f"fuse.{request.subtype}".encode()
        if libc.mount(name, os.fsencode(request.mountpoint), kind, ctypes.c_ulong(bits), data.encode()) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _by_fusermount(request: MountRequest) -> int:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs, tempfile.TemporaryFile() as output:
        command = [shutil.which(FUSERMOUNT) or FUSERMOUNT_DEFAULT, "-o", _fusermount_options(request)]
        try:
            done = subprocess.run(
                [*command, "--", os.fspath(request.mountpoint)],
                env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=FUSERMOUNT_WAIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise OSError(errno.ETIMEDOUT, f"{FUSERMOUNT} does not answer") from None
        theirs.close()
        ours.settimeout(FUSERMOUNT_WAIT_S)
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        if done.returncode == 0 and fds:
            os.set_inheritable(fds[0], False)
            return fds[0]
        for fd in fds:
            os.close(fd)
        output.seek(0)
        said = os.fsdecode(output.read(4096)).strip().splitlines()
        raise OSError(errno.EPERM, said[-1] if said else f"{FUSERMOUNT} failed")


def _fusermount_options(request: MountRequest) -> str:
    """Commas separate, a backslash escapes."""
    escaped = request.fsname.replace("\\", "\\\\").replace(",", "\\,")
    words = ["default_permissions", f"fsname={escaped}", f"subtype={request.subtype}", *request.flags]
    if request.allow_other:
        words.append("allow_other")
    return ",".join(words)
