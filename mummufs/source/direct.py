"""A directory tree of Linux whose files are read past the page cache, by O_DIRECT: what `source.unbuffered` plans.

No mount reads its source so: it is here to run and to measure what runs on Windows. Linux has no call that starts
several reads and waits for all of them but io_uring, which is often forbidden; so each request of a batch has a thread.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from mummufs.core.ranges import PAGE_SIZE
from mummufs.core.unbuffered import BATCH_REQUESTS_MAX
from mummufs.source.base import Wanted
from mummufs.source.descriptors import Closer, Identify, TreeFile
from mummufs.source.tree import TreeSource
from mummufs.source.unbuffered import Request, read_planned

_threads = ThreadPoolExecutor(BATCH_REQUESTS_MAX, "direct")
"""Begins none before it is used."""


class DirectFile:
    """An open file of Linux, read by O_DIRECT.

    Raises:
        OSError: its file system has no such reads.
    """

    def __init__(self, fd: int) -> None:
        """Open the very file of a descriptor again."""
        self.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)

    def read_at_once(self, requests: Sequence[Request]) -> list[int]:
        """As `Device.read_at_once`."""
        if self.fd < 0:
            raise OSError(errno.EBADF, "the file is closed")
        if len(requests) == 1:
            return [self._read(requests[0])]
        under_way = [_threads.submit(self._read, request) for request in requests]
        failures = [error for error in (read.exception() for read in under_way) if error is not None]
        if failures:
            raise failures[0]
        return [read.result() for read in under_way]

    def close(self) -> None:
        """Close it. Closing twice does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            self.close()

    def _read(self, request: Request) -> int:
        done = 0
        while done < len(request.buffer):
            n = os.preadv(self.fd, [request.buffer[done:]], request.offset + done)
            done += n
            if n == 0 or n % PAGE_SIZE:  # the end: what follows would not be aligned
                break
        return done


class DirectTreeFile(TreeFile):
    """A regular file of the tree, read past the page cache where its file system can do so."""

    def __init__(self, fd: int, identify: Identify, closer: Closer) -> None:
        super().__init__(fd, identify, closer)
        try:
            self._direct: DirectFile | None = DirectFile(fd)
        except OSError:
            self._direct = None
        self.reads_at_once = self._direct is not None

    def read_into(self, buffer: memoryview, offset: int) -> int:
        return self.read_many([Wanted(offset, buffer)])[0]

    def read_many(self, wanted: Sequence[Wanted]) -> list[int]:
        if self._direct is None:
            return [super(DirectTreeFile, self).read_into(part.place, part.offset) for part in wanted]
        return read_planned(self._direct, wanted)

    def close(self) -> None:
        super().close()
        direct: DirectFile | None = getattr(self, "_direct", None)
        if direct is not None and direct.fd >= 0:
            self._closer(direct.close)


class DirectTreeSource(TreeSource):
    """The tree below one directory, its files read past the page cache."""

    def open(self, path: bytes) -> TreeFile:
        file = super().open(path)
        fd = os.dup(file.fileno())
        file.close()
        return DirectTreeFile(fd, self._identify, self._closer)
