"""An operating system that fails where a test wants, gives and takes one byte at a time, and can lose power.

It works on a real directory. `fail` makes the n-th call from now raise, once or from then on. `lose_power` brings
about what file systems were seen to do: every name is there, but a file holds only what had been synced, and the
rest of it is gone or reads as zeros.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from tests.support.watched_os import WatchedOs


class Loss(Enum):
    """What becomes of bytes that were not synced."""

    GONE = "gone"
    ZEROS = "zeros"


class FaultyOs(WatchedOs):
    """`store.osfs.Os` over a directory.

    Attributes:
        calls: the names of the calls so far.
        fds: the descriptors that are open, with the name each was opened by.
        bytes_read: bytes that reads returned.
        one_byte: reads and writes move at most one byte.
        lying: `sync` returns without having synced.
        on_call: called before each call with its name.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._directory = directory
        self._fail_at: range = range(0)
        self._code = 0
        self._synced: dict[int, bytes] = {}
        self._dirty: set[int] = set()
        self.calls: list[str] = []
        self.fds: dict[int, str] = {}
        self.bytes_read = 0
        self.one_byte = False
        self.lying = False
        self.on_call: Callable[[str], None] = lambda _: None

    # ------------------------------------------------------------------ what a test does to it

    def fail(self, nth: int, code: int, *, forever: bool = False) -> None:
        """Fail the n-th call from now with this errno, and every later one if `forever`."""
        first = len(self.calls) + nth
        self._fail_at = range(first, 1 << 60) if forever else range(first, first + 1)
        self._code = code

    def heal(self) -> bool:
        """Fail no more. Returns whether a call has failed."""
        reached = len(self.calls) >= self._fail_at.start
        self._fail_at = range(0)
        return reached

    def lose_power(self, loss: Loss) -> None:
        """Take away what was not synced."""
        for path in self._directory.rglob("*"):
            inode = path.lstat().st_ino
            if inode not in self._dirty or not path.is_file():
                continue
            kept = self._synced.get(inode, b"")
            size = path.stat().st_size
            path.write_bytes(kept if loss is Loss.GONE else kept.ljust(size, b"\0"))
        self._dirty.clear()

    # ------------------------------------------------------------------ the calls

    def open(self, name: str) -> int:
        return self._opened(super().open(name), name)

    def open_to_change(self, name: str) -> int:
        fd = self._opened(super().open_to_change(name), name)
        state = os.fstat(fd)
        if stat.S_ISREG(state.st_mode) and state.st_ino not in self._dirty:
            self._synced.setdefault(state.st_ino, os.pread(fd, state.st_size, 0))
        return fd

    def create(self, name: str) -> int:
        fd = self._opened(super().create(name), name)
        self._synced.pop(os.fstat(fd).st_ino, None)
        self._dirty.add(os.fstat(fd).st_ino)
        return fd

    def close(self, fd: int) -> None:
        del self.fds[fd]
        super().close(fd)

    def open_direct(self, fd: int) -> int:
        if self.one_byte:  # past the page cache only whole pages can be read
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self._opened(super().open_direct(fd), self.fds[fd])

    def read(self, fd: int, buffer: memoryview, offset: int) -> int:
        n = super().read(fd, buffer[:1] if self.one_byte else buffer, offset)
        self.bytes_read += n
        return n

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        n = super().write(fd, data[:1] if self.one_byte else data, offset)
        self._dirty.add(os.fstat(fd).st_ino)
        return n

    def sync(self, fd: int) -> None:
        self._call("sync")
        if not self.lying:
            state = os.fstat(fd)
            self._synced[state.st_ino] = os.pread(fd, state.st_size, 0)
            self._dirty.discard(state.st_ino)

    def _opened(self, fd: int, name: str) -> int:
        self.fds[fd] = name
        return fd

    def _call(self, name: str) -> None:
        self.on_call(name)
        self.calls.append(name)
        if len(self.calls) in self._fail_at:
            raise OSError(self._code, os.strerror(self._code), name)
