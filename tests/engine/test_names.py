"""A file of which the ctime alone has changed: whether its name accounts for that."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from mummufs.engine.nodes import Node
from mummufs.engine.overlay import READS_MAX, Handle
from mummufs.source.base import Attributes
from mummufs.source.memory import MemorySource
from tests.engine.harness import PAGE, Engine, FakeParser, engine
from tests.engine.test_versions import COUNT, NEW, OLD, TABLE, WINDOW, assert_estale, assert_new_node


class LookedAt(MemorySource):
    """A source that calls back before it answers a look at a path, once."""

    def __init__(self) -> None:
        super().__init__({b"model": OLD})
        self.before_stat: Callable[[], None] | None = None
        self.fails_with: int | None = None

    def stat(self, path: bytes) -> Attributes:
        call, self.before_stat = self.before_stat, None
        if call is not None:
            call()
        if self.fails_with is not None:
            raise OSError(self.fails_with, "for the test")
        return super().stat(path)


def parser() -> FakeParser:
    return FakeParser(dict.fromkeys((b"model", b"renamed", b"again", b"linked"), TABLE))


async def filled(e: Engine) -> Handle:
    handle = await e.open(b"model")
    await e.fill(handle, 0, 1)
    return handle


async def look_up(e: Engine, name: bytes) -> Node:
    return await e.overlay.look_up(e.overlay.nodes.root, name)


async def listed(e: Engine, name: bytes) -> Node:
    root = e.overlay.nodes.root
    found = {entry.name: entry for entry in await e.overlay.entries(root)}
    return await e.overlay.found(root, *found[name])


async def attributes(e: Engine, handle: Handle) -> None:
    await e.overlay.attributes(handle.node)


async def read(e: Engine, handle: Handle) -> None:
    assert await e.read(handle, 3 * WINDOW, PAGE) == OLD[3 * WINDOW : 3 * WINDOW + PAGE]


async def assert_kept(e: Engine, handle: Handle, name: bytes) -> None:
    """The node is the same by its name and by its handle, and so are the bytes."""
    await e.idle()
    assert await look_up(e, name) is handle.node
    assert not handle.node.lost and handle.node.path == name
    assert handle.node.version == e.memory.stat(name).version
    for _ in range(3):
        assert await e.read(handle, 0, len(OLD)) == OLD
        await e.idle()
    assert e.index.statistics().resident == COUNT
    assert e.counters.errors.stale == 0
    e.check()


@pytest.mark.parametrize("look", [look_up, listed])
async def test_a_rename_that_is_found(tmp_path: Path, look: Callable[[Engine, bytes], Awaitable[Node]]) -> None:
    source = LookedAt()
    async with engine(source, tmp_path, parser()) as e:
        handle = await filled(e)
        source.rename(b"model", b"renamed")
        assert await look(e, b"renamed") is handle.node
        assert handle.node.version == source.stat(b"renamed").version
        await assert_kept(e, handle, b"renamed")


@pytest.mark.parametrize("look", [attributes, read])
async def test_a_rename_that_an_open_file_shows(
    tmp_path: Path, look: Callable[[Engine, Handle], Awaitable[None]]
) -> None:
    source = LookedAt()
    async with engine(source, tmp_path, parser()) as e:
        handle = await filled(e)
        source.rename(b"model", b"renamed")
        source.write(b"model", NEW)  # what has its name now is another file
        await look(e, handle)
        assert handle.node.lost and handle.node.version == source.stat(b"renamed").version
        await assert_kept(e, handle, b"renamed")
        source.rename(b"renamed", b"again")  # the next one is accounted for too
        await look(e, handle)
        await assert_kept(e, handle, b"again")


@pytest.mark.parametrize("look", [look_up, listed])
async def test_one_of_two_names_is_changed(tmp_path: Path, look: Callable[[Engine, bytes], Awaitable[Node]]) -> None:
    source = LookedAt()
    async with engine(source, tmp_path, parser()) as e:
        handle = await filled(e)
        source.link(b"model", b"linked")
        assert await look(e, b"linked") is handle.node
        source.rename(b"linked", b"renamed")
        assert await look(e, b"renamed") is handle.node
        await assert_kept(e, handle, b"renamed")


async def test_another_name_accounts_for_nothing(tmp_path: Path) -> None:
    """A file with two names is rewritten with its mtime set back, and found by the one that was not known."""
    source = LookedAt()
    async with engine(source, tmp_path, parser()) as e:
        handle = await filled(e)
        source.link(b"model", b"linked")
        await attributes(e, handle)
        source.write(b"model", NEW, keep_mtime=True)
        assert await look_up(e, b"linked") is not handle.node
        await assert_new_node(e, handle)


@pytest.mark.parametrize("by_name", [False, True])
async def test_one_rename_accounts_for_one_change(tmp_path: Path, by_name: bool) -> None:
    source = LookedAt()
    async with engine(source, tmp_path, parser()) as e:
        handle = await filled(e)
        source.rename(b"model", b"renamed")
        await attributes(e, handle)
        assert handle.node.lost
        source.write(b"renamed", NEW, keep_mtime=True)
        if by_name:
            assert await look_up(e, b"renamed") is not handle.node
        await assert_estale(e, handle, 3 * WINDOW)
        await assert_estale(e, handle, 0)


async def test_a_deleted_file_has_no_name_that_accounts_for_it(tmp_path: Path) -> None:
    source = LookedAt()
    async with engine(source, tmp_path, parser()) as e:
        handle = await filled(e)
        source.link(b"model", b"linked")
        writer = source._nodes[b"linked"]
        source.remove(b"model")
        source.remove(b"linked")
        await read(e, handle)  # the count of links accounts for that
        writer.contents = NEW
        source._touched(writer)
        await assert_estale(e, handle, 3 * WINDOW)


async def test_an_extended_attribute_costs_the_handles(tmp_path: Path) -> None:
    source = LookedAt()
    async with engine(source, tmp_path, parser()) as e:
        old = await filled(e)
        source.set_xattr(b"model", b"user.x", b"1")
        await attributes(e, old)
        await assert_estale(e, old)
        handle = await e.open(b"model")
        assert handle.node is not old.node
        assert e.index.statistics().resident == 0
        assert await e.read(handle, 0, len(OLD)) == OLD


async def test_attributes_that_come_late_are_not_judged(tmp_path: Path) -> None:
    """A listing that was taken before a rename is gone through after it."""
    source = LookedAt()
    async with engine(source, tmp_path, parser()) as e:
        handle = await filled(e)
        (entry,) = await e.overlay.entries(e.overlay.nodes.root)
        source.rename(b"model", b"renamed")
        source.rename(b"renamed", b"model")
        source.chmod(b"model", 0o600)  # accounts for all of it
        await attributes(e, handle)
        source.chmod(b"model", 0o644)
        await attributes(e, handle)
        assert await e.overlay.found(e.overlay.nodes.root, *entry) is handle.node
        await assert_kept(e, handle, b"model")


async def test_a_change_that_somebody_else_takes_in_meanwhile(tmp_path: Path) -> None:
    """While one look at a rename is under way another one sees it, and after it a chmod."""
    source = LookedAt()
    async with engine(source, tmp_path, parser()) as e:
        handle = await filled(e)

        def meanwhile() -> None:
            trio.from_thread.run(attributes, e, handle)
            source.chmod(b"renamed", 0o600)
            trio.from_thread.run(attributes, e, handle)

        source.rename(b"model", b"renamed")
        (entry,) = await e.overlay.entries(e.overlay.nodes.root)
        source.before_stat = meanwhile
        assert await e.overlay.found(e.overlay.nodes.root, *entry) is handle.node
        await assert_kept(e, handle, b"renamed")


async def test_a_listed_name_that_is_gone_at_the_second_look(tmp_path: Path) -> None:
    source = LookedAt()
    async with engine(source, tmp_path, parser()) as e:
        handle = await filled(e)
        source.rename(b"model", b"renamed")
        (entry,) = await e.overlay.entries(e.overlay.nodes.root)
        source.remove(b"renamed")
        with pytest.raises(FileNotFoundError):
            await e.overlay.found(e.overlay.nodes.root, *entry)
        assert not handle.node.stale, "whoever has it open goes on"
        assert e.overlay.nodes.child(e.overlay.nodes.root, b"model") is handle.node


async def test_a_source_that_does_not_say_costs_that_call_alone(tmp_path: Path) -> None:
    source = LookedAt()
    async with engine(source, tmp_path, parser()) as e:
        handle = await filled(e)
        source.rename(b"model", b"renamed")
        source.fails_with = errno.EIO
        with pytest.raises(OSError) as raised:
            await e.read(handle, 3 * WINDOW, PAGE)
        assert raised.value.errno == errno.EIO
        await attributes(e, handle)
        assert not handle.node.stale and e.index.statistics().resident == 2
        source.fails_with = None
        await assert_kept(e, handle, b"renamed")


async def test_a_read_under_which_the_ctime_never_rests(tmp_path: Path) -> None:
    source = LookedAt()
    async with engine(source, tmp_path, FakeParser()) as e:
        handle = await e.open(b"model")
        before_read = source._before_read

        def changing(path: bytes, offset: int, size: int) -> None:
            before_read(path, offset, size)
            source.chmod(b"model", 0o600 | len(source.reads) % 2)

        source._before_read = changing  # type: ignore[method-assign]
        await assert_estale(e, handle)
        assert len(source.reads) == READS_MAX
        source._before_read = before_read  # type: ignore[method-assign]
        assert await e.read(handle, 0, len(OLD)) == OLD


async def test_a_rename_of_a_directory_is_not_noticed_below_it(tmp_path: Path) -> None:
    """A look-up, an open and a listing that come between the source's rename and ours of the nodes."""
    source = MemorySource({b"d/e/f": b"x"})
    async with engine(source, tmp_path, parser()) as e:
        root, m = e.overlay.nodes.root, e.service.mirror
        d = await e.overlay.look_up(root, b"d")
        folder = await e.overlay.look_up(d, b"e")
        node = await e.overlay.look_up(folder, b"f")
        found: list[object] = []

        async def below() -> None:
            found.append(await e.overlay.look_up(folder, b"f") is node)
            found.append((await e.overlay.open(node)).node is node)
            found.append([name for name, _ in await e.overlay.entries(folder)])

        names, between, finish = m._names, trio.Event(), trio.Event()

        async def stopped(*args: Any) -> None:
            await names(*args)
            between.set()
            await finish.wait()

        m._names = stopped  # type: ignore[method-assign, assignment]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(m.rename, root, b"d", root, b"z", 0)
            await between.wait()
            nursery.start_soon(below)
            (ended,) = e.overlay.moves._moving.values()
            while not ended.statistics().tasks_waiting:
                await trio.lowlevel.checkpoint()
            assert not found, "the source has the new name, the nodes have the old one"
            finish.set()
        assert found == [True, True, [b"f"]] and folder.path == b"z/e"
