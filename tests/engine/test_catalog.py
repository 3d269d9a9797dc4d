"""When the windows of a file become known, and what happens to reads before."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
import trio

from mummufs.core.errors import ManifestError
from mummufs.core.manifest import RangeTable
from mummufs.core.states import State
from mummufs.engine.catalog import Catalog
from mummufs.source.memory import MemorySource
from mummufs.source.tree import TreeSource
from tests.engine.harness import KIB, FakeParser, FaultyOs, contents, engine, make_table
from tests.support.models import write_gguf

WINDOW = 64 * KIB
COUNT = 4
DATA = contents(COUNT * WINDOW)
TABLE: RangeTable = make_table(len(DATA), [(i * WINDOW, WINDOW) for i in range(COUNT)])


def source_and_parser() -> tuple[MemorySource, FakeParser]:
    return MemorySource({b"model": DATA}), FakeParser({b"model": TABLE})


async def test_what_was_read_before_the_parse_has_ended_is_filled_afterwards(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    parser.gate = trio.Event()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        assert handle.node.ranges is None
        # Half of the first window, the second, a byte less than half of the third; and a little inside the last.
        for offset, size in ((WINDOW // 2, 2 * WINDOW - 1), (3 * WINDOW + 1000, 2000)):
            for at in range(offset, offset + size, 10_000):
                end = min(offset + size, at + 10_000)
                assert await e.read(handle, at, end - at) == DATA[at:end]
        await e.idle()
        assert e.counters.reads.bypass_bytes == e.counters.reads.replied_bytes
        assert (e.index.statistics().resident, e.counters.fills.dropped) == (0, 0)
        parser.gate.set()
        await e.idle()
        resident, absent = State.RESIDENT, State.ABSENT
        assert [e.state(handle, i) for i in range(COUNT)] == [resident, resident, absent, resident]
        touches = [2 ** e.index.heat(e.key(handle, i)) for i in range(COUNT)]
        assert touches == pytest.approx([0.5, 1, 0.5, 2000 / WINDOW], rel=1e-3), "by what was read of each"
        before = len(source.reads)
        assert await e.read(handle, 0, 2 * WINDOW) == DATA[: 2 * WINDOW]
        assert len(source.reads) == before
        e.check()


async def test_an_early_read_past_the_end_counts_as_a_read_up_to_it(tmp_path: Path) -> None:
    """The kernel asks for the whole last page of a file."""
    source, parser = source_and_parser()
    parser.gate = trio.Event()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        assert await e.read(handle, len(DATA) - 1000, 4096) == DATA[-1000:]
        assert await e.read(handle, len(DATA), 4096) == b""
        parser.gate.set()
        await e.idle()
        assert e.state(handle, COUNT - 1) == State.RESIDENT
        e.check()


async def test_a_parse_is_begun_once_for_many_handles(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    parser.gate = trio.Event()
    async with engine(source, tmp_path, parser) as e:
        handles = [await e.open(b"model") for _ in range(5)]
        parser.gate.set()
        await e.idle()
        for handle in handles:
            e.overlay.close(handle)
        await e.open(b"model")
        assert parser.calls == [b"model"]
        assert (e.service.catalog is not None) and e.service.catalog.parsed == 1


async def test_a_broken_header_is_one_warning_and_a_pass_through(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, parser = source_and_parser()
    parser.errors[b"model"] = ManifestError("its ranges are absurd")
    async with engine(source, tmp_path, parser) as e:
        for _ in range(3):
            handle = await e.open(b"model")
            assert await e.read(handle, 5, 100_000) == DATA[5:100_005]
            e.overlay.close(handle)
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert [record.getMessage() for record in warnings] == [
            "'model': no ranges, it is passed through: its ranges are absurd"
        ]
        assert parser.calls == [b"model"]
        assert e.counters.errors.handler == 0
        await e.idle()
        e.check()


@pytest.mark.parametrize("error", [RuntimeError("a fault of ours"), OSError(5, "the source is ill")])
async def test_a_parse_that_fails_is_a_pass_through_and_tried_again_at_the_next_open(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    source, parser = source_and_parser()
    parser.errors[b"model"] = error
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        assert await e.read(handle, 5, 100_000) == DATA[5:100_005]
        assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
        assert e.counters.errors.handler == isinstance(error, RuntimeError)
        parser.errors.clear()
        await e.open(b"model")
        assert await e.read(handle, 0, WINDOW) == DATA[:WINDOW]
        await e.idle()
        assert e.state(handle, 0) is State.RESIDENT
        e.check()


async def test_a_file_that_changes_while_it_is_parsed_is_parsed_again(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    parser.gate = trio.Event()
    new = contents(len(DATA), seed=2)
    async with engine(source, tmp_path, parser) as e:
        old = await e.open(b"model")
        source.write(b"model", new)
        parser.gate.set()
        await e.idle()
        assert old.node.ranges is None
        handle = await e.open(b"model")
        assert handle.node.ranges is TABLE
        assert await e.read(handle, 0, len(new)) == new
        await e.idle()
        e.check()


async def test_a_table_that_cannot_be_kept_is_used_all_the_same(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    fs = FaultyOs(tmp_path)
    async with engine(source, tmp_path, parser, fs=fs) as e:
        fs.fails = lambda name, _: name == "rename"
        handle = await e.open(b"model")
        assert handle.node.ranges is TABLE
        assert e.counters.errors.store == 1
        fs.fails = lambda *_: False
        await e.fill(handle, 0)
        assert e.state(handle, 0) is State.RESIDENT
        e.check()


async def test_a_table_that_is_too_large_to_keep_is_used_all_the_same(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    parser.gate = trio.Event()
    async with engine(source, tmp_path, parser) as e:
        e.cache.store._tables_bytes_max = 0
        handle = await e.open(b"model")
        await e.read(handle, 0, WINDOW)
        parser.gate.set()
        await e.idle()
        assert (e.counters.errors.store, e.counters.errors.handler) == (1, 0)
        assert e.state(handle, 0) is State.RESIDENT, "what was read early is filled"
        e.check()


@pytest.mark.parametrize("stored", [True, False])
async def test_a_chmod_while_the_table_is_loaded(tmp_path: Path, stored: bool) -> None:
    """Whoever opens the file then, the handle has a table in the end, and nobody waits for himself."""
    source, parser = source_and_parser()
    if stored:
        async with engine(source, tmp_path, parser) as e:
            await e.open(b"model")
    begun, held = threading.Event(), threading.Event()
    fs = FaultyOs(tmp_path)

    def hold(name: str, _: int) -> bool:
        if name == "open" and not begun.is_set():
            begun.set()
            held.wait(60)
        return False

    async with engine(source, tmp_path, parser, fs=fs) as e:
        node = await e.overlay.look_up(e.overlay.nodes.root, b"model")
        fs.fails = hold
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(e.overlay.open, node)
            await trio.to_thread.run_sync(begun.wait)
            source.chmod(b"model", 0o600)
            await e.overlay.attributes(node)
            held.set()
        await e.idle()
        handle = await e.overlay.open(node)
        await e.idle()
        assert handle.node.ranges is not None
        assert await e.read(handle, 5, 100) == DATA[5:105]
        await e.idle()
        e.check()


async def test_an_unexpected_fault_after_a_parse_does_not_end_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, parser = source_and_parser()

    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    async with engine(source, tmp_path, parser) as e:
        monkeypatch.setattr(e.cache.store, "save_table", broken)
        handle = await e.open(b"model")
        assert e.counters.errors.handler == 1
        monkeypatch.undo()
        await e.fill(handle, 0)
        assert e.state(handle, 0) is State.RESIDENT
        e.check()


async def test_a_real_header_is_parsed_in_a_child(tmp_path: Path) -> None:
    folder, store = tmp_path / "models", tmp_path / "store"
    folder.mkdir()
    store.mkdir()
    written = write_gguf(folder / "small.gguf", layers=(0, 1), experts=2)
    data = (folder / "small.gguf").read_bytes()
    (folder / "broken.gguf").write_bytes(data[: len(data) // 4])
    (folder / "other").write_bytes(contents(100_000))
    async with engine(TreeSource(folder), store, None) as e:
        root = e.overlay.nodes.root
        handle = await e.overlay.open(await e.overlay.look_up(root, b"small.gguf"))
        await _parsed(e.service.catalog)
        table = handle.node.ranges
        assert table is not None
        assert table.format == "gguf"
        for tensor in written:
            assert len(table.overlapping(tensor.offset, tensor.size)) >= 1
            assert tensor.matches(await e.read(handle, tensor.offset, tensor.size))
        await e.idle()
        assert e.counters.fills.completed == len(table)
        before = e.counters.source_reads.count
        for tensor in written:
            assert tensor.matches(await e.read(handle, tensor.offset, tensor.size))
        assert e.counters.source_reads.count == before
        await e.idle()
        e.check()
        for name, bytes_ in ((b"broken.gguf", data[: len(data) // 4]), (b"other", contents(100_000))):
            passed = await e.overlay.open(await e.overlay.look_up(root, name))
            await _parsed(e.service.catalog)
            assert passed.node.ranges is None
            assert await e.read(passed, 0, len(data)) == bytes_
        assert (e.service.catalog is not None) and e.service.catalog.refused == 1


async def _parsed(catalog: Catalog | None) -> None:
    """Wait for a child process: its end is an event of the operating system, not of ours."""
    assert catalog is not None
    while catalog.parsing:
        await trio.lowlevel.checkpoint()
