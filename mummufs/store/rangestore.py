"""Range files: written under a temporary name, proved before they are believed.

Theory of operation. A range file is written in this order: bytes, header (size and checksum), fdatasync, rename. A
crash therefore leaves a temporary, which the next mount removes, or a name whose header tells whether its bytes are
all there: file systems were seen to keep a renamed name with empty or zero contents when nothing was synced.

`StoredRange` is an open range file. It is *proved* when its bytes have the checksum of its header; until then, and
again whenever its size, mtime or ctime are not those that were proved, no byte of it is given out. What this mount
wrote itself is proved by having been written. Every fault is an OSError or a RangeFileError, and every one of them
means the same to the caller: the source answers.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Callable

from xxhash import xxh3_128

from mummufs.core.errors import RangeFileError
from mummufs.core.ranges import FileId, RangeKey, Version
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
from mummufs.store.osfs import FileState, Os

PROVE_CHUNK_BYTES = 1 << 20
PROVE_ATTEMPTS = 3
"""A file that somebody writes to while it is proved is tried again this often."""
TABLES_BYTES_MAX = 256 << 20
"""All table files together; the ones saved longest ago make room."""
TABLE_FILE_BYTES_MAX = 65 << 20


class _Descriptor:
    """A descriptor that is closed with its last reference.

    It is not part of `StoredRange` because a weak reference to an object with a finalizer still gives the object out
    while the finalizer runs, its descriptor closed and perhaps somebody else's by then.
    """

    def __init__(self, fs: Os, fd: int) -> None:
        self._fs = fs
        self.fd = fd
        self.on_close: Callable[[], None] | None = None

    def __del__(self) -> None:
        with contextlib.suppress(OSError):  # the descriptor is gone even so, and its owner has to hear of it
            self._fs.close(self.fd)
        if self.on_close is not None:
            self.on_close()


class StoredRange:
    """An open range file. Closed with its last reference, so that a read under way never loses its descriptor."""

    def __init__(self, fs: Os, fd: int, key: RangeKey, version: Version) -> None:
        self._fs = fs
        self._descriptor = _Descriptor(fs, fd)
        self.key = key
        self.version = version
        self._proved: FileState | None = None
        self._proving = threading.Lock()

    def when_closed(self, call: Callable[[], None]) -> None:
        """Have this called once the file is closed, by whichever thread held the last reference."""
        self._descriptor.on_close = call

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset` bytes into the window.

        Raises:
            RangeFileError: the file is not what it was, or too short.
            OSError: it cannot be read.
        """
        for _ in range(PROVE_ATTEMPTS):
            if self._fs.state(self._descriptor.fd) != self._proved:
                self.prove()
            self._read_all(buffer, HEADER_BYTES + offset)
            if self._fs.state(self._descriptor.fd) == self._proved:
                return
        raise RangeFileError("somebody keeps writing to it")

    @property
    def proof(self) -> FileState | None:
        """The state in which the file was proved, for `believe` when it is opened again."""
        return self._proved

    def believe(self, proof: FileState | None) -> None:
        """The file was proved in this state earlier in this mount: if it still is in it, once was enough."""
        self._proved = proof

    def prove(self) -> None:
        """Read the whole file and compare its checksum. One thread does it, the others wait for that.

        Raises:
            RangeFileError: it is not the range file of this key and version, byte for byte.
            OSError: it cannot be read.
        """
        with self._proving:
            for _ in range(PROVE_ATTEMPTS):
                state = self._fs.state(self._descriptor.fd)
                if state == self._proved:
                    return
                self._prove_as(state)
                if self._fs.state(self._descriptor.fd) == state:
                    self._proved = state
                    return
        raise RangeFileError("somebody keeps writing to it")

    def trust(self) -> None:
        """Take the file as it is now for proved: this process has just written it."""
        self._proved = self._fs.state(self._descriptor.fd)

    def check_header(self) -> RangeHeader:
        """The header, if the file is there in full and of this key and version; its bytes are not looked at.

        Raises:
            RangeFileError: it is not.
        """
        state = self._fs.state(self._descriptor.fd)
        self._check_state(state)
        head = memoryview(bytearray(HEADER_USED_BYTES))
        self._read_all(head, 0)
        header = RangeHeader.unpack(head)
        if header.key != self.key:
            raise RangeFileError("it holds another range than its name says")
        if header.version != self.version:
            raise RangeFileError("it is of another version of its file")
        return header

    def _prove_as(self, state: FileState) -> None:
        self._check_state(state)
        header = self.check_header()
        hasher = xxh3_128()
        buffer = memoryview(bytearray(min(PROVE_CHUNK_BYTES, self.key.size)))
        done = 0
        while done < self.key.size:
            piece = buffer[: self.key.size - done]
            self._read_all(piece, HEADER_BYTES + done)
            hasher.update(piece)
            done += len(piece)
        if hasher.digest() != header.checksum:
            raise RangeFileError("its bytes do not have the checksum that its header states")

    def _check_state(self, state: FileState) -> None:
        if not state.regular:
            raise RangeFileError("it is not a regular file")
        if state.links == 0:
            raise RangeFileError("it has been removed")
        if state.size != HEADER_BYTES + self.key.size:
            raise RangeFileError(f"it has {state.size} bytes in place of {HEADER_BYTES + self.key.size}")

    def _read_all(self, buffer: memoryview, offset: int) -> None:
        done = 0
        while done < len(buffer):
            n = self._fs.read(self._descriptor.fd, buffer[done:], offset + done)
            if n == 0:
                raise RangeFileError(f"it ends at {offset + done} bytes")
            done += n


