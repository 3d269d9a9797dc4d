"""Names, listings, links, descriptors and the volume itself, as programs on Windows see them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mummufs.backends.winfsp import info, security
from mummufs.source.memory import MemorySource
from tests.engine.harness import FakeParser
from tests.winfsp_host.host import DIRECTORY_FILE, NON_DIRECTORY_FILE, OPEN_REPARSE_POINT, Mounted, NtError, mounted

NAME_NOT_FOUND = 0xC0000034
PATH_NOT_FOUND = 0xC000003A


def tree() -> MemorySource:
    source = MemorySource({b"Models/Big Model.gguf": b"model", b"Models/sub/a": b"a", b"other": b"o"})
    source.write(b"Models/CASE", b"upper")
    source.write(b"Models/case", b"lower")
    return source


async def read(volume: Mounted, path: str) -> bytes:
    opened = await volume.open(path)
    data = await volume.read(opened, 0, 100)
    await volume.call(volume.volume.close, opened)
    return data


async def test_a_name_in_another_case(tmp_path: Path) -> None:
    async with mounted(tree(), tmp_path, FakeParser()) as volume:
        for path in ("\\Models\\Big Model.gguf", "\\models\\BIG MODEL.GGUF", "\\MODELS\\big model.gguf"):
            opened = await volume.open(path)
            assert opened.path == "\\Models\\Big Model.gguf", "the driver is told how the source spells it"
            assert await volume.read(opened, 0, 100) == b"model"
            await volume.call(volume.volume.close, opened)
        root = await volume.open("\\")
        assert root.path == "\\"
        assert (await volume.call(volume.volume.entry, root, "mODELS"))[0] == "Models"
        await volume.call(volume.volume.close, root)


async def test_names_that_differ_by_their_case_alone(tmp_path: Path) -> None:
    async with mounted(tree(), tmp_path, FakeParser()) as volume:
        assert await read(volume, "\\Models\\CASE") == b"upper"
        assert await read(volume, "\\Models\\case") == b"lower"
        assert await read(volume, "\\Models\\Case") == b"upper", "the first of them"


@pytest.mark.parametrize(
    ("path", "options", "status"),
    [
        ("\\nothing", 0, NAME_NOT_FOUND),
        ("\\Models\\nothing", 0, NAME_NOT_FOUND),
        ("\\nothing\\at all", 0, PATH_NOT_FOUND),
        ("\\other\\below a file", 0, PATH_NOT_FOUND),
        ("\\other", DIRECTORY_FILE, 0xC0000103),
        ("\\Models", NON_DIRECTORY_FILE, 0xC00000BA),
        ("\\other", 0x1000, 0xC0000121),
        ("\\" + "x" * 300, 0, NAME_NOT_FOUND),
    ],
)
async def test_opens_that_fail(tmp_path: Path, path: str, options: int, status: int) -> None:
    async with mounted(tree(), tmp_path, FakeParser()) as volume:
        assert await volume.status_of(volume.volume.open, path, options) == status
        assert volume.session.files.open_handles == 0


async def test_what_appears_and_what_goes_is_seen(tmp_path: Path) -> None:
    source = tree()
    async with mounted(source, tmp_path, FakeParser()) as volume:
        assert await volume.status_of(volume.volume.open, "\\NEW") == NAME_NOT_FOUND
        source.write(b"new", b"n")
        assert await read(volume, "\\NEW") == b"n"
        source.remove(b"new")
        assert await volume.status_of(volume.volume.open, "\\NEW") == NAME_NOT_FOUND


async def test_a_listing(tmp_path: Path) -> None:
    source = tree()
    for name in (b"bad:name", b"caf\xe9", b"tab\t"):
        source.write(b"Models/" + name, b"not on Windows")
    async with mounted(source, tmp_path, FakeParser()) as volume:
        opened = await volume.open("\\models")
        names = await volume.call(volume.volume.names, opened)
        assert list(names) == [".", "..", "Big Model.gguf", "CASE", "case", "sub"]
        assert names["Big Model.gguf"].size == 5 and names["sub"].attributes & info.DIRECTORY
        assert await volume.call(volume.volume.names, opened, "*.GGUF") == {"Big Model.gguf": names["Big Model.gguf"]}
        assert await volume.call(volume.volume.names, opened, "nothing*") == {}
        assert (await volume.call(volume.volume.entry, opened, "CASE"))[1] == names["CASE"]
        assert await volume.status_of(volume.volume.entry, opened, "nothing") == NAME_NOT_FOUND
        await volume.call(volume.volume.close, opened)
        root = await volume.open("\\")
        assert list(await volume.call(volume.volume.names, root)) == ["Models", "other"], "no dots in the root"
        await volume.call(volume.volume.close, root)


async def test_a_listing_that_does_not_fit_into_one_buffer(tmp_path: Path) -> None:
    wanted = [f"file {i:04d} {'x' * (i % 200)}" for i in range(400)]
    source = MemorySource({b"d/" + name.encode(): b"" for name in wanted})
    async with mounted(source, tmp_path, FakeParser()) as volume:
        opened = await volume.open("\\d")
        for room in (1024, 4096, 1 << 20):
            assert list(await volume.call(volume.volume.names, opened, None, room)) == [".", "..", *wanted]
        source.write(b"d/zzz", b"")
        assert "zzz" in await volume.call(volume.volume.names, opened), "a listing that begins anew reads anew"
        await volume.call(volume.volume.close, opened)


async def test_a_file_has_no_listing_and_a_directory_no_bytes(tmp_path: Path) -> None:
    async with mounted(tree(), tmp_path, FakeParser()) as volume:
        file, directory = await volume.open("\\other"), await volume.open("\\Models")
        assert await volume.status_of(volume.volume.names, file) == 0xC0000103
        assert await volume.status_of(volume.volume.read, directory, 0, 1) == 0xC0000010
        assert await volume.status_of(volume.volume.read, file, 1, 1) == 0xC0000011
        assert await volume.status_of(volume.volume.link, file) == 0xC0000275
        for opened in (file, directory):
            await volume.call(volume.volume.close, opened)
        assert await volume.status_of(volume.volume.read, file, 0, 1) == 0xC0000008
        assert await volume.status_of(volume.volume.info, file) == 0xC0000008


async def test_long_paths(tmp_path: Path) -> None:
    parts = ["d" * 200] * 4 + ["f" * 200]
    source = MemorySource({"/".join(parts).encode(): b"deep"})
    async with mounted(source, tmp_path, FakeParser()) as volume:
        assert await read(volume, "\\" + "\\".join(parts)) == b"deep"


async def test_names_beyond_ascii(tmp_path: Path) -> None:
    names = ["größe", "модель.gguf", "模型", "𝄞 clef", "half \ud800"]
    source = MemorySource({name.encode("utf-8", "surrogatepass"): b"x" for name in names})
    async with mounted(source, tmp_path, FakeParser()) as volume:
        root = await volume.open("\\")
        assert sorted(await volume.call(volume.volume.names, root)) == sorted(names)
        await volume.call(volume.volume.close, root)
        for name in (*names, "GRÖSSE".replace("SS", "ß"), "МОДЕЛЬ.GGUF"):
            assert await read(volume, "\\" + name) == b"x"


# ---------------------------------------------------------------------- symlinks


def links() -> MemorySource:
    source = MemorySource({b"d/sub/file": b"there", b"d/other": b"o"})
    source.symlink(b"to-file", b"d/sub/file")
    source.symlink(b"to-dir", b"d/sub")
    source.symlink(b"d/up", b"../d/sub/../other")
    source.symlink(b"chain", b"to-dir/../up")
    source.symlink(b"root", b"/d")
    source.symlink(b"a", b"b")
    source.symlink(b"b", b"a")
    source.symlink(b"dangling", b"d/nothing/at all")
    source.symlink(b"away", b"E:/models")
    return source


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("\\to-file", b"there"),
        ("\\TO-DIR\\file", b"there"),
        ("\\d\\up", b"o"),
        ("\\chain", b"o"),
        ("\\root\\sub\\FILE", b"there"),
    ],
)
async def test_symlinks_are_followed(tmp_path: Path, path: str, data: bytes) -> None:
    async with mounted(links(), tmp_path, FakeParser()) as volume:
        assert await read(volume, path) == data


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("\\a", 0xC0000280),
        ("\\a\\x", 0xC0000280),
        ("\\dangling", PATH_NOT_FOUND),
        ("\\to-dir\\nothing", NAME_NOT_FOUND),
    ],
)
async def test_symlinks_that_lead_nowhere(tmp_path: Path, path: str, status: int) -> None:
    async with mounted(links(), tmp_path, FakeParser()) as volume:
        assert await volume.status_of(volume.volume.open, path) == status


async def test_a_symlink_to_another_volume_is_left_to_windows(tmp_path: Path) -> None:
    async with mounted(links(), tmp_path, FakeParser()) as volume:
        for path, leads in (("\\away", "\\??\\E:\\models"), ("\\away\\x\\y", "\\??\\E:\\models\\x\\y")):
            with pytest.raises(NtError) as caught:
                await volume.call(volume.volume.open, path)
            assert (caught.value.status, caught.value.path) == (0x104, leads)


async def test_a_symlink_itself(tmp_path: Path) -> None:
    async with mounted(links(), tmp_path, FakeParser()) as volume:
        for name, kind in (("to-file", 0), ("to-dir", info.DIRECTORY), ("a", 0), ("dangling", 0)):
            opened = await volume.open("\\" + name, OPEN_REPARSE_POINT)
            assert opened.info.attributes & (info.REPARSE_POINT | info.DIRECTORY) == info.REPARSE_POINT | kind
            assert opened.info.reparse_tag == info.SYMLINK_TAG and opened.info.size == 0
            assert await volume.call(volume.volume.info, opened) == opened.info
            data = await volume.call(volume.volume.link, opened)
            assert info.parse_symlink_buffer(data) == links().readlink(name.encode())
            assert await volume.status_of(volume.volume.link, opened, len(data) - 1) == 0xC0000023
            await volume.call(volume.volume.close, opened)
        root = await volume.open("\\")
        names = await volume.call(volume.volume.names, root)
        assert names["to-dir"].attributes & info.DIRECTORY and not names["to-file"].attributes & info.DIRECTORY
        await volume.call(volume.volume.close, root)


# ---------------------------------------------------------------------- descriptors, attributes, the volume


async def test_a_descriptor_made_of_the_mode(tmp_path: Path) -> None:
    source = tree()
    source.chmod(b"other", 0o444)
    async with mounted(source, tmp_path, FakeParser()) as volume:
        bits, descriptor = await volume.call(volume.volume.security, "\\other")
        assert bits == info.NOT_CONTENT_INDEXED | info.READONLY
        assert descriptor == security.from_mode(stat.S_IFREG | 0o444, 0, 0)
        opened = await volume.open("\\other")
        assert await volume.call(volume.volume.descriptor, opened) == descriptor
        assert await volume.status_of(volume.volume.descriptor, opened, len(descriptor) - 1) == 0x80000005
        await volume.call(volume.volume.close, opened)
        assert await volume.status_of(volume.volume.security, "\\nothing") == NAME_NOT_FOUND


async def test_the_sources_own_descriptor_is_handed_on(tmp_path: Path) -> None:
    source, own = tree(), bytes(range(250)) * 9
    source.set_xattr(b"other", security.SOURCE_ATTRIBUTE, own)
    async with mounted(source, tmp_path, FakeParser()) as volume:
        assert (await volume.call(volume.volume.security, "\\other"))[1] == own, (
            "larger than the first buffer of the DLL"
        )
        opened = await volume.open("\\other")
        assert await volume.call(volume.volume.descriptor, opened) == own
        await volume.call(volume.volume.close, opened)


async def test_the_volume(tmp_path: Path) -> None:
    async with mounted(tree(), tmp_path, FakeParser()) as volume:
        found = tree().statfs()
        total, free, label = await volume.call(volume.volume.volume)
        assert (total, free, label) == (found.f_blocks * 4096, found.f_bavail * 4096, "mummufs")
        assert volume.volume.ffi.string(volume.volume.lib.host_mountpoint(volume.volume.fs)) == "M:"


PARAMS = {
    "Version": 504,
    "SectorSize": 512,
    "SectorsPerAllocationUnit": 8,
    "MaxComponentLength": 255,
    "CaseSensitiveSearch": 0,
    "CasePreservedNames": 1,
    "UnicodeOnDisk": 1,
    "PersistentAcls": 1,
    "ReparsePoints": 1,
    "NamedStreams": 0,
    "HardLinks": 0,
    "ExtendedAttributes": 0,
    "ReadOnlyVolume": 1,
    "PostCleanupWhenModifiedOnly": 1,
    "PassQueryDirectoryPattern": 1,
    "AlwaysUseDoubleBuffering": 0,
    "PassQueryDirectoryFileName": 1,
    "FlushAndPurgeOnCleanup": 1,
    "DeviceControl": 0,
    "UmFileContextIsUserContext2": 1,
    "UmFileContextIsFullContext": 0,
    "UmReservedFlags": 0,
    "AllowOpenInKernelMode": 1,
    "WslFeatures": 0,
    "DirectoryMarkerAsNextOffset": 0,
    "SupportsPosixUnlinkRename": 0,
    "FileInfoTimeout": 0,
    "VolumeInfoTimeoutValid": 1,
    "DirInfoTimeoutValid": 1,
    "SecurityTimeoutValid": 1,
    "StreamInfoTimeoutValid": 0,
    "KmAdditionalReservedFlags": 0,
    "IrpTimeout": 60_000,
    "FileSystemName[0]": ord("m"),
    "threads": 128,
}


async def test_the_parameters_as_a_compiler_lays_them_out(tmp_path: Path) -> None:
    async with mounted(tree(), tmp_path, FakeParser()) as volume:
        assert {name: volume.volume.param(name) for name in PARAMS} == PARAMS


async def test_what_writes_is_refused(tmp_path: Path) -> None:
    """Each entry point, called with whatever its type is."""
    refused = ("Create", "Overwrite", "Write", "SetBasicInfo", "SetFileSize", "CanDelete", "Rename", "SetSecurity")
    async with mounted(tree(), tmp_path, FakeParser()) as volume:
        ffi, interface = volume.session.library.ffi, volume.session.callbacks.interface
        for name in (*refused, "SetReparsePoint", "DeleteReparsePoint"):
            entry = getattr(interface, name)
            zero = [ffi.NULL if kind.kind == "pointer" else 0 for kind in ffi.typeof(entry).args]
            status = await volume.call(entry, *zero)
            assert status & 0xFFFFFFFF == 0xC00000A2, name
