"""A file that changes in the source: no byte of one version is ever given out for another."""

from __future__ import annotations

import errno
import threading
from functools import partial
from pathlib import Path

import pytest
import trio

from mummufs.core.manifest import RangeTable
from mummufs.core.states import State
from mummufs.engine.overlay import Handle
from mummufs.source.memory import MemorySource
from tests.engine.harness import KIB, PAGE, Engine, FakeParser, FaultyOs, contents, engine, gather, make_table

WINDOW = 64 * KIB
COUNT = 4
OLD, NEW = contents(COUNT * WINDOW, seed=1), contents(COUNT * WINDOW, seed=2)
TABLE: RangeTable = make_table(len(OLD), [(i * WINDOW, WINDOW) for i in range(COUNT)])

restored = pytest.mark.parametrize("keep_mtime", [False, True], ids=["", "mtime set back"])


def source_and_parser() -> tuple[MemorySource, FakeParser]:
    return MemorySource({b"model": OLD}), FakeParser({b"model": TABLE, b"renamed": TABLE})


async def assert_estale(e: Engine, handle: Handle, offset: int = 0, size: int = PAGE) -> None:
    with pytest.raises(OSError) as raised:
        await e.read(handle, offset, size)
    assert raised.value.errno == errno.ESTALE


async def assert_new_node(e: Engine, old: Handle) -> None:
    """A look-up finds another node, whose bytes are the new ones, cold and warm; nothing of the old one is left."""
    await e.idle()
    assert e.index.statistics().resident == 0
    handle = await e.open(b"model")
    assert handle.node is not old.node
    for _ in range(2):
        assert await e.read(handle, 0, len(NEW)) == NEW
        await e.idle()
    assert e.index.statistics().resident == COUNT
    assert e.counters.reads.hit_bytes >= len(NEW)
    await assert_estale(e, old)
    with pytest.raises(OSError) as raised:
        await e.overlay.open(old.node)
    assert raised.value.errno == errno.ESTALE
    assert (await e.overlay.attributes(old.node)).version == old.node.version
    await e.idle()
    e.check()


@restored
async def test_a_rewrite_in_place_is_seen_by_the_next_miss(tmp_path: Path, keep_mtime: bool) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        old = await e.open(b"model")
        await e.fill(old, 0, 1)
        source.write(b"model", NEW, keep_mtime=keep_mtime)
        await assert_estale(e, old, 2 * WINDOW)
        await assert_estale(e, old, 0)  # a hit no more
        assert e.counters.errors.stale >= 1
        await assert_new_node(e, old)


@restored
async def test_a_rewrite_in_place_is_seen_by_attributes(tmp_path: Path, keep_mtime: bool) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        old = await e.open(b"model")
        await e.fill(old, 0, 1)
        before = old.node.attributes
        source.write(b"model", NEW, keep_mtime=keep_mtime)
        assert await e.overlay.attributes(old.node) == before
        await assert_estale(e, old, 0)
        await assert_new_node(e, old)


@restored
async def test_a_hit_under_way_is_not_answered_once_the_change_is_known(tmp_path: Path, keep_mtime: bool) -> None:
    source, parser = source_and_parser()
    gate, reached = threading.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()
    fs = FaultyOs(tmp_path)

    def hold(name: str, _: int) -> bool:
        if name == "read":
            token.run_sync_soon(reached.set)
            gate.wait(30.0)
        return False

    async with engine(source, tmp_path, parser, fs=fs) as e, trio.open_nursery() as nursery:
        handle = await e.open(b"model")
        await e.fill(handle, 0)
        fs.fails = hold
        nursery.start_soon(assert_estale, e, handle)
        await reached.wait()
        source.write(b"model", NEW, keep_mtime=keep_mtime)
        await e.overlay.attributes(handle.node)
        gate.set()
        await e.idle()
        assert e.counters.reads.replied_bytes == 1  # of the fill
        await assert_new_node(e, handle)


@restored
@pytest.mark.parametrize("how", ["look_up", "entries", "open"])
async def test_a_rewrite_in_place_is_seen_by_whoever_looks(tmp_path: Path, how: str, keep_mtime: bool) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        old = await e.open(b"model")
        await e.fill(old, 0, 1)
        source.write(b"model", NEW, keep_mtime=keep_mtime)
        root = e.overlay.nodes.root
        if how == "look_up":
            assert await e.overlay.look_up(root, b"model") is not old.node
        elif how == "entries":
            (entry,) = await e.overlay.entries(root)
            assert await e.overlay.found(root, *entry) is not old.node
        else:
            with pytest.raises(OSError) as raised:
                await e.overlay.open(old.node)
            assert raised.value.errno == errno.ESTALE
        await assert_estale(e, old, 0)
        await assert_new_node(e, old)


@restored
async def test_a_listing_older_than_an_open_takes_nothing_back(tmp_path: Path, keep_mtime: bool) -> None:
    """Its reader is slow: it comes to a file that has been rewritten and opened since the listing was taken."""
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        root = e.overlay.nodes.root
        await e.overlay.look_up(root, b"model")
        (entry,) = await e.overlay.entries(root)
        source.write(b"model", NEW, keep_mtime=keep_mtime)
        handle = await e.open(b"model")
        await e.fill(handle, 0, 1)
        assert await e.overlay.found(root, *entry) is handle.node
        assert handle.node.version == source.stat(b"model").version
        for _ in range(2):
            assert await e.read(handle, 0, len(NEW)) == NEW
            await e.idle()
        assert e.index.statistics().resident == COUNT
        assert e.counters.errors.stale == 0
        e.check()


