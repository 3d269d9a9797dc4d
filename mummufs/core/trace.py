"""What a block of a trace says: which ranges were read, in order, as columns of bytes. docs/trace.md has the format.

Theory of operation. A trace is a sequence of blocks, each of up to BLOCK_READS_MAX reads of ranges. Files and windows
are introduced by the block in which they are first read, and numbered over the whole trace in that order; a read names
a window by its number. An engine reads the same windows in nearly the same order for every token, so the difference to
the window read before is small, and so are the time since then and the bytes of the window that were not read.

Those differences are kept in columns, and a column as *byte planes*: first the lowest byte of every number, then the
next one of every number, up to the highest. All planes but the lowest are mostly zeros, which any compressor makes
next to nothing of, and making and reading them takes no Python loop: a block costs the daemon a fraction of a
millisecond. How blocks lie in a file, compressed and with checksums, is in `mummufs/tracefile.py`.
"""

from __future__ import annotations

import struct
import sys
from array import array
from itertools import accumulate
from typing import NamedTuple

from mummufs.core.errors import MummufsError
from mummufs.core.ranges import FileId

FORMAT_VERSION = 1
BLOCK_READS_MAX = 8192
"""Reads of one block."""
FILES_MAX = 100_000
"""Files of one trace."""
WINDOWS_MAX = 1_000_000
"""Windows of one trace, all of its files together: ten times those of the largest model."""
NAME_BYTES_MAX = 4096
"""Of a path, or of a pack's name."""
OFFSET_MAX = 1 << 63

_HEAD = struct.Struct("<IIIIQQ")
"""Files, windows, reads, bytes of names; ms from the start of the trace to the block's first read; reads dropped."""
_FILE_BYTES = 3 * 8 + 2 * 4
_WINDOW_BYTES = 4 + 2 * 8
_READ_BYTES = 4 + 4 + 8 + 1
_NAMES_BYTES_MAX = 1 << 20
PAYLOAD_BYTES_MAX = _HEAD.size + BLOCK_READS_MAX * (_FILE_BYTES + _WINDOW_BYTES + _READ_BYTES) + _NAMES_BYTES_MAX
"""A block that states more than this is not one."""
_MS_MAX = (1 << 32) - 1
_HIT = 1


class TraceError(MummufsError):
    """Bytes that are no trace, or no longer one."""


class TraceFile(NamedTuple):
    """A file that was read.

    Attributes:
        size: of the file, in bytes, when it was first read.
        path: in the source.
        pack: the name of the model it belongs to.
    """

    file: FileId
    size: int
    path: bytes
    pack: bytes


class TraceWindow(NamedTuple):
    """A window that was read: the number of its file, and where it lies there, in bytes."""

    file: int
    offset: int
    size: int


class TraceReads(NamedTuple):
    """The reads of one block, as columns of one length.

    Attributes:
        ms: when, from the start of the trace.
        windows: the number of the window.
        sizes: bytes read of it; more than the window's size where it was read more than once.
        hits: 1 where they came from the store, else 0.
        dropped: reads that were not recorded between the block before and this one.
    """

    ms: list[int]
    windows: list[int]
    sizes: list[int]
    hits: bytes
    dropped: int


class BlockBuilder:
    """A block as it comes into being. Numbers of files and windows are the caller's: 0, 1, 2, ... over the trace."""

    __slots__ = ("_before_ms", "_before_window", "_files", "_first_ms", "_flags", "_names", "_reads", "_windows")

    def __init__(self) -> None:
        self._files = (array("Q"), array("Q"), array("Q"), array("I"), array("I"))
        """File system, inode, size, bytes of the path, bytes of the pack's name."""
        self._windows = (array("I"), array("Q"), array("Q"))
        """File, offset, size."""
        self._reads = (array("I"), array("i"), array("q"))
        """Ms since the read before, windows further than it, bytes of the window that were not read."""
        self._flags = bytearray()
        self._names = bytearray()
        self._first_ms = 0
        self._before_ms = 0
        self._before_window = 0

    def __len__(self) -> int:
        """Its reads."""
        return len(self._flags)

    @property
    def is_full(self) -> bool:
        """Whether another read, and what it may introduce, has no place here."""
        return len(self._flags) >= BLOCK_READS_MAX or len(self._names) > _NAMES_BYTES_MAX - 2 * NAME_BYTES_MAX

    def add_file(self, file: TraceFile) -> None:
        """Introduce the next file. Names are cut at NAME_BYTES_MAX."""
        path, pack = file.path[:NAME_BYTES_MAX], file.pack[:NAME_BYTES_MAX]
        for column, value in zip(self._files, (*file.file, file.size, len(path), len(pack)), strict=True):
            column.append(value)
        self._names += path + pack

    def add_window(self, window: TraceWindow) -> None:
        """Introduce the next window."""
        for column, value in zip(self._windows, window, strict=True):
            column.append(value)

    def add_read(self, ms: int, window: int, left: int, *, hit: bool) -> int:
        """Add a read and return its place in the block.

        Args:
            ms: since the trace began; never less than before. A pause of more than 49 days is cut.
            left: bytes of the window that were not read; negative where it was read more than once.
        """
        if not self._flags:
            self._first_ms = self._before_ms = ms
        since_ms, steps, lefts = self._reads
        since_ms.append(min(ms - self._before_ms, _MS_MAX))
        steps.append(window - self._before_window)
        lefts.append(left)
        self._before_ms, self._before_window = ms, window
        self._flags.append(_HIT if hit else 0)
        return len(self._flags) - 1

    def add_bytes(self, place: int, size: int) -> None:
        """So many more bytes were read in the read at that place."""
        self._reads[2][place] -= size

    def to_bytes(self, dropped: int = 0) -> bytes:
        """The block's payload."""
        counts = (len(self._files[0]), len(self._windows[0]), len(self), len(self._names))
        head = _HEAD.pack(*counts, self._first_ms, dropped)
        columns = map(_planes, (*self._files, *self._windows, *self._reads))
        return b"".join((head, *columns, self._flags, self._names))


