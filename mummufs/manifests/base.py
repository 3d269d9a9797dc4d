"""What every parser shares: the file it looks at, a bounded reader of headers, and a compact list of ranges.

A parser never opens a file. It gets a `Subject`: a `pread` of the model file and a view of the small files beside it.
Everything a header says is hostile until checked, so each reader here has a limit and raises `ManifestError` past it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, overload

from mummufs.core.errors import ManifestError
from mummufs.core.manifest import NAME_BYTES_MAX, RANGES_MAX, ManifestRange, RangeKind

Pread = Callable[[int, int], bytes]
"""`pread(offset, size)`: the bytes there; short only at end of file."""

SNIFF_BYTES = 16
"""How much of a file's start a sniff looks at."""

HEADER_BYTES_MAX = 256 << 20
"""How far into a file a header may reach. Real ones end within 20 MiB."""

BLOCK_BYTES = 1 << 20
"""A header is read in blocks of this size, and only one is held."""

SIDE_FILE_BYTES_MAX = 16 << 20
"""A file beside the model that is larger than this is not read."""

NAMES_BYTES_MAX = 8 << 20
"""The names of one file's ranges together. Ranges past it keep their place and lose their name, which is only shown."""

OFFSET_MAX = (1 << 63) - 1
"""The largest offset that a file can have."""


class Siblings(Protocol):
    """The plain files beside the model, by name: no path separators, no symbolic links."""

    def read(self, name: bytes, limit_bytes: int) -> bytes | None:
        """The whole file, or None where there is none.

        Raises:
            ManifestError: it is larger than `limit_bytes`.
        """

    def size(self, name: bytes) -> int | None:
        """Its size in bytes, or None where there is none."""


@dataclass(frozen=True)
class Subject:
    """The file whose ranges are asked for.

    Attributes:
        name: its own name, without a folder.
        file_size: bytes.
        pread: reads it.
        siblings: what lies beside it.
    """

    name: bytes
    file_size: int
    pread: Pread
    siblings: Siblings

    def head(self) -> bytes:
        """The first SNIFF_BYTES bytes, fewer if the file is shorter."""
        return self.pread(0, SNIFF_BYTES)


class RangeList(Sequence[ManifestRange]):
    """The ranges a parser finds, some 60 bytes each: as Python objects, a hostile header's would not fit in memory.

    Only ranges inside the file are taken; empty ones are left out.
    """

    __slots__ = ("_file_size", "_kinds", "_name_ends", "_names", "_offsets", "_sizes")

    def __init__(self, file_size: int) -> None:
        self._file_size = file_size
        self._offsets = array("Q")
        self._sizes = array("Q")
        self._kinds = bytearray()
        self._names = bytearray()
        self._name_ends = array("Q")

    def add(self, offset: int, size: int, name: str, kind: RangeKind) -> None:
        """Append one range.

        Raises:
            ManifestError: it lies outside the file, or there are RANGES_MAX already.
        """
        if not 0 <= offset <= offset + size <= self._file_size:
            raise ManifestError(
                f"range {shown(name)} at {offset}, {size} bytes, lies outside the file of {self._file_size} bytes"
            )
        if size == 0:
            return
        if len(self._kinds) >= RANGES_MAX:
            raise ManifestError(f"it names more than {RANGES_MAX} ranges")
        self._offsets.append(offset)
        self._sizes.append(size)
        self._kinds.append(kind)
        encoded = name.encode("utf-8", "replace")[:NAME_BYTES_MAX]
        if len(self._names) + len(encoded) <= NAMES_BYTES_MAX:
            self._names += encoded
        self._name_ends.append(len(self._names))

    def add_slices(self, offset: int, size: int, count: int, name: str) -> None:
        """Append the `count` equal slices of a fused expert tensor, named `name[0]`, `name[1]`, ..."""
        step = size // count
        for i in range(count):
            self.add(offset + i * step, step, f"{name}[{i}]", RangeKind.EXPERT)

    def __len__(self) -> int:
        return len(self._kinds)

    @overload
    def __getitem__(self, i: int) -> ManifestRange: ...

    @overload
    def __getitem__(self, i: slice) -> list[ManifestRange]: ...

    def __getitem__(self, i: int | slice) -> ManifestRange | list[ManifestRange]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        k = range(len(self))[i]
        start = self._name_ends[k - 1] if k else 0
        name = self._names[start : self._name_ends[k]].decode("utf-8", "replace")
        return ManifestRange(self._offsets[k], self._sizes[k], name, RangeKind(self._kinds[k]))

    def __iter__(self) -> Iterator[ManifestRange]:
        return map(self.__getitem__, range(len(self)))


