"""The seam between the store and the operating system: the calls that can fail, and nothing else.

A test puts a layer in its place that fails the n-th call or loses what was not synced. Names are relative to the
store's directory, which is held open: whoever renames or replaces it does not redirect us.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import NamedTuple, Protocol

from mummufs.core.ranges import PAGE_SIZE
from mummufs.store.layout import DIR_MODE, FILE_MODE

_OPEN_FLAGS = 0
for _flag in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY"):  # Windows has none of them, and `windowsos`
    _OPEN_FLAGS |= getattr(os, _flag, 0)


class FileState(NamedTuple):
    """What tells whether a file is still the one that was proved."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    links: int
    regular: bool


class Os(Protocol):
    """The calls. Each raises OSError."""

    def open(self, name: str) -> int:
        """Open for reading; neither follows a symlink nor waits on a fifo."""
        ...

    def open_to_change(self, name: str) -> int:
        """As `open`, for reading and writing."""
        ...

    def create(self, name: str) -> int:
        """Create a file that was not there, for reading and writing, mode 0600 whatever the umask."""
        ...

    def close(self, fd: int) -> None: ...

    def state(self, fd: int) -> FileState: ...

    def is_in(self, fd: int, state: FileState) -> bool:
        """Whether `state(fd)` is this, without making one: every hit asks."""
        ...

    def read(self, fd: int, buffer: memoryview, offset: int) -> int:
        """Read once; the bytes read, 0 at end of file."""
        ...

    def open_direct(self, fd: int) -> int:
        """Open the very file of a descriptor again, for reading past the page cache."""
        ...

    def splice(self, fd: int, pipe: int, size: int, offset: int) -> int:
        """Move bytes from a file into a pipe once; the bytes moved, 0 at end of file. A full pipe is an error."""
        ...

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        """Write once; the bytes written."""
        ...

    def sync(self, fd: int) -> None:
        """Wait until the file's bytes and size are on the disk."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Move a file that nobody has open, in the place of one that has the new name."""
        ...

    def publish(self, fd: int, old: str, new: str) -> int:
        """Give a file that was created just now, and is open, its name, in the place of one that has it.

        Returns:
            the descriptor to read it by from now on: on some systems an open file cannot be renamed, and is closed
            first. After an error the one that was given is to be closed, unless it is EBADF by now.
        """
        ...

    def unlink(self, name: str) -> None:
        """Remove a name. Raises OSError with EBUSY where it is open, on systems that do not remove such files."""
        ...

    def mkdir(self, name: str) -> None:
        """Create a directory, mode 0700 whatever the umask; one that is there already is fine."""
        ...

    def names(self, name: str) -> list[str]:
        """The names in a directory."""
        ...

    def free_bytes(self) -> int:
        """Bytes that the file system still has for us."""
        ...

    def total_bytes(self) -> int:
        """Bytes that the file system has in all."""
        ...

    def revive(self) -> bool:
        """Make the store's own directory anew if somebody has removed it; whether that was so."""
        ...


class RealOs:
    """The calls of Linux, relative to one directory."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = os.path.abspath(directory)
        self._root = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open(self, name: str) -> int:
        return os.open(name, os.O_RDONLY | _OPEN_FLAGS, dir_fd=self._root)

    def open_to_change(self, name: str) -> int:
        return os.open(name, os.O_RDWR | _OPEN_FLAGS, dir_fd=self._root)

    def create(self, name: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(name, flags, FILE_MODE, dir_fd=self._root)
        try:
            os.fchmod(fd, FILE_MODE)
        except OSError:
            os.close(fd)
            raise
        return fd

    def close(self, fd: int) -> None:
        os.close(fd)

    def state(self, fd: int) -> FileState:
        s = os.fstat(fd)
        return FileState(s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_nlink, stat.S_ISREG(s.st_mode))

    def is_in(self, fd: int, state: FileState) -> bool:
        s = os.fstat(fd)
        # Nothing of a file changes without its ctime; size and inode are looked at for file systems that are careless.
        return s.st_ctime_ns == state.ctime_ns and s.st_size == state.size and s.st_ino == state.inode

    def read(self, fd: int, buffer: memoryview, offset: int) -> int:
        return os.preadv(fd, [buffer], offset)

    def open_direct(self, fd: int) -> int:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)

    def splice(self, fd: int, pipe: int, size: int, offset: int) -> int:
        return os.splice(fd, pipe, size, offset_src=offset, flags=os.SPLICE_F_NONBLOCK)

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)
        # Hits are read past the page cache, so the pages that were written are of use to nobody, all but the header's.
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, PAGE_SIZE, 0, os.POSIX_FADV_DONTNEED)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._root, dst_dir_fd=self._root)

    def publish(self, fd: int, old: str, new: str) -> int:
        self.rename(old, new)
        return fd

    def unlink(self, name: str) -> None:
        os.unlink(name, dir_fd=self._root)

    def mkdir(self, name: str) -> None:
        try:
            os.mkdir(name, DIR_MODE, dir_fd=self._root)
        except FileExistsError:
            return
        os.chmod(name, DIR_MODE, dir_fd=self._root)

    def names(self, name: str) -> list[str]:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._root)
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)

    def free_bytes(self) -> int:
        s = os.fstatvfs(self._root)
        return s.f_bavail * s.f_frsize

    def total_bytes(self) -> int:
        s = os.fstatvfs(self._root)
        return s.f_blocks * s.f_frsize

    def revive(self) -> bool:
        if os.fstat(self._root).st_nlink:
            return False
        os.makedirs(self._directory, DIR_MODE, exist_ok=True)
        fresh = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.dup2(fresh, self._root, inheritable=False)  # other threads go on with the same number
        os.close(fresh)
        return True

    def __del__(self) -> None:
        root, self._root = getattr(self, "_root", -1), -1
        if root >= 0:
            os.close(root)
