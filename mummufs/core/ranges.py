"""Byte ranges, identities and versions: the values that everything else is keyed by. All sizes are bytes."""

from __future__ import annotations

from typing import NamedTuple

PAGE_SIZE = 4096
"""The kernel asks in whole pages of 4 KiB, so windows are rounded out to it and range files are aligned to it."""


def page_floor(offset: int) -> int:
    """The start of the page that `offset` lies in."""
    return offset & -PAGE_SIZE


def page_ceil(offset: int) -> int:
    """The first page boundary at or after `offset`."""
    return -(-offset // PAGE_SIZE) * PAGE_SIZE


class ByteRange(NamedTuple):
    """A half-open run of bytes `[offset, offset + size)`."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """The offset of the first byte after the range."""
        return self.offset + self.size

    def contains(self, other: ByteRange) -> bool:
        """Whether every byte of `other` lies in this range."""
        return self.offset <= other.offset and other.end <= self.end

    def intersection(self, other: ByteRange) -> ByteRange:
        """The bytes that both have; of size 0 where they do not meet."""
        offset = max(self.offset, other.offset)
        return ByteRange(offset, max(0, min(self.end, other.end) - offset))


class FileId(NamedTuple):
    """Which file: the file system it is on (a subvolume is one of its own) and its inode there.

    `filesystem` is stable over remounts and restarts; `source/` says how it is derived.
    """

    filesystem: int
    inode: int


class Version(NamedTuple):
    """Which contents of a file, as far as its attributes tell: a stored range is believed for one version only."""

    size: int
    mtime_ns: int
    ctime_ns: int

    def differs_in_contents(self, other: Version) -> bool:
        """Whether size or mtime differ. A ctime alone may be a chmod, a link or a rename, or a restored mtime."""
        return self.size != other.size or self.mtime_ns != other.mtime_ns


class RangeKey(NamedTuple):
    """The identity of one stored range: a file and the window's offset and size in it."""

    file: FileId
    offset: int
    size: int
