"""A directory tree as a source.

Everything is opened relative to a descriptor of the root, by openat2(2) with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS:
a directory that somebody replaces by a symlink between two calls cannot lead us outside. Attributes are read through
an O_PATH descriptor, which needs no permission on the object, does not touch its atime and never blocks.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from hashlib import blake2b

from mummufs.core.ranges import FileId
from mummufs.source.base import Attributes, Entry, Place
from mummufs.source.descriptors import Closer, TreeDirectory, TreeFile, TreeObject, WritableTreeFile, attributes_of

_SYS_OPENAT2 = 437
"""The same number on every architecture that Linux has added system calls to since 2020."""
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_PATH_MAX = 4096
"""Bytes of a path that the kernel takes at once, the zero byte at its end included."""
_RACE_RETRIES = 8
"""openat2 answers EAGAIN when a rename elsewhere raced with it. More than this many in a row is no accident."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


def open_beneath(root: int, path: bytes, flags: int) -> int:
    """Open `path` relative to the directory `root`, never outside it and through no symlink.

    A path of more than PATH_MAX bytes is walked in pieces: who is in a directory gets to any depth.
    """
    if b"\0" in path:
        raise OSError(errno.EINVAL, "a path cannot hold a zero byte", os.fsdecode(path))
    if len(path) >= _PATH_MAX:
        above, _, below = path[:_PATH_MAX].rpartition(b"/")
        directory = open_beneath(root, above, os.O_PATH | os.O_DIRECTORY)
        try:
            return open_beneath(directory, below + path[_PATH_MAX:], flags)
        finally:
            os.close(directory)
    how = _OpenHow(flags | os.O_CLOEXEC, 0, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
    for _ in range(_RACE_RETRIES):
        fd = int(
            _syscall(
                ctypes.c_long(_SYS_OPENAT2),
                ctypes.c_int(root),
                ctypes.c_char_p(path or b"."),
                ctypes.byref(how),
                ctypes.c_size_t(ctypes.sizeof(how)),
            )
        )
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code), os.fsdecode(path))


class TreeSource:
    """The tree below one directory.

    Raises:
        OSError: the directory cannot be opened.
    """

    def __init__(self, root: str | os.PathLike[str], closer: Closer = lambda call: call()) -> None:
        """Open a directory.

        Args:
            closer: has the closing of files done, elsewhere perhaps: close(2) hangs while the source does.
        """
        self._closer = closer
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._path = os.fsencode(os.path.realpath(root))
        found = os.fstat(self._root)
        self._root_device, self._root_inode = found.st_dev, found.st_ino
        self._filesystems: dict[int, int] = {}

    def stat(self, path: bytes) -> Attributes:
        if not path:
            self._follow_mount()
        fd = self._open_path(path)
        try:
            return attributes_of(os.fstat(fd), self._identify, fd)
        finally:
            os.close(fd)

    def entries(self, path: bytes) -> Iterator[Entry]:
        fd = self.open_directory(path)
        try:
            device = os.fstat(fd).st_dev
            with os.scandir(fd) as entries:
                for entry in entries:
                    name = os.fsencode(entry.name)
                    try:
                        found = entry.stat(follow_symlinks=False)
                        if found.st_dev == device:
                            attributes = attributes_of(found, self._identify, fd)
                        else:  # another file system or subvolume begins here: it has an identity of its own
                            attributes = self.stat(path + b"/" + name if path else name)
                    except OSError:
                        continue
                    yield Entry(name, attributes)
        finally:
            os.close(fd)

    def readlink(self, path: bytes) -> bytes:
        fd = self._open_path(path)
        try:
            return os.readlink(b"", dir_fd=fd)
        finally:
            os.close(fd)

    def open(self, path: bytes) -> TreeFile:
        if not self.stat(path).is_file:  # first, because to open a device is to do something to it
            raise OSError(errno.EINVAL, "not a regular file", os.fsdecode(path))
        # O_NONBLOCK: a fifo put there meanwhile must not hold the thread; it means nothing for a regular file.
        fd = open_beneath(self._root, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", os.fsdecode(path))
        return TreeFile(fd, self._identify, self._closer)

    def open_to_write(self, place: Place) -> WritableTreeFile:
        found = self.object(place)
        if not found.attributes().is_file:
            raise OSError(errno.EINVAL, "not a regular file", os.fsdecode(place.path))
        return found.reopened_to_write()

    def object(self, place: Place) -> TreeObject:
        return self._at(TreeObject(self._open_path(place.path), self._identify, self._closer), place)

    def directory(self, place: Place) -> TreeDirectory:
        fd = open_beneath(self._root, place.path, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY)
        opened = self._at(TreeObject(fd, self._identify, self._closer), place)
        return TreeDirectory(opened, self._identify, self._closer)

    @staticmethod
    def _at(found: TreeObject, place: Place) -> TreeObject:
        if found.attributes().file != place.file:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), os.fsdecode(place.path))
        return found

    def open_directory(self, path: bytes) -> int:
        return open_beneath(self._root, path, os.O_RDONLY | os.O_DIRECTORY)

    def statfs(self) -> os.statvfs_result:
        return os.statvfs(self._root)

    def close(self) -> None:
        root, self._root = self._root, -1
        if root >= 0:
            os.close(root)

    def _open_path(self, path: bytes) -> int:
        return open_beneath(self._root, path, os.O_PATH | os.O_NOFOLLOW)

    def _follow_mount(self) -> None:
        """Go over to a file system that was mounted on our directory after we opened it: at boot it may come late.

        The other way round the old one is held on to: a volume that was unmounted is absent, not empty.
        """
        try:
            there, above = os.stat(self._path), os.stat(os.path.dirname(self._path))
            here = self._root_device, self._root_inode  # remembered: the file system that we have may be dead
            if there.st_dev == above.st_dev or (there.st_dev, there.st_ino) == here:
                return
            fresh = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return
        os.dup2(fresh, self._root, inheritable=False)  # calls under way go on with the same number
        os.close(fresh)
        self._root_device, self._root_inode = there.st_dev, there.st_ino
        self._filesystems.clear()

    def _identify(self, found: os.stat_result, fd: int) -> FileId:
        """The identity of a file, from its stat and a descriptor on its file system."""
        filesystem = self._filesystems.get(found.st_dev)
        if filesystem is None:
            filesystem = self._filesystem_id(found.st_dev, fd)
            self._filesystems[found.st_dev] = filesystem
        return FileId(filesystem, found.st_ino)

    def _filesystem_id(self, device: int, fd: int) -> int:
        """A number for a file system that is the same after a remount and a restart.

        f_fsid is made from the file system's UUID on ext4 and on btrfs, which also mixes in the subvolume; device
        numbers are not stable, and a btrfs has an anonymous one anyway. (xfs makes it of its device number: where
        that changes the store is cold, and no more.) Where a file system states none, the path of the source stands
        in for it.
        """
        fsid = os.fstatvfs(fd).f_fsid
        if fsid:
            seed = b"fsid:%d" % fsid
        else:
            other = b"" if device == self._root_device else b":%d" % device
            seed = b"path:" + self._path + other
        return int.from_bytes(blake2b(seed, digest_size=8).digest(), "little")
