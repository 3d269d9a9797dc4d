"""A program's side of a WinFsp volume: opens, reads and lists by way of the host, which calls as the DLL does.

`host.c` is compiled once a session. Its calls block until the backend has answered, so a test makes them in threads.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import shutil
import struct
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

import cffi
import trio

from mummufs.backends.winfsp.info import FileInfo
from mummufs.backends.winfsp.library import Library
from mummufs.backends.winfsp.session import Session, VolumeOptions
from mummufs.source.base import Source
from tests.engine.harness import Engine, FakeParser, engine

SOURCE = Path(__file__).with_name("host.c")
OPEN_REPARSE_POINT = 0x200000
DIRECTORY_FILE = 0x1
NON_DIRECTORY_FILE = 0x40
PATH_UNITS = 1024
LIST_BYTES = 64 << 10

_FUNCTIONS = """
extern uint32_t host_version;
extern int host_refuse_mountpoint, host_refuse_dispatcher, host_alive;
int64_t host_param(void *, const char *);
const char16_t *host_mountpoint(void *);
int32_t host_volume(void *, void *);
int32_t host_security(void *, const char16_t *, uint32_t *, void *, size_t *);
int32_t host_open(void *, char16_t *, uint32_t, uintptr_t *, void *, char16_t *);
void host_close(void *, uintptr_t);
int32_t host_info(void *, uintptr_t, void *);
int32_t host_read(void *, uintptr_t, void *, uint64_t, uint32_t, uint32_t *);
int32_t host_list(void *, uintptr_t, char16_t *, char16_t *, void *, uint32_t, uint32_t *);
int32_t host_entry(void *, uintptr_t, char16_t *, void *);
int32_t host_descriptor(void *, uintptr_t, void *, size_t *);
int32_t host_link(void *, uintptr_t, void *, size_t *);
void *host_interface(void *);
int32_t host_create(void *, char16_t *, uint32_t, uint32_t, const void *, int, uintptr_t *, void *);
int32_t host_write(void *, uintptr_t, const char *, uint64_t, uint32_t, int, uint32_t *, void *);
int32_t host_flush(void *, uintptr_t, void *);
int32_t host_set_size(void *, uintptr_t, uint64_t, int, void *);
int32_t host_set_basic(void *, uintptr_t, uint32_t, uint64_t, uint64_t, void *);
int32_t host_rename(void *, uintptr_t, char16_t *, char16_t *, int);
int32_t host_delete(void *, uintptr_t, char16_t *);
int32_t host_may_delete(void *, uintptr_t, char16_t *);
void host_cleanup(void *, uintptr_t, char16_t *, int);
int32_t host_set_security(void *, uintptr_t, void *);
int32_t host_set_link(void *, uintptr_t, char16_t *, const char *, size_t);
int host_hammer(void *, uintptr_t, const char *, uint64_t, uint32_t, uint32_t, uint32_t);
"""
_INFO = struct.Struct("<II7QII")
_LINE = struct.Struct("<H6x72s24x")

Result = TypeVar("Result")
Args = TypeVarTuple("Args")


class NtError(Exception):
    """A call failed. Attributes: status, without a sign; path: for an open that was led to another volume."""

    def __init__(self, status: int, path: str = "") -> None:
        super().__init__(f"{status & 0xFFFFFFFF:#010x} {path}")
        self.status = status & 0xFFFFFFFF
        self.path = path


class Open(NamedTuple):
    """An open file: its number, what it is, and its path as the driver was told it."""

    context: int
    info: FileInfo
    path: str


@functools.cache
def compiled() -> Path:
    """The host as a shared library."""
    directory = tempfile.mkdtemp(prefix="winfsp-host-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = Path(directory) / "host.so"
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        str(path),
        str(SOURCE),
        "-lpthread",
    ]
    subprocess.run(command, check=True, timeout=60)
    return path


def _info(data: bytes) -> FileInfo:
    attributes, tag, allocated, size, created, accessed, written, changed, index, links, ea = _INFO.unpack(data)
    assert (links, ea) == (0, 0), "fields that WinFsp wants to be zero"
    return FileInfo(attributes, tag, allocated, size, created, accessed, written, changed, index)


class Volume:
    """A mounted volume. Its methods block; call them in threads, or through `Mounted`."""

    def __init__(self, session: Session) -> None:
        self.ffi: Any = cffi.FFI()
        self.ffi.cdef(_FUNCTIONS)
        self.lib: Any = self.ffi.dlopen(str(compiled()))
        self.fs: Any = self.ffi.cast("void *", int(session.library.ffi.cast("uintptr_t", session._fs)))

    def param(self, name: str) -> int:
        return int(self.lib.host_param(self.fs, name.encode()))

    def open(self, path: str, options: int = 0) -> Open:
        name, normalized = self.ffi.new("char16_t[]", PATH_UNITS), self.ffi.new("char16_t[]", PATH_UNITS)
        text = path.encode("utf-16-le", "surrogatepass")
        self.ffi.memmove(name, text, len(text))
        context, info = self.ffi.new("uintptr_t *"), self.ffi.new("uint8_t[72]")
        status = self.lib.host_open(self.fs, name, options, context, info, normalized)
        if status != 0:
            raise NtError(status, self.ffi.string(name))
        return Open(context[0], _info(bytes(info)), self.ffi.string(normalized))

    def close(self, opened: Open) -> None:
        self.lib.host_close(self.fs, opened.context)

    def read(self, opened: Open, offset: int, size: int) -> bytes:
        place, done = self.ffi.new("uint8_t[]", max(1, size)), self.ffi.new("uint32_t *")
        self._check(self.lib.host_read(self.fs, opened.context, place, offset, size, done))
        return bytes(self.ffi.buffer(place, done[0]))

    def info(self, opened: Open) -> FileInfo:
        place = self.ffi.new("uint8_t[72]")
        self._check(self.lib.host_info(self.fs, opened.context, place))
        return _info(bytes(place))

    def names(self, opened: Open, pattern: str | None = None, room: int = LIST_BYTES) -> dict[str, FileInfo]:
        """A whole listing, asked for in buffers of this size, each from the last name of the one before."""
        found: dict[str, FileInfo] = {}
        marker: str | None = None
        place, done = self.ffi.new("uint8_t[]", room), self.ffi.new("uint32_t *")
        null = self.ffi.NULL
        while True:
            wanted = null if pattern is None else self.ffi.new("char16_t[]", pattern)
            behind = null if marker is None else self.ffi.new("char16_t[]", marker)
            self._check(self.lib.host_list(self.fs, opened.context, wanted, behind, place, room, done))
            data, at = bytes(self.ffi.buffer(place, done[0])), 0
            assert data, "a buffer that holds no line would be asked for again for ever"
            while at < len(data):
                if (size := struct.unpack_from("<H", data, at)[0]) == 0:
                    return found
                marker, info = self._line(data[at : at + size])
                assert marker not in found, "no name is listed twice"
                found[marker] = info
                at += -(-size // 8) * 8

    def entry(self, opened: Open, name: str) -> tuple[str, FileInfo]:
        place = self.ffi.new("uint8_t[]", 104 + 2 * 255)
        self._check(self.lib.host_entry(self.fs, opened.context, self.ffi.new("char16_t[]", name), place))
        return self._line(bytes(self.ffi.buffer(place, struct.unpack_from("<H", self.ffi.buffer(place))[0])))

    def security(self, path: str) -> tuple[int, bytes]:
        """Attributes and security descriptor by name."""
        bits, size = self.ffi.new("uint32_t *"), self.ffi.new("size_t *")
        place = self.ffi.new("uint8_t[]", 1 << 16)
        self._check(self.lib.host_security(self.fs, self.ffi.new("char16_t[]", path), bits, place, size))
        return bits[0], bytes(self.ffi.buffer(place, size[0]))

    def descriptor(self, opened: Open, room: int = 1 << 16) -> bytes:
        place, size = self.ffi.new("uint8_t[]", room), self.ffi.new("size_t *", room)
        self._check(self.lib.host_descriptor(self.fs, opened.context, place, size))
        return bytes(self.ffi.buffer(place, size[0]))

    def link(self, opened: Open, room: int = 1 << 14) -> bytes:
        place, size = self.ffi.new("uint8_t[]", room), self.ffi.new("size_t *", room)
        self._check(self.lib.host_link(self.fs, opened.context, place, size))
        return bytes(self.ffi.buffer(place, size[0]))

    def volume(self) -> tuple[int, int, str]:
        """Total and free bytes, and the label."""
        place = self.ffi.new("uint8_t[88]")
        self._check(self.lib.host_volume(self.fs, place))
        total, free, units = struct.unpack_from("<QQH", bytes(place))
        return total, free, bytes(place)[18 : 18 + units].decode("utf-16-le")

    # ------------------------------------------------------------------ changes

    def create(
        self, path: str, options: int = 0, attributes: int = 0, descriptor: bytes = b"", *, overwrite: bool = False
    ) -> Open:
        name, sized = self.ffi.new("char16_t[]", PATH_UNITS), self.ffi.new("uint8_t[]", 4 + len(descriptor))
        text = path.encode("utf-16-le", "surrogatepass")
        self.ffi.memmove(name, text, len(text))
        self.ffi.memmove(sized, struct.pack("<I", len(descriptor)) + descriptor, 4 + len(descriptor))
        context, info = self.ffi.new("uintptr_t *"), self.ffi.new("uint8_t[72]")
        given = sized + 4 if descriptor else self.ffi.NULL
        self._check(self.lib.host_create(self.fs, name, options, attributes, given, overwrite, context, info))
        return Open(context[0], _info(bytes(info)), path)

    def write(self, opened: Open, offset: int | None, data: bytes, *, constrained: bool = False) -> FileInfo:
        """Write all of it, at the end if there is no offset, unless it is constrained to what the file has."""
        done, info = self.ffi.new("uint32_t *"), self.ffi.new("uint8_t[72]")
        at = (1 << 64) - 1 if offset is None else offset
        self._check(self.lib.host_write(self.fs, opened.context, data, at, len(data), constrained, done, info))
        assert constrained or done[0] == len(data)
        return _info(bytes(info))

    def flush(self, opened: Open) -> FileInfo:
        return self._changed(self.lib.host_flush, opened.context)

    def set_size(self, opened: Open, size: int, *, allocation: bool = False) -> FileInfo:
        return self._changed(self.lib.host_set_size, opened.context, size, allocation)

    def set_basic(self, opened: Open, attributes: int = 0xFFFFFFFF, accessed: int = 0, written: int = 0) -> FileInfo:
        return self._changed(self.lib.host_set_basic, opened.context, attributes, accessed, written)

    def rename(self, opened: Open, old: str, new: str, *, replace: bool = False) -> None:
        names = self.ffi.new("char16_t[]", old), self.ffi.new("char16_t[]", new)
        self._check(self.lib.host_rename(self.fs, opened.context, *names, replace))

    def delete(self, opened: Open, path: str) -> None:
        """Delete an open file: its name goes, and it stays open."""
        self._check(self.lib.host_delete(self.fs, opened.context, self.ffi.new("char16_t[]", path)))

    def may_delete(self, opened: Open, path: str) -> None:
        """Ask whether an open file may be deleted, as is asked when a program says that it shall be."""
        self._check(self.lib.host_may_delete(self.fs, opened.context, self.ffi.new("char16_t[]", path)))

    def cleanup(self, opened: Open, path: str, *, deletes: bool) -> None:
        """The last handle is closed; `close` follows."""
        self.lib.host_cleanup(self.fs, opened.context, self.ffi.new("char16_t[]", path), deletes)

    def set_security(self, opened: Open, descriptor: bytes) -> None:
        sized = self.ffi.new("uint8_t[]", struct.pack("<I", len(descriptor)) + descriptor)
        self._check(self.lib.host_set_security(self.fs, opened.context, sized + 4))

    def set_link(self, opened: Open, path: str, data: bytes) -> None:
        name = self.ffi.new("char16_t[]", path)
        self._check(self.lib.host_set_link(self.fs, opened.context, name, data, len(data)))

    def _changed(self, function: Any, *arguments: Any) -> FileInfo:
        info = self.ffi.new("uint8_t[72]")
        self._check(function(self.fs, *arguments, info))
        return _info(bytes(info))

    def hammer(self, opened: Open, expected: bytes, read_max: int, threads: int, rounds: int) -> int:
        """Reads at random from threads of C; how many went wrong."""
        kept = self.ffi.from_buffer(expected)
        return int(self.lib.host_hammer(self.fs, opened.context, kept, len(expected), read_max, threads, rounds))

    def _line(self, data: bytes) -> tuple[str, FileInfo]:
        _, info = _LINE.unpack_from(data)
        return data[_LINE.size :].decode("utf-16-le", "surrogatepass"), _info(info)

    def _check(self, status: int) -> None:
        if status != 0:
            raise NtError(status)


class Mounted:
    """A volume over an engine, for a test in trio."""

    def __init__(self, running: Engine, session: Session) -> None:
        self.engine = running
        self.session = session
        self.volume = Volume(session)
        start = session.bridge._start

        def announced(*args: Any) -> None:
            start(*args)
            running.changes.announce()

        session.bridge._start = announced  # type: ignore[method-assign, assignment]

    async def wait_calls(self, count: int) -> None:
        """Wait until so many calls are in the engine."""
        await self.engine.wait_until(lambda: self.session.bridge.waiting >= count)

    async def call(self, function: Callable[[*Args], Result], *args: *Args) -> Result:
        """Make a call of the volume in a thread."""
        return await trio.to_thread.run_sync(function, *args, limiter=_threads())

    async def open(self, path: str, options: int = 0) -> Open:
        opened = await self.call(self.volume.open, path, options)
        await self.engine.idle()
        return opened

    async def read(self, opened: Open, offset: int, size: int) -> bytes:
        return await self.call(self.volume.read, opened, offset, size)

    async def whole(self, path: str) -> bytes:
        """A whole file, by reads of 1 MiB."""
        opened = await self.call(self.volume.open, path)
        data = b""
        try:
            while len(data) < opened.info.size:
                part = await self.read(opened, len(data), 1 << 20)
                assert part, "a read before end of file gives bytes"
                data += part
        finally:
            await self.call(self.volume.close, opened)
        return data

    async def status_of(self, function: Callable[[*Args], Any], *args: *Args) -> int:
        """The status that a call fails with."""
        try:
            await self.call(function, *args)
        except NtError as error:
            return error.status
        raise AssertionError("the call has not failed")


_limiters: dict[int, trio.CapacityLimiter] = {}


def _threads() -> trio.CapacityLimiter:
    """A limit of this run of trio's, above what any test needs."""
    token = id(trio.lowlevel.current_trio_token())
    return _limiters.setdefault(token, trio.CapacityLimiter(200))


