"""Pipes to splice through: an answer is put together in one, and leaves it whole. Nothing waits for one: a pipe that is
full, or empty, is an error.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

from mummufs.core.ranges import PAGE_SIZE

PIPE_BYTES_WANTED = 2 << 20
"""A READ of 1 MiB and its header take 257 pages of a pipe, and pipes grow by doubling. A user may have 1 MiB."""


_CHUNK_BYTES = 64 << 10


class Pipe:
    """A pipe of `pages` pages.

    Raises:
        OSError: there is no descriptor left for it.
    """

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for size in (PIPE_BYTES_WANTED, PIPE_BYTES_WANTED // 2):
            with contextlib.suppress(OSError):
                fcntl.fcntl(self.write_fd, fcntl.F_SETPIPE_SZ, size)
                break
        self.pages = fcntl.fcntl(self.write_fd, fcntl.F_GETPIPE_SZ) // PAGE_SIZE

    def clear(self) -> None:
        """Throw away what is in it, as far as half an answer may be. It takes no new descriptor: there may be none."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.read_fd, _CHUNK_BYTES):
                pass

    def close(self) -> None:
        """Throw it away."""
        os.close(self.read_fd)
        os.close(self.write_fd)