class RangeStore:
    """The store's directory. The caller holds its lock."""

    def __init__(self, fs: Os, relock: Callable[[], None] | None = None) -> None:
        """Make the directories and remove what an earlier mount left half-written.

        Raises:
            OSError: the directory cannot be used.
        """
        self._fs = fs
        self._relock = relock
        self._serial = itertools.count(1)
        self._tables_lock = threading.Lock()
        for name in DIRECTORIES:
            fs.mkdir(name)
        for name in fs.names(TMP_DIR):
            if is_tmp_name(name):
                with contextlib.suppress(IsADirectoryError):  # not ours, whatever its name
                    fs.unlink(f"{TMP_DIR}/{name}")
        self._tables = self._found_tables()

    # ------------------------------------------------------------------ ranges

    def open_range(self, key: RangeKey, version: Version) -> StoredRange:
        """Open the file of a range, unproved.

        Raises:
            RangeFileError: it is not the file of this key and version.
            OSError: it is not there (ENOENT) or cannot be read.
        """
        stored = StoredRange(self._fs, self._fs.open(range_name(key)), key, version)
        stored.check_header()
        return stored

    def write_range(self, key: RangeKey, version: Version, data: memoryview) -> StoredRange:
        """Write the file of a range and give it its name. On a failure nothing is left.

        Args:
            data: the window's bytes, key.size of them.
        """
        assert len(data) == key.size, "a range file holds its window, no more and no less"
        header = RangeHeader(key, version, xxh3_128(data).digest())
        self._fs.mkdir(range_dir(key))
        fd = self._write_named(tmp_name(digest_of(key), next(self._serial)), range_name(key), (data, header.pack()))
        stored = StoredRange(self._fs, fd, key, version)
        with contextlib.suppress(OSError):  # it has its name: what is not trusted is proved at its first read
            stored.trust()
        return stored

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
        data = memoryview(bytearray(64))
        try:
            fd = self._fs.open(SCRUB_NAME)
        except FileNotFoundError:
            return None
        try:
            return unpack_key(bytes(data[: self._fs.read(fd, data, 0)]))
        finally:
            self._fs.close(fd)

    # ------------------------------------------------------------------ probes

    def probe_read(self) -> None:
        """Raise OSError unless a range file (any one; failing that its directory) can be read."""
        for sub in sorted(self._fs.names(RANGES_DIR)):
            for name in filter(is_range_name, self._fs.names(f"{RANGES_DIR}/{sub}")):
                fd = self._fs.open(f"{RANGES_DIR}/{sub}/{name}")
                try:
                    self._fs.read(fd, memoryview(bytearray(HEADER_USED_BYTES)), 0)
                finally:
                    self._fs.close(fd)
                return

    def probe_write(self) -> None:
        """Raise OSError unless a file can be written, synced and removed; makes missing directories anew."""
        if self._fs.revive() and self._relock is not None:
            self._relock()
        for name in DIRECTORIES:
            self._fs.mkdir(name)
        data = memoryview(bytes(HEADER_BYTES))
        name = tmp_name("0" * 32, next(self._serial))
        fd = self._fs.create(name)
        try:
            try:
                self._write_all(fd, data, 0)
                self._fs.sync(fd)
            finally:
                self._fs.close(fd)
        finally:
            self._fs.unlink(name)

    # ------------------------------------------------------------------ range tables

    @property
    def tables_bytes(self) -> int:
        """Bytes that the table files take."""
        return sum(self._tables.values())

    def load_table(self, file: FileId, version: Version) -> bytes:
        """The serialised range table of this version of a file; empty where it is known to have none.

        Raises:
            RangeFileError: there is one, but not of this version, or not whole.
            OSError: there is none (ENOENT), or it cannot be read.
        """
        fd = self._fs.open(table_name(file))
        try:
            state = self._fs.state(fd)
            if not state.regular or state.size > TABLE_FILE_BYTES_MAX:
                raise RangeFileError("a table file is not one of ours")
            data = bytearray(state.size)
            done = 0
            while done < len(data):
                n = self._fs.read(fd, memoryview(data)[done:], done)
                if n == 0:
                    raise RangeFileError("a table file is cut short")
                done += n
        finally:
            self._fs.close(fd)
        return unpack_table(bytes(data), file, version)

    def save_table(self, file: FileId, version: Version, payload: bytes) -> None:
        """Keep a serialised range table for the next mount."""
        data = pack_table(file, version, payload)
        if len(data) > TABLE_FILE_BYTES_MAX:
            raise RangeFileError(f"a table of {len(data)} bytes is larger than the limit of {TABLE_FILE_BYTES_MAX}")
        name = table_name(file)
        with self._tables_lock:
            while self._tables and self.tables_bytes + len(data) > TABLES_BYTES_MAX:
                oldest = next(iter(self._tables))
                self._remove(oldest)
                del self._tables[oldest]
            fd = self._write_named(tmp_name(table_digest(file), next(self._serial)), name, (memoryview(data), b""))
            self._tables.pop(name, None)
            self._tables[name] = len(data)
            self._fs.close(fd)

    def _write_named(self, tmp: str, name: str, parts: tuple[memoryview, bytes]) -> int:
        """Write body and header under `tmp`, sync, rename; the open descriptor. Nothing is left on a failure."""
        body, header = parts
        fd = self._fs.create(tmp)
        try:
            self._write_all(fd, body, len(header))
            self._write_all(fd, memoryview(header), 0)
            self._fs.sync(fd)
            self._fs.rename(tmp, name)
        except BaseException:
            with contextlib.suppress(OSError):
                self._fs.close(fd)
            with contextlib.suppress(OSError):  # the next mount removes it
                self._fs.unlink(tmp)
            raise
        return fd

    def _write_all(self, fd: int, data: memoryview, offset: int) -> None:
        done = 0
        while done < len(data):
            n = self._fs.write(fd, data[done:], offset + done)
            if n == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            done += n

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
        return {path: size for _, path, size in sorted(found)}
