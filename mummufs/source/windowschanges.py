"""How a source of Windows is changed: open objects, files that are written to, and names in a directory."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mummufs.source.base import (
    RENAME_NOREPLACE,
    Attributes,
    Creator,
    NewAttributes,
    Place,
    SourceDirectory,
    SourceFile,
    SourceObject,
    Wanted,
    read_one_by_one,
)
from mummufs.win32 import api

if TYPE_CHECKING:
    from mummufs.source.windows import WindowsSource

SECURITY_ATTRIBUTE = b"system.ntfs_acl"
"""The extended attribute that is a file's security descriptor, as ntfs-3g names it. There is no other."""
_WRITE_BITS = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


class WindowsObject:
    """Something in the tree, open."""

    def __init__(self, source: WindowsSource, path: bytes, handle: int) -> None:
        self._source = source
        self._path = path
        self._handle = handle

    @property
    def handle(self) -> int:
        """The handle, while it is open."""
        if not self._handle:
            raise OSError(errno.EBADF, "the file is closed", self._shown)
        return self._handle

    @property
    def _shown(self) -> str:
        return self._source.shown(self._path)

    def attributes(self) -> Attributes:
        return self._source.attributes_of(self._source.win32.state(self.handle))

    def set_attributes(self, new: NewAttributes) -> None:
        """Size, times, and of the mode whether anybody may write; there are no owners here."""
        win32 = self._source.win32
        if new.size is not None:
            size = new.size
            self._with_access(api.GENERIC_WRITE, lambda handle: win32.set_size(handle, size))
        bits = 0
        if new.mode is not None:
            bits = win32.state(self.handle).attributes & ~api.ATTRIBUTE_READONLY & ~api.ATTRIBUTE_NORMAL
            bits = (bits if new.mode & _WRITE_BITS else bits | api.ATTRIBUTE_READONLY) or api.ATTRIBUTE_NORMAL
        times = [0 if ns is None else api.filetime_of(ns) for ns in (new.atime_ns, new.mtime_ns)]
        if bits or any(times):
            self._with_access(api.WRITE_ATTRIBUTES, lambda handle: win32.set_basic(handle, bits, *times))

    def drop_privileges(self) -> None:
        _ = self.handle  # no file has any

    @property
    def place(self) -> Place:
        """Where it was opened, and which object it is."""
        return Place(self._path, self._source.identity(self._source.win32.state(self.handle)))

    def getxattr(self, name: bytes) -> bytes:
        if name != SECURITY_ATTRIBUTE:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), self._shown)
        handle = self._source.open_handle(self._path, api.READ_CONTROL, file=self.place.file)
        try:
            return self._source.win32.security(handle)
        finally:
            self._source.win32.close(handle)

    def listxattr(self) -> list[bytes]:
        _ = self.handle
        return []  # what is listed would be copied by programs that know nothing of it

    def setxattr(self, name: bytes, value: bytes) -> None:
        if name != SECURITY_ATTRIBUTE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), self._shown)
        access = api.WRITE_DAC | api.WRITE_OWNER
        self._with_access(access, lambda handle: self._source.win32.set_security(handle, value))

    def removexattr(self, name: bytes) -> None:
        del name
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), self._shown)

    def _with_access(self, access: int, call: object) -> None:
        """Call with a handle of this very object that has the access."""
        assert callable(call)
        identity = self._source.identity(self._source.win32.state(self.handle))
        other = self._source.open_handle(self._path, access, file=identity)
        try:
            call(other)
        finally:
            self._source.win32.close(other)

    def close(self) -> None:
        handle, self._handle = self._handle, 0
        if handle:
            self._source.win32.close(handle)

    def __del__(self) -> None:
        try:
            self.close()
        except OSError:
            pass  # it is gone even so


