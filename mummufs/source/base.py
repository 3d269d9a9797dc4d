"""What the engine needs of a source. The docstrings are the contract; every implementation runs its test suite.

Paths are bytes, relative to the source's root, without "." or "..", `b""` for the root itself. No symlink is followed
on the way, so no path leads outside. Every fault is a plain `OSError` with its errno.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mummufs.core.ranges import FileId, Version


@dataclass(frozen=True, slots=True)
class Attributes:
    """What stat(2) says, with the identity of the file in place of device and inode."""

    file: FileId
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    blocks: int
    """In units of 512 bytes."""
    atime_ns: int
    mtime_ns: int
    ctime_ns: int

    @property
    def version(self) -> Version:
        """Which contents these attributes stand for."""
        return Version(self.size, self.mtime_ns, self.ctime_ns)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)


class Entry(NamedTuple):
    """A name in a directory and what it names."""

    name: bytes
    attributes: Attributes


class SourceFile(Protocol):
    """A regular file, open for reading: one inode, whatever happens to its name."""

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Read until the buffer is full or the file ends, and return the bytes read.

        Raises:
            OSError: the read failed; what the buffer holds then is not defined.
        """
        ...

    def attributes(self) -> Attributes:
        """The attributes of this inode now."""
        ...

    def fileno(self) -> int:
        """A descriptor that a child process may inherit. Raises OSError where there is none."""
        ...

    def close(self) -> None:
        """Close it. Closing twice does nothing."""
        ...


class Source(Protocol):
    """A tree of files to read."""

    def stat(self, path: bytes) -> Attributes:
        """The attributes of what the path names; of the link itself where that is a symlink."""
        ...

    def entries(self, path: bytes) -> Iterator[Entry]:
        """The entries of a directory, without "." and "..", in the file system's order.

        An entry that vanishes meanwhile, or cannot be looked at, is left out.
        """
        ...

    def readlink(self, path: bytes) -> bytes:
        """What a symlink says, verbatim."""
        ...

    def open(self, path: bytes) -> SourceFile:
        """Open a regular file for reading. Raises OSError with EINVAL for anything else; it never blocks on a fifo."""
        ...

    def open_directory(self, path: bytes) -> int:
        """A descriptor of a directory, which the caller closes. Raises OSError where the source has none to give."""
        ...

    def statfs(self) -> os.statvfs_result:
        """Size and free space of the volume."""
        ...

    def getxattr(self, path: bytes, name: bytes) -> bytes:
        """One extended attribute, ACLs (`system.posix_acl_*`) included."""
        ...

    def listxattr(self, path: bytes) -> list[bytes]:
        """The names of the extended attributes."""
        ...

    def close(self) -> None:
        """Give up what the source holds. Open files stay usable."""
        ...
