"""A store with one range in it, and what a test does to its file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from xxhash import xxh3_128

from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.store.layout import RangeHeader, range_name
from mummufs.store.rangestore import RangeStore
from mummufs.store.storedrange import StoredRange
from tests.store.faulty import FaultyOs

FILE = FileId(7, 8)
KEY = RangeKey(FILE, 4096, 9000)
VERSION = Version(1 << 20, 5, 6)
DATA = bytes(i * 11 % 253 for i in range(KEY.size))
OTHER_DATA = DATA[::-1]


class Store:
    """A store with one range in it."""

    make_fs: type[FaultyOs] = FaultyOs

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fs = self.make_fs(directory)
        self.store = RangeStore(self.fs)
        self.store.write_range(KEY, VERSION, memoryview(DATA))
        self.path = directory / range_name(KEY)
        self._clock_ns = 10**18

    def open(self) -> StoredRange:
        return self.store.open_range(KEY, VERSION)

    def write_at(self, offset: int, data: bytes) -> None:
        """Change the file in place, with a new mtime."""
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(data)
        self.touch()

    def touch(self) -> None:
        self._clock_ns += 10**9
        os.utime(self.path, ns=(self._clock_ns, self._clock_ns))


def read(stored: StoredRange, offset: int = 0, size: int = KEY.size) -> bytes:
    buffer = bytearray(size)
    stored.read_into(memoryview(buffer), offset)
    return bytes(buffer)


NO_FILES = ["directory", "fifo", "symlink", "dangling", "socket"]


def put(path: Path, kind: str) -> None:
    """Put something that is no file in the place of one."""
    path.unlink(missing_ok=True)
    match kind:
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "symlink":
            (path.parent / "target").write_bytes(RangeHeader(KEY, VERSION, xxh3_128(DATA).digest()).pack() + DATA)
            path.symlink_to("target")
        case "dangling":
            path.symlink_to("/no/such/file")
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
        case _:
            raise AssertionError(kind)
