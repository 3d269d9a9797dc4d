"""What the engine needs of a source. The docstrings are the contract; every implementation runs its test suite.

Paths are bytes, relative to the source's root, without "." or "..", `b""` for the root itself. No symlink is followed
on the way, so no path leads outside. Every fault is a plain `OSError` with its errno.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mummufs.core.ranges import ByteRange, FileId, Version

if sys.platform == "win32":

    class StatVfs(NamedTuple):
        """What statvfs(2) says of a volume, where there is no statvfs."""

        f_bsize: int
        f_frsize: int
        f_blocks: int
        f_bfree: int
        f_bavail: int
        f_files: int
        f_ffree: int
        f_favail: int
        f_flag: int
        f_namemax: int

    def stat_vfs(values: Sequence[int]) -> StatVfs:
        """A `StatVfs` of these ten values, in its order."""
        return StatVfs(*values)

else:
    StatVfs = os.statvfs_result

    def stat_vfs(values: Sequence[int]) -> StatVfs:
        """A `StatVfs` of these ten values, in its order."""
        return StatVfs(values)


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


class Creator(NamedTuple):
    """Whose an object is that is being created, and which mode bits it does not get."""

    uid: int
    gid: int
    umask: int


class Place(NamedTuple):
    """Where an object was last seen, and which it was: what takes a place refuses another object there with ESTALE."""

    path: bytes
    file: FileId


class Wanted(NamedTuple):
    """Bytes that somebody wants: from which offset, and where to."""

    offset: int
    place: memoryview

    @property
    def range(self) -> ByteRange:
        return ByteRange(self.offset, len(self.place))


@dataclass(frozen=True, slots=True)
class NewAttributes:
    """Attributes to be set; None leaves one as it is."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None


class SourceObject(Protocol):
    """Anything in the tree: one inode, whatever happens to its name."""

    def attributes(self) -> Attributes:
        """The attributes of this inode now."""
        ...

    def set_attributes(self, new: NewAttributes) -> None:
        """Set these attributes: the owner first, for that takes setuid and setgid away, and the times last."""
        ...

    def drop_privileges(self) -> None:
        """Take setuid and setgid away, as a write by a normal user does; their times but the ctime stay."""
        ...

    def getxattr(self, name: bytes) -> bytes:
        """One extended attribute, ACLs (`system.posix_acl_*`) included."""
        ...

    def listxattr(self) -> list[bytes]:
        """The names of the extended attributes."""
        ...

    def setxattr(self, name: bytes, value: bytes) -> None:
        """Set an extended attribute."""
        ...

    def removexattr(self, name: bytes) -> None:
        """Remove an extended attribute. Raises OSError with ENODATA where there is none."""
        ...

    def close(self) -> None:
        """Close it. Closing twice does nothing."""
        ...


class SourceFile(SourceObject, Protocol):
    """A regular file, open for reading."""

    @property
    def reads_at_once(self) -> bool:
        """Whether `read_many` has its reads under way together: then whoever knows of several asks for them by one."""
        ...

    def read_many(self, wanted: Sequence[Wanted]) -> list[int]:
        """As `read_into` for each of these; the bytes that each has got.

        Raises:
            OSError: one of the reads failed, and none is under way any more; what the places hold is not defined.
        """
        ...

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Read until the buffer is full or the file ends, and return the bytes read.

        Raises:
            OSError: the read failed; what the buffer holds then is not defined.
        """
        ...

    def to_write(self) -> WritableFile:
        """The same file, whatever has become of its name, open for writing."""
        ...

    def sync(self, *, data_only: bool = False) -> None:
        """fsync(2), or fdatasync(2), of what anybody has written to it."""
        ...

    def fileno(self) -> int:
        """A descriptor that a child process may inherit. Raises OSError where there is none."""
        ...


def read_one_by_one(file: SourceFile, wanted: Sequence[Wanted]) -> list[int]:
    """`SourceFile.read_many` of a file whose reads are not under way together."""
    return [file.read_into(part.place, part.offset) for part in wanted]


class WritableFile(SourceFile, Protocol):
    """A regular file, open for writing, and for reading where that is permitted."""

    def write(self, data: bytes, offset: int) -> int:
        """Write all of it, at this very offset; the bytes written, which are fewer only after an error.

        Raises:
            OSError: nothing was written.
        """
        ...

    def to_read(self) -> SourceFile:
        """The same file, open for reading only."""
        ...

    def flush(self) -> None:
        """What close(2) would report: some file systems write no sooner."""
        ...


class SourceDirectory(Protocol):
    """An open directory: its entries are changed by their names in it. A name holds no "/" and is not "." or ".."."""

    def create(self, name: bytes, mode: int, creator: Creator) -> WritableFile:
        """Create a regular file. Raises FileExistsError where the name is taken, by whatever it may be."""
        ...

    def mkdir(self, name: bytes, mode: int, creator: Creator) -> None:
        """Create a directory."""
        ...

    def mknod(self, name: bytes, mode: int, device: int, creator: Creator) -> None:
        """Create a regular file, a fifo, a socket or a device node, as the mode's type says."""
        ...

    def symlink(self, name: bytes, target: bytes, creator: Creator) -> None:
        """Create a symlink."""
        ...

    def link(self, existing: SourceObject, name: bytes) -> None:
        """Give an object of the same source one more name."""
        ...

    def unlink(self, name: bytes) -> None:
        """Remove the name of anything but a directory."""
        ...

    def rmdir(self, name: bytes) -> None:
        """Remove an empty directory."""
        ...

    def rename(self, name: bytes, to: SourceDirectory, new_name: bytes, flags: int = 0) -> None:
        """Move a name to a directory of the same source. The flags are renameat2(2)'s."""
        ...

    def sync(self, *, data_only: bool = False) -> None:
        """fsync(2) of the directory."""
        ...

    def close(self) -> None:
        """Close it. Closing twice does nothing."""
        ...


RENAME_NOREPLACE = 1
"""A flag of `SourceDirectory.rename`: the new name must not be taken."""
RENAME_EXCHANGE = 2
"""The other one: both names are taken, and change places."""


class Source(Protocol):
    """A tree of files. Whoever changes it was allowed to: nothing here asks who wants it."""

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

    def open_to_write(self, place: Place) -> WritableFile:
        """Open a regular file for writing. Raises OSError with EINVAL for anything else, ESTALE for another file."""
        ...

    def object(self, place: Place) -> SourceObject:
        """What is there, a symlink itself. Raises OSError with ESTALE for another object."""
        ...

    def directory(self, place: Place) -> SourceDirectory:
        """Open a directory to change it. Raises OSError with ESTALE for another one."""
        ...

    def statfs(self) -> StatVfs:
        """Size and free space of the volume."""
        ...

    def close(self) -> None:
        """Give up what the source holds. Open files stay usable."""
        ...
