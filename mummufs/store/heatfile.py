"""The heat file: which ranges were hot, for the next mount. Its bytes are pure, its few calls come last.

    heat        what the last save has left
    heat.bad    the last one that could not be believed, for whoever wants to know why; nobody reads it

Little-endian, in this order:

    header, 64 bytes
        0   8   magic "MUMMUHOT"
        8   4   format version, 1
        12  4   records
        16  4   packs
        20  4   files
        24  8   size of the whole file in bytes
        32  8   bytes of the write budget that were missing (core/wear.py), 0 without one
        40  8   the time of day of that, in ns since 1970
        48  8   the order of the latest touch (i64)
        56  8   XXH3-64 of everything else: the 56 bytes before, then all that follows
    records, 32 bytes each: file number (u32), window size (u32), window offset (u64), heat (f64), order of touch (i64)
    packs: name size (u32), files (u32), activity (f64), name, file numbers (u32 each)
    files, 16 bytes each: file system, inode (u64 each); a file's number is its place here

Heat is the log2 of the decayed sum of touches at the time of the save. It states nothing of a clock, a half-life or a
budget, so the next mount takes it for heat of its own first moment, whatever its budget. Of the order of touch only the
order counts.

The file is written whole, under a temporary name, synced and renamed. So a crash leaves the old one or the new one; and
whatever else one finds there, its checksum tells.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from xxhash import xxh3_64

from mummufs.core.errors import HeatFileError
from mummufs.core.ranges import FileId, RangeKey, page_ceil
from mummufs.core.ratings import HeatRecord, PackRecord
from mummufs.store.layout import HEAT_BAD_NAME, HEAT_NAME
from mummufs.store.osfs import Os
from mummufs.store.smallfile import read_whole, set_aside

HEAT_FORMAT_VERSION = 1
RECORDS_MAX = 200_000
"""Ranges of one heat file; a mount saves as many as the next one takes in. It is rewritten every minute, so it has to
be small: this many are some 6 MB."""
PACKS_MAX = 1024
NAME_BYTES_MAX = 4096
PACK_FILES_MAX = 65_536
"""Of all packs together."""

_MAGIC = b"MUMMUHOT"
_HEAD = struct.Struct("<8sIIIIQQQq")
_SUM = struct.Struct("<Q")
_RECORD = struct.Struct("<IIQdq")
_PACK = struct.Struct("<IId")
_FILE = struct.Struct("<QQ")
HEAT_HEADER_BYTES = _HEAD.size + _SUM.size
RECORD_BYTES = _RECORD.size
HEAT_FILE_BYTES_MAX = (
    HEAT_HEADER_BYTES
    + RECORDS_MAX * (RECORD_BYTES + _FILE.size)
    + PACKS_MAX * (_PACK.size + NAME_BYTES_MAX)
    + PACK_FILES_MAX * (4 + _FILE.size)
)
SIZE_MAX = (1 << 32) - 1
"""The largest window of a record. Windows are 32 MiB and a page at most."""


class Spent(NamedTuple):
    """What was missing in the write budget, in bytes, and when, in ns since 1970."""

    size: int
    at_ns: int


NOTHING_SPENT = Spent(0, 0)


class HeatPacker:
    """Packs records one by one, so that it can be done in steps; each takes a microsecond."""

    def __init__(self, records_max: int = RECORDS_MAX) -> None:
        self._records_max = min(records_max, RECORDS_MAX)
        self._data = bytearray(HEAT_HEADER_BYTES)
        self._files: dict[FileId, int] = {}
        self._latest = 0
        self.count = 0

    @property
    def size(self) -> int:
        """The size of the file in bytes, but for its packs."""
        return len(self._data) + len(self._files) * _FILE.size

    def add(self, key: RangeKey, heat: float, seq: int) -> None:
        """Put a range in. One that has no heat, or for which there is no place, is left out."""
        if self.count >= self._records_max or not -inf < heat < inf or key.size > SIZE_MAX:
            return
        self._data += _RECORD.pack(self._number(key.file), key.size, key.offset, heat, seq)
        self._latest = max(self._latest, seq)
        self.count += 1

    def finish(self, packs: Sequence[PackRecord] = (), spent: Spent = NOTHING_SPENT) -> bytearray:
        """The bytes of the file. For a worker thread: what takes long in here runs without the interpreter."""
        data, count, left = self._data, 0, PACK_FILES_MAX
        for name, activity, files in packs[:PACKS_MAX]:
            if len(name) > NAME_BYTES_MAX or len(files) > left or not activity < inf:
                continue
            left -= len(files)
            data += _PACK.pack(len(name), len(files), activity) + name
            data += struct.pack(f"<{len(files)}I", *map(self._number, files))
            count += 1
        data += b"".join(_FILE.pack(*file) for file in self._files)
        counts = (self.count, count, len(self._files), len(data))
        _HEAD.pack_into(data, 0, _MAGIC, HEAT_FORMAT_VERSION, *counts, *spent, self._latest)
        _SUM.pack_into(data, _HEAD.size, _checksum(data))
        return data

    def _number(self, file: FileId) -> int:
        return self._files.setdefault(file, len(self._files))


class HeatImage:
    """A heat file that has been read and found whole.

    Attributes:
        count: its records.
        packs: its packs.
        spent: what was missing in the write budget.
        latest: the order of the latest touch; none of the records has a larger one.
    """

    count: int

    def __init__(self, data: bytes | bytearray) -> None:
        """Check it and take it in. Records are unpacked when they are asked for.

        Raises:
            HeatFileError: these are not the bytes of a heat file of this version.
        """
        if len(data) < HEAT_HEADER_BYTES:
            raise HeatFileError(f"it is cut short at {len(data)} bytes")
        magic, version, self.count, packs, self._file_count, size, *spent, latest = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise HeatFileError("it is not a heat file")
        if version != HEAT_FORMAT_VERSION:
            raise HeatFileError(f"it has format version {version}, not {HEAT_FORMAT_VERSION}")
        if size != len(data):
            raise HeatFileError(f"it has {len(data)} bytes in place of {size}")
        if _SUM.unpack_from(data, _HEAD.size)[0] != _checksum(data):
            raise HeatFileError("it does not have the checksum that it states")
        self._data = data
        self._known: dict[int, FileId] = {}
        self._files_at = size - self._file_count * _FILE.size
        self.spent = Spent(*spent)
        self.latest = latest
        try:
            self.packs = self._packs(HEAT_HEADER_BYTES + self.count * RECORD_BYTES, packs)
        except struct.error:
            raise HeatFileError("its parts do not fit into it") from None

    def records(self, start: int, end: int) -> Iterator[HeatRecord]:
        """The records with these numbers, the last one first.

        Raises:
            HeatFileError: one makes no sense.
        """
        for i in range(end - 1, start - 1, -1):
            number, size, offset, heat, seq = _RECORD.unpack_from(self._data, HEAT_HEADER_BYTES + i * RECORD_BYTES)
            if not -inf < heat < inf or size == 0:
                raise HeatFileError("one of its ranges makes no sense")
            yield HeatRecord(RangeKey(self._file(number), offset, size), heat, seq)

    def _packs(self, at: int, count: int) -> tuple[PackRecord, ...]:
        found: list[PackRecord] = []
        for _ in range(count):
            name_size, file_count, activity = _PACK.unpack_from(self._data, at)
            at += _PACK.size
            if at + name_size + 4 * file_count > self._files_at or not activity < inf:
                raise HeatFileError("a pack makes no sense")
            name = bytes(self._data[at : at + name_size])
            numbers = struct.unpack_from(f"<{file_count}I", self._data, at + name_size)
            at += name_size + 4 * file_count
            found.append(PackRecord(name, activity, tuple(map(self._file, numbers))))
        if at != self._files_at:
            raise HeatFileError("its parts do not fit into it")
        return tuple(found)

    def _file(self, number: int) -> FileId:
        file = self._known.get(number)
        if file is None:
            if number >= self._file_count:
                raise HeatFileError("it names a file that it does not have")
            at = self._files_at + number * _FILE.size
            file = self._known[number] = FileId(*_FILE.unpack_from(self._data, at))
        return file


def _checksum(data: bytes | bytearray) -> int:
    view = memoryview(data)
    hasher = xxh3_64(view[: _HEAD.size])
    hasher.update(view[HEAT_HEADER_BYTES:])
    return hasher.intdigest()


class HeatFile:
    """The file in the store. Blocking and thread-safe."""

    def __init__(self, fs: Os, write: Callable[[str, memoryview], None]) -> None:
        """Look at what is there.

        Args:
            write: has a file of this name and these bytes written, synced and renamed, or raises OSError.
        """
        self._fs = fs
        self._write = write
        self._sizes = {name: self._size(name) for name in (HEAT_NAME, HEAT_BAD_NAME)}
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """What the files take on the store, in whole blocks."""
        return sum(map(page_ceil, self._sizes.values()))

    def load(self) -> HeatImage | None:
        """What the last mount has left; None if there is nothing.

        Raises:
            HeatFileError: it cannot be believed.
            OSError: it cannot be read.
        """
        try:
            return HeatImage(read_whole(self._fs, HEAT_NAME, HEAT_FILE_BYTES_MAX, HeatFileError))
        except FileNotFoundError:
            return None

    def set_aside(self) -> str:
        """Give it the name of a bad one, and tell it. A file that had that name is gone."""
        with self._lock:
            name = set_aside(self._fs, HEAT_NAME, HEAT_BAD_NAME)
            self._sizes = {HEAT_NAME: 0, HEAT_BAD_NAME: self._sizes[HEAT_NAME]}
        return name

    def save(self, packer: HeatPacker, packs: Sequence[PackRecord] = (), spent: Spent = NOTHING_SPENT) -> None:
        """Write it anew. On a failure the old one is still there."""
        data = packer.finish(packs, spent)
        with self._lock:  # so that of two saves the later one stays
            self._write(HEAT_NAME, memoryview(data))
            self._sizes[HEAT_NAME] = len(data)

    def _size(self, name: str) -> int:
        try:
            fd = self._fs.open(name)
        except OSError:  # one that cannot be opened is no reason to refuse the store
            return 0
        try:
            return self._fs.state(fd).size
        except OSError:
            return 0
        finally:
            with contextlib.suppress(OSError):
                self._fs.close(fd)
