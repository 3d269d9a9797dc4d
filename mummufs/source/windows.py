r"""A directory tree of Windows as a source. Over `win32.api`, so that everything here runs and is tested anywhere.

Names are told apart by their case, as on other systems: one that is spelt otherwise than on the disk is not found, and
whoever compares names as Windows does (the backend) looks for it in a listing. No symlink and no junction is followed
on the way, so that no path leads outside: the path of what was opened has to be the one that was asked for.

Files are read past the file cache, or all of them through it; never both, because NTFS reads a file that is cached or
mapped anywhere in one request at a time. `io` decides by `core.unbuffered`, and `MUMMUFS_UNBUFFERED` by force.

The version of a file is its size, its last write time and its change time, which NTFS moves whatever is changed, and
keeps in steps of 100 ns. Its identity is the volume's serial number and the file's number on it.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator, Sequence
from itertools import islice

from mummufs.core.ranges import FileId
from mummufs.core.unbuffered import reads_unbuffered
from mummufs.source.base import Attributes, Entry, Place, StatVfs, Wanted, read_one_by_one, stat_vfs
from mummufs.source.unbuffered import Request, read_planned
from mummufs.source.windowschanges import WindowsDirectory, WindowsObject, WritableWindowsFile
from mummufs.win32 import api
from mummufs.win32.api import FileState, Win32

PROBE_BYTES = 16 << 20
PROBE_FILES = 4
"""So many files are probed for how fast their bytes are read again, the largest first."""
FILES_COUNTED_MAX = 100_000
"""More files than this are taken for a source that fits into no cache."""
_OPEN_LINK = api.FLAG_BACKUP_SEMANTICS | api.FLAG_OPEN_REPARSE_POINT
_BLOCK_BYTES = 4096
_NOT_IN_NAMES = frozenset('\\:*?"<>|') | {chr(i) for i in range(32)}


class WindowsFile(WindowsObject):
    """A regular file, open for reading."""

    def __init__(self, source: WindowsSource, path: bytes, handle: int) -> None:
        super().__init__(source, path, handle)
        self.reads_at_once = source.unbuffered

    def read_many(self, wanted: Sequence[Wanted]) -> list[int]:
        return read_planned(self, wanted) if self.reads_at_once else read_one_by_one(self, wanted)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        if self.reads_at_once:
            return read_planned(self, [Wanted(offset, buffer)])[0]
        done = 0
        while done < len(buffer):
            (n,) = self._source.win32.read(self.handle, [(offset + done, buffer[done:])])
            if n == 0:
                break
            done += n
        return done

    def read_at_once(self, requests: Sequence[Request]) -> list[int]:
        """As `unbuffered.Device`."""
        return self._source.win32.read(self.handle, requests)

    def to_write(self) -> WritableWindowsFile:
        return self._source.open_to_write(self.place)

    def sync(self, *, data_only: bool = False) -> None:
        del data_only
        _ = self.handle  # what others have written they flush

    def fileno(self) -> int:
        raise OSError(errno.EOPNOTSUPP, "a file of Windows has no descriptor", self._shown)


class WindowsSource:
    """The tree below one directory.

    Raises:
        OSError: the directory cannot be opened.
    """

    def __init__(self, root: str, win32: Win32, *, unbuffered: bool | None = None, ram_budget_bytes: int = 0) -> None:
        """Open a directory.

        Args:
            root: its absolute path.
            unbuffered: whether files are read past the file cache; None to find out which is better.
            ram_budget_bytes: RAM that whoever uses the files takes for himself.
        """
        self.win32 = win32
        handle = win32.open(api.long_path(root), api.READ_ATTRIBUTES, api.SHARE_ALL, api.OPEN_EXISTING, _OPEN_FOLLOWED)
        try:
            if not win32.state(handle).is_directory:
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), root)
            self._root = win32.final_path(handle).rstrip("\\")
        finally:
            win32.close(handle)
        self.unbuffered = self._is_better_unbuffered(ram_budget_bytes) if unbuffered is None else unbuffered

    # ------------------------------------------------------------------ looking

    def stat(self, path: bytes) -> Attributes:
        handle = self.open_handle(path)
        try:
            return self.attributes_of(self.win32.state(handle))
        finally:
            self.win32.close(handle)

    def entries(self, path: bytes) -> Iterator[Entry]:
        handle = self.open_handle(path)
        try:
            if not self.win32.state(handle).is_directory:
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.shown(path))
            for name, state in self.win32.entries(self.absolute(path)):
                yield Entry(name.encode("utf-8", "surrogatepass"), self.attributes_of(state))
        finally:
            self.win32.close(handle)

    def readlink(self, path: bytes) -> bytes:
        handle = self.open_handle(path)
        try:
            if not self.win32.state(handle).is_link:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.shown(path))
            return self.win32.link_target(handle).replace("\\", "/").encode("utf-8", "surrogatepass")
        finally:
            self.win32.close(handle)

    def open(self, path: bytes) -> WindowsFile:
        return WindowsFile(self, path, self._open_data(path, api.GENERIC_READ, self._read_flags))

    def open_directory(self, path: bytes) -> int:
        self.win32.close(self.open_handle(path))
        raise OSError(errno.EOPNOTSUPP, "a directory of Windows has no descriptor", self.shown(path))

    def statfs(self) -> StatVfs:
        space = self.win32.space(self._root + "\\")
        total, free, available = (size // _BLOCK_BYTES for size in space)
        return stat_vfs((_BLOCK_BYTES, _BLOCK_BYTES, total, free, available, 0, 0, 0, 0, 255))

    def close(self) -> None:
        pass  # nothing is held but open files, which stay usable

    # ------------------------------------------------------------------ changing

    def open_to_write(self, place: Place) -> WritableWindowsFile:
        access = api.GENERIC_READ | api.GENERIC_WRITE
        handle = self._open_data(place.path, access, api.FLAG_OVERLAPPED, place.file)
        return WritableWindowsFile(self, place.path, handle)

    def object(self, place: Place) -> WindowsObject:
        access = api.READ_ATTRIBUTES | api.WRITE_ATTRIBUTES
        return WindowsObject(self, place.path, self.open_handle(place.path, access, file=place.file))

    def directory(self, place: Place) -> WindowsDirectory:
        handle = self.open_handle(place.path, file=place.file)
        try:
            if not self.win32.state(handle).is_directory:
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.shown(place.path))
        finally:
            self.win32.close(handle)
        return WindowsDirectory(self, place.path)

    # ------------------------------------------------------------------ what they share

    @property
    def _read_flags(self) -> int:
        return api.FLAG_OVERLAPPED | (api.FLAG_NO_BUFFERING if self.unbuffered else 0)

    def absolute(self, path: bytes) -> str:
        """A path of the source as Windows has it."""
        text = path.decode("utf-8", "surrogatepass")
        if any(part in ("", ".", "..") for part in text.split("/")) and text:
            raise OSError(errno.ENOENT, "a path that is none of the source's", text)
        if not _NOT_IN_NAMES.isdisjoint(text):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), text)
        if not text:
            return self._root + ("\\" if self._root.endswith(":") else "")  # without it a drive is a device
        return self._root + "\\" + text.replace("/", "\\")

    def shown(self, path: bytes) -> str:
        """A path for people."""
        return path.decode("utf-8", "backslashreplace")

    def open_handle(
        self, path: bytes, access: int = api.READ_ATTRIBUTES, flags: int = 0, file: FileId | None = None
    ) -> int:
        """Open what is just there: spelt so, and through no link. A link itself is opened as what it is.

        Args:
            file: what it has to be, or the error is ESTALE.
        """
        wanted = self.absolute(path)
        try:
            rights = access | api.READ_ATTRIBUTES
            handle = self.win32.open(wanted, rights, api.SHARE_ALL, api.OPEN_EXISTING, _OPEN_LINK | flags)
        except OSError as error:
            if error.errno == errno.EBUSY and access == api.READ_ATTRIBUTES:  # it is being deleted
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), self.shown(path)) from None
            raise
        try:
            if self.win32.final_path(handle).rstrip("\\") != wanted.rstrip("\\"):
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), self.shown(path))
            if file is not None and self.identity(self.win32.state(handle)) != file:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), self.shown(path))
        except BaseException:
            self.win32.close(handle)
            raise
        return handle

    def _open_data(self, path: bytes, access: int, flags: int, file: FileId | None = None) -> int:
        """Open a regular file for its bytes. Those of a file that Windows keeps elsewhere (deduplicated, or in a cloud)
        are got by opening it as what it seems to be."""
        handle = self.open_handle(path, access, flags, file)
        state = self.win32.state(handle)
        if not state.is_directory and not state.is_link:
            if not state.attributes & api.ATTRIBUTE_REPARSE_POINT:
                return handle
            self.win32.close(handle)
            wanted = self.absolute(path)
            return self.win32.open(wanted, access | api.READ_ATTRIBUTES, api.SHARE_ALL, api.OPEN_EXISTING, flags)
        self.win32.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", self.shown(path))

    def identity(self, state: FileState) -> FileId:
        """Which file it is."""
        return FileId(state.volume, state.file_id)

    def attributes_of(self, state: FileState) -> Attributes:
        """What stat(2) would say. Owner and group are nobody's here: an extended attribute has the descriptor."""
        if state.is_link:
            mode, size = stat.S_IFLNK | 0o777, 0
        elif state.is_directory:
            mode, size = stat.S_IFDIR | 0o777, 0
        else:
            mode, size = stat.S_IFREG | (0o555 if state.attributes & api.ATTRIBUTE_READONLY else 0o777), state.size
        return Attributes(
            file=self.identity(state),
            mode=mode,
            nlink=state.links,
            uid=0,
            gid=0,
            rdev=0,
            size=size,
            blocks=-(-max(state.allocated, size) // 512),
            atime_ns=api.ns_of(state.accessed),
            mtime_ns=api.ns_of(state.written),
            ctime_ns=api.ns_of(state.changed),
        )

    # ------------------------------------------------------------------ buffered or not

    def _is_better_unbuffered(self, ram_budget_bytes: int) -> bool:
        """Whether the files could not be kept in the file cache beside the RAM that their user takes for himself."""
        files = sorted(islice(self._files(b""), FILES_COUNTED_MAX), reverse=True)
        if len(files) == FILES_COUNTED_MAX:
            return True
        total, memory = sum(size for size, _ in files), self.win32.memory_bytes()
        if reads_unbuffered(total, memory, ram_budget_bytes, None):
            return True
        speeds = [self._probe(path, size) for size, path in files[:PROBE_FILES] if size]
        return bool(speeds) and reads_unbuffered(total, memory, ram_budget_bytes, max(speeds))

    def _files(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        for entry in self.entries(path):
            below = path + b"/" + entry.name if path else entry.name
            if entry.attributes.is_file:
                yield entry.attributes.size, below
            elif entry.attributes.is_directory:
                yield from self._files(below)

    def _probe(self, path: bytes, size: int) -> float:
        """Bytes per second of reading what has just been read."""
        handle = self.open_handle(path, api.GENERIC_READ, api.FLAG_OVERLAPPED)
        try:
            place = memoryview(bytearray(min(PROBE_BYTES, size)))
            self.win32.read(handle, [(0, place)])
            begun = time.perf_counter()
            (n,) = self.win32.read(handle, [(0, place)])
            return n / max(1e-9, time.perf_counter() - begun)
        finally:
            self.win32.close(handle)


_OPEN_FOLLOWED = api.FLAG_BACKUP_SEMANTICS
"""How the root itself is opened: it may be reached through links."""