class HeaderCursor:
    """Reads a header forward, in blocks; what is skipped past a block is never read.

    Every step ends inside the file and inside HEADER_BYTES_MAX, or raises `ManifestError`.
    """

    _U64 = struct.Struct("<Q")

    def __init__(self, subject: Subject) -> None:
        self._pread = subject.pread
        self._limit = min(subject.file_size, HEADER_BYTES_MAX)
        self._file_size = subject.file_size
        self._block = b""
        self._start = 0  # the block's offset in the file
        self._at = 0  # the cursor's offset in the block

    @property
    def offset(self) -> int:
        """Where the next read begins."""
        return self._start + self._at

    @property
    def left_bytes(self) -> int:
        """How much may still be read."""
        return self._limit - self.offset

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        self._fill(size)
        self._at += size
        return self._block[self._at - size : self._at]

    def unpack(self, fields: struct.Struct) -> tuple[int, ...]:
        """The next fields."""
        return fields.unpack(self.take(fields.size))

    def u64(self) -> int:
        """The next little-endian 64-bit number."""
        self._fill(8)
        self._at += 8
        number: int = self._U64.unpack_from(self._block, self._at - 8)[0]
        return number

    def skip(self, size: int) -> None:
        """Go past `size` bytes."""
        self._need(size)
        self._at += size

    def skip_strings(self, count: int) -> None:
        """Go past `count` strings, each a 64-bit length and its bytes.

        A vocabulary has some 250,000 of them, so the loop holds nothing but a length.
        """
        self._need(8 * count)
        unpack_from = self._U64.unpack_from
        while count:
            self._fill(8)
            block, at, last = self._block, self._at, len(self._block) - 8
            while count and at <= last:
                at += 8 + unpack_from(block, at)[0]
                count -= 1
            self.skip(at - self._at)

    def _need(self, size: int) -> None:
        if size > self.left_bytes:
            raise ManifestError(
                f"its header is cut short or absurd: {size} bytes expected at offset {self.offset}, and "
                f"{'the file ends' if self._limit == self._file_size else 'headers are read only'} at {self._limit}"
            )

    def _fill(self, size: int) -> None:
        """Have the next `size` bytes in the block."""
        if self._at + size <= len(self._block):
            return
        self._need(size)
        self._start += self._at
        self._at = 0
        self._block = self._pread(self._start, min(max(size, BLOCK_BYTES), self._limit - self._start))
        if len(self._block) < size:
            raise ManifestError(f"the file ends inside its header, at offset {self._start + len(self._block)}")


def shown(name: str) -> str:
    """A name as an error shows it: quoted, and cut where it is long."""
    return repr(name if len(name) <= 80 else name[:80] + "...")


def whole_number(value: object, what: str) -> int:
    """`value` if it can be an offset or a size.

    Raises:
        ManifestError: it is not an integer of `[0, OFFSET_MAX]`.
    """
    if type(value) is not int or not 0 <= value <= OFFSET_MAX:
        raise ManifestError(f"{what} is {_kind_of(value)}, not a number of bytes")
    return value


def _kind_of(value: object) -> str:
    if type(value) is int:
        return "negative" if value < 0 else "over 2^63"
    return "missing" if value is None else f"a {type(value).__name__}"


def text(value: object, what: str) -> str:
    """`value` if it is a string.

    Raises:
        ManifestError: it is not.
    """
    if not isinstance(value, str):
        raise ManifestError(f"{what} is {_kind_of(value)}, not a string")
    return value
