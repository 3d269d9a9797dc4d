"""The store's lock: one mount per store, and a message that names the one that has it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path

from mummufs.core.errors import StoreBusyError
from mummufs.store.layout import FILE_MODE, LOCK_NAME

LEAVING_WAIT_S = 10.0
"""How long a mount waits for one that is just leaving the store."""
_POLL_S = 0.1


class StoreLock:
    """Held until `release` or the end of the process, kill -9 included."""

    def __init__(self, directory: Path, wait_s: float = LEAVING_WAIT_S) -> None:
        """Take the lock.

        Raises:
            StoreBusyError: another mount still holds it after `wait_s` seconds.
            OSError: the lock file cannot be made.
        """
        self._fd = os.open(
            directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, FILE_MODE
        )
        try:
            self._take(directory, wait_s)
        except BaseException:
            os.close(self._fd)
            raise
        with contextlib.suppress(OSError):  # a full file system has no room for the PID, and is no reason to refuse
            os.fchmod(self._fd, FILE_MODE)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def _take(self, directory: Path, wait_s: float) -> None:
        give_up = time.monotonic() + wait_s
        while not self._try():
            if time.monotonic() >= give_up:
                pid = self._holder()
                who = f"process {pid}" if pid else "another process"
                raise StoreBusyError(
                    f"the store {directory} is in use by a mount of {who}: unmount that one, or name another store", pid
                )
            time.sleep(_POLL_S)

    def renew(self, directory: Path) -> None:
        """Take the lock of a store whose directory was made anew; the old one is given up.

        Raises:
            OSError: somebody else has it by now, or the lock file cannot be made.
        """
        try:
            fresh = StoreLock(directory, wait_s=0)
        except StoreBusyError as error:
            raise OSError(errno.EBUSY, str(error)) from None
        old, self._fd, fresh._fd = self._fd, fresh._fd, -1
        os.close(old)

    def release(self) -> None:
        """Give the store up."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
            os.close(fd)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def _holder(self) -> int | None:
        try:
            return int(os.pread(self._fd, 32, 0))
        except (OSError, ValueError):
            return None