async def test_a_file_that_was_cut_short(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        old = await e.open(b"model")
        await e.fill(old, 0)
        source.write(b"model", NEW[:WINDOW])
        await assert_estale(e, old, 3 * WINDOW)
        parser.tables[b"model"] = make_table(WINDOW, [(0, WINDOW)])
        handle = await e.open(b"model")
        assert await e.read(handle, 0, 2 * WINDOW) == NEW[:WINDOW]
        await e.idle()
        assert await e.read(handle, 0, 2 * WINDOW) == NEW[:WINDOW]
        e.check()


async def test_a_file_replaced_by_rename_leaves_open_handles_as_they_were(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        old = await e.open(b"model")
        await e.fill(old, 0, 1)
        source.replace(b"model", NEW)
        new = await e.open(b"model")
        assert new.node is not old.node
        assert new.node.file != old.node.file
        for _ in range(2):
            results = await gather(partial(e.read, old, 0, len(OLD)), partial(e.read, new, 0, len(NEW)))
            assert results == [OLD, NEW]
            await e.idle()
        e.check()


async def test_a_chmod_keeps_the_node_and_the_bytes(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 0, 1)
        source.chmod(b"model", 0o600)
        assert await e.read(handle, 0, len(OLD)) == OLD
        again = await e.open(b"model")
        assert again.node is handle.node
        assert again.node.attributes.mode & 0o777 == 0o600
        for _ in range(2):
            assert await e.read(again, 0, len(OLD)) == OLD
            assert await e.read(handle, 0, len(OLD)) == OLD
            await e.idle()
        assert e.index.statistics().resident == COUNT
        e.check()


async def test_a_chmod_that_hides_a_rewrite_is_seen_at_the_next_open(tmp_path: Path) -> None:
    """Both between two looks: the node stays, but what comes of it from now on are the new bytes."""
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        old = await e.open(b"model")
        await e.fill(old, *range(COUNT))
        source.write(b"model", NEW, keep_mtime=True)
        source.chmod(b"model", 0o600)
        handle = await e.open(b"model")
        assert handle.node is old.node
        assert not handle.keep_pages  # what the kernel has of it may be old
        for _ in range(2):
            assert await e.read(handle, 0, len(NEW)) == NEW
            await e.idle()
        assert (await e.open(b"model")).keep_pages
        e.check()


async def test_a_handle_that_stays_open_over_a_chmod_is_served_from_the_store_again(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, *range(COUNT))
        source.chmod(b"model", 0o600)
        assert (await e.overlay.attributes(handle.node)).mode & 0o777 == 0o600
        await e.idle()
        assert await e.read(handle, 0, len(OLD)) == OLD
        await e.idle()
        before = len(source.reads)
        assert await e.read(handle, 0, len(OLD)) == OLD
        assert len(source.reads) == before
        e.check()


@pytest.mark.parametrize("change", ["write", "write that keeps the mtime", "chmod"])
async def test_nothing_is_stored_of_a_file_that_changes_during_the_pass(tmp_path: Path, change: str) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e, trio.open_nursery() as nursery:
        handle = await e.open(b"model")
        source.hold_reads()
        results: list[object] = []

        async def read() -> None:
            results.extend(await gather(partial(e.read, handle, 0, PAGE)))

        nursery.start_soon(read)
        await e.wait_until(lambda: len(source.reads) == 1)
        if change == "chmod":
            source.chmod(b"model", 0o600)
        else:
            source.write(b"model", NEW, keep_mtime="keeps" in change)
        source.release_reads()
        await e.idle()
        assert e.counters.fills.completed == 0
        assert e.counters.fills.aborted == 1
        assert e.index.statistics().resident == 0
        if change == "chmod":
            assert results == [OLD[:PAGE]]
        else:
            assert [error.errno for error in results if isinstance(error, OSError)] == [errno.ESTALE]
        e.check()


async def test_a_file_that_has_just_changed_is_not_stored(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    now = [source.stat(b"model").mtime_ns + 10**9]
    async with engine(source, tmp_path, parser, settle_s=5.0, wall_ns=lambda: now[0]) as e:
        handle = await e.open(b"model")
        assert await e.read(handle, 0, len(OLD)) == OLD
        await e.idle()
        assert e.index.statistics().resident == 0
        assert e.counters.fills.unsettled == COUNT
        now[0] += 4 * 10**9
        assert await e.read(handle, 0, len(OLD)) == OLD
        await e.idle()
        assert e.index.statistics().resident == COUNT
        e.check()


async def test_what_an_earlier_mount_stored_of_an_old_version_is_not_served(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        await e.fill(await e.open(b"model"), *range(COUNT))
    source.write(b"model", NEW)
    async with engine(source, tmp_path, parser, scan=True) as e:
        handle = await e.open(b"model")
        for _ in range(2):
            assert await e.read(handle, 0, len(NEW)) == NEW
            await e.idle()
        assert e.state(handle, 0) is State.RESIDENT
        assert e.index.statistics().resident == COUNT
        e.check()
