"""An open range file, and when its bytes are believed.

It is *proved* when its bytes have the checksum of its header; until then, and again whenever its size, mtime or ctime
are not those that were proved, no byte of it is given out. That holds for what this mount has just written too. Every
fault is an OSError or a RangeFileError, and every one of them means the same to the caller: the source
answers.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from collections.abc import Callable
from functools import partial

from xxhash import xxh3_128

from mummufs.core.errors import RangeFileError
from mummufs.core.ranges import PAGE_SIZE, RangeKey, Version
from mummufs.store.layout import HEADER_BYTES, HEADER_USED_BYTES, RangeHeader
from mummufs.store.osfs import FileState, Os

PROVE_CHUNK_BYTES = 1 << 20
PROVE_ATTEMPTS = 3
"""A file that somebody writes to while it is proved is tried again this often."""

NO_DIRECT = -1
PAGE_MASK = PAGE_SIZE - 1
_of_thread = threading.local()

Closer = Callable[[Callable[[], None]], None]


class _Descriptor:
    """A descriptor that is closed with its last reference.

    It is not part of `StoredRange` because a weak reference to an object with a finalizer still gives the object out
    while the finalizer runs, its descriptor closed and perhaps somebody else's by then.
    """

    __slots__ = ("_closer", "_fs", "direct", "fd", "on_close")

    def __init__(self, fs: Os, fd: int, closer: Closer) -> None:
        self._fs = fs
        self._closer = closer
        self.fd = fd
        self.direct: int | None = None
        """A second descriptor of the same file, past the page cache: its bytes are kept once, by whoever asked for
        them. None until it is proved, NO_DIRECT where the file system has none."""
        self.on_close: Callable[[], None] | None = None

    def __del__(self) -> None:
        fds = [self.fd] if self.direct in (None, NO_DIRECT) else [self.fd, self.direct]
        self._closer(partial(_close, self._fs, fds, self.on_close))


def _close(fs: Os, fds: list[int], then: Callable[[], None] | None) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):  # the descriptor is gone even so, and its owner has to hear of it
            fs.close(fd)
    if then is not None:
        then()


def scratch() -> memoryview:
    """A buffer of this thread, PROVE_CHUNK_BYTES long, that begins on a page."""
    buffer: memoryview | None = getattr(_of_thread, "buffer", None)
    if buffer is None:
        buffer = _of_thread.buffer = memoryview(mmap.mmap(-1, PROVE_CHUNK_BYTES))
    return buffer


def at_once(call: Callable[[], None]) -> None:
    """Close here and now."""
    call()


def write_all(fs: Os, fd: int, data: memoryview, offset: int) -> None:
    """Write it to the last byte."""
    done = 0
    while done < len(data):
        n = fs.write(fd, data[done:], offset + done)
        if n == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        done += n


class StoredRange:
    """An open range file. Closed with its last reference, so that a read under way never loses its descriptor."""

    __slots__ = ("__weakref__", "_descriptor", "_fs", "_proved", "_proving", "key", "version")

    def __init__(self, fs: Os, fd: int, key: RangeKey, version: Version, closer: Closer = at_once) -> None:
        self._fs = fs
        self._descriptor = _Descriptor(fs, fd, closer)
        self.key = key
        self.version = version
        self._proved: FileState | None = None
        self._proving = threading.Lock()

    def restamped(self, version: Version) -> None:
        """The header states this version from now on. A read under way goes on: its bytes are those of both."""
        self.version = version

    def write_header(self, header: RangeHeader, *, sync: bool = True) -> None:
        """Put another header in the place of the one that is there, and wait until it is on the disk.

        Args:
            sync: False not to wait.

        The file must have been opened to be changed. On an error its header is the old one, the new one, or none.
        """
        write_all(self._fs, self._descriptor.fd, memoryview(header.pack())[:HEADER_USED_BYTES], 0)
        if sync:
            self._fs.sync(self._descriptor.fd)

    def when_closed(self, call: Callable[[], None]) -> None:
        """Have this called once the file is closed, by whichever thread held the last reference."""
        self._descriptor.on_close = call

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset` bytes into the window.

        Raises:
            RangeFileError: the file is not what it was, or too short.
            OSError: it cannot be read.
        """
        for _ in range(PROVE_ATTEMPTS):
            if self._fs.state(self._descriptor.fd) != self._proved:
                self.prove()
            self._read_all(buffer, HEADER_BYTES + offset)
            if self._fs.state(self._descriptor.fd) == self._proved:
                return
        raise RangeFileError("somebody keeps writing to it")

    def read_proved(self, buffer: memoryview, offset: int) -> bool:
        """Fill `buffer` from `offset` bytes into the window, if that is of a file that is as it was proved.

        Nothing is waited for but the disk. False where it is not; the buffer is then what it may be.

        Raises:
            RangeFileError: it is too short.
            OSError: it cannot be read.
        """
        proved = self._proved
        if proved is None:
            return False
        self._read_all(buffer, HEADER_BYTES + offset)
        return self._fs.is_in(self._descriptor.fd, proved)

    def splice_proved(self, pipe: int, offset: int, size: int) -> bool:
        """Move bytes from `offset` into the window into a pipe, as far as they are proved.

        The pipe has room for them. Nothing is waited for but the disk.

        Returns:
            whether all of them are in the pipe, of a file that is as it was proved. If not, some may be.

        Raises:
            OSError: they cannot be read; some may be in the pipe.
        """
        descriptor, proved = self._descriptor, self._proved
        fd = descriptor.direct
        if proved is None or fd is None:
            return False
        if fd == NO_DIRECT or offset & PAGE_MASK or (size & PAGE_MASK and offset + size != self.key.size):
            fd, ask = descriptor.fd, size
        else:
            ask = (size + PAGE_MASK) & ~PAGE_MASK  # whole pages; beyond the end of the file there is nothing to get
        splice, at, left = self._fs.splice, HEADER_BYTES + offset, size
        while left > 0:
            n = splice(fd, pipe, ask, at)
            if n == 0:
                return False
            at += n
            ask -= n
            left -= n
        return self._fs.is_in(descriptor.fd, proved)

    @property
    def proof(self) -> FileState | None:
        """The state in which the file was proved, for `believe` when it is opened again."""
        return self._proved

    def believe(self, proof: FileState | None) -> None:
        """The file was proved in this state earlier in this mount: if it still is in it, once was enough."""
        self._proved = proof

    def prove(self) -> None:
        """Read the whole file and compare its checksum. One thread does it, the others wait for that.

        Raises:
            RangeFileError: it is not the range file of this key and version, byte for byte.
            OSError: it cannot be read.
        """
        with self._proving:
            self._open_direct()
            for _ in range(PROVE_ATTEMPTS):
                state = self._fs.state(self._descriptor.fd)
                if state == self._proved:
                    return
                self._prove_as(state)
                if self._fs.state(self._descriptor.fd) == state:
                    self._proved = state
                    return
        raise RangeFileError("somebody keeps writing to it")

    def check_header(self) -> RangeHeader:
        """The header, if the file is there in full and of this key and version; its bytes are not looked at.

        Raises:
            RangeFileError: it is not.
        """
        state = self._fs.state(self._descriptor.fd)
        self._check_state(state)
        head = memoryview(bytearray(HEADER_USED_BYTES))
        self._read_all(head, 0)
        header = RangeHeader.unpack(head)
        if header.key != self.key:
            raise RangeFileError("it holds another range than its name says")
        if header.version != self.version:
            raise RangeFileError("it is of another version of its file")
        return header

    def _prove_as(self, state: FileState) -> None:
        self._check_state(state)
        header = self.check_header()
        hasher = xxh3_128()
        direct = self._descriptor.direct
        fd = self._descriptor.fd if direct in (None, NO_DIRECT) else direct
        chunk = scratch()
        done = 0
        while done < self.key.size:
            if done & PAGE_MASK:  # a short read in the middle: what follows is no whole page any more
                fd = self._descriptor.fd
            n = self._fs.read(fd, chunk, HEADER_BYTES + done)
            if n == 0:
                raise RangeFileError(f"it ends at {HEADER_BYTES + done} bytes")
            hasher.update(chunk[: min(n, self.key.size - done)])
            done += n
        if hasher.digest() != header.checksum:
            raise RangeFileError("its bytes do not have the checksum that its header states")

    def _open_direct(self) -> None:
        if self._descriptor.direct is None:
            try:
                self._descriptor.direct = self._fs.open_direct(self._descriptor.fd)
            except OSError:  # a file system without: its page cache will do
                self._descriptor.direct = NO_DIRECT

    def _check_state(self, state: FileState) -> None:
        if not state.regular:
            raise RangeFileError("it is not a regular file")
        if state.links == 0:
            raise RangeFileError("it has been removed")
        if state.size != HEADER_BYTES + self.key.size:
            raise RangeFileError(f"it has {state.size} bytes in place of {HEADER_BYTES + self.key.size}")

    def _read_all(self, buffer: memoryview, offset: int) -> None:
        done = 0
        while done < len(buffer):
            n = self._fs.read(self._descriptor.fd, buffer[done:], offset + done)
            if n == 0:
                raise RangeFileError(f"it ends at {offset + done} bytes")
            done += n
