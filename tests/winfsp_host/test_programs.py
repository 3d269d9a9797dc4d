"""What programs of Windows expect of a volume: the ground that winfstest covers, as far as it reaches a file system.

Over a source in memory, a directory of Linux and one of Windows. Of winfstest's eleven files:

    00 dispositions        test_dispositions, test_directories_are_none_of_the_files...
    01, 07 attributes      test_times_and_attributes..., test_a_read_only_file...: of the bits READONLY is kept
    02 directories         test_directories_are_none_of_the_files..., test_deletions
    03 FindFiles           test_listings
    04 MoveFile            test_moves, test_a_read_only_file_is_not_replaced, test_an_open_file_goes_on...
    05 truncation          test_dispositions, test_sizes_and_reads_at_the_end
    06 times               test_times_and_attributes...: a creation time is not kept
    08 pending deletion    test_a_deletion_is_that_of_the_last_handle...; that nobody opens it meanwhile is the driver's
    09 sharing             the driver's alone
    10 security            in test_changes
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from mummufs.backends.winfsp import info
from mummufs.source.base import Source
from mummufs.source.memory import MemorySource
from mummufs.source.tree import TreeSource
from mummufs.source.windows import WindowsSource
from tests.engine.harness import FakeParser
from tests.support.fake_win32 import FakeWin32
from tests.winfsp_host.host import (
    DIRECTORY_FILE,
    NON_DIRECTORY_FILE,
    OPEN_REPARSE_POINT,
    Mounted,
    NtError,
    Open,
    mounted,
)

NEW, ALWAYS, EXISTING, OPEN_ALWAYS, TRUNCATE = "new", "always", "existing", "open_always", "truncate"
DELETE_ON_CLOSE = 0x1000

NAME_INVALID, NAME_NOT_FOUND, NAME_COLLISION, PATH_NOT_FOUND = 0xC0000033, 0xC0000034, 0xC0000035, 0xC000003A
ACCESS_DENIED, IS_A_DIRECTORY, NOT_EMPTY, NOT_A_DIRECTORY = 0xC0000022, 0xC00000BA, 0xC0000101, 0xC0000103
END_OF_FILE, CANNOT_DELETE, NOT_A_LINK = 0xC0000011, 0xC0000121, 0xC0000275


class Program:
    """Calls of a program, each as the driver and the DLL make it of the file system's own."""

    def __init__(self, mounted_at: Mounted) -> None:
        self.at = mounted_at
        self.volume = mounted_at.volume

    async def create_file(self, path: str, disposition: str = EXISTING, options: int = 0) -> Open:
        """CreateFile. Raises NtError."""
        create, overwrite = self.volume.create, partial(self.volume.create, overwrite=True)
        if disposition == NEW:
            return await self.at.call(create, path, options)
        try:
            call = overwrite if disposition in (ALWAYS, TRUNCATE) else self.volume.open
            return await self.at.call(call, path, options)
        except NtError as error:
            if error.status != NAME_NOT_FOUND or disposition in (EXISTING, TRUNCATE):
                raise
        return await self.at.call(create, path, options)

    async def close(self, *handles: Open) -> None:
        for handle in handles:
            await self.at.call(self.volume.close, handle)
        await self.at.engine.idle()

    async def make(self, path: str, data: bytes = b"", options: int = 0) -> None:
        """A new file or directory, closed again."""
        handle = await self.create_file(path, NEW, options)
        if data:
            await self.at.call(self.volume.write, handle, 0, data)
        await self.close(handle)

    async def delete(self, path: str, options: int = NON_DIRECTORY_FILE) -> None:
        """DeleteFile, or with DIRECTORY_FILE RemoveDirectory."""
        handle = await self.create_file(path, EXISTING, options | OPEN_REPARSE_POINT)
        try:
            await self.at.call(self.volume.delete, handle, path)
        finally:
            await self.close(handle)

    async def move(self, old: str, new: str, *, replace: bool = False) -> None:
        """MoveFileEx."""
        handle = await self.create_file(old, EXISTING, OPEN_REPARSE_POINT)
        try:
            await self.at.call(partial(self.volume.rename, replace=replace), handle, old, new)
        finally:
            await self.close(handle)

    async def names(self, path: str, pattern: str | None = None, room: int = 1 << 14) -> list[str]:
        """FindFirstFile and its following, without the dots."""
        handle = await self.create_file(path, EXISTING, DIRECTORY_FILE)
        found = await self.at.call(self.volume.names, handle, pattern, room)
        await self.close(handle)
        return [name for name in found if name not in (".", "..")]

    async def attributes(self, path: str) -> info.FileInfo:
        """GetFileInformation."""
        handle = await self.create_file(path, EXISTING, OPEN_REPARSE_POINT)
        found = await self.at.call(self.volume.info, handle)
        await self.close(handle)
        return found

    async def status(self, call: object, *arguments: object, **named: object) -> int:
        """What a call fails with."""
        assert callable(call)
        with pytest.raises(NtError) as caught:
            await call(*arguments, **named)
        return caught.value.status


