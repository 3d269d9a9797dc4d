"""The store's lock on Windows: a byte of its lock file, locked for as long as the file is open."""

from __future__ import annotations

from typing import Self

from mummufs.store.held import LEAVING_WAIT_S, PID_BYTES, HeldLock
from mummufs.store.layout import LOCK_NAME
from mummufs.store.windowsos import OWNER_ONLY
from mummufs.win32 import api
from mummufs.win32.api import Win32


class WindowsStoreLock(HeldLock):
    """By LockFileEx."""

    def __init__(self, directory: str, win32: Win32, wait_s: float = LEAVING_WAIT_S) -> None:
        """As `HeldLock`."""
        self._win32 = win32
        super().__init__(directory, wait_s)

    def _again(self) -> Self:
        return type(self)(self._directory, self._win32, wait_s=0)

    def _open(self) -> int:
        access, share = api.GENERIC_READ | api.GENERIC_WRITE, api.SHARE_READ | api.SHARE_WRITE
        path = api.long_path(self._directory).rstrip("\\") + "\\" + LOCK_NAME
        flags = api.FLAG_OVERLAPPED | api.FLAG_OPEN_REPARSE_POINT
        return self._win32.open(path, access, share, api.OPEN_ALWAYS, flags, OWNER_ONLY)

    def _try(self) -> bool:
        return self._win32.lock(self._open_file)

    def _read_file(self) -> bytes:
        data = memoryview(bytearray(PID_BYTES))
        (n,) = self._win32.read(self._open_file, [(0, data)])
        return bytes(data[:n])

    def _write_file(self, data: bytes) -> None:
        self._win32.set_size(self._open_file, 0)
        if data:
            self._win32.write(self._open_file, memoryview(data), 0)

    def _close_file(self, file: int) -> None:
        self._win32.close(file)
