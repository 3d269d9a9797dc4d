"""Files of Linux, read past the page cache by O_DIRECT: what `source.unbuffered` plans, carried out by threads."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from mummufs.core.ranges import PAGE_SIZE
from mummufs.core.unbuffered import BATCH_REQUESTS_MAX
from mummufs.source.unbuffered import Request


class DirectFile:
    """An open file of Linux, read by O_DIRECT.

    Raises:
        OSError: its file system has no such reads.
    """

    def __init__(self, fd: int) -> None:
        """Open the very file of a descriptor again."""
        self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        self._threads: ThreadPoolExecutor | None = None

    def read_at_once(self, requests: Sequence[Request]) -> list[int]:
        """As `Device.read_at_once`."""
        if self._fd < 0:
            raise OSError(errno.EBADF, "the file is closed")
        if len(requests) == 1:
            return [self._read(requests[0])]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(BATCH_REQUESTS_MAX, "direct")
        under_way = [self._threads.submit(self._read, request) for request in requests]
        failures = [error for error in (read.exception() for read in under_way) if error is not None]
        if failures:
            raise failures[0]
        return [read.result() for read in under_way]

    def close(self) -> None:
        """Close it. Closing twice does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def _read(self, request: Request) -> int:
        done = 0
        while done < len(request.buffer):
            n = os.preadv(self._fd, [request.buffer[done:]], request.offset + done)
            done += n
            if n == 0 or n % PAGE_SIZE:  # the end: what follows would not be aligned
                break
        return done
