"""A source in memory, with a delay and faults that can be set: for tests of everything above it. It ships."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from mummufs.source.base import Attributes, Entry, Place, StatVfs, stat_vfs
from mummufs.source.memoryfiles import (
    MemoryDirectory,
    MemoryFile,
    MemoryNode,
    MemoryObject,
    WritableMemoryFile,
    attributes_of,
)

__all__ = ["MemoryFile", "MemorySource", "ReadRecord"]

_HOLD_MAX_S = 60.0
"""A read that is held is let go after this long, so that a failed test ends."""


class ReadRecord(NamedTuple):
    """One read or write that reached the source."""

    path: bytes
    offset: int
    size: int


class MemorySource:
    """A tree of files held in memory.

    Attributes:
        reads: every read so far, in the order of arrival.
        writes: every write through an open file so far.
        delay_s: how long each read takes.
        fail_writes: the errno that writes fail with.
        short: reads return at most this many bytes, as if the file ended.
    """

    def __init__(self, files: dict[bytes, bytes] | None = None) -> None:
        self._lock = threading.Lock()
        self._inodes = itertools.count(2)
        self._clock_ns = 1_000_000_000
        self._nodes: dict[bytes, MemoryNode] = {b"": MemoryNode(stat.S_IFDIR | 0o755, 1, b"", self._clock_ns)}
        self._open_gate = threading.Event()
        self._open_gate.set()
        self._write_gate = threading.Event()
        self._write_gate.set()
        self.fail_writes: int | None = None
        self.reads: list[ReadRecord] = []
        self.writes: list[ReadRecord] = []
        self.delay_s = 0.0
        self.short: int | None = None
        self.fail_nth: dict[int, int] = {}
        for path, contents in (files or {}).items():
            self.write(path, contents)

    # ------------------------------------------------------------------ what a test does to it

    def write(self, path: bytes, contents: bytes, *, keep_mtime: bool = False) -> None:
        """Create a file, with its directories, or give it new contents and a new version in place."""
        with self._lock:
            self._clock_ns += 1_000_000_000
            for i, byte in enumerate(path):
                if byte == ord("/"):
                    self._nodes.setdefault(path[:i], self._new(stat.S_IFDIR | 0o755, b""))
            node = self._nodes.get(path)
            if node is None:
                self._nodes[path] = self._new(stat.S_IFREG | 0o644, contents)
                return
            node.contents = contents
            node.ctime_ns = self._clock_ns
            if not keep_mtime:
                node.mtime_ns = self._clock_ns

    def replace(self, path: bytes, contents: bytes) -> None:
        """Rename a new file over this one: a new inode."""
        with self._lock:
            self._clock_ns += 1_000_000_000
            self._nodes[path] = self._new(stat.S_IFREG | 0o644, contents)

    def chmod(self, path: bytes, mode: int) -> None:
        """Change the mode bits, and with them the ctime."""
        with self._lock:
            node = self._touched(self._nodes[path])
            node.mode = stat.S_IFMT(node.mode) | mode

    def symlink(self, path: bytes, target: bytes) -> None:
        """Create a symlink."""
        with self._lock:
            self._nodes[path] = self._new(stat.S_IFLNK | 0o777, target)

    def remove(self, path: bytes) -> None:
        """Remove a name; open files stay readable."""
        with self._lock:
            node = self._touched(self._nodes.pop(path))
            node.nlink -= 1

    def rename(self, old: bytes, new: bytes) -> None:
        """Give a file another name; open files stay what they are."""
        with self._lock:
            self._nodes[new] = self._touched(self._nodes.pop(old))

    def link(self, path: bytes, name: bytes) -> None:
        """Give a file a second name."""
        with self._lock:
            node = self._nodes[name] = self._touched(self._nodes[path])
            node.nlink += 1

    def set_xattr(self, path: bytes, name: bytes, value: bytes) -> None:
        """Give a file an extended attribute."""
        with self._lock:
            self._touched(self._nodes[path]).xattrs[name] = value

    def hold_reads(self) -> None:
        """From now on reads wait until `release_reads`."""
        self._open_gate.clear()

    def release_reads(self) -> None:
        """Let the held reads go on."""
        self._open_gate.set()

    def hold_writes(self) -> None:
        """From now on writes wait until `release_writes`."""
        self._write_gate.clear()

    def release_writes(self) -> None:
        """Let the held writes go on."""
        self._write_gate.set()

    def fail_read(self, nth: int, code: int = errno.EIO) -> None:
        """Fail the n-th read from now with this errno."""
        with self._lock:
            self.fail_nth[len(self.reads) + nth] = code

    def read_bytes(self, path: bytes | None = None) -> int:
        """Bytes asked of the source so far."""
        return sum(r.size for r in self.reads if path is None or r.path == path)

    # ------------------------------------------------------------------ the source

    def stat(self, path: bytes) -> Attributes:
        return attributes_of(self._node(path))

    def entries(self, path: bytes) -> Iterator[Entry]:
        node = self._node(path)
        if not stat.S_ISDIR(node.mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fsdecode(path))
        prefix = path + b"/" if path else b""
        for name, child in sorted(self._nodes.items()):
            rest = name[len(prefix) :]
            if name.startswith(prefix) and rest and b"/" not in rest:
                yield Entry(rest, attributes_of(child))

    def readlink(self, path: bytes) -> bytes:
        node = self._node(path)
        if not stat.S_ISLNK(node.mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), os.fsdecode(path))
        return node.contents

    def open(self, path: bytes) -> MemoryFile:
        node = self._node(path)
        if not stat.S_ISREG(node.mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fsdecode(path))
        return MemoryFile(self, path, node)

    def open_to_write(self, place: Place) -> WritableMemoryFile:
        node = self._at(place)
        if not stat.S_ISREG(node.mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fsdecode(place.path))
        return WritableMemoryFile(self, place.path, node)

    def object(self, place: Place) -> MemoryObject:
        return MemoryObject(self, place.path, self._at(place))

    def directory(self, place: Place) -> MemoryDirectory:
        if not stat.S_ISDIR(self._at(place).mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fsdecode(place.path))
        return MemoryDirectory(self, place.path)

    def open_directory(self, path: bytes) -> int:
        raise OSError(errno.EOPNOTSUPP, "a source in memory has no descriptors", os.fsdecode(path))

    def statfs(self) -> StatVfs:
        return stat_vfs((4096, 4096, 1 << 20, 1 << 19, 1 << 19, 1 << 16, 1 << 15, 1 << 15, 0, 255))

    def close(self) -> None:
        self.release_reads()
        self.release_writes()

    def _at(self, place: Place) -> MemoryNode:
        node = self._node(place.path)
        if attributes_of(node).file != place.file:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), os.fsdecode(place.path))
        return node

    def _node(self, path: bytes) -> MemoryNode:
        node = self._nodes.get(path)
        if node is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
        return node

    def _touched(self, node: MemoryNode) -> MemoryNode:
        """The node, its ctime that of now: what changes an inode moves it, whatever else it does."""
        self._clock_ns += 1_000_000_000
        node.ctime_ns = self._clock_ns
        return node

    def _new(self, mode: int, contents: bytes) -> MemoryNode:
        return MemoryNode(mode, next(self._inodes), contents, self._clock_ns)

    def _before_write(self, path: bytes, offset: int, size: int) -> None:
        with self._lock:
            self.writes.append(ReadRecord(path, offset, size))
            code = self.fail_writes
        self._write_gate.wait(_HOLD_MAX_S)
        if code is not None:
            raise OSError(code, os.strerror(code), os.fsdecode(path))

    def _before_read(self, path: bytes, offset: int, size: int) -> None:
        with self._lock:
            self.reads.append(ReadRecord(path, offset, size))
            code = self.fail_nth.pop(len(self.reads), None)
        self._open_gate.wait(_HOLD_MAX_S)
        if self.delay_s:
            time.sleep(self.delay_s)
        if code is not None:
            raise OSError(code, os.strerror(code), os.fsdecode(path))
