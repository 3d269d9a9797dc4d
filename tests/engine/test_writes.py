"""Files that are written through the mount: what is stored of them is theirs, or is dropped."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from mummufs.core.states import State
from mummufs.engine.mirror import Mirror
from mummufs.engine.nodes import Node
from mummufs.engine.overlay import Handle
from mummufs.source.base import RENAME_EXCHANGE, Creator, NewAttributes
from mummufs.source.memory import MemorySource
from tests.engine.harness import KIB, PAGE, Engine, FakeParser, contents, empty, engine, gather, make_table

WINDOW = 64 * KIB
COUNT = 4
OLD = contents(COUNT * WINDOW, seed=1)
OURS = Creator(0, 0, 0)
SETTLE_S = 5.0


def source_and_parser() -> tuple[MemorySource, FakeParser]:
    table = make_table(len(OLD), [(i * WINDOW, WINDOW) for i in range(COUNT)])
    return MemorySource({b"model": OLD, b"d/other": b"x"}), FakeParser({b"model": table})


def mirror(e: Engine) -> Mirror:
    return e.service.mirror


async def filled(e: Engine) -> Handle:
    handle = await e.open(b"model")
    await e.fill(handle, *range(COUNT))
    assert e.index.statistics().resident == COUNT
    return handle


async def writer(e: Engine, node: Node) -> Handle:
    return await mirror(e).open(node, truncate=False, drop_privileges=False)


def has_view(node: Node) -> bool:
    return node.view is not None


def patched(data: bytes, offset: int, new: bytes) -> bytes:
    return data[:offset] + new + data[offset + len(new) :]


def resident(e: Engine, handle: Handle) -> list[int]:
    keys = {key.offset // WINDOW for key in e.index.resident_keys()}
    assert all(e.index.version(key) == handle.node.version for key in e.index.resident_keys())
    return sorted(keys)


@contextlib.asynccontextmanager
async def held_read(e: Engine, reader: Handle, offset: int, size: int) -> AsyncIterator[list[bytes]]:
    """In the block a read is held in the source; what it gets is in the list after that."""
    e.memory.hold_reads()
    got: list[bytes] = []

    async def read() -> None:
        got.append(await e.read(reader, offset, size))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await e.wait_until(lambda: bool(e.memory.reads))
        yield got
        e.memory.release_reads()


async def assert_right(e: Engine, handle: Handle, data: bytes, *, from_source: int) -> None:
    """Every byte is right, and so many of them are read from the source."""
    before = e.memory.read_bytes()
    for offset in range(0, len(data), WINDOW):
        assert await e.read(handle, offset, WINDOW) == data[offset : offset + WINDOW]
        await e.idle()
    assert e.memory.read_bytes() - before == from_source
    e.check()


async def test_what_a_write_overlaps_is_dropped_and_the_rest_stays(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        node = reader.node
        handle = await writer(e, node)
        assert handle.node is node
        assert not has_view(node)
        new = patched(OLD, WINDOW + 100, b"n" * 200)
        assert await mirror(e).write(handle, WINDOW + 100, b"n" * 200) == 200
        assert sorted({key.offset // WINDOW for key in e.index.resident_keys()}) == [0, 2, 3]
        assert node.version == source.stat(b"model").version and not node.stale
        await assert_right(e, reader, new, from_source=len(OLD))
        assert e.counters.fills.completed == COUNT, "nothing is stored while it may be written"
        mirror(e).close(handle)
        await e.idle()
        assert resident(e, reader) == [0, 2, 3] and e.counters.fills.stamped == 3
        assert has_view(node), "the lane serves it again"
        await assert_right(e, reader, new, from_source=WINDOW)
        await assert_right(e, reader, new, from_source=0)
        again = await e.open(b"model")
        assert again.node is node, "it keeps its number"


async def test_a_file_that_is_opened_to_be_written_is_not_looked_at(tmp_path: Path) -> None:
    """A read of its header would set its atime, which may be what the writer has just put there."""
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await writer(e, await e.overlay.look_up(e.overlay.nodes.root, b"model"))
        await mirror(e).set_attributes(handle.node, NewAttributes(atime_ns=77), handle)
        mirror(e).close(handle)
        await e.idle()
        assert parser.calls == [] and not source.reads
        assert handle.node.attributes.atime_ns == 77
        await filled(e)


async def test_a_write_takes_setuid_and_setgid_away_where_the_kernel_does_not(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        handle = await writer(e, reader.node)
        for drops in (False, True):
            await mirror(e).set_attributes(reader.node, NewAttributes(mode=0o6755), handle)
            await mirror(e).write(handle, 0, b"new", drop_privileges=drops)
            assert (
                source.stat(b"model").mode & 0o7777
                == (0o755 if drops else 0o6755)
                == reader.node.attributes.mode & 0o7777
            )
        mirror(e).close(handle)
        await e.idle()
        assert resident(e, reader) == [1, 2, 3], "both changes are ours"


async def test_the_next_mount_believes_what_was_stamped(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        handle = await writer(e, reader.node)
        await mirror(e).write(handle, 3 * WINDOW, b"new")
        mirror(e).close(handle)
        await e.idle()
    async with engine(source, tmp_path, parser, scan=True) as e:
        await assert_right(e, await e.open(b"model"), patched(OLD, 3 * WINDOW, b"new"), from_source=WINDOW)


async def test_a_crash_before_that_believes_nothing(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        handle = await writer(e, reader.node)
        await mirror(e).write(handle, 0, b"new")
    async with engine(source, tmp_path, parser, scan=True) as e:
        await assert_right(e, await e.open(b"model"), patched(OLD, 0, b"new"), from_source=len(OLD))
        await assert_right(e, await e.open(b"model"), patched(OLD, 0, b"new"), from_source=0)


async def test_it_is_believed_when_it_has_settled(tmp_path: Path, mock_clock: MockClock) -> None:
    source, parser = source_and_parser()
    wall = [source.stat(b"model").ctime_ns + 10 * 10**9]

    async with engine(source, tmp_path, parser, settle_s=SETTLE_S, wall_ns=lambda: wall[0]) as e:
        reader = await filled(e)
        handle = await writer(e, reader.node)
        await mirror(e).write(handle, 0, b"new")
        wall[0] = reader.node.version.ctime_ns + 10**9
        mirror(e).close(handle)
        await trio.testing.wait_all_tasks_blocked()
        assert e.service.writes.settling == 1 and e.counters.fills.stamped == 0
        assert await e.read(reader, WINDOW, 10) == OLD[WINDOW : WINDOW + 10]
        assert e.counters.reads.hit_bytes == 0
        wall[0] += int(SETTLE_S * 1e9)
        mock_clock.jump(SETTLE_S)
        await e.idle()
        assert e.service.writes.settling == 0 and resident(e, reader) == [1, 2, 3]


@pytest.mark.parametrize("when", ["before the first write", "between two writes", "after the last write"])
async def test_a_change_behind_us_costs_every_range(tmp_path: Path, when: str) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        handle = await writer(e, reader.node)
        data = patched(OLD, 2 * WINDOW, b"foreign")
        if when == "before the first write":
            source.write(b"model", data)
        await mirror(e).write(handle, 0, b"one")
        if when == "between two writes":
            source.write(b"model", patched(data, 0, b"one"))
        await mirror(e).write(handle, 10, b"two")
        data = patched(patched(data, 0, b"one"), 10, b"two")
        if when == "after the last write":
            source.write(b"model", data)
        mirror(e).close(handle)
        await e.idle()
        assert e.index.statistics().resident == 0
        again = await e.open(b"model")
        await assert_right(e, again, data, from_source=len(OLD))
        await assert_right(e, again, data, from_source=0)


async def test_a_flight_that_is_under_way_brings_nothing_into_the_store(tmp_path: Path) -> None:
    """Whoever waits for it gets his bytes; whoever comes after the write gets the new ones."""
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await e.open(b"model")
        async with held_read(e, reader, 100, 100) as got:
            handle = await writer(e, reader.node)
            await mirror(e).write(handle, 0, b"n" * 1000)
        await e.idle()
        assert got[0] in (OLD[100:200], b"n" * 100)
        assert e.index.statistics().resident == 0 and e.counters.fills.completed == 0
        mirror(e).close(handle)
        await e.idle()
        await assert_right(e, reader, patched(OLD, 0, b"n" * 1000), from_source=len(OLD))


async def test_a_read_that_meets_a_write_is_done_again(tmp_path: Path) -> None:
    """It began under the old version, and nothing of it was in the store."""
    source = MemorySource({b"model": OLD})
    async with engine(source, tmp_path, FakeParser()) as e:
        reader = await e.open(b"model")
        async with held_read(e, reader, 0, 100) as got:
            handle = await writer(e, reader.node)
            await mirror(e).write(handle, 0, b"new")
            mirror(e).close(handle)
        assert got == [b"new" + OLD[3:100]] and not reader.node.stale
        assert e.counters.errors.stale == 0


async def test_writes_of_one_file_are_made_one_after_the_other(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        handles = [await writer(e, reader.node) for _ in range(3)]
        data = OLD
        for i in range(9):
            data = patched(data, i * 1000, b"%d" % i * 500)
        calls = [partial(mirror(e).write, handles[i % 3], i * 1000, b"%d" % i * 500) for i in range(9)]
        assert await gather(*calls) == [500] * 9
        for handle in handles:
            mirror(e).close(handle)
        await e.idle()
        assert resident(e, reader) == [1, 2, 3], "none of them takes another for somebody else's"
        await assert_right(e, reader, data, from_source=WINDOW)


async def test_a_write_that_fails_leaves_the_rest(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        handle = await writer(e, reader.node)
        source.fail_writes = errno.ENOSPC
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            await mirror(e).write(handle, 0, b"new")
        mirror(e).close(handle)
        await e.idle()
        assert resident(e, reader) == [1, 2, 3]
        await assert_right(e, reader, OLD, from_source=WINDOW)


async def test_a_write_that_is_given_up_costs_every_range(tmp_path: Path) -> None:
    """Nobody knows whether it comes to anything, and when."""
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        handle = await writer(e, reader.node)
        source.hold_writes()
        with trio.move_on_after(0.01):
            await mirror(e).write(handle, 0, b"new")
        mirror(e).close(handle)
        await e.wait_until(lambda: e.service.writes.settling == 0)
        source.release_writes()
        await empty(e.pools.source_writes)
        assert e.index.statistics().resident == 0
        await assert_right(e, await e.open(b"model"), patched(OLD, 0, b"new"), from_source=len(OLD))


@pytest.mark.parametrize(
    ("size", "left"),
    [(0, []), (WINDOW, [0]), (WINDOW + 5, [0]), (4 * WINDOW - 1, [0, 1, 2]), (5 * WINDOW, [0, 1, 2, 3])],
)
async def test_a_cut_or_a_growth_drops_what_is_beyond(tmp_path: Path, size: int, left: list[int]) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        await mirror(e).set_attributes(reader.node, NewAttributes(size=size))
        parser.tables.clear()
        await e.idle()
        assert reader.node.attributes.size == size and not reader.node.stale
        assert resident(e, reader) == left
        data = OLD[:size].ljust(size, b"\0")
        assert await e.read(reader, 0, 6 * WINDOW) == data


def changes() -> dict[str, Callable[[Engine, Node], object]]:
    return {
        "chmod": lambda e, node: mirror(e).set_attributes(node, NewAttributes(mode=0o600)),
        "chown": lambda e, node: mirror(e).set_attributes(node, NewAttributes(uid=1, gid=2)),
        "utimens": lambda e, node: mirror(e).set_attributes(node, NewAttributes(atime_ns=5, mtime_ns=7)),
        "setxattr": lambda e, node: mirror(e).setxattr(node, b"user.note", b"x"),
        "drop privileges": lambda e, node: mirror(e).drop_privileges(node),
        "rename": lambda e, _: mirror(e).rename(e.overlay.nodes.root, b"model", e.overlay.nodes.root, b"m", 0),
        "link": lambda e, node: mirror(e).link(node, e.overlay.nodes.root, b"m"),
        "a write of nothing": _write_nothing,
        "opened and closed": _write_nothing,
    }


async def _write_nothing(e: Engine, node: Node) -> None:
    handle = await writer(e, node)
    await mirror(e).write(handle, WINDOW, b"")
    mirror(e).close(handle)


@pytest.mark.parametrize("change", changes())
@pytest.mark.parametrize("is_open", [False, True])
async def test_what_changes_no_contents_costs_no_range_and_no_read(tmp_path: Path, change: str, is_open: bool) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        parser.tables[b"m"] = parser.tables[b"model"]
        if not is_open:
            e.overlay.close(reader)
        await changes()[change](e, reader.node)  # type: ignore[misc]
        await e.idle()
        assert resident(e, reader) == [0, 1, 2, 3]
        again = await e.open(b"m" if change == "rename" else b"model")
        assert again.node is reader.node and not reader.node.stale
        await assert_right(e, again, OLD, from_source=0)


async def test_a_call_on_a_version_that_we_do_not_know_is_not_made(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        source.write(b"model", OLD[::-1])
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            await mirror(e).set_attributes(reader.node, NewAttributes(mode=0o600))
        assert reader.node.stale and source.stat(b"model").mode & 0o777 == 0o644
        await e.idle()
        again = await e.open(b"model")
        assert again.node is not reader.node
        await mirror(e).set_attributes(again.node, NewAttributes(mode=0o600))
        assert source.stat(b"model").mode & 0o777 == 0o600
        await e.idle()
        await assert_right(e, again, OLD[::-1], from_source=len(OLD))


async def test_an_unlinked_file_goes_on_and_its_ranges_go(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        handle = await writer(e, reader.node)
        await mirror(e).unlink(e.overlay.nodes.root, b"model")
        await mirror(e).write(handle, 5, b"new")
        assert (await e.overlay.attributes(reader.node)).nlink == 0
        mirror(e).close(handle)
        await e.idle()
        assert e.index.statistics().resident == 0
        assert await e.read(reader, 0, 20) == patched(OLD, 5, b"new")[:20]
        await mirror(e).set_attributes(reader.node, NewAttributes(size=10))
        assert await e.read(reader, 0, 20) == patched(OLD, 5, b"new")[:10]
        e.overlay.close(reader)
        with pytest.raises(FileNotFoundError):
            await e.open(b"model")


async def test_names(tmp_path: Path) -> None:
    """A file is found under whichever of its names is left, a moved directory's files below it."""
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        root, m = e.overlay.nodes.root, mirror(e)
        d = await e.overlay.look_up(root, b"d")
        other = await e.overlay.look_up(d, b"other")
        for name in (b"one", b"two"):
            assert await m.link(other, root, name) is other
        assert other.attributes.nlink == 3
        await m.unlink(root, b"two")
        assert (await e.overlay.attributes(other)).nlink == 2 and other.path == b"one"
        await m.unlink(root, b"one")
        assert (await e.overlay.attributes(other)).nlink == 1 and other.path == b"d/other"
        made = await m.mkdir(root, b"e", 0o755, OURS)
        await m.rename(root, b"d", made, b"f", 0)
        assert other.path == b"e/f/other" and (await e.overlay.attributes(other)).nlink == 1
        link = await m.symlink(root, b"l", b"where", OURS)
        assert await e.overlay.readlink(link) == b"where"
        model = await e.overlay.look_up(root, b"model")
        await m.rename(root, b"model", d, b"other", RENAME_EXCHANGE)
        assert (model.path, other.path) == (b"e/f/other", b"model")
        await m.rename(root, b"model", d, b"other", 0)
        assert other.path == b"e/f/other"
        assert (await e.overlay.look_up(d, b"other")) is other
        assert (await e.overlay.attributes(model)).nlink == 0, "whoever holds on to it may still look"
        with pytest.raises(OSError, match=os.strerror(errno.ENOTEMPTY)):
            await m.rmdir(made, b"f")
        await m.unlink(d, b"other")
        await m.rmdir(made, b"f")
        await m.rmdir(root, b"e")
        assert {entry.name for entry in await e.overlay.entries(root)} == {b"l"}


