"""The store's lock: one mount per store, and a message that names the one that has it."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Self

from mummufs.store.held import LEAVING_WAIT_S, PID_BYTES, HeldLock
from mummufs.store.layout import FILE_MODE, LOCK_NAME


class StoreLock(HeldLock):
    """By flock(2)."""

    def __init__(self, directory: Path, wait_s: float = LEAVING_WAIT_S) -> None:
        """As `HeldLock`."""
        super().__init__(os.fspath(directory), wait_s)

    def _again(self) -> Self:
        return type(self)(Path(self._directory), wait_s=0)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(Path(self._directory) / LOCK_NAME, flags, FILE_MODE)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._open_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def _read_file(self) -> bytes:
        return os.pread(self._open_file, PID_BYTES, 0)

    def _write_file(self, data: bytes) -> None:
        os.fchmod(self._open_file, FILE_MODE)
        os.ftruncate(self._open_file, 0)
        os.pwrite(self._open_file, data, 0)

    def _close_file(self, file: int) -> None:
        os.close(file)
