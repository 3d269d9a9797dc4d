"""What is in a memory source, and how it is changed through open files and directories."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mummufs.core.ranges import FileId
from mummufs.source.base import (
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    Attributes,
    Creator,
    NewAttributes,
    SourceDirectory,
    SourceFile,
    SourceObject,
    Wanted,
    read_one_by_one,
)

if TYPE_CHECKING:
    from mummufs.source.memory import MemorySource

_FILESYSTEM = 1


class MemoryNode:
    """An inode."""

    def __init__(self, mode: int, inode: int, contents: bytes, now_ns: int) -> None:
        self.mode = mode
        self.inode = inode
        self.contents = contents
        self.atime_ns: int | None = None
        self.mtime_ns = self.ctime_ns = now_ns
        self.nlink = 2 if stat.S_ISDIR(mode) else 1
        self.uid = self.gid = self.rdev = 0
        self.xattrs: dict[bytes, bytes] = {}


def attributes_of(node: MemoryNode) -> Attributes:
    """What stat says of it."""
    return Attributes(
        file=FileId(_FILESYSTEM, node.inode),
        mode=node.mode,
        nlink=node.nlink,
        uid=node.uid,
        gid=node.gid,
        rdev=node.rdev,
        size=len(node.contents),
        blocks=-(-len(node.contents) // 512),
        atime_ns=node.mtime_ns if node.atime_ns is None else node.atime_ns,
        mtime_ns=node.mtime_ns,
        ctime_ns=node.ctime_ns,
    )


class MemoryObject:
    """Something in the tree."""

    def __init__(self, source: MemorySource, path: bytes, node: MemoryNode) -> None:
        self._source = source
        self._path = path
        self._node: MemoryNode | None = node

    def attributes(self) -> Attributes:
        return attributes_of(self.node)

    def set_attributes(self, new: NewAttributes) -> None:
        with self._source._lock:
            node = self._source._touched(self.node)
            if new.uid is not None or new.gid is not None:
                _drop_privileges(node)
            node.uid = node.uid if new.uid is None else new.uid
            node.gid = node.gid if new.gid is None else new.gid
            if new.mode is not None:
                node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(new.mode)
            if new.size is not None:
                node.contents = node.contents[: new.size].ljust(new.size, b"\0")
                node.mtime_ns = node.ctime_ns
            node.atime_ns = node.atime_ns if new.atime_ns is None else new.atime_ns
            node.mtime_ns = node.mtime_ns if new.mtime_ns is None else new.mtime_ns

    def drop_privileges(self) -> None:
        with self._source._lock:
            _drop_privileges(self._source._touched(self.node))

    def getxattr(self, name: bytes) -> bytes:
        try:
            return self.node.xattrs[name]
        except KeyError:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), os.fsdecode(self._path)) from None

    def listxattr(self) -> list[bytes]:
        return list(self.node.xattrs)

    def setxattr(self, name: bytes, value: bytes) -> None:
        with self._source._lock:
            self._source._touched(self.node).xattrs[name] = value

    def removexattr(self, name: bytes) -> None:
        with self._source._lock:
            if name not in self.node.xattrs:
                raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), os.fsdecode(self._path))
            del self._source._touched(self.node).xattrs[name]

    def close(self) -> None:
        self._node = None

    @property
    def node(self) -> MemoryNode:
        """The inode, while this is open."""
        if self._node is None:
            raise OSError(errno.EBADF, "the file is closed", os.fsdecode(self._path))
        return self._node


class MemoryFile(MemoryObject):
    """An open file of a memory source."""

    reads_at_once = False

    def read_many(self, wanted: Sequence[Wanted]) -> list[int]:
        return read_one_by_one(self, wanted)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        node = self.node
        self._source._before_read(self._path, offset, len(buffer))
        data = node.contents[offset : offset + len(buffer)]
        if self._source.short is not None:
            data = data[: self._source.short]
        buffer[: len(data)] = data
        return len(data)

    def to_write(self) -> WritableMemoryFile:
        return WritableMemoryFile(self._source, self._path, self.node)

    def sync(self, *, data_only: bool = False) -> None:
        del data_only
        _ = self.node

    def fileno(self) -> int:
        raise OSError(errno.EOPNOTSUPP, "a file in memory has no descriptor", os.fsdecode(self._path))


class WritableMemoryFile(MemoryFile):
    """A file of a memory source, open for writing."""

    def write(self, data: bytes, offset: int) -> int:
        self._source._before_write(self._path, offset, len(data))
        with self._source._lock:
            node = self._source._touched(self.node)
            before = node.contents.ljust(offset, b"\0")
            node.contents = before[:offset] + data + before[offset + len(data) :]
            node.mtime_ns = node.ctime_ns
        return len(data)

    def to_read(self) -> SourceFile:
        return MemoryFile(self._source, self._path, self.node)

    def flush(self) -> None:
        _ = self.node


class MemoryDirectory:
    """An open directory of a memory source."""

    def __init__(self, source: MemorySource, path: bytes) -> None:
        self._source = source
        self._path: bytes | None = path

    def create(self, name: bytes, mode: int, creator: Creator) -> WritableMemoryFile:
        node = self._add(name, stat.S_IFREG | stat.S_IMODE(mode), b"", creator)
        return WritableMemoryFile(self._source, self._at(name), node)

    def mkdir(self, name: bytes, mode: int, creator: Creator) -> None:
        self._add(name, stat.S_IFDIR | stat.S_IMODE(mode), b"", creator)

    def mknod(self, name: bytes, mode: int, device: int, creator: Creator) -> None:
        self._add(name, mode, b"", creator).rdev = device

    def symlink(self, name: bytes, target: bytes, creator: Creator) -> None:
        node = self._add(name, stat.S_IFLNK | 0o777, target, creator)
        node.mode = stat.S_IFLNK | 0o777

    def link(self, existing: SourceObject, name: bytes) -> None:
        assert isinstance(existing, MemoryObject), "an object of the same source"
        with self._source._lock:
            path = self._free(name)
            if stat.S_ISDIR(existing.node.mode):
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            node = self._source._touched(existing.node)
            node.nlink += 1
            self._source._nodes[path] = node

    def unlink(self, name: bytes) -> None:
        self._remove(name, lambda node: errno.EISDIR if stat.S_ISDIR(node.mode) else 0)

    def rmdir(self, name: bytes) -> None:
        path = self._at(name)
        full = any(other.startswith(path + b"/") for other in self._source._nodes)
        self._remove(
            name,
            lambda node: errno.ENOTDIR if not stat.S_ISDIR(node.mode) else errno.ENOTEMPTY if full else 0,
        )

    def rename(self, name: bytes, to: SourceDirectory, new_name: bytes, flags: int = 0) -> None:
        assert isinstance(to, MemoryDirectory), "a directory of the same source"
        old, new, nodes = self._at(name), to._at(new_name), self._source._nodes
        self._source._node(old)
        if flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if flags & RENAME_NOREPLACE and new in nodes:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        if flags & RENAME_EXCHANGE:
            self._source._node(new)
        if new in nodes and nodes[new] is nodes[old]:
            return  # two names of one file
        with self._source._lock:
            moved, replaced = _taken_out(nodes, old), _taken_out(nodes, new)
            nodes.update({new + rest: node for rest, node in moved.items()})
            self._source._touched(moved[b""])
            if flags & RENAME_EXCHANGE:
                nodes.update({old + rest: node for rest, node in replaced.items()})
                self._source._touched(replaced[b""])
            elif replaced:
                self._source._touched(replaced[b""]).nlink -= 1

    def sync(self, *, data_only: bool = False) -> None:
        del data_only
        self._at(b".sync")

    def close(self) -> None:
        self._path = None

    def _at(self, name: bytes) -> bytes:
        if self._path is None:
            raise OSError(errno.EBADF, "the directory is closed")
        if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
            raise OSError(errno.EINVAL, "not a name in a directory", os.fsdecode(name))
        return self._path + b"/" + name if self._path else name

    def _free(self, name: bytes) -> bytes:
        path = self._at(name)
        if path in self._source._nodes:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(path))
        return path

    def _add(self, name: bytes, mode: int, contents: bytes, creator: Creator) -> MemoryNode:
        with self._source._lock:
            path = self._free(name)
            node = self._source._new(mode & ~creator.umask, contents)
            node.uid, node.gid = creator.uid, creator.gid
            self._source._nodes[path] = self._source._touched(node)
            node.mtime_ns = node.ctime_ns
        return node

    def _remove(self, name: bytes, refusal: Callable[[MemoryNode], int]) -> None:
        path = self._at(name)
        node = self._source._node(path)
        code = refusal(node)
        if code:
            raise OSError(code, os.strerror(code), os.fsdecode(path))
        with self._source._lock:
            self._source._touched(self._source._nodes.pop(path)).nlink -= 1


def _drop_privileges(node: MemoryNode) -> None:
    if not stat.S_ISDIR(node.mode):
        node.mode &= ~(stat.S_ISUID | (stat.S_ISGID if node.mode & stat.S_IXGRP else 0))


def _taken_out(nodes: dict[bytes, MemoryNode], path: bytes) -> dict[bytes, MemoryNode]:
    """An object and what is below it, by the rest of their paths, taken out of the tree."""
    below = [other for other in nodes if other == path or other.startswith(path + b"/")]
    return {other[len(path) :]: nodes.pop(other) for other in below}
