"""Sources that change, fail and hang, stores that fail, faults of ours, and the end of a mount."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mummufs.backends.winfsp import library as winfsp
from mummufs.backends.winfsp.library import Library, WinFspMissingError, check_sizes, find_dll
from mummufs.backends.winfsp.session import VolumeOptions
from mummufs.core.errors import MummufsError
from mummufs.source.memory import MemorySource
from tests.engine.harness import PAGE, FakeParser, FaultyOs, contents, engine
from tests.winfsp_host.host import Mounted, compiled, mounted, mounted_over, new_session
from tests.winfsp_host.test_bytes import DATA, SIZE, WINDOWS, fill, memory

FILE_INVALID = 0xC0000098
OTHER = contents(SIZE, seed=2)


def damage(store: Path) -> None:
    """Change a bit in every range file."""
    for path in store.glob("ranges/*/*.rng"):
        data = bytearray(path.read_bytes())
        data[5000] ^= 1
        path.write_bytes(data)


async def test_a_file_that_changes_behind_an_open_handle(tmp_path: Path) -> None:
    source, parser = memory()
    async with mounted(source, tmp_path, parser) as volume:
        await fill(volume)
        old = await volume.open("\\model.gguf")
        assert await volume.read(old, 0, PAGE) == DATA[:PAGE]
        source.write(b"model.gguf", OTHER)
        new = await volume.open("\\MODEL.gguf")
        assert await volume.read(new, 0, 5 * PAGE) == OTHER[: 5 * PAGE]
        assert await volume.status_of(volume.volume.read, old, 0, PAGE) == FILE_INVALID
        for opened in (old, new):
            await volume.call(volume.volume.close, opened)
        await fill(volume)
        assert await volume.whole("\\model.gguf") == OTHER


async def test_a_file_that_was_replaced_and_one_whose_mode_changed(tmp_path: Path) -> None:
    source, parser = memory()
    async with mounted(source, tmp_path, parser) as volume:
        await fill(volume)
        opened = await volume.open("\\model.gguf")
        source.chmod(b"model.gguf", 0o444)
        assert await volume.read(opened, 0, PAGE) == DATA[:PAGE], "the contents are the same"
        assert (await volume.call(volume.volume.info, opened)).attributes & 1
        source.replace(b"model.gguf", OTHER)
        assert await volume.read(opened, 0, PAGE) == DATA[:PAGE], "an open file stays what it is"
        assert await volume.whole("\\model.gguf") == OTHER
        await volume.call(volume.volume.close, opened)


async def test_a_file_that_changes_between_look_up_and_open(tmp_path: Path) -> None:
    source, parser = memory()
    options = VolumeOptions("M:", "x", info_timeout_s=1000.0, source_timeout_s=20.0)
    async with mounted(source, tmp_path, parser, options=options) as volume:
        await volume.call(volume.volume.security, "\\model.gguf")
        source.write(b"model.gguf", OTHER[: 3 * PAGE])
        assert await volume.whole("\\model.gguf") == OTHER[: 3 * PAGE], "its name is looked up again"


async def test_an_error_of_the_source_is_its_readers_alone(tmp_path: Path) -> None:
    source, parser = memory()
    async with mounted(source, tmp_path, parser) as volume:
        opened = await volume.open("\\model.gguf")
        source.fail_read(1)
        assert await volume.status_of(volume.volume.read, opened, 7 * PAGE, PAGE) == 0xC0000185
        assert await volume.read(opened, 7 * PAGE, PAGE) == DATA[7 * PAGE : 8 * PAGE]
        await volume.call(volume.volume.close, opened)


@pytest.mark.parametrize("call", ["read", "state", "open"])
async def test_a_store_that_fails_costs_no_reader_anything(tmp_path: Path, call: str) -> None:
    source, parser = memory()
    fs = FaultyOs(tmp_path)
    async with mounted(source, tmp_path, parser, fs=fs) as volume:
        await fill(volume)
        fs.fails = lambda name, _: name == call
        assert await volume.whole("\\model.gguf") == DATA
        fs.fails = lambda *_: False
        await volume.engine.idle()
        assert await volume.whole("\\model.gguf") == DATA


async def test_range_files_that_are_damaged(tmp_path: Path) -> None:
    source, parser = memory()
    async with mounted(source, tmp_path, parser) as volume:
        await fill(volume)
        damage(tmp_path)
        assert await volume.whole("\\model.gguf") == DATA
        await volume.engine.idle()
        assert volume.engine.counters.errors.corrupt > 0


async def test_hits_go_on_while_the_source_hangs(tmp_path: Path) -> None:
    source, parser = memory(slow=b"s" * 100_000)
    async with mounted(source, tmp_path, parser) as volume:
        await fill(volume)
        model, slow = await volume.open("\\model.gguf"), await volume.open("\\slow")
        source.hold_reads()
        got: list[bytes] = []
        async with trio.open_nursery() as nursery:

            async def miss() -> None:
                got.append(await volume.read(slow, 0, 10))

            for _ in range(40):
                nursery.start_soon(miss)
            await volume.wait_calls(40)
            for offset, size in WINDOWS:
                assert await volume.read(model, offset, size) == DATA[offset : offset + size]
            assert not got
            source.release_reads()
        assert got == [b"s" * 10] * 40
        for opened in (model, slow):
            await volume.call(volume.volume.close, opened)


async def test_a_mount_that_ends_while_the_source_hangs(tmp_path: Path) -> None:
    source, parser = memory()
    statuses: list[int] = []
    async with engine(source, tmp_path, parser) as running, mounted_over(running) as volume:
        opened = await volume.open("\\model.gguf")
        source.hold_reads()
        async with trio.open_nursery() as nursery:

            async def miss(volume: Mounted = volume) -> None:
                statuses.append(await volume.status_of(volume.volume.read, opened, 0, 10))

            nursery.start_soon(miss)
            await volume.wait_calls(1)
            assert not await volume.session.leave(0.05), "it had to be cut off"
        assert statuses == [0xC0000120]
        assert await volume.status_of(volume.volume.read, opened, 0, 10) == 0xC0000120
        source.release_reads()


async def test_a_read_that_nobody_answers_is_given_up(tmp_path: Path) -> None:
    source, parser = memory()
    async with mounted(source, tmp_path, parser) as volume:
        opened = await volume.open("\\model.gguf")
        volume.session.bridge._limit_s = 0.05
        source.hold_reads()
        assert await volume.status_of(volume.volume.read, opened, 0, 10) == 0xC00000B5
        assert volume.session.bridge.late == 1
        source.release_reads()
        volume.session.bridge._limit_s = 20.0
        assert await volume.read(opened, 0, 10) == DATA[:10]
        await volume.call(volume.volume.close, opened)


async def test_a_fault_of_ours_ends_no_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, parser = memory()
    async with mounted(source, tmp_path, parser) as volume:
        opened = await volume.open("\\model.gguf")
        with monkeypatch.context() as patched:
            patched.setattr(volume.engine.overlay, "read", None)
            assert await volume.status_of(volume.volume.read, opened, 0, 10) == 0xC00000E9
        assert volume.engine.counters.errors.handler == 1
        volume.engine.counters.errors.handler = 0
        assert await volume.read(opened, 0, 10) == DATA[:10]
        await volume.call(volume.volume.close, opened)


async def test_nodes_and_names_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mummufs.backends.winfsp.paths.NODES_MAX", 10)
    monkeypatch.setattr("mummufs.backends.winfsp.paths.NAMES_MAX", 10)
    source = MemorySource({b"d/%d" % i: b"%d" % i for i in range(100)})
    async with mounted(source, tmp_path, FakeParser()) as volume:
        kept = await volume.open("\\d\\5")
        for i in range(100):
            assert await volume.whole(f"\\d\\{i}") == b"%d" % i
        assert len(volume.engine.overlay.nodes) <= 13
        assert await volume.read(kept, 0, 10) == b"5", "what is open is not forgotten"
        await volume.call(volume.volume.close, kept)


# ---------------------------------------------------------------------- WinFsp itself


@pytest.mark.parametrize("what", ["host_refuse_mountpoint", "host_refuse_dispatcher"])
async def test_a_mount_that_winfsp_refuses(tmp_path: Path, what: str) -> None:
    source, parser = memory()
    async with engine(source, tmp_path, parser) as running:
        async with mounted_over(running) as volume:
            host = volume.volume.lib
        setattr(host, what, 1)
        session = new_session(running)
        try:
            with pytest.raises(MummufsError, match=r"M: cannot be mounted: .* \(status 0xc00000"):
                session.mount()
                await session.serve()
        finally:
            setattr(host, what, 0)
            session.close()
        assert host.host_alive == 0


def test_a_winfsp_that_is_too_old() -> None:
    library = Library(compiled())
    assert library.version == (2, 1)
    library.ffi.cdef("extern uint32_t host_version;")
    host = library.ffi.dlopen(str(compiled()))
    host.host_version = 1 << 16 | 12
    try:
        with pytest.raises(WinFspMissingError, match=r"WinFsp 1\.12 is installed.*winfsp\.dev"):
            Library(compiled())
    finally:
        host.host_version = 2 << 16 | 1


def test_a_winfsp_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WinFspMissingError, match=r"cannot be loaded.*winfsp\.dev"):
        Library(tmp_path / "no.dll")
    monkeypatch.delenv(winfsp.DLL_ENV, raising=False)
    with pytest.raises(WinFspMissingError, match=r"WinFsp is not installed: get it from"):
        find_dll()
    monkeypatch.setenv(winfsp.DLL_ENV, str(compiled()))
    assert find_dll() == compiled()


def test_a_structure_of_another_size_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(compiled())
    check_sizes(library.ffi)
    monkeypatch.setitem(winfsp.SIZES, "FSP_FSCTL_FILE_INFO", 64)
    with pytest.raises(AssertionError, match="FSP_FSCTL_FILE_INFO takes 72"):
        check_sizes(library.ffi)
