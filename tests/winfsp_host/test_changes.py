"""A volume that may be written to: every change reaches the source, and what is read afterwards is what was written.

What programs expect of any volume is in `test_programs`.
"""

from __future__ import annotations

import stat
from functools import partial
from pathlib import Path

import pytest

from mummufs.backends.winfsp import info, security
from mummufs.source.memory import MemorySource
from tests.engine.harness import PAGE, FakeParser
from tests.winfsp_host.host import DIRECTORY_FILE, OPEN_REPARSE_POINT, Mounted, Open, mounted
from tests.winfsp_host.test_bytes import DATA, WINDOWS, fill, memory

NAME_NOT_FOUND, NAME_COLLISION, PATH_NOT_FOUND = 0xC0000034, 0xC0000035, 0xC000003A
NAME_INVALID = 0xC0000033


async def names(volume: Mounted, path: str) -> list[str]:
    opened = await volume.open(path)
    found = [name for name in await volume.call(volume.volume.names, opened) if name not in (".", "..")]
    await volume.call(volume.volume.close, opened)
    return found


async def closed(volume: Mounted, *opened: Open) -> None:
    for one in opened:
        await volume.call(volume.volume.close, one)
    await volume.engine.idle()


async def test_create_write_read(tmp_path: Path) -> None:
    source = MemorySource({b"Dir/there": b"old"})
    async with mounted(source, tmp_path, FakeParser(), writable=True) as volume:
        v = volume.volume
        opened = await volume.call(v.create, "\\dir\\New File.gguf")
        assert (await volume.call(v.write, opened, 0, b"0123456789")).size == 10
        assert (await volume.call(v.write, opened, None, b"abc")).size == 13
        assert (await volume.call(v.write, opened, 20, b"z")).size == 21
        assert await volume.read(opened, 0, 100) == b"0123456789abc" + b"\0" * 7 + b"z"
        assert (await volume.call(v.flush, opened)).size == 21
        await closed(volume, opened)
        assert await volume.whole("\\Dir\\NEW FILE.GGUF") == b"0123456789abc" + b"\0" * 7 + b"z"
        assert source._nodes[b"Dir/New File.gguf"].contents[:3] == b"012"
        assert await names(volume, "\\Dir") == ["New File.gguf", "there"]


@pytest.mark.parametrize(
    ("path", "options", "status"),
    [
        ("\\Dir\\THERE", 0, NAME_COLLISION),
        ("\\dir", DIRECTORY_FILE, NAME_COLLISION),
        ("\\nothing\\x", 0, PATH_NOT_FOUND),
        ("\\Dir\\there\\x", 0, PATH_NOT_FOUND),
        ("\\Dir\\con", 0, NAME_INVALID),
        ("\\Dir\\nul.txt", DIRECTORY_FILE, NAME_INVALID),
        ("\\Dir\\dot.", 0, NAME_INVALID),
        ("\\", DIRECTORY_FILE, 0xC0000022),
    ],
)
async def test_creations_that_are_refused(tmp_path: Path, path: str, options: int, status: int) -> None:
    source = MemorySource({b"Dir/there": b"old"})
    async with mounted(source, tmp_path, FakeParser(), writable=True) as volume:
        assert await volume.status_of(volume.volume.create, path, options) == status
        assert volume.session.files.open_handles == 0 and len(source._nodes) == 3


async def test_directories(tmp_path: Path) -> None:
    source = MemorySource()
    async with mounted(source, tmp_path, FakeParser(), writable=True) as volume:
        v = volume.volume
        outer = await volume.call(v.create, "\\Outer", DIRECTORY_FILE, info.DIRECTORY)
        assert outer.info.attributes & info.DIRECTORY
        inner = await volume.call(v.create, "\\outer\\Inner", DIRECTORY_FILE)
        assert await volume.status_of(v.delete, outer, "\\Outer") == 0xC0000101, "it is not empty"
        await volume.call(v.delete, inner, "\\Outer\\INNER")
        await volume.call(v.delete, outer, "\\OUTER")
        await closed(volume, inner, outer)
        assert await names(volume, "\\") == [] and list(source._nodes) == [b""]


async def test_a_deleted_file_stays_readable_while_it_is_open(tmp_path: Path) -> None:
    source, parser = memory()
    async with mounted(source, tmp_path, parser, writable=True) as volume:
        await fill(volume)
        opened = await volume.open("\\model.gguf")
        await volume.call(volume.volume.delete, opened, "\\MODEL.gguf")
        assert await volume.status_of(volume.volume.open, "\\model.gguf") == NAME_NOT_FOUND
        assert await volume.read(opened, 0, PAGE) == DATA[:PAGE]
        await closed(volume, opened)
        assert b"model.gguf" not in source._nodes