@pytest.fixture(params=["memory", "linux", "windows"])
async def program(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Program]:
    root, store = tmp_path / "root", tmp_path / "store"
    root.mkdir()
    store.mkdir()
    sources: dict[str, Callable[[], Source]] = {
        "memory": partial(MemorySource),
        "linux": partial(TreeSource, root),
        "windows": partial(WindowsSource, "C:\\", FakeWin32(root), unbuffered=True),
    }
    async with mounted(sources[request.param](), store, FakeParser(), writable=True) as volume:
        yield Program(volume)


async def test_dispositions(program: Program) -> None:
    p = program
    for disposition in (EXISTING, TRUNCATE):
        assert await p.status(p.create_file, "\\f", disposition) == NAME_NOT_FOUND
    await p.make("\\f", b"0123456789")
    assert await p.status(p.create_file, "\\F", NEW) == NAME_COLLISION
    for disposition, size in ((OPEN_ALWAYS, 10), (EXISTING, 10), (TRUNCATE, 0), (ALWAYS, 0)):
        handle = await p.create_file("\\f", disposition)
        assert handle.info.size == size == (await p.attributes("\\f")).size
        await p.close(handle)
    for disposition in (ALWAYS, OPEN_ALWAYS):
        await p.delete("\\f")
        await p.close(await p.create_file("\\f", disposition))
        assert await p.names("\\") == ["f"]


async def test_directories_are_none_of_the_files_and_files_none_of_the_directories(program: Program) -> None:
    p = program
    await p.make("\\d", options=DIRECTORY_FILE)
    await p.make("\\d\\f")
    assert await p.status(p.create_file, "\\d", EXISTING, NON_DIRECTORY_FILE) == IS_A_DIRECTORY
    assert await p.status(p.create_file, "\\d\\f", EXISTING, DIRECTORY_FILE) == NOT_A_DIRECTORY
    for path in ("\\d", "\\d\\F"):
        for options in (0, DIRECTORY_FILE):
            assert await p.status(p.create_file, path, NEW, options) == NAME_COLLISION
    assert await p.status(p.create_file, "\\d\\f\\x", NEW) == PATH_NOT_FOUND
    assert await p.status(p.create_file, "\\no\\x", NEW) == PATH_NOT_FOUND
    assert await p.status(p.create_file, "\\no\\x") == PATH_NOT_FOUND


async def test_deletions(program: Program) -> None:
    p = program
    assert await p.status(p.delete, "\\f") == NAME_NOT_FOUND
    await p.make("\\d", options=DIRECTORY_FILE)
    await p.make("\\d\\f")
    assert await p.status(p.delete, "\\d") == IS_A_DIRECTORY
    assert await p.status(p.delete, "\\d\\f", DIRECTORY_FILE) == NOT_A_DIRECTORY
    assert await p.status(p.delete, "\\d", DIRECTORY_FILE) == NOT_EMPTY
    await p.delete("\\D\\F")
    assert await p.names("\\d") == []
    await p.delete("\\D", DIRECTORY_FILE)
    assert await p.names("\\") == []
    assert await p.status(p.delete, "\\d", DIRECTORY_FILE) == NAME_NOT_FOUND


async def test_a_deletion_is_that_of_the_last_handle_and_may_be_taken_back(program: Program) -> None:
    p = program
    await p.make("\\f", b"kept")
    handle = await p.create_file("\\f")
    await p.at.call(p.volume.may_delete, handle, "\\f")
    assert await p.names("\\") == ["f"], "it is pending"
    await p.at.call(partial(p.volume.cleanup, deletes=False), handle, "\\f")
    await p.close(handle)
    assert await p.at.whole("\\f") == b"kept"
    handle = await p.create_file("\\f", EXISTING, DELETE_ON_CLOSE)
    await p.at.call(partial(p.volume.cleanup, deletes=True), handle, "\\F")
    await p.close(handle)
    assert await p.names("\\") == []
    await p.make("\\f", b"another")
    assert await p.at.whole("\\f") == b"another"


