r"""A Windows for tests, over a directory of this system: `win32.api.Win32` with the rules that Windows has of its own.

- An open file is opened again, renamed, replaced and removed only as far as whoever has it open has shared it.
- A name that is there is replaced only by a move that says so; a read-only file is neither replaced nor removed.
- Reads past the cache are aligned in offset, size and address.
- Names are looked up without regard to case, and links on the way are followed.

`\\?\C:\` is the directory.

Attributes:
    mixed: files that were open for data past the cache and through it at once.
    calls: the names of the calls so far.
    fails: told the name of a call, gives a Windows error to fail it with, or 0.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mummufs.win32 import api
from mummufs.win32.api import FileState, Space, error

DRIVE = "\\\\?\\C:"
_DATA = api.GENERIC_READ | api.GENERIC_WRITE
_FIRST_HANDLE = 0x1000


@dataclass
class _Open:
    fd: int
    path: bytes
    inode: tuple[int, int]
    access: int
    share: int
    flags: int
    locked: bool = False


class FakeWin32:
    """The calls."""

    def __init__(self, directory: Path, memory_bytes: int = 64 << 30) -> None:
        self._base = os.fsencode(directory)
        self._open: dict[int, _Open] = {}
        self._next = _FIRST_HANDLE
        self._lock = threading.RLock()
        self._memory_bytes = memory_bytes
        self._descriptors: dict[tuple[int, int], bytes] = {}
        self.mixed: list[bytes] = []
        self.calls: list[str] = []
        self.fails: Callable[[str], int] = lambda _: 0
        self.sddl: list[str] = []
        self.name = "NTFS"

    @property
    def open_handles(self) -> int:
        return len(self._open)

    def open(self, path: str, access: int, share: int, creation: int, flags: int = 0, sddl: str | None = None) -> int:
        with self._lock:
            self._call("open", path)
            real = self._real(path, last=not flags & api.FLAG_OPEN_REPARSE_POINT)
            exists = os.path.lexists(real)
            if creation == api.CREATE_NEW and exists:
                raise error(80, path)
            if creation == api.OPEN_EXISTING and not exists:
                raise error(2 if os.path.isdir(os.path.dirname(real)) else 3, path)
            if sddl is not None:
                self.sddl.append(sddl)
            fd = self._descriptor(real, access, exists, path)
            found = os.fstat(fd)
            if stat.S_ISDIR(found.st_mode) and not flags & api.FLAG_BACKUP_SEMANTICS:
                os.close(fd)
                raise error(5, path)
            opened = _Open(fd, real, (found.st_dev, found.st_ino), access, share, flags)
            try:
                self._check_sharing(opened, path)
            except OSError:
                os.close(fd)
                raise
            self._next += 4
            self._open[self._next] = opened
            return self._next

    def _descriptor(self, real: bytes, access: int, exists: bool, path: str) -> int:
        try:
            if not exists:
                return os.open(real, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            if os.path.islink(real) or os.path.isdir(real) or not access & _DATA:
                return os.open(real, os.O_PATH | os.O_NOFOLLOW)
            if access & api.GENERIC_WRITE and not os.stat(real).st_mode & 0o222:
                raise error(5, path)
            return os.open(real, os.O_RDWR if access & api.GENERIC_WRITE else os.O_RDONLY)
        except FileNotFoundError:
            raise error(3, path) from None

    def _check_sharing(self, new: _Open, path: str) -> None:
        if not new.access & (_DATA | api.DELETE):
            return
        for other in self._open.values():
            if other.inode != new.inode or not other.access & (_DATA | api.DELETE):
                continue
            if not _shares(other.share, new.access) or not _shares(new.share, other.access):
                raise error(32, path)
            if (other.flags ^ new.flags) & api.FLAG_NO_BUFFERING:
                self.mixed.append(new.path)

    def close(self, handle: int) -> None:
        with self._lock:
            self._call("close")
            opened = self._open.pop(handle, None)
            if opened is None:
                raise error(6)
            os.close(opened.fd)

    def state(self, handle: int) -> FileState:
        with self._lock:
            self._call("state")
            return _state(os.fstat(self._of(handle).fd))

    def changed(self, handle: int) -> int:
        return self.state(handle).changed

    def read(self, handle: int, requests: Sequence[tuple[int, memoryview]]) -> list[int]:
        with self._lock:
            self._call("read")
            opened = self._of(handle)
        assert opened.access & api.GENERIC_READ and opened.flags & api.FLAG_OVERLAPPED
        for offset, place in requests:
            if opened.flags & api.FLAG_NO_BUFFERING:
                address = ctypes.addressof(ctypes.c_char.from_buffer(place))
                if offset % 4096 or len(place) % 4096 or address % 4096:
                    raise error(87)
        return [os.preadv(opened.fd, [place], offset) for offset, place in requests]

    def write(self, handle: int, data: memoryview, offset: int) -> int:
        with self._lock:
            self._call("write")
            opened = self._of(handle)
        assert opened.access & api.GENERIC_WRITE
        return os.pwrite(opened.fd, data, offset)

    def flush(self, handle: int) -> None:
        with self._lock:
            self._call("flush")
            opened = self._of(handle)
        if not opened.access & api.GENERIC_WRITE:
            raise error(5)
        os.fdatasync(opened.fd)

    def set_size(self, handle: int, size: int) -> None:
        with self._lock:
            self._call("set_size")
            opened = self._of(handle)
            if not opened.access & api.GENERIC_WRITE:
                raise error(5)
            os.ftruncate(opened.fd, size)

    def set_basic(self, handle: int, attributes: int, accessed: int, written: int) -> None:
        with self._lock:
            self._call("set_basic")
            opened = self._of(handle)
            if not opened.access & (api.WRITE_ATTRIBUTES | api.GENERIC_WRITE):
                raise error(5)
            path = f"/proc/self/fd/{opened.fd}"
            found = os.fstat(opened.fd)
            if attributes:
                bits = stat.S_IMODE(found.st_mode)
                os.chmod(path, bits & ~0o222 if attributes & api.ATTRIBUTE_READONLY else bits | 0o222)
            atime_ns = api.ns_of(accessed) if accessed else found.st_atime_ns
            os.utime(path, ns=(atime_ns, api.ns_of(written) if written else found.st_mtime_ns))

    def lock(self, handle: int) -> bool:
        with self._lock:
            self._call("lock")
            opened = self._of(handle)
            if any(other.locked and other.inode == opened.inode for other in self._open.values()):
                return False
            opened.locked = True
            return True

    def move(self, old: str, new: str, *, replace: bool) -> None:
        with self._lock:
            self._call("move", old)
            source, target = self._real(old, last=False), self._real(new, last=False)
            if not os.path.lexists(source):
                raise error(2, old)
            if not os.path.isdir(os.path.dirname(target)):
                raise error(3, new)
            self._check_unshared(source, 32, old)
            if os.path.lexists(target) and not os.path.samestat(os.lstat(source), os.lstat(target)):
                if not replace:
                    raise error(183, new)
                if os.path.isdir(target) or not os.lstat(target).st_mode & 0o222:
                    raise error(5, new)
                self._check_unshared(target, 5, new)
                os.unlink(target)
            parent, _, name = new.rpartition("\\")
            os.rename(source, self._real(parent, last=True) + b"/" + _bytes(name))

    def delete(self, path: str) -> None:
        with self._lock:
            self._call("delete", path)
            real = self._real(path, last=False)
            if not os.path.lexists(real):
                raise error(2, path)
            if not os.path.islink(real) and (os.path.isdir(real) or not os.stat(real).st_mode & 0o222):
                raise error(5, path)
            self._check_unshared(real, 32, path)
            os.unlink(real)

    def _check_unshared(self, real: bytes, code: int, path: str) -> None:
        """Nobody may have it open without having shared its deletion."""
        found = os.lstat(real)
        for opened in self._open.values():
            unshared = opened.access & _DATA and not opened.share & api.SHARE_DELETE
            if opened.inode == (found.st_dev, found.st_ino) and unshared:
                raise error(code, path)

    def make_directory(self, path: str, sddl: str | None = None) -> None:
        with self._lock:
            self._call("make_directory", path)
            real = self._real(path, last=False)
            if os.path.lexists(real):
                raise error(183, path)
            if sddl is not None:
                self.sddl.append(sddl)
            try:
                os.mkdir(real)
            except FileNotFoundError:
                raise error(3, path) from None

    def remove_directory(self, path: str) -> None:
        with self._lock:
            self._call("remove_directory", path)
            real = self._real(path, last=False)
            if os.path.islink(real):
                os.unlink(real)
                return
            if not os.path.lexists(real):
                raise error(2, path)
            if not os.path.isdir(real):
                raise error(267, path)
            if os.listdir(real):
                raise error(145, path)
            os.rmdir(real)

    def make_link(self, path: str, target: str, *, to_directory: bool) -> None:
        with self._lock:
            self._call("make_link", path)
            real = self._real(path, last=False)
            if os.path.lexists(real):
                raise error(183, path)
            os.symlink(_bytes(target.replace("\\", "/")), real)

    def add_name(self, existing: str, path: str) -> None:
        with self._lock:
            self._call("add_name", path)
            real = self._real(path, last=False)
            if os.path.lexists(real):
                raise error(183, path)
            os.link(self._real(existing, last=False), real, follow_symlinks=False)

    def entries(self, path: str) -> Iterator[tuple[str, FileState]]:
        self._call("entries", path)
        with os.scandir(self._real(path, last=True)) as scan:
            entries = list(scan)
        for entry in entries:
            # A name that no file on Windows has; one that was removed since: Windows had its state from the listing.
            with contextlib.suppress(UnicodeDecodeError, FileNotFoundError):
                yield entry.name.decode("utf-8", "surrogatepass"), _state(entry.stat(follow_symlinks=False), links=1)

    def final_path(self, handle: int) -> str:
        with self._lock:
            self._call("final_path")
            opened = self._of(handle)
            real = os.path.realpath(os.path.dirname(opened.path)) + b"/" + os.path.basename(opened.path)
            if os.path.realpath(self._base) == os.path.realpath(opened.path):
                return DRIVE + "\\"
            # What was renamed while it is open has its new name.
            now = os.readlink(f"/proc/self/fd/{opened.fd}".encode())
            real = now if now.startswith(os.path.realpath(self._base)) else real
            rest = os.path.relpath(real, os.path.realpath(self._base))
            return DRIVE + "\\" + rest.decode("utf-8", "surrogatepass").replace("/", "\\")

    def link_target(self, handle: int) -> str:
        with self._lock:
            self._call("link_target")
            opened = self._of(handle)
            if not stat.S_ISLNK(os.fstat(opened.fd).st_mode):
                raise error(4390)
            return os.readlink(b"", dir_fd=opened.fd).decode("utf-8", "surrogatepass").replace("/", "\\")

    def security(self, handle: int) -> bytes:
        with self._lock:
            self._call("security")
            opened = self._of(handle)
            return self._descriptors.get(opened.inode, b"inherited")

    def set_security(self, handle: int, descriptor: bytes) -> None:
        with self._lock:
            self._call("set_security")
            self._descriptors[self._of(handle).inode] = descriptor

    def space(self, path: str) -> Space:
        self._call("space", path)
        found = shutil.disk_usage(self._base)
        return Space(found.total, found.free, found.free)

    def volume_name(self, path: str) -> str:
        self._call("volume_name", path)
        return self.name

    def memory_bytes(self) -> int:
        return self._memory_bytes

    # ------------------------------------------------------------------ what they share

    def _call(self, name: str, path: str | None = None) -> None:
        self.calls.append(name)
        code = self.fails(name)
        if code:
            raise error(code, path)

    def _of(self, handle: int) -> _Open:
        opened = self._open.get(handle)
        if opened is None:
            raise error(6)
        return opened

    def _real(self, path: str, *, last: bool) -> bytes:
        """The path here: each name as it is spelt on the disk, links followed but for the last if it is not to be."""
        assert path.startswith(DRIVE), f"{path!r} is not a long path"
        real = self._base
        names = [name for name in path[len(DRIVE) :].split("\\") if name]
        for i, name in enumerate(names):
            real += b"/" + _spelt(real, _bytes(name))
            if os.path.islink(real) and (last or i < len(names) - 1):
                real = os.path.realpath(real)
        return real


def _spelt(directory: bytes, name: bytes) -> bytes:
    with contextlib.suppress(OSError):
        names = os.listdir(directory)
        if name not in names:
            upper = name.decode("utf-8", "surrogatepass").upper()
            for other in sorted(names):
                if other.decode("utf-8", "surrogateescape").upper() == upper:
                    return other
    return name


def _shares(share: int, access: int) -> bool:
    """Whether who shares so much lets another one have this access."""
    return not (
        (access & api.GENERIC_READ and not share & api.SHARE_READ)
        or (access & api.GENERIC_WRITE and not share & api.SHARE_WRITE)
        or (access & api.DELETE and not share & api.SHARE_DELETE)
    )


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _state(found: os.stat_result, links: int | None = None) -> FileState:
    bits = 0
    tag = 0
    if stat.S_ISDIR(found.st_mode):
        bits |= api.ATTRIBUTE_DIRECTORY
    elif stat.S_ISLNK(found.st_mode):
        bits, tag = api.ATTRIBUTE_REPARSE_POINT, api.TAG_SYMLINK
    elif not found.st_mode & 0o222:
        bits |= api.ATTRIBUTE_READONLY
    times = [api.filetime_of(ns) for ns in (found.st_mtime_ns, found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)]
    count = found.st_nlink if links is None else links
    identity = found.st_dev, found.st_ino
    return FileState(bits, tag, *identity, count, found.st_size, found.st_blocks * 512, *times)