def new_session(running: Engine, options: VolumeOptions | None = None, *, writable: bool = False) -> Session:
    """A session that is not mounted. Names and attributes are not believed at all, unless the options say so."""
    return Session(
        running.overlay,
        running.counters,
        options or VolumeOptions("M:", "D:\\models", info_timeout_s=0.0, source_timeout_s=20.0),
        running.cache.gate,
        running.service.reports,
        mirror=running.service.mirror if writable else None,
        library=Library(compiled()),
    )


@contextlib.asynccontextmanager
async def mounted(
    source: Source,
    store_dir: Path,
    parser: FakeParser | None = None,
    *,
    options: VolumeOptions | None = None,
    writable: bool = False,
    **kwargs: Any,
) -> AsyncIterator[Mounted]:
    """An engine with a volume over it, until the end of the block. `kwargs` are `engine`'s."""
    async with (
        engine(source, store_dir, parser, **kwargs) as running,
        mounted_over(running, options, writable=writable) as volume,
    ):
        yield volume


@contextlib.asynccontextmanager
async def mounted_over(
    running: Engine, options: VolumeOptions | None = None, *, writable: bool = False
) -> AsyncIterator[Mounted]:
    """A volume over an engine that runs."""
    session = new_session(running, options, writable=writable)
    session.mount()
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(session.serve)
            volume = Mounted(running, session)
            yield volume
            if session._fs is not None:
                assert await session.leave(5.0), "calls were under way at the end of the test"
    finally:
        session.close()
        assert volume.volume.lib.host_alive == 0, "the volume was given up"
        assert running.counters.errors.handler == 0 and session.hits.faults == 0, "no call failed on a fault of ours"
