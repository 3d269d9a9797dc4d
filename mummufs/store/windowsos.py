r"""The store's calls on Windows, over `win32.api`.

What differs from other systems, and what is made of it:

- An open file is neither renamed nor removed: every one is opened without sharing its deletion, so that a call is
  refused (EBUSY) where it would else leave a name behind that nobody can use until the last handle is closed. A new
  file is therefore closed before it gets its name, and opened again; its checksum tells whether it is still the one.
- A name is replaced only by a move that says so.
- There are no descriptors. The numbers given out here are never used twice, so that a second close closes nothing.
- The store's directories and files are their owner's and the system's alone, by an access list of their own that is not
  inherited. The directory is held open without sharing its deletion: nobody renames it meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os

from mummufs.store.osfs import FileState
from mummufs.win32 import api
from mummufs.win32.api import Win32

OWNER_ONLY = "D:P(A;OICI;FA;;;OW)(A;OICI;FA;;;SY)"
"""Everything for the owner and for SYSTEM, nothing for anybody else, inherited by what is created below."""
FILE_SYSTEMS = ("NTFS", "ReFS")
"""Those that keep access lists and change times, without which nothing here is safe."""
_SHARE = api.SHARE_READ | api.SHARE_WRITE
_LIST_DIRECTORY = 0x1


class WindowsOs:
    """`store.osfs.Os`, relative to one directory."""

    def __init__(self, directory: str, win32: Win32) -> None:
        """Open a directory, which has to be there.

        Raises:
            OSError: it cannot be opened.
        """
        self._win32 = win32
        self._directory = api.long_path(directory).rstrip("\\")
        self._files: dict[int, int] = {}
        self._numbers = itertools.count(1)
        self._root = self._hold()

    def _hold(self) -> int:
        path = self._directory + ("\\" if self._directory.endswith(":") else "")
        return self._win32.open(path, _LIST_DIRECTORY, _SHARE, api.OPEN_EXISTING, api.FLAG_BACKUP_SEMANTICS)

    def _path(self, name: str) -> str:
        return self._directory + "\\" + name.replace("/", "\\")

    def _handle(self, fd: int) -> int:
        handle = self._files.get(fd)
        if handle is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return handle

    def _opened(self, handle: int) -> int:
        fd = next(self._numbers)
        self._files[fd] = handle
        return fd

    def open(self, name: str) -> int:
        return self._open(name, api.GENERIC_READ)

    def open_to_change(self, name: str) -> int:
        return self._open(name, api.GENERIC_READ | api.GENERIC_WRITE)

    def _open(self, name: str, access: int) -> int:
        flags = api.FLAG_OVERLAPPED | api.FLAG_OPEN_REPARSE_POINT
        try:
            return self._opened(self._win32.open(self._path(name), access, _SHARE, api.OPEN_EXISTING, flags))
        except PermissionError:
            self._refuse_directory(name)
            raise

    def create(self, name: str) -> int:
        access = api.GENERIC_READ | api.GENERIC_WRITE
        path, flags = self._path(name), api.FLAG_OVERLAPPED
        return self._opened(self._win32.open(path, access, api.SHARE_READ, api.CREATE_NEW, flags, OWNER_ONLY))

    def close(self, fd: int) -> None:
        handle = self._files.pop(fd, None)
        if handle is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        self._win32.close(handle)

    def state(self, fd: int) -> FileState:
        found = self._win32.state(self._handle(fd))
        regular = not found.is_directory and not found.is_link
        times = api.ns_of(found.written), api.ns_of(found.changed)
        return FileState(found.file_id, found.size, *times, found.links, regular)

    def is_in(self, fd: int, state: FileState) -> bool:
        # Nothing of a file changes without its change time.
        return api.ns_of(self._win32.changed(self._handle(fd))) == state.ctime_ns

    def read(self, fd: int, buffer: memoryview, offset: int) -> int:
        return self._win32.read(self._handle(fd), [(offset, buffer)])[0] if len(buffer) else 0

    def open_direct(self, fd: int) -> int:
        del fd
        # NTFS would read the file in one request at a time, for it is open through its cache.
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    def splice(self, fd: int, pipe: int, size: int, offset: int) -> int:
        del fd, pipe, size, offset
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        return self._win32.write(self._handle(fd), data, offset)

    def sync(self, fd: int) -> None:
        self._win32.flush(self._handle(fd))

    def publish(self, fd: int, old: str, new: str) -> int:
        self.close(fd)
        self.rename(old, new)
        return self.open(new)

    def rename(self, old: str, new: str) -> None:
        try:
            self._win32.move(self._path(old), self._path(new), replace=True)
        except PermissionError:  # what it is for a name that is open; a directory is told apart
            self._refuse_directory(new)
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), new) from None

    def unlink(self, name: str) -> None:
        try:
            self._win32.delete(self._path(name))
        except PermissionError:
            self._refuse_directory(name)
            raise

    def _refuse_directory(self, name: str) -> None:
        """Raise IsADirectoryError if this is the name of one."""
        with contextlib.suppress(FileNotFoundError):
            flags = api.FLAG_BACKUP_SEMANTICS | api.FLAG_OPEN_REPARSE_POINT
            path = self._path(name)
            handle = self._win32.open(path, api.READ_ATTRIBUTES, api.SHARE_ALL, api.OPEN_EXISTING, flags)
            try:
                is_directory = self._win32.state(handle).is_directory
            finally:
                self._win32.close(handle)
            if is_directory:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)

    def mkdir(self, name: str) -> None:
        with contextlib.suppress(FileExistsError):
            self._win32.make_directory(self._path(name), OWNER_ONLY)

    def names(self, name: str) -> list[str]:
        return [entry for entry, _ in self._win32.entries(self._path(name))]

    def free_bytes(self) -> int:
        return self._win32.space(self._directory + "\\").available

    def total_bytes(self) -> int:
        return self._win32.space(self._directory + "\\").total

    def revive(self) -> bool:
        try:
            self._win32.make_directory(self._directory, OWNER_ONLY)
        except OSError:  # it is there; held open as it is, nobody could have removed it
            return False
        self.dispose()
        self._root = self._hold()
        return True

    def dispose(self) -> None:
        """Let go of the directory. Disposing twice does nothing."""
        root, self._root = self._root, 0
        if root:
            self._win32.close(root)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            if getattr(self, "_root", 0):
                self.dispose()


def make_store_directory(directory: str, win32: Win32) -> None:
    """Make the store's directory, its owner's alone, unless it is there.

    Raises:
        OSError: it cannot be made, or its file system will not do.
    """
    path = api.long_path(directory)
    name = win32.volume_name(path)
    if name not in FILE_SYSTEMS:
        raise OSError(errno.EOPNOTSUPP, f"its file system is {name}, and has to be one of {', '.join(FILE_SYSTEMS)}")
    with contextlib.suppress(FileExistsError):
        win32.make_directory(path, OWNER_ONLY)