class BlockReader:
    """Reads the blocks of one trace in their order, and knows the files and windows that they have introduced."""

    def __init__(self) -> None:
        self.files: list[TraceFile] = []
        self.windows: list[TraceWindow] = []

    def read(self, payload: bytes) -> TraceReads:
        """The reads of the next block.

        Raises:
            TraceError: it is none, or not the next one. Nothing of it has been taken in.
        """
        if len(payload) < _HEAD.size:
            raise TraceError("a block is cut short")
        files, windows, reads, names_bytes, first_ms, dropped = _HEAD.unpack_from(payload)
        size = files * _FILE_BYTES + windows * _WINDOW_BYTES + reads * _READ_BYTES + names_bytes
        if max(files, windows, reads) > BLOCK_READS_MAX or len(payload) != _HEAD.size + size:
            raise TraceError("a block has not the size that it states")
        columns = _Columns(payload, _HEAD.size)
        new_files = _files(columns, files, payload[len(payload) - names_bytes :])
        new_windows = list(
            map(TraceWindow, columns.take("I", windows), columns.take("Q", windows), columns.take("Q", windows))
        )
        if len(self.files) + files > FILES_MAX or len(self.windows) + windows > WINDOWS_MAX:
            raise TraceError(f"it has more than {FILES_MAX} files or {WINDOWS_MAX} windows")
        for window in new_windows:
            if window.file >= len(self.files) + files or not 0 < window.size <= OFFSET_MAX - window.offset:
                raise TraceError("a window lies in no file")
        ms = list(accumulate(columns.take("I", reads), initial=first_ms))[1:]
        steps = columns.take("i", reads)
        numbers = list(accumulate(steps))
        left = columns.take("q", reads)
        known = len(self.windows)
        if reads and not 0 <= min(numbers) <= max(numbers) < known + windows:
            raise TraceError("a read is of a window that nothing has introduced")
        every = self.windows
        every.extend(new_windows)
        sizes = [every[number].size - rest for number, rest in zip(numbers, left, strict=True)]
        hits = columns.take_bytes(reads)
        if (sizes and not 0 < min(sizes) <= max(sizes) < OFFSET_MAX) or hits.strip(b"\0\1"):
            del every[known:]
            raise TraceError("a read has no bytes, or is neither hit nor miss")
        self.files.extend(new_files)
        return TraceReads(ms, numbers, sizes, hits, dropped)


class _Columns:
    """Takes columns out of a payload, one after the other."""

    def __init__(self, payload: bytes, at: int) -> None:
        self._payload = payload
        self._at = at

    def take(self, code: str, count: int) -> array[int]:
        """The next column: `count` numbers of this type of `array`."""
        column = array(code)
        width = column.itemsize
        whole = bytearray(width * count)
        for plane in range(width):
            whole[plane::width] = self.take_bytes(count)
        column.frombytes(whole)
        if sys.byteorder == "big":
            column.byteswap()
        return column

    def take_bytes(self, count: int) -> bytes:
        """The next `count` bytes."""
        taken = self._payload[self._at : self._at + count]
        self._at += count
        return taken


def _planes(column: array[int]) -> bytes:
    """The numbers of a column by planes, the lowest byte of each first."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    whole, width = column.tobytes(), column.itemsize
    return b"".join(whole[plane::width] for plane in range(width))


def _files(columns: _Columns, count: int, names: bytes) -> list[TraceFile]:
    filesystems, inodes, sizes = (columns.take("Q", count) for _ in range(3))
    path_sizes, pack_sizes = columns.take("I", count), columns.take("I", count)
    if sum(path_sizes) + sum(pack_sizes) != len(names):
        raise TraceError("the names of a block have not the size that it states")
    found, at = [], 0
    for filesystem, inode, size, path_size, pack_size in zip(
        filesystems, inodes, sizes, path_sizes, pack_sizes, strict=True
    ):
        end = at + path_size
        found.append(TraceFile(FileId(filesystem, inode), size, names[at:end], names[end : end + pack_size]))
        at = end + pack_size
    return found