async def test_a_directory_that_is_filled_while_its_deletion_is_pending(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    p = program
    await p.make("\\d", options=DIRECTORY_FILE)
    handle = await p.create_file("\\d", EXISTING, DIRECTORY_FILE)
    await p.at.call(p.volume.may_delete, handle, "\\d")
    await p.make("\\d\\f", b"late")
    await p.at.call(partial(p.volume.cleanup, deletes=True), handle, "\\d")
    await p.close(handle)
    assert await p.at.whole("\\d\\f") == b"late" and "still there" in caplog.text


async def test_moves(program: Program) -> None:
    p = program
    for name in ("one", "two"):
        await p.make(f"\\{name}", name.encode())
    await p.make("\\d", options=DIRECTORY_FILE)
    await p.make("\\d\\sub", options=DIRECTORY_FILE)
    await p.make("\\d\\sub\\f", b"f")
    assert await p.status(p.move, "\\none", "\\new") == NAME_NOT_FOUND
    assert await p.status(p.move, "\\one", "\\none\\new") == PATH_NOT_FOUND
    assert await p.status(p.move, "\\one", "\\TWO") == NAME_COLLISION
    assert await p.status(p.move, "\\one", "\\d") == NAME_COLLISION
    assert await p.status(p.move, "\\one", "\\d", replace=True) == ACCESS_DENIED
    assert await p.status(p.move, "\\d", "\\two") == NAME_COLLISION
    await p.move("\\one", "\\ONE")
    assert await p.names("\\") == ["d", "ONE", "two"]
    await p.move("\\one", "\\one", replace=True)
    await p.move("\\one", "\\Two", replace=True)
    assert await p.at.whole("\\two") == b"one"
    await p.move("\\two", "\\d\\sub\\two")
    await p.move("\\d\\sub", "\\moved")
    assert (await p.names("\\"), await p.names("\\d")) == (["d", "moved"], [])
    assert await p.at.whole("\\moved\\F") == b"f" and await p.at.whole("\\moved\\two") == b"one"


async def test_a_read_only_file_is_not_replaced(program: Program) -> None:
    p = program
    await p.make("\\from", b"new")
    handle = await p.at.call(p.volume.create, "\\to", 0, info.READONLY)
    assert handle.info.attributes & info.READONLY
    await p.close(handle)
    assert (await p.attributes("\\to")).attributes & info.READONLY
    assert await p.status(p.move, "\\from", "\\TO", replace=True) == ACCESS_DENIED
    handle = await p.create_file("\\to")
    await p.at.call(p.volume.set_basic, handle, info.NORMAL)
    await p.close(handle)
    await p.move("\\from", "\\to", replace=True)
    assert await p.at.whole("\\to") == b"new" and await p.names("\\") == ["to"]


async def test_an_open_file_goes_on_under_its_new_name(program: Program) -> None:
    p = program
    await p.make("\\f", b"0123")
    handle = await p.create_file("\\f")
    await p.at.call(p.volume.write, handle, 4, b"4")
    await p.at.call(p.volume.rename, handle, "\\f", "\\g")
    await p.at.call(p.volume.write, handle, 5, b"5")
    assert await p.at.read(handle, 0, 10) == b"012345"
    await p.close(handle)
    assert await p.at.whole("\\g") == b"012345"


async def test_listings(program: Program) -> None:
    p = program
    wanted = sorted([f"file{i:03}.{('txt', 'GGUF')[i % 2]}" for i in range(60)], key=str.upper)
    await p.make("\\d", options=DIRECTORY_FILE)
    for name in wanted:
        await p.make(f"\\d\\{name}")
    for room in (700, 1 << 14):
        assert await p.names("\\d", None, room) == await p.names("\\d", "*", room) == wanted
        assert await p.names("\\d", "*.gguf", room) == [name for name in wanted if name.endswith("GGUF")]
        assert await p.names("\\d", "FILE00?.*", room) == wanted[:10]
        assert await p.names("\\d", "file007.gguf", room) == ["file007.GGUF"]
        assert await p.names("\\d", "none", room) == []
    handle = await p.create_file("\\d", EXISTING, DIRECTORY_FILE)
    assert (await p.at.call(p.volume.entry, handle, "FILE010.TXT"))[0] == "file010.txt"
    assert list(await p.at.call(p.volume.names, handle))[:2] == [".", ".."]
    await p.delete("\\d\\file010.txt")
    assert "file010.txt" not in await p.at.call(p.volume.names, handle)
    await p.close(handle)


async def test_sizes_and_reads_at_the_end(program: Program) -> None:
    p = program
    await p.make("\\f")
    handle = await p.create_file("\\f")
    assert (await p.at.call(p.volume.set_size, handle, 42)).size == 42
    assert (await p.at.call(p.volume.set_size, handle, 13)).size == 13
    await p.at.call(p.volume.write, handle, 0, b"Hello")
    assert await p.at.read(handle, 0, 100) == b"Hello" + bytes(8)
    assert await p.at.read(handle, 12, 100) == b"\0"
    assert await p.at.status_of(p.volume.read, handle, 13, 1) == END_OF_FILE
    assert await p.at.status_of(p.volume.read, handle, 1 << 40, 1) == END_OF_FILE
    assert (await p.at.call(p.volume.write, handle, None, b"!")).size == 14
    assert (await p.at.call(p.volume.write, handle, 100_000, b"z")).size == 100_001
    await p.close(handle)
    assert await p.at.whole("\\f") == b"Hello" + bytes(8) + b"!" + bytes(100_000 - 14) + b"z"


async def test_times_and_attributes_outlive_the_handle(program: Program) -> None:
    p = program
    await p.make("\\f", b"x")
    handle = await p.create_file("\\f")
    accessed, written = info.filetime(10**18), info.filetime(11 * 10**17)
    await p.at.call(p.volume.set_basic, handle, 0xFFFFFFFF, accessed, written)
    await p.close(handle)
    assert (await p.attributes("\\f")).last_write_time == written
    before = await p.attributes("\\f")
    handle = await p.create_file("\\f")
    hidden = await p.at.call(p.volume.set_basic, handle, 0x2)
    assert hidden.attributes == before.attributes, "a source keeps READONLY alone"
    await p.at.call(p.volume.set_basic, handle, info.READONLY)
    await p.close(handle)
    assert (await p.attributes("\\f")).attributes & info.READONLY
    assert await p.status(p.delete, "\\f") == CANNOT_DELETE
    handle = await p.create_file("\\f")
    await p.at.call(p.volume.set_basic, handle, info.NORMAL)
    await p.close(handle)
    await p.delete("\\f")


async def test_links(program: Program) -> None:
    p = program
    await p.make("\\d", options=DIRECTORY_FILE)
    await p.make("\\d\\f", b"there")
    handle = await p.create_file("\\d\\f")
    assert await p.at.status_of(p.volume.link, handle) == NOT_A_LINK
    await p.close(handle)
    for path, options, target in (("\\to-dir", DIRECTORY_FILE, "d"), ("\\to-file", 0, "d\\f")):
        handle = await p.create_file(path, NEW, options)
        await p.at.call(p.volume.set_link, handle, path, info.symlink_buffer(target))
        await p.close(handle)
        assert (await p.attributes(path)).reparse_tag == info.SYMLINK_TAG
    assert await p.at.whole("\\to-file") == b"there" == await p.at.whole("\\TO-DIR\\F")
    await p.make("\\to-dir\\new", b"through the link")
    assert await p.at.whole("\\d\\new") == b"through the link"
    handle = await p.create_file("\\d", EXISTING, DIRECTORY_FILE)
    status = await p.at.status_of(p.volume.set_link, handle, "\\d", info.symlink_buffer("elsewhere"))
    assert status == NOT_EMPTY
    await p.close(handle)
    await p.delete("\\to-dir", DIRECTORY_FILE)
    await p.delete("\\to-file")
    assert await p.names("\\") == ["d"] and await p.names("\\d") == ["f", "new"], "what they led to is there"


@pytest.mark.parametrize(
    "name", ["con", "NUL.txt", "com1", "LPT9.gguf", "ends in a dot.", "ends in a space ", "x" * 256]
)
async def test_names_that_nobody_could_open_again(program: Program, name: str) -> None:
    assert await program.status(program.create_file, f"\\{name}", NEW) == NAME_INVALID
    assert await program.names("\\") == []


async def test_long_names_and_paths(program: Program) -> None:
    path = ""
    for letter in "abcd":
        path += "\\" + letter * 200
        await program.make(path, options=DIRECTORY_FILE)
    path += "\\" + "n" * 150
    await program.make(path, b"deep")
    assert await program.at.whole(path.upper()) == b"deep"
    await program.make("\\" + "y" * 255)
    assert "y" * 255 in await program.names("\\")


async def test_everything_from_many_threads_at_once(program: Program) -> None:
    """Each call in a thread that WinFsp might have made: opens, reads, listings, changes and closes side by side."""
    p = program
    await p.make("\\d", options=DIRECTORY_FILE)
    await p.make("\\d\\shared", b"s" * 5000)

    async def work(number: int) -> None:
        own = f"\\d\\own {number}"
        for i in range(4):
            await p.make(own, bytes([number]) * 1000)
            assert await p.at.whole(own.upper()) == bytes([number]) * 1000
            assert await p.at.whole("\\d\\SHARED") == b"s" * 5000
            assert f"own {number}" in await p.names("\\d", f"own {number}", 700)
            await p.move(own, f"{own} {i}")
            assert (await p.attributes(f"{own} {i}")).size == 1000
            await p.delete(f"{own} {i}")
            assert await p.status(p.create_file, own) == NAME_NOT_FOUND

    async with trio.open_nursery() as nursery:
        for number in range(16):
            nursery.start_soon(work, number)
    assert await p.names("\\d") == ["shared"] and p.at.session.files.open_handles == 0
