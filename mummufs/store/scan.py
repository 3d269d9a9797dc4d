"""The scan for accounting, as a child process: `python -m mummufs.store.scan DIRECTORY`.

It reads the header of every range file and writes one record for each to standard output, RECORD.size bytes, for the
daemon to take in in small batches: half a million headers are seconds of Python, which the daemon must not spend.
Files that bear a name of ours but are no range files (what a crash leaves) are removed; anything else is left alone.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import sys
from collections.abc import Iterator

from mummufs.core.errors import RangeFileError
from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.store.layout import DIR_MODE, HEADER_USED_BYTES, RANGES_DIR, RangeHeader, is_range_name, range_name
from mummufs.store.osfs import Os
from mummufs.store.windowsos import WindowsOs
from mummufs.win32.calls import real_win32

RECORD = struct.Struct("<QQQQQqq")
SHARED_MAX = 16_384
"""Files, versions and sizes that are remembered while a store is scanned, so that their ranges can share them."""
_DIR_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FILE_FLAGS = os.O_RDONLY
for _flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY"):  # which Windows has not; it scans by `scan_os`
    _FILE_FLAGS |= getattr(os, _flag, 0)
_WRITE_BYTES = 1 << 16


def pack_record(header: RangeHeader) -> bytes:
    """A header as the scan reports it."""
    return RECORD.pack(*header.key.file, header.key.offset, header.key.size, *header.version)


class Records:
    """Unpacks what `pack_record` wrote. Ranges of one file share its identity and version: that is a third of the
    memory that they take.
    """

    def __init__(self) -> None:
        self._files: dict[FileId, FileId] = {}
        self._versions: dict[Version, Version] = {}
        self._sizes: dict[int, int] = {}

    def unpack(self, data: bytes) -> Iterator[tuple[RangeKey, Version]]:
        """Any number of records, in their order."""
        files, versions, sizes = self._files, self._versions, self._sizes
        for known in (files, versions, sizes):
            if len(known) > SHARED_MAX:
                known.clear()
        for filesystem, inode, offset, size, *stamp in RECORD.iter_unpack(data):
            file, version = FileId(filesystem, inode), Version(*stamp)
            key = RangeKey(files.setdefault(file, file), offset, sizes.setdefault(size, size))
            yield key, versions.setdefault(version, version)


def scan(directory: str) -> Iterator[RangeHeader]:
    """The headers of the range files in a store, in no order."""
    root = os.open(directory, _DIR_FLAGS & ~getattr(os, "O_NOFOLLOW", 0))
    try:
        for i in range(256):
            sub = f"{RANGES_DIR}/{i:02x}"
            try:
                fd = _open_dir(root, sub)
            except OSError:
                continue
            try:
                yield from _scan_sub(root, sub, fd)
            finally:
                os.close(fd)
    finally:
        os.close(root)


def _open_dir(root: int, sub: str) -> int:
    """A folder of range files. Permissions that somebody took away are given back: what it holds has to count."""
    try:
        return os.open(sub, _DIR_FLAGS, dir_fd=root)
    except PermissionError:
        os.chmod(sub, DIR_MODE, dir_fd=root)
        return os.open(sub, _DIR_FLAGS, dir_fd=root)


def _scan_sub(root: int, sub: str, fd: int) -> Iterator[RangeHeader]:
    for name in os.listdir(fd):
        if not is_range_name(name):
            continue
        with contextlib.suppress(OSError):
            if not stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                continue
            header = _header(fd, name)
            if header is not None and range_name(header.key) == f"{sub}/{name}":
                yield header
            else:
                os.unlink(f"{sub}/{name}", dir_fd=root)


def _header(fd: int, name: str) -> RangeHeader | None:
    """The header of a range file, None where it is not a whole one or may not be read.

    Raises:
        OSError: it cannot be read now, which says nothing of what it holds.
    """
    try:
        file = os.open(name, _FILE_FLAGS, dir_fd=fd)
    except PermissionError:
        return None
    try:
        header = RangeHeader.unpack(os.pread(file, HEADER_USED_BYTES, 0))
        return header if os.fstat(file).st_size == header.file_bytes else None
    except RangeFileError:
        return None
    finally:
        os.close(file)


def scan_os(fs: Os) -> Iterator[RangeHeader]:
    """The same by the store's own calls, for a system where a directory is no descriptor."""
    for i in range(256):
        sub = f"{RANGES_DIR}/{i:02x}"
        with contextlib.suppress(OSError):
            for name in filter(is_range_name, fs.names(sub)):
                with contextlib.suppress(OSError):
                    header = _header_os(fs, f"{sub}/{name}")
                    if header is not None and range_name(header.key) == f"{sub}/{name}":
                        yield header
                    else:
                        fs.unlink(f"{sub}/{name}")


def _header_os(fs: Os, path: str) -> RangeHeader | None:
    data = memoryview(bytearray(HEADER_USED_BYTES))
    fd = fs.open(path)
    try:
        header = RangeHeader.unpack(data[: fs.read(fd, data, 0)])
        return header if fs.state(fd).size == header.file_bytes else None
    except RangeFileError:
        return None
    finally:
        fs.close(fd)


def main(directory: str) -> int:
    """Write the records of a store to standard output."""
    by_directory_fd = os.open in os.supports_dir_fd
    found = scan(directory) if by_directory_fd else scan_os(WindowsOs(directory, real_win32()))
    with open(1, "wb", buffering=_WRITE_BYTES, closefd=False) as out:  # a raw file may write less than it is given
        out.writelines(map(pack_record, found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
