"""A trace as a file: a header, then blocks, each compressed and with a checksum. docs/trace.md has the format.

A block is appended by one write. Whatever ends the writer, the file is readable up to its last whole block; who reads
it is told whether anything came after that.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mummufs.core.trace import FORMAT_VERSION, PAYLOAD_BYTES_MAX, BlockReader, TraceError, TraceReads

MAGIC = b"MUMMUTRC"
MODE = 0o600
"""A trace names files, and tells what was done with them."""

_HEADER = struct.Struct("<8sIIQQ")
"""Magic, version, checksum of what follows; ms since 1970, the mount's budget."""
_CHECKED = struct.Struct("<QQ")
_FRAME_MAGIC = b"TRCB"
_FRAME = struct.Struct("<4sIII")
"""Magic, compressed bytes, bytes, checksum of the two sizes and the compressed bytes."""
_SIZES = struct.Struct("<II")
_STORED_BYTES_MAX = PAYLOAD_BYTES_MAX + (1 << 16)
"""Compressed bytes of one block: a little more than its own where nothing can be saved."""


class TraceHeader(NamedTuple):
    """What a trace says of itself: when it was begun, in ms since 1970, and the budget of the mount in bytes."""

    started_ms: int
    budget_bytes: int


class TraceWriter:
    """Makes a trace file and appends blocks to it."""

    def __init__(self, path: Path, header: TraceHeader) -> None:
        """Make a file that is not there yet.

        Raises:
            FileExistsError: it is there.
            OSError: it cannot be made.
        """
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
        self.size = 0
        """Its bytes."""
        checked = _CHECKED.pack(*header)
        self._append(_HEADER.pack(MAGIC, FORMAT_VERSION, zlib.crc32(checked), *header))

    def append(self, payload: bytes) -> None:
        """Append one block.

        Raises:
            OSError: it cannot be written, and nothing of it is in the file.
        """
        stored = zlib.compress(payload)
        sizes = _SIZES.pack(len(stored), len(payload))
        self._append(_FRAME_MAGIC + sizes + struct.pack("<I", zlib.crc32(stored, zlib.crc32(sizes))) + stored)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _append(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            os.ftruncate(self._fd, self.size)
            raise
        self.size += len(data)


class TraceReader:
    """Reads a trace file block by block.

    Attributes:
        header: as the file has it.
        blocks: knows the files and windows of the blocks read so far.
        fault: why reading ended before the end of the file; None as long as nothing is wrong.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Read the header.

        Raises:
            TraceError: it is no trace, or one of another version.
        """
        self._file = file
        data = file.read(_HEADER.size)
        if not data.startswith(MAGIC):
            raise TraceError("it is not a trace: `mummufs trace` makes one")
        if len(data) < _HEADER.size:
            raise TraceError("it is cut within its header: nothing is left of this trace")
        _, version, checksum, *header = _HEADER.unpack(data)
        if version != FORMAT_VERSION:
            raise TraceError(f"it is a trace of version {version}, and this is version {FORMAT_VERSION}")
        if checksum != zlib.crc32(_CHECKED.pack(*header)):
            raise TraceError("its header is damaged: nothing is left of this trace")
        self.header = TraceHeader(*header)
        self.blocks = BlockReader()
        self.fault: str | None = None

    def __iter__(self) -> Iterator[TraceReads]:
        """The blocks that are whole, up to the first that is not; `fault` is set there."""
        while True:
            head = self._file.read(_FRAME.size)
            if not head:
                return
            try:
                yield self.blocks.read(self._payload(head))
            except (TraceError, zlib.error) as error:
                self.fault = str(error)
                return

    def _payload(self, head: bytes) -> bytes:
        if len(head) < _FRAME.size:
            raise TraceError("its last block is cut short")
        magic, stored_bytes, payload_bytes, checksum = _FRAME.unpack(head)
        if magic != _FRAME_MAGIC or stored_bytes > _STORED_BYTES_MAX or payload_bytes > PAYLOAD_BYTES_MAX:
            raise TraceError("a block is damaged")
        stored = self._file.read(stored_bytes)
        if len(stored) < stored_bytes:
            raise TraceError("its last block is cut short")
        if checksum != zlib.crc32(stored, zlib.crc32(_SIZES.pack(stored_bytes, payload_bytes))):
            raise TraceError("a block is damaged")
        inflating = zlib.decompressobj()
        payload = inflating.decompress(stored, payload_bytes + 1)
        if len(payload) != payload_bytes or not inflating.eof:
            raise TraceError("a block has not the size that it states")
        return payload