async def test_a_read_only_file_is_not_deleted(tmp_path: Path) -> None:
    source = MemorySource({b"f": b"x"})
    async with mounted(source, tmp_path, FakeParser(), writable=True) as volume:
        v = volume.volume
        opened = await volume.open("\\f")
        assert (await volume.call(v.set_basic, opened, info.READONLY)).attributes & info.READONLY
        assert stat.S_IMODE(source._nodes[b"f"].mode) == 0o444
        assert await volume.status_of(v.delete, opened, "\\f") == 0xC0000121
        assert not (await volume.call(v.set_basic, opened, info.NORMAL)).attributes & info.READONLY
        await volume.call(v.delete, opened, "\\f")
        await closed(volume, opened)
        root = await volume.open("\\")
        assert await volume.status_of(v.delete, root, "\\") == 0xC0000022
        await closed(volume, root)


async def test_times(tmp_path: Path) -> None:
    async with mounted(MemorySource({b"f": b"x"}), tmp_path, FakeParser(), writable=True) as volume:
        opened = await volume.open("\\f")
        accessed, written = info.filetime(10**18), info.filetime(11**17)
        found = await volume.call(volume.volume.set_basic, opened, 0xFFFFFFFF, accessed, written)
        assert (found.last_access_time, found.last_write_time) == (accessed, written)
        assert await volume.call(volume.volume.info, opened) == found
        before = found
        assert (await volume.call(volume.volume.set_basic, opened)).last_write_time == before.last_write_time
        await closed(volume, opened)


async def test_sizes(tmp_path: Path) -> None:
    source = MemorySource({b"f": b"0123456789", b"d/x": b""})
    async with mounted(source, tmp_path, FakeParser(), writable=True) as volume:
        v = volume.volume
        opened, directory = await volume.open("\\f"), await volume.open("\\d")
        assert (await volume.call(v.set_size, opened, 4)).size == 4
        assert (await volume.call(v.set_size, opened, 8)).size == 8
        assert (await volume.call(partial(v.set_size, allocation=True), opened, 4096)).size == 8
        assert (await volume.call(partial(v.set_size, allocation=True), opened, 2)).size == 2
        constrained = partial(v.write, constrained=True)
        assert (await volume.call(constrained, opened, 1, b"abc")).size == 2
        assert (await volume.call(constrained, opened, 5, b"abc")).size == 2
        assert await volume.read(opened, 0, 10) == b"0a"
        assert await volume.status_of(v.set_size, directory, 4) == 0xC0000010
        assert await volume.status_of(v.write, directory, 0, b"x") == 0xC0000010
        await closed(volume, opened, directory)


async def test_overwrite(tmp_path: Path) -> None:
    source = MemorySource({b"f": b"0123456789"})
    async with mounted(source, tmp_path, FakeParser(), writable=True) as volume:
        opened = await volume.call(partial(volume.volume.create, overwrite=True), "\\F")
        assert opened.info.size == 0
        await volume.call(volume.volume.write, opened, 0, b"new")
        await closed(volume, opened)
        assert source._nodes[b"f"].contents == b"new"


async def test_renames(tmp_path: Path) -> None:
    source = MemorySource({b"a/one": b"1", b"a/two": b"2", b"b/three": b"3"})
    async with mounted(source, tmp_path, FakeParser(), writable=True) as volume:
        v = volume.volume
        replace = partial(v.rename, replace=True)
        one = await volume.open("\\a\\one")
        await volume.call(v.rename, one, "\\a\\one", "\\b\\ONE")
        assert await names(volume, "\\a") == ["two"] and await names(volume, "\\b") == ["ONE", "three"]
        await volume.call(v.rename, one, "\\b\\ONE", "\\B\\One")
        assert await names(volume, "\\b") == ["One", "three"], "its case alone"
        assert await volume.status_of(v.rename, one, "\\b\\One", "\\a\\TWO") == NAME_COLLISION
        await volume.call(replace, one, "\\b\\One", "\\a\\TWO")
        assert await names(volume, "\\a") == ["two"] and await volume.read(one, 0, 9) == b"1"
        assert await volume.whole("\\a\\two") == b"1"
        assert await volume.status_of(replace, one, "\\a\\two", "\\b") == 0xC0000022, "a directory is not replaced"
        assert await volume.status_of(v.rename, one, "\\a\\two", "\\c\\x") == PATH_NOT_FOUND
        assert await volume.status_of(v.rename, one, "\\a\\two", "\\a\\aux") == NAME_INVALID
        await closed(volume, one)
        directory = await volume.open("\\a")
        await volume.call(v.rename, directory, "\\a", "\\b\\moved")
        await closed(volume, directory)
        assert await volume.whole("\\b\\moved\\TWO") == b"1"


