"""Changing a tree by descriptors: an object by one that stands for it, a name by one of its directory.

No path is walked here, so nobody can replace a folder by a symlink between two steps. A descriptor may be one of
O_PATH, which needs no permission on the object: calls that take none of those go by its name in /proc.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Callable, Sequence
from functools import partial

from mummufs.core.ranges import FileId
from mummufs.source.base import (
    Attributes,
    Creator,
    NewAttributes,
    SourceDirectory,
    SourceFile,
    SourceObject,
    Wanted,
    read_one_by_one,
)
from mummufs.source.creating import creating_as

Closer = Callable[[Callable[[], None]], None]
Identify = Callable[[os.stat_result, int], FileId]

_AT_EMPTY_PATH = 0x1000
_UTIME_OMIT = (1 << 30) - 2
_NS = 1_000_000_000
_RENAME_FLAGS = 1 | 2
"""RENAME_NOREPLACE and RENAME_EXCHANGE. RENAME_WHITEOUT is for file systems that are layers of others."""
_KEEP_ID = ctypes.c_uint32(-1)

_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def attributes_of(found: os.stat_result, identify: Identify, fd: int) -> Attributes:
    """What a stat says, with the identity of the file. `fd` is of something on the same file system."""
    return Attributes(
        file=identify(found, fd),
        mode=found.st_mode,
        nlink=found.st_nlink,
        uid=found.st_uid,
        gid=found.st_gid,
        rdev=found.st_rdev,
        size=found.st_size,
        blocks=found.st_blocks,
        atime_ns=found.st_atime_ns,
        mtime_ns=found.st_mtime_ns,
        ctime_ns=found.st_ctime_ns,
    )


class TreeObject:
    """Something in the tree, by a descriptor that is closed with the last reference."""

    def __init__(self, fd: int, identify: Identify, closer: Closer) -> None:
        self._fd = fd
        self._identify = identify
        self._closer = closer

    def attributes(self) -> Attributes:
        return attributes_of(os.fstat(self.fileno()), self._identify, self._fd)

    def fileno(self) -> int:
        if self._fd < 0:
            raise OSError(errno.EBADF, "the file is closed")
        return self._fd

    def set_attributes(self, new: NewAttributes) -> None:
        fd = self.fileno()
        if new.uid is not None or new.gid is not None:
            _change_owner(fd, new.uid, new.gid)
        if new.mode is not None:
            os.chmod(self._proc_path, stat.S_IMODE(new.mode))
        if new.size is not None:
            self._set_size(new.size)
        if new.atime_ns is not None or new.mtime_ns is not None:
            _set_times(fd, new.atime_ns, new.mtime_ns)

    def drop_privileges(self) -> None:
        # Not for a normal user's daemon, where it is somebody else's file: its own writes take them away there.
        with contextlib.suppress(PermissionError):
            _change_owner(self.fileno(), None, None)  # to nobody else, but the kernel takes the bits away all the same

    def getxattr(self, name: bytes) -> bytes:
        return os.getxattr(self._proc_path, name)

    def listxattr(self) -> list[bytes]:
        return [os.fsencode(name) for name in os.listxattr(self._proc_path)]

    def setxattr(self, name: bytes, value: bytes) -> None:
        os.setxattr(self._proc_path, name, value)

    def removexattr(self, name: bytes) -> None:
        os.removexattr(self._proc_path, name)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._closer(partial(os.close, fd))

    def __del__(self) -> None:
        self.close()

    @property
    def _proc_path(self) -> str:
        return f"/proc/self/fd/{self.fileno()}"

    def reopened_to_write(self) -> WritableTreeFile:
        """This very file, whoever has its name by now, open for writing, and for reading where that is permitted."""
        how = os.O_CLOEXEC | os.O_NOCTTY
        try:
            fd = os.open(self._proc_path, os.O_RDWR | how)
        except PermissionError:  # it may be written all the same
            fd = os.open(self._proc_path, os.O_WRONLY | how)
        return WritableTreeFile(fd, self._identify, self._closer)

    def _set_size(self, size: int) -> None:
        os.truncate(self._proc_path, size)


class TreeFile(TreeObject):
    """A regular file of the tree."""

    reads_at_once = False

    def read_many(self, wanted: Sequence[Wanted]) -> list[int]:
        return read_one_by_one(self, wanted)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        done = 0
        while done < len(buffer):
            n = os.preadv(self.fileno(), [buffer[done:]], offset + done)
            if n == 0:
                break
            done += n
        return done

    def to_write(self) -> WritableTreeFile:
        return self.reopened_to_write()

    def sync(self, *, data_only: bool = False) -> None:
        (os.fdatasync if data_only else os.fsync)(self.fileno())


class WritableTreeFile(TreeFile):
    """A regular file of the tree, open for writing."""

    def write(self, data: bytes, offset: int) -> int:
        view, done = memoryview(data), 0
        try:
            while done < len(view):
                done += os.pwrite(self.fileno(), view[done:], offset + done)
        except OSError:
            if done == 0:
                raise
        return done

    def to_read(self) -> SourceFile:
        fd = os.open(self._proc_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
        return TreeFile(fd, self._identify, self._closer)

    def flush(self) -> None:
        os.close(os.dup(self.fileno()))

    def _set_size(self, size: int) -> None:
        os.ftruncate(self.fileno(), size)


class TreeDirectory:
    """A directory of the tree, by a descriptor."""

    def __init__(self, opened: TreeObject, identify: Identify, closer: Closer) -> None:
        self._object = opened
        self._identify = identify
        self._closer = closer

    def create(self, name: bytes, mode: int, creator: Creator) -> WritableTreeFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with creating_as(creator):
            fd = os.open(_checked(name), flags, stat.S_IMODE(mode), dir_fd=self._object.fileno())
        return WritableTreeFile(fd, self._identify, self._closer)

    def mkdir(self, name: bytes, mode: int, creator: Creator) -> None:
        with creating_as(creator):
            os.mkdir(_checked(name), stat.S_IMODE(mode), dir_fd=self._object.fileno())

    def mknod(self, name: bytes, mode: int, device: int, creator: Creator) -> None:
        with creating_as(creator):
            os.mknod(_checked(name), mode, device, dir_fd=self._object.fileno())

    def symlink(self, name: bytes, target: bytes, creator: Creator) -> None:
        with creating_as(creator):
            os.symlink(target, _checked(name), dir_fd=self._object.fileno())

    def link(self, existing: SourceObject, name: bytes) -> None:
        assert isinstance(existing, TreeObject), "an object of the same source"
        # A name in /proc is followed to the very object, a symlink included, and needs no capability.
        source = f"/proc/self/fd/{existing.fileno()}"
        os.link(source, _checked(name), dst_dir_fd=self._object.fileno(), follow_symlinks=True)

    def unlink(self, name: bytes) -> None:
        os.unlink(_checked(name), dir_fd=self._object.fileno())

    def rmdir(self, name: bytes) -> None:
        os.rmdir(_checked(name), dir_fd=self._object.fileno())

    def rename(self, name: bytes, to: SourceDirectory, new_name: bytes, flags: int = 0) -> None:
        assert isinstance(to, TreeDirectory), "a directory of the same source"
        if flags & ~_RENAME_FLAGS:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        old, new = _checked(name), _checked(new_name)
        if _libc.renameat2(self._object.fileno(), old, to._object.fileno(), new, flags) != 0:
            _raise(name)

    def sync(self, *, data_only: bool = False) -> None:
        fd = os.open(f"/proc/self/fd/{self._object.fileno()}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            (os.fdatasync if data_only else os.fsync)(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        self._object.close()


def _checked(name: bytes) -> bytes:
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
        raise OSError(errno.EINVAL, "not a name in a directory", os.fsdecode(name))
    return name


def _change_owner(fd: int, uid: int | None, gid: int | None) -> None:
    owner = _KEEP_ID if uid is None else ctypes.c_uint32(uid)
    group = _KEEP_ID if gid is None else ctypes.c_uint32(gid)
    if _libc.fchownat(fd, b"", owner, group, _AT_EMPTY_PATH) != 0:
        _raise()


def _set_times(fd: int, atime_ns: int | None, mtime_ns: int | None) -> None:
    times = (_Timespec * 2)(_timespec(atime_ns), _timespec(mtime_ns))
    if _libc.utimensat(fd, b"", times, _AT_EMPTY_PATH) != 0:
        _raise()


def _timespec(ns: int | None) -> _Timespec:
    return _Timespec(0, _UTIME_OMIT) if ns is None else _Timespec(*divmod(ns, _NS))


def _raise(name: bytes | None = None) -> None:
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code), None if name is None else os.fsdecode(name))
