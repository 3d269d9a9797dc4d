"""The store's lock on Windows: a byte of its lock file, locked for as long as the file is open."""

from __future__ import annotations

import contextlib
import errno
import os
import time

from mummufs.core.errors import StoreBusyError
from mummufs.store.layout import LOCK_NAME
from mummufs.store.windowsos import OWNER_ONLY
from mummufs.win32 import api
from mummufs.win32.api import Win32

LEAVING_WAIT_S = 10.0
"""How long a mount waits for one that is just leaving the store."""
_POLL_S = 0.1
_PID_BYTES = 32


class WindowsStoreLock:
    """Held until `release` or the end of the process, however it ends."""

    def __init__(self, directory: str, win32: Win32, wait_s: float = LEAVING_WAIT_S) -> None:
        """Take the lock.

        Raises:
            StoreBusyError: another mount still holds it after `wait_s` seconds.
            OSError: the lock file cannot be made.
        """
        self._win32 = win32
        access, share = api.GENERIC_READ | api.GENERIC_WRITE, api.SHARE_READ | api.SHARE_WRITE
        path = api.long_path(directory).rstrip("\\") + "\\" + LOCK_NAME
        flags = api.FLAG_OVERLAPPED | api.FLAG_OPEN_REPARSE_POINT
        self._handle = win32.open(path, access, share, api.OPEN_ALWAYS, flags, OWNER_ONLY)
        try:
            self._take(directory, wait_s)
        except BaseException:
            win32.close(self._handle)
            raise
        with contextlib.suppress(OSError):  # a full file system has no room for the PID, and is no reason to refuse
            win32.set_size(self._handle, 0)
            win32.write(self._handle, memoryview(b"%d\n" % os.getpid()), 0)

    def _take(self, directory: str, wait_s: float) -> None:
        give_up = time.monotonic() + wait_s
        while not self._win32.lock(self._handle):
            if time.monotonic() >= give_up:
                pid = self._holder()
                who = f"process {pid}" if pid else "another process"
                raise StoreBusyError(
                    f"the store {directory} is in use by a mount of {who}: unmount that one, or name another store", pid
                )
            time.sleep(_POLL_S)

    def renew(self, directory: str) -> None:
        """Take the lock of a store whose directory was made anew; the old one is given up.

        Raises:
            OSError: somebody else has it by now, or the lock file cannot be made.
        """
        try:
            fresh = WindowsStoreLock(directory, self._win32, wait_s=0)
        except StoreBusyError as error:
            raise OSError(errno.EBUSY, str(error)) from None
        old, self._handle, fresh._handle = self._handle, fresh._handle, 0
        self._win32.close(old)

    def release(self) -> None:
        """Give the store up."""
        handle, self._handle = self._handle, 0
        if handle:
            with contextlib.suppress(OSError):
                self._win32.set_size(handle, 0)
            self._win32.close(handle)

    def _holder(self) -> int | None:
        data = memoryview(bytearray(_PID_BYTES))
        try:
            (n,) = self._win32.read(self._handle, [(0, data)])
            return int(bytes(data[:n]))
        except (OSError, ValueError):
            return None