async def test_what_is_written_over_a_stored_range_is_read_back(tmp_path: Path) -> None:
    source, parser = memory()
    async with mounted(source, tmp_path, parser, writable=True) as volume:
        await fill(volume)
        opened = await volume.open("\\model.gguf")
        new = b"!" * PAGE
        await volume.call(volume.volume.write, opened, 10 * PAGE, new)
        expected = DATA[: 10 * PAGE] + new + DATA[11 * PAGE :]
        assert await volume.read(opened, 0, len(DATA)) == expected
        await closed(volume, opened)
        assert await volume.whole("\\model.gguf") == expected
        await volume.engine.idle()
        again = await volume.open("\\model.gguf")
        for offset, size in WINDOWS:
            assert await volume.read(again, offset, size) == expected[offset : offset + size]
        await closed(volume, again)
        volume.session.hits.report()
        volume.engine.check()


async def test_a_write_that_fails(tmp_path: Path) -> None:
    source = MemorySource({b"f": b"0123"})
    async with mounted(source, tmp_path, FakeParser(), writable=True) as volume:
        opened = await volume.open("\\f")
        source.fail_writes = 28  # ENOSPC
        assert await volume.status_of(volume.volume.write, opened, 0, b"x") == 0xC000007F
        source.fail_writes = None
        await volume.call(volume.volume.write, opened, 0, b"x")
        await closed(volume, opened)
        assert source._nodes[b"f"].contents == b"x123"


async def test_descriptors_are_kept_by_a_source_that_keeps_them(tmp_path: Path) -> None:
    source = MemorySource()
    own = security.from_mode(0o600, 7, 8)
    async with mounted(source, tmp_path, FakeParser(), writable=True) as volume:
        v = volume.volume
        opened = await volume.call(v.create, "\\f", 0, 0, own)
        assert await volume.call(v.descriptor, opened) == own
        other = security.from_mode(0o644, 9, 10)
        await volume.call(v.set_security, opened, other)
        assert (await volume.call(v.security, "\\f"))[1] == other
        await closed(volume, opened)
        assert source._nodes[b"f"].xattrs == {security.SOURCE_ATTRIBUTE: other}


async def test_symlinks_are_made(tmp_path: Path) -> None:
    source = MemorySource({b"d/file": b"there"})
    async with mounted(source, tmp_path, FakeParser(), writable=True) as volume:
        v = volume.volume
        for path, options, target in (("\\to-file", 0, "d\\file"), ("\\to-dir", DIRECTORY_FILE, "d")):
            opened = await volume.call(v.create, path, options)
            await volume.call(v.set_link, opened, path, info.symlink_buffer(target))
            assert (await volume.call(v.info, opened)).attributes & info.REPARSE_POINT
            await closed(volume, opened)
        assert await volume.whole("\\to-file") == b"there" == await volume.whole("\\to-dir\\file")
        assert source.readlink(b"to-file") == b"d/file"
        link = await volume.open("\\to-file", OPEN_REPARSE_POINT)
        await volume.call(v.delete, link, "\\to-file")
        await closed(volume, link)
        assert b"to-file" not in source._nodes and b"d/file" in source._nodes
        junk = await volume.call(v.create, "\\junk")
        assert await volume.status_of(v.set_link, junk, "\\junk", b"\x03\0\0\xa0" + bytes(30)) == 0xC00000BB
        await closed(volume, junk)


async def test_a_deletion_that_fails_is_logged_and_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = MemorySource({b"f": b"x"})
    async with mounted(source, tmp_path, FakeParser(), writable=True) as volume:
        opened = await volume.open("\\f")
        source.remove(b"f")
        await volume.call(volume.volume.delete, opened, "\\f")
        assert "still there" in caplog.text
        await closed(volume, opened)


async def test_the_volume_says_that_it_may_be_written_to(tmp_path: Path) -> None:
    async with mounted(MemorySource(), tmp_path, FakeParser(), writable=True) as volume:
        assert volume.volume.param("ReadOnlyVolume") == 0
        with_delete = await volume.status_of(volume.volume.open, "\\nothing", 0x1000)
        assert with_delete == NAME_NOT_FOUND