class WritableWindowsFile(WindowsObject):
    """A regular file, open for writing, through the file cache: what is written need not be aligned."""

    reads_at_once = False

    def read_many(self, wanted: Sequence[Wanted]) -> list[int]:
        return read_one_by_one(self, wanted)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        done = 0
        while done < len(buffer):
            (n,) = self._source.win32.read(self.handle, [(offset + done, buffer[done:])])
            if n == 0:
                break
            done += n
        return done

    def write(self, data: bytes, offset: int) -> int:
        done = 0
        while done < len(data):
            try:
                n = self._source.win32.write(self.handle, memoryview(data)[done:], offset + done)
            except OSError:
                if done:
                    return done
                raise
            if n == 0:
                break
            done += n
        return done

    def to_write(self) -> WritableWindowsFile:
        return self._source.open_to_write(self.place)

    def to_read(self) -> SourceFile:
        return self._source.open(self._path)

    def sync(self, *, data_only: bool = False) -> None:
        del data_only
        self._source.win32.flush(self.handle)

    def flush(self) -> None:
        _ = self.handle  # closing reports nothing on Windows

    def fileno(self) -> int:
        raise OSError(errno.EOPNOTSUPP, "a file of Windows has no descriptor", self._shown)


class WindowsDirectory:
    """A directory whose names are changed. Who creates is whom the process's token says."""

    def __init__(self, source: WindowsSource, path: bytes) -> None:
        self._source = source
        self._path: bytes | None = path

    def create(self, name: bytes, mode: int, creator: Creator) -> WritableWindowsFile:
        del creator
        path, access = self._at(name), api.GENERIC_READ | api.GENERIC_WRITE
        handle = self._source.win32.open(
            self._source.absolute(path), access, api.SHARE_ALL, api.CREATE_NEW, api.FLAG_OVERLAPPED
        )
        file = WritableWindowsFile(self._source, path, handle)
        if not mode & _WRITE_BITS:
            file.set_attributes(NewAttributes(mode=mode))
        return file

    def mkdir(self, name: bytes, mode: int, creator: Creator) -> None:
        del mode, creator
        self._source.win32.make_directory(self._source.absolute(self._at(name)))

    def mknod(self, name: bytes, mode: int, device: int, creator: Creator) -> None:
        if not stat.S_ISREG(mode):
            raise OSError(errno.EPERM, "Windows has regular files only")
        del device
        self.create(name, mode, creator).close()

    def symlink(self, name: bytes, target: bytes, creator: Creator) -> None:
        del creator
        text = target.decode("utf-8", "surrogatepass").replace("/", "\\")
        beside = self._at(target) if b".." not in target.split(b"/") else target
        self._source.win32.make_link(
            self._source.absolute(self._at(name)), text, to_directory=self._is_directory(beside)
        )

    def link(self, existing: SourceObject, name: bytes) -> None:
        assert isinstance(existing, WindowsObject), "an object of the same source"
        path = self._source.win32.final_path(existing.handle)
        self._source.win32.add_name(path, self._source.absolute(self._at(name)))

    def unlink(self, name: bytes) -> None:
        path = self._at(name)
        handle = self._source.open_handle(path)
        try:
            state = self._source.win32.state(handle)
        finally:
            self._source.win32.close(handle)
        if state.is_directory:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), self._source.shown(path))
        remove = self._source.win32.delete
        if state.attributes & api.ATTRIBUTE_DIRECTORY:  # a link to one
            remove = self._source.win32.remove_directory
        remove(self._source.absolute(path))

    def rmdir(self, name: bytes) -> None:
        path = self._at(name)
        if not self._source.stat(path).is_directory:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._source.shown(path))
        self._source.win32.remove_directory(self._source.absolute(path))

    def rename(self, name: bytes, to: SourceDirectory, new_name: bytes, flags: int = 0) -> None:
        assert isinstance(to, WindowsDirectory), "a directory of the same source"
        if flags & ~RENAME_NOREPLACE:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        old, new = self._at(name), to._at(new_name)
        self._source.stat(old)  # a name in another case would be moved too
        replace = not flags & RENAME_NOREPLACE
        self._source.win32.move(self._source.absolute(old), self._source.absolute(new), replace=replace)

    def sync(self, *, data_only: bool = False) -> None:
        del data_only
        self._at(b"x")  # NTFS keeps its names by a log of its own

    def close(self) -> None:
        self._path = None

    def _is_directory(self, path: bytes) -> bool:
        try:
            return self._source.stat(path).is_directory
        except OSError:
            return False

    def _at(self, name: bytes) -> bytes:
        if self._path is None:
            raise OSError(errno.EBADF, "the directory is closed")
        return self._path + b"/" + name if self._path else name