async def test_a_file_is_created_written_and_read(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        node, handle = await mirror(e).create(e.overlay.nodes.root, b"new", 0o644, OURS, to_write=True)
        for i in range(COUNT):
            await mirror(e).write(handle, i * WINDOW, OLD[i * WINDOW : (i + 1) * WINDOW])
            assert await e.read(handle, 0, len(OLD)) == OLD[: (i + 1) * WINDOW]
        await mirror(e).sync(handle, data_only=False)
        await mirror(e).flush(handle)
        mirror(e).close(handle)
        await e.idle()
        parser.tables[b"new"] = parser.tables[b"model"]
        reader = await e.open(b"new")
        assert reader.node is node
        await assert_right(e, reader, OLD, from_source=len(OLD))
        await assert_right(e, reader, OLD, from_source=0)
        with pytest.raises(FileExistsError):
            await mirror(e).create(e.overlay.nodes.root, b"new", 0o644, OURS, to_write=True)


async def test_pushes_are_waited_for_before_the_first_write(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        sent, seen = trio.Event(), []

        async def quiet(node: Node) -> None:
            seen.append(node.view)
            await sent.wait()

        e.service.writes.quiet = quiet
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer, e, reader.node)
            await e.idle()
            assert seen == [None] and reader.node.is_written
            sent.set()


async def test_who_writes_again_at_once_finds_everything_in_order(tmp_path: Path) -> None:
    """While the ranges are being stamped, for instance."""
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        data, rng = OLD, random.Random(5)
        for i in range(30):
            handle = await writer(e, reader.node)
            if i % 3:
                offset = rng.randrange(len(OLD) - 10)
                await mirror(e).write(handle, offset, b"%03d" % i)
                data = patched(data, offset, b"%03d" % i)
            mirror(e).close(handle)
            for _ in range(rng.randrange(4)):
                await trio.lowlevel.checkpoint()
            if i % 5 == 0:
                await e.idle()
                await e.fill(reader, *range(COUNT))
                e.check()
            offset = rng.randrange(len(OLD) - PAGE)
            assert await e.read(reader, offset, PAGE) == data[offset : offset + PAGE]
        await e.idle()
        await assert_right(e, reader, data, from_source=WINDOW * (COUNT - len(resident(e, reader))))


async def test_ranges_that_cannot_be_stamped_are_dropped(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        e.range_file(reader, 1).unlink()
        with e.range_file(reader, 2).open("r+b") as file:
            file.write(b"junk")
        await mirror(e).set_attributes(reader.node, NewAttributes(mtime_ns=1))
        await e.idle()
        assert resident(e, reader) == [0, 3] and e.state(reader, 1) is State.ABSENT
        await assert_right(e, reader, OLD, from_source=2 * WINDOW)


async def test_a_source_that_is_away_costs_no_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        e.overlay.close(reader)

        def away(*_: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(source, "stat", away)
            patch.setattr(source, "object", away)
            for call in (
                partial(mirror(e).set_attributes, reader.node, NewAttributes(mode=0o600)),
                partial(mirror(e).unlink, e.overlay.nodes.root, b"model"),
            ):
                with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                    await call()
                await e.idle()
        again = await e.open(b"model")
        assert again.node is reader.node
        await assert_right(e, again, OLD, from_source=0)


async def test_ranges_that_a_chmod_behind_us_has_suspended_are_proved_after_all(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        source.chmod(b"model", 0o600)
        await e.overlay.attributes(reader.node)
        await mirror(e).set_attributes(reader.node, NewAttributes(mode=0o640))
        await e.idle()
        await assert_right(e, reader, OLD, from_source=len(OLD))
        assert e.counters.fills.restamped == COUNT and e.counters.evictions.ranges == 0


@pytest.mark.parametrize("change", ["rename", "link", "unlink"])
async def test_a_name_is_changed_of_a_version_that_we_do_not_know(tmp_path: Path, change: str) -> None:
    """The name is; and who has the old version open hears that it is gone."""
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await filled(e)
        source.write(b"model", OLD[::-1])
        root = e.overlay.nodes.root
        calls: dict[str, Callable[[], object]] = {
            "rename": lambda: mirror(e).rename(root, b"model", root, b"new", 0),
            "link": lambda: mirror(e).link(reader.node, root, b"new"),
            "unlink": lambda: mirror(e).unlink(root, b"model"),
        }
        await calls[change]()  # type: ignore[misc]
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            await e.read(reader, 0, 100)
        await e.idle()
        assert e.index.statistics().resident == 0
        if change != "unlink":
            assert await e.read(await e.open(b"new"), 0, 100) == OLD[::-1][:100]


async def test_a_look_from_between_two_changes_of_one_tick(tmp_path: Path) -> None:
    """It finds another size and the same times, and is taken again before anybody is told of another version."""
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await e.open(b"model")
        handle = await writer(e, reader.node)
        await mirror(e).write(handle, len(OLD), b"more")
        late = source.stat(b"model")
        source._clock_ns -= 10**9  # the clock has not moved on
        await mirror(e).write(handle, len(OLD) + 4, b"still more")
        mirror(e).close(handle)
        assert source.stat(b"model").version._replace(size=late.size) == late.version
        await e.overlay.found(e.overlay.nodes.root, b"model", late)
        assert not reader.node.stale and reader.node.attributes.size == len(OLD) + 14


async def test_a_look_of_the_same_tick_that_is_late_cuts_nothing_off(tmp_path: Path) -> None:
    """It is taken in while the file is written, and tells of a size that it had before the last write."""
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await e.open(b"model")
        handle = await writer(e, reader.node)
        await mirror(e).write(handle, len(OLD), b"more")
        late = source.stat(b"model")
        source._clock_ns -= 10**9  # the clock has not moved on
        await mirror(e).write(handle, len(OLD) + 4, b"still more")
        await e.overlay.found(e.overlay.nodes.root, b"model", late)
        mirror(e).close(handle)
        await e.idle()
        assert await e.read(reader, len(OLD), 100) == b"morestill more"


async def test_what_is_open_without_a_name_is_not_looked_for_by_it(tmp_path: Path) -> None:
    """Somebody else has the name by now: attributes of both kinds, and another writer, are those of the open file."""
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        m, root = mirror(e), e.overlay.nodes.root
        reader = await e.open(b"model")
        await m.setxattr(reader.node, b"user.x", b"old")
        await m.unlink(root, b"model")
        node, new = await m.create(root, b"model", 0o644, OURS, to_write=True)
        await m.setxattr(node, b"user.x", b"new")
        assert await e.overlay.getxattr(reader.node, b"user.x") == b"old"
        await m.removexattr(reader.node, b"user.x")
        assert await e.overlay.listxattr(reader.node) == []
        assert await e.overlay.listxattr(node) == [b"user.x"]
        handle = await writer(e, reader.node)
        await m.write(handle, 0, b"mine")
        assert await e.read(reader, 0, 4) == b"mine" and source.stat(b"model").size == 0
        assert (await e.overlay.attributes(reader.node)).nlink == 0
        for opened in (new, handle, reader):
            m.close(opened)
        assert (await e.overlay.attributes(reader.node)).nlink == 0, "nor when nobody has it open any more"


async def test_a_directory_that_was_removed_is_empty_whoever_has_its_name(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        m, root = mirror(e), e.overlay.nodes.root
        old = await m.mkdir(root, b"folder", 0o755, OURS)
        await m.rmdir(root, b"folder")
        new = await m.mkdir(root, b"folder", 0o755, OURS)
        await m.mkdir(new, b"inside", 0o755, OURS)
        assert await e.overlay.entries(old) == [] and (await e.overlay.attributes(old)).nlink == 0
        await m.sync_directory(old, data_only=False)
        with pytest.raises(FileNotFoundError):
            await e.overlay.look_up(old, b"inside")
        await m.rmdir(new, b"inside")
        await m.rmdir(root, b"folder")
        attributes = replace(new.attributes, nlink=2)
        assert await e.overlay.found(root, b"another", attributes) is not new, "its number may be used again"


async def test_a_reader_beside_changes_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read of the source is slower than the next change: he gets his bytes all the same."""
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        reader = await e.open(b"model")
        before_read, times = source._before_read, iter(range(1, 100))

        def slow(path: bytes, offset: int, size: int) -> None:
            before_read(path, offset, size)
            new = NewAttributes(mtime_ns=next(times))
            trio.from_thread.run(partial(mirror(e).set_attributes, reader.node, new))

        with monkeypatch.context() as patch:
            patch.setattr(source, "_before_read", slow)
            for i in range(COUNT):
                assert await e.read(reader, i * WINDOW, 100) == OLD[i * WINDOW :][:100]
        assert not reader.node.stale and e.counters.errors.stale == 0
        await e.idle()
        e.check()


@pytest.mark.parametrize("seed", range(8))
async def test_names_in_any_order(tmp_path: Path, seed: int) -> None:
    """Whatever is linked, moved and removed: every file that has a name left is found by its node."""
    rng, source = random.Random(seed), MemorySource({b"d/a": b"x", b"e/b": b"y"})
    async with engine(source, tmp_path, FakeParser()) as e:
        root, m = e.overlay.nodes.root, mirror(e)
        folders = [root, *[await e.overlay.look_up(root, name) for name in (b"d", b"e")]]
        names = (b"a", b"b", b"c")
        known: dict[int, Node] = {}

        def pick() -> tuple[Node, bytes]:
            return rng.choice(folders), rng.choice(names)

        async def change() -> None:
            (parent, name), (to, new_name) = pick(), pick()
            match rng.randrange(6):
                case 0:
                    _, handle = await m.create(parent, name, 0o644, OURS, to_write=rng.random() < 0.5)
                    m.close(handle)
                case 1:
                    await m.link(await e.overlay.look_up(parent, name), to, new_name)
                case 2:
                    await m.unlink(parent, name)
                case 3:
                    await m.rename(parent, name, to, new_name, rng.choice((0, 0, RENAME_EXCHANGE)))
                case 4:
                    await m.set_attributes(
                        await e.overlay.look_up(parent, name), NewAttributes(mtime_ns=rng.randrange(9))
                    )
                case _:
                    await e.overlay.look_up(parent, name)

        for _ in range(120):
            try:
                await change()
            except OSError as error:
                assert error.errno in (errno.ENOENT, errno.EEXIST), error
            for folder in folders:
                for entry in source.entries(folder.path):
                    if entry.attributes.is_file:
                        node = known.setdefault(
                            entry.attributes.file.inode, await e.overlay.look_up(folder, entry.name)
                        )
                        assert node is e.overlay.nodes.current(entry.attributes.file) and not node.stale
                        assert await e.overlay.attributes(node) == entry.attributes
                        assert source.stat(node.path).file == node.file
        assert e.counters.errors.stale == 0 and len(known) > 2
