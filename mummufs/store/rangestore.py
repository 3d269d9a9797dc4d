"""Range files: written under a temporary name, proved before they are believed.

Theory of operation. A range file is written in this order: bytes, header (size and checksum), fdatasync, rename. A
crash therefore leaves a temporary, which the next mount removes, or a name whose header tells whether its bytes are
all there: file systems were seen to keep a renamed name with empty or zero contents when nothing was synced.

Only a header is ever written a second time, by `restamp_range` and `stamp_range`.

When an open range file is believed is in storedrange.py.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable

from xxhash import xxh3_128

from mummufs.core.errors import RangeFileError
from mummufs.core.ranges import FileId, RangeKey, Version, page_ceil
from mummufs.store.heatfile import HeatFile
from mummufs.store.layout import (
    DIRECTORIES,
    HEADER_BYTES,
    HEADER_USED_BYTES,
    RANGES_DIR,
    SCRUB_NAME,
    TABLES_DIR,
    TMP_DIR,
    RangeHeader,
    digest_of,
    is_range_name,
    is_table_name,
    is_tmp_name,
    pack_key,
    pack_table,
    range_dir,
    range_name,
    table_digest,
    table_name,
    tmp_name,
    unpack_key,
    unpack_table,
)
from mummufs.store.osfs import Os
from mummufs.store.pins import PINS_ASIDE_NAME, PINS_BYTES_MAX, PINS_NAME
from mummufs.store.smallfile import NOT_OURS, open_own, read_whole, set_aside
from mummufs.store.storedrange import Closer, StoredRange, at_once, write_all
from mummufs.store.written import Purpose, Written

TABLES_BYTES_MAX = 256 << 20
"""All table files together; the ones saved longest ago make room."""
TABLE_FILE_BYTES_MAX = 65 << 20
MARK_BYTES_MAX = 64
PIECE_BYTES = 1 << 20


class RangeStore:
    """The store's directory. The caller holds its lock."""

    def __init__(
        self,
        fs: Os,
        relock: Callable[[], None] | None = None,
        *,
        closer: Closer = at_once,
        tables_bytes_max: int = TABLES_BYTES_MAX,
    ) -> None:
        """Make the directories and remove what an earlier mount left half-written.

        Args:
            relock: takes the lock of a store whose directory was made anew.
            closer: has the closing of files done, elsewhere perhaps: close(2) hangs while a file system does.
            tables_bytes_max: what all range tables may take; the ones saved longest ago make room.

        Raises:
            OSError: the directory cannot be used.
        """
        self._fs = fs
        self._relock = relock
        self._closer = closer
        self._tables_bytes_max = tables_bytes_max
        self._serial = itertools.count(1)
        self._tables_lock = threading.Lock()
        self.written = Written()
        self._pins_bytes = 0
        for name in DIRECTORIES:
            fs.mkdir(name)
        for name in fs.names(TMP_DIR):
            if is_tmp_name(name):
                with contextlib.suppress(IsADirectoryError):  # not ours, whatever its name
                    fs.unlink(f"{TMP_DIR}/{name}")
        self._tables = self._found_tables()
        self._shrink_tables(tables_bytes_max)
        self.heat = HeatFile(fs, self._write_heat)

    # ------------------------------------------------------------------ ranges

    def open_range(self, key: RangeKey, version: Version) -> StoredRange:
        """Open the file of a range, unproved.

        Raises:
            RangeFileError: it is not the file of this key and version.
            OSError: it is not there (ENOENT) or cannot be read.
        """
        stored = StoredRange(self._fs, self._open(range_name(key)), key, version, self._closer)
        stored.check_header()
        return stored

    def write_range(self, key: RangeKey, version: Version, data: memoryview) -> StoredRange:
        """Write the file of a range and give it its name. On a failure nothing is left.

        Args:
            data: the window's bytes, key.size of them.
        """
        assert len(data) == key.size, "a range file holds its window, no more and no less"
        header = RangeHeader(key, version, xxh3_128(data).digest())
        try:
            fd = self._write_range(key, data, header)
        except FileNotFoundError:  # somebody removes folders of the store: that says nothing of the disk
            fd = self._write_range(key, data, header)
        # Not even this one is believed unproved: somebody may have changed it between our last write and now.
        return StoredRange(self._fs, fd, key, version, self._closer)

    def _write_range(self, key: RangeKey, data: memoryview, header: RangeHeader) -> int:
        for name in (TMP_DIR, RANGES_DIR, range_dir(key)):
            self._fs.mkdir(name)
        tmp = tmp_name(digest_of(key), next(self._serial))
        return self._write_named(tmp, range_name(key), (data, header.pack()), Purpose.RANGES)

    def restamp_range(self, key: RangeKey, old: Version, new: Version, data: memoryview) -> bool:
        """Have the file of a range state another version, if by its checksum it holds just these bytes.

        Its header alone is written, in place. A crash may leave the old header or the new one, and both are true, for
        the bytes are those of both versions; a torn one does not have the checksum of its own, and the file is no
        range file any more.

        Returns:
            whether that has been done; False, with nothing changed, where it holds other bytes or is no such file.

        Raises:
            OSError: it is not there (ENOENT), or which header it has now is not known.
        """
        try:
            stored = self._open_to_change(key, old)
            header = stored.check_header()
        except RangeFileError:
            return False
        if header.checksum != xxh3_128(data).digest():
            return False
        self.written.add(Purpose.OTHER, HEADER_USED_BYTES)
        stored.write_header(header._replace(version=new))
        return True

    def stamp_range(self, key: RangeKey, old: Version, new: Version) -> None:
        """Have the file of a range state another version, whose bytes the caller knows to be the same.

        It is not synced: a header that is lost or torn in a crash costs the range file.

        Raises:
            RangeFileError: it is not the file of this key and old version.
            OSError: it is not there, or which header it has now is not known.
        """
        stored = self._open_to_change(key, old)
        stored.write_header(stored.check_header()._replace(version=new), sync=False)

    def remove_range(self, key: RangeKey) -> None:
        """Remove the file of a range; one that is gone already is fine, and so is a directory that is in its place."""
        self._remove(range_name(key))

    def free_bytes(self) -> int:
        """Bytes that the store's file system still has for us."""
        return self._fs.free_bytes()

    def save_mark(self, key: RangeKey | None) -> None:
        """Keep how far a scrub has come; None: it is through."""
        if key is None:
            self._remove(SCRUB_NAME)
            return
        name = tmp_name("0" * 32, next(self._serial))
        self._fs.close(self._write_named(name, SCRUB_NAME, (memoryview(pack_key(key)), b"")))

    def load_mark(self) -> RangeKey | None:
        """The key that an interrupted scrub proved last, or None."""
        try:
            return unpack_key(bytes(read_whole(self._fs, SCRUB_NAME, MARK_BYTES_MAX, RangeFileError)))
        except (FileNotFoundError, RangeFileError):
            return None

    def save_pins(self, data: bytes) -> None:
        """Keep the contents of the file of pins for the next mount."""
        self._fs.mkdir(TMP_DIR)
        name = tmp_name("0" * 32, next(self._serial))
        self._fs.close(self._write_named(name, PINS_NAME, (memoryview(data), b"")))
        self._pins_bytes = page_ceil(len(data))

    def load_pins(self) -> bytes | None:
        """The contents of the file of pins, PINS_BYTES_MAX and one byte of them at most; None where there is none.

        Raises:
            RangeFileError: there is something else in its place.
            OSError: it cannot be read.
        """
        try:
            fd = self._open(PINS_NAME)
        except FileNotFoundError:
            return None
        try:
            if not self._fs.state(fd).regular:
                raise RangeFileError("it is no regular file")
            data = bytearray()
            piece = memoryview(bytearray(PIECE_BYTES))
            while len(data) <= PINS_BYTES_MAX and (n := self._fs.read(fd, piece, len(data))):
                data += piece[:n]
            self._pins_bytes = page_ceil(len(data))
            return bytes(data[: PINS_BYTES_MAX + 1])
        finally:
            self._fs.close(fd)

    def set_pins_aside(self) -> None:
        """Give a file of pins that cannot be read another name; one that was set aside before is lost."""
        set_aside(self._fs, PINS_NAME, PINS_ASIDE_NAME)

    # ------------------------------------------------------------------ probes

    def probe_read(self) -> None:
        """Raise OSError unless a range file (any one; failing that its directory) can be read."""
        for sub in sorted(self._fs.names(RANGES_DIR)):
            try:
                names = self._fs.names(f"{RANGES_DIR}/{sub}")
            except FileNotFoundError:  # removed since it was listed
                continue
            except OSError as error:
                if error.errno in NOT_OURS:
                    continue
                raise
            if any(self._is_read(f"{RANGES_DIR}/{sub}/{name}") for name in names if is_range_name(name)):
                return

    def _is_read(self, name: str) -> bool:
        """Whether this is a file that can be read; False says nothing of the disk."""
        try:
            fd = self._open(name)
        except (RangeFileError, FileNotFoundError):  # something else in its place; evicted since it was listed
            return False
        try:
            if not self._fs.state(fd).regular:
                return False
            self._fs.read(fd, memoryview(bytearray(HEADER_USED_BYTES)), 0)
            return True
        finally:
            self._fs.close(fd)

    def probe_write(self) -> None:
        """Raise OSError unless a file can be written, synced and removed; makes missing directories anew."""
        if self._fs.revive() and self._relock is not None:
            self._relock()
        for name in DIRECTORIES:
            self._fs.mkdir(name)
        data = memoryview(bytes(HEADER_BYTES))
        self.written.add(Purpose.OTHER, len(data))
        name = tmp_name("0" * 32, next(self._serial))
        fd = self._fs.create(name)
        try:
            try:
                write_all(self._fs, fd, data, 0)
                self._fs.sync(fd)
            finally:
                self._fs.close(fd)
        finally:
            self._fs.unlink(name)

    # ------------------------------------------------------------------ range tables

    @property
    def tables_bytes(self) -> int:
        """Bytes that the table files take, in whole blocks."""
        return sum(self._tables.values())

    def load_table(self, file: FileId, version: Version) -> bytes:
        """The serialised range table of this version of a file; empty where it is known to have none.

        Raises:
            RangeFileError: there is one, but not of this version, or not whole.
            OSError: there is none (ENOENT), or it cannot be read.
        """
        data = read_whole(self._fs, table_name(file), TABLE_FILE_BYTES_MAX, RangeFileError)
        return unpack_table(bytes(data), file, version)

    def save_table(self, file: FileId, version: Version, payload: bytes) -> None:
        """Keep a serialised range table for the next mount."""
        data = pack_table(file, version, payload)
        limit, charge = min(TABLE_FILE_BYTES_MAX, self._tables_bytes_max), page_ceil(len(data))
        if charge > limit:
            raise RangeFileError(f"a table of {len(data)} bytes is larger than the limit of {limit}")
        name = table_name(file)
        with self._tables_lock:
            self._shrink_tables(self._tables_bytes_max - charge)
            tmp = tmp_name(table_digest(file), next(self._serial))
            fd = self._write_named(tmp, name, (memoryview(data), b""), Purpose.TABLES)
            self._tables.pop(name, None)
            self._tables[name] = charge
            self._fs.close(fd)

    def _shrink_tables(self, left: int) -> None:
        """Remove the tables saved longest ago until the rest take no more than this."""
        while self._tables and self.tables_bytes > left:
            oldest = next(iter(self._tables))
            self._remove(oldest)
            del self._tables[oldest]

    @property
    def overhead_bytes(self) -> int:
        """What counts in the budget beside range files: range tables, heat and pins."""
        return self.tables_bytes + self.heat.bytes + self._pins_bytes

    def _open(self, name: str) -> int:
        return open_own(self._fs.open, name, RangeFileError)

    def _open_to_change(self, key: RangeKey, version: Version) -> StoredRange:
        fd = open_own(self._fs.open_to_change, range_name(key), RangeFileError)
        return StoredRange(self._fs, fd, key, version, self._closer)

    def _write_heat(self, name: str, data: memoryview) -> None:
        self._fs.mkdir(TMP_DIR)
        tmp = tmp_name("0" * 32, next(self._serial))
        self._fs.close(self._write_named(tmp, name, (data, b""), Purpose.HEAT))

    def _write_named(
        self, tmp: str, name: str, parts: tuple[memoryview, bytes], purpose: Purpose = Purpose.OTHER
    ) -> int:
        """Write body and header under `tmp`, sync, rename; the open descriptor. Nothing is left on a failure."""
        body, header = parts
        self.written.add(purpose, len(body) + len(header))
        fd = self._fs.create(tmp)
        try:
            write_all(self._fs, fd, body, len(header))
            write_all(self._fs, fd, memoryview(header), 0)
            self._fs.sync(fd)
            fd = self._fs.publish(fd, tmp, name)
        except BaseException:
            with contextlib.suppress(OSError):
                self._fs.close(fd)
            with contextlib.suppress(OSError):  # the next mount removes it
                self._fs.unlink(tmp)
            raise
        return fd

    def _remove(self, name: str) -> None:
        try:
            self._fs.unlink(name)
        except (FileNotFoundError, IsADirectoryError):  # a directory in its place is somebody else's
            pass

    def _found_tables(self) -> dict[str, int]:
        """The sizes of the table files, the one saved longest ago first. What is no file is left alone."""
        found: list[tuple[int, str, int]] = []
        for name in filter(is_table_name, self._fs.names(TABLES_DIR)):
            path = f"{TABLES_DIR}/{name}"
            with contextlib.suppress(OSError):  # one that cannot be opened is no reason to refuse the store
                fd = self._fs.open(path)
                try:
                    state = self._fs.state(fd)
                finally:
                    self._fs.close(fd)
                if state.regular:
                    found.append((state.mtime_ns, path, state.size))
        return {path: page_ceil(size) for _, path, size in sorted(found)}
