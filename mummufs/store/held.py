"""What a store's lock is on every system: waited for, named after its holder, taken anew with a directory made anew."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import Self

from mummufs.core.errors import StoreBusyError

LEAVING_WAIT_S = 10.0
"""How long a mount waits for one that is just leaving the store."""
PID_BYTES = 32
"""More than a PID takes in the lock file."""
_POLL_S = 0.1


class HeldLock:
    """A lock that is held through an open lock file, until `release` or the end of the process, however it ends.

    A system says how to open, lock, read, write and close that file: the methods below `release`.
    """

    def __init__(self, directory: str, wait_s: float) -> None:
        """Take the lock.

        Raises:
            StoreBusyError: another mount still holds it after `wait_s` seconds.
            OSError: the lock file cannot be made.
        """
        self._directory = directory
        self._file: int | None = self._open()
        try:
            self._take(wait_s)
        except BaseException:
            self._close()
            raise
        with contextlib.suppress(OSError):  # a full file system has no room for the PID, and is no reason to refuse
            self._write_file(b"%d\n" % os.getpid())

    def renew(self) -> None:
        """Take the lock of a store whose directory was made anew; the old one is given up.

        Raises:
            OSError: somebody else has it by now, or the lock file cannot be made.
        """
        try:
            fresh = self._again()
        except StoreBusyError as error:
            raise OSError(errno.EBUSY, str(error)) from None
        self._file, fresh._file = fresh._file, self._file
        fresh._close()

    def release(self) -> None:
        """Give the store up. Releasing twice does nothing."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._write_file(b"")
            self._close()

    def _take(self, wait_s: float) -> None:
        give_up = time.monotonic() + wait_s
        while not self._try():
            if time.monotonic() >= give_up:
                pid = self._holder()
                who = f"process {pid}" if pid else "another process"
                raise StoreBusyError(
                    f"the store {self._directory} is in use by a mount of {who}: "
                    "unmount that one, or name another store",
                    pid,
                )
            time.sleep(_POLL_S)

    def _holder(self) -> int | None:
        try:
            return int(self._read_file())
        except (OSError, ValueError):
            return None

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self._close_file(file)

    @property
    def _open_file(self) -> int:
        assert self._file is not None, "the lock is held"
        return self._file

    # ------------------------------------------------------------------ what differs by system

    def _again(self) -> Self:
        """Another lock of this directory, at once or not at all."""
        raise NotImplementedError

    def _open(self) -> int:
        """Open the lock file, and make it where there is none."""
        raise NotImplementedError

    def _try(self) -> bool:
        """Lock the file; False if somebody else has."""
        raise NotImplementedError

    def _read_file(self) -> bytes:
        """What the file says, up to PID_BYTES."""
        raise NotImplementedError

    def _write_file(self, data: bytes) -> None:
        """Have the file say this and nothing else."""
        raise NotImplementedError

    def _close_file(self, file: int) -> None:
        """Close it, which gives the lock up."""
        raise NotImplementedError
