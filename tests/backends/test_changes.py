"""The handlers of changes over an engine in memory: what pyfuse3 is told."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import cast

import pyfuse3
import pytest

from mummufs.backends.fuse import operations as backend
from mummufs.backends.fuse.changes import MirrorOperations
from mummufs.engine.nodes import Node
from mummufs.source.memory import MemorySource
from tests.engine.harness import Engine, FakeParser, engine

ROOT = pyfuse3.ROOT_INODE
WRITE, CREATE = os.O_WRONLY, os.O_CREAT


def operations(e: Engine) -> MirrorOperations:
    return MirrorOperations(e.overlay, e.service.mirror, e.counters, 1.0)


@pytest.mark.parametrize(
    ("flags", "code"), [(WRITE | CREATE, errno.ESTALE), (WRITE | CREATE | os.O_EXCL, errno.EEXIST)]
)
async def test_a_name_that_was_taken_behind_the_kernel_s_back(tmp_path: Path, flags: int, code: int) -> None:
    """Nobody has asked yet whether the caller may open what is there: the kernel has to look again."""
    async with engine(MemorySource({b"f": b"x"}), tmp_path, FakeParser()) as e:
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await operations(e).create(ROOT, b"f", 0o644, flags, pyfuse3.RequestContext())
        assert caught.value.errno == code
        assert e.memory.stat(b"f").size == 1 and e.service.writes.written == 0


async def test_only_handles_that_may_write_do(tmp_path: Path) -> None:
    async with engine(MemorySource(), tmp_path, FakeParser()) as e:
        ops, ctx = operations(e), pyfuse3.RequestContext()
        info, entry = await ops.create(ROOT, b"f", 0o644, os.O_RDONLY | CREATE, ctx)
        assert e.service.writes.written == 0
        for fh in (info.fh, (await ops.open(entry.st_ino, os.O_RDONLY, ctx)).fh):
            with pytest.raises(pyfuse3.FUSEError) as caught:
                await ops.write(fh, 0, b"no")
            assert caught.value.errno == errno.EBADF
        writer = await ops.open(entry.st_ino, os.O_WRONLY | os.O_APPEND, ctx)
        assert await ops.write(writer.fh, 3, b"yes") == 3 and e.service.writes.written == 1
        assert e.memory.stat(b"f").size == 6, "the offset is the kernel's"
        await ops.open(entry.st_ino, os.O_RDONLY | os.O_TRUNC, ctx)
        assert e.memory.stat(b"f").size == 0
        for fh in list(ops.handles):
            await ops.release(fh)
        assert e.service.writes.written == 0 and ops.open_handles == 0


async def test_a_setattr_that_sets_nothing_takes_privileges_away(tmp_path: Path) -> None:
    """So the kernel leaves it to us before a normal user's write."""
    async with engine(MemorySource({b"f": b"x"}), tmp_path, FakeParser()) as e:
        e.memory.chmod(b"f", 0o6755)
        ops, ctx = operations(e), pyfuse3.RequestContext()
        entry = await ops.lookup(ROOT, b"f", ctx)
        found = await ops.setattr(entry.st_ino, entry, pyfuse3.SetattrFields(), None, ctx)
        assert found.st_mode & 0o7777 == 0o755 == e.memory.stat(b"f").mode & 0o7777


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, int]]:
    """Names and inode numbers that a listing has told."""
    told: list[tuple[bytes, int]] = []

    def reply(_: object, name: bytes, entry: pyfuse3.EntryAttributes, _next: int) -> bool:
        if name not in (b".", b".."):
            told.append((name, entry.st_ino))
        return True

    monkeypatch.setattr(pyfuse3, "readdir_reply", reply)
    return told


TOKEN = cast(pyfuse3.ReaddirToken, None)


@pytest.mark.parametrize("touched_max", [100, 1])
async def test_a_name_that_was_removed_while_a_listing_is_read_is_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[tuple[bytes, int]], touched_max: int
) -> None:
    """The kernel would believe that it is there; and whoever has the number by now is not that file."""
    monkeypatch.setattr(backend, "TOUCHED_MAX", touched_max)
    async with engine(MemorySource({b"a": b"1", b"b": b"2", b"c": b"3"}), tmp_path, FakeParser()) as e:
        ops, ctx = operations(e), pyfuse3.RequestContext()
        fh = await ops.opendir(ROOT, ctx)
        await ops.readdir(fh, 0, TOKEN)
        entry = await ops.lookup(ROOT, b"a", ctx)
        reader = await ops.open(entry.st_ino, os.O_RDONLY, ctx)
        await ops.unlink(ROOT, b"a", ctx)
        await ops.unlink(ROOT, b"b", ctx)
        told.clear()
        await ops.readdir(fh, 2, TOKEN)
        assert [name for name, _ in told] == [b"c"]
        assert await ops.read(reader.fh, 0, 9) == b"1"
        await ops.release(reader.fh)
        await ops.releasedir(fh)
        assert ops.open_handles == 0 and not ops._opened_of


async def test_a_listing_tells_of_what_has_a_name_by_now_and_looks_for_no_other(
    tmp_path: Path, told: list[tuple[bytes, int]]
) -> None:
    """A name that was replaced is looked up; removing one does not make all others be looked up."""
    looked_up: list[bytes] = []
    names = [b"f%02d" % i for i in range(20)]
    async with engine(MemorySource(dict.fromkeys(names, b"x")), tmp_path, FakeParser()) as e:
        ops, ctx = operations(e), pyfuse3.RequestContext()
        fh = await ops.opendir(ROOT, ctx)
        await ops.readdir(fh, 0, TOKEN)
        moved = (await ops.lookup(ROOT, b"f00", ctx)).st_ino
        await ops.rename(ROOT, b"f00", ROOT, b"f10", 0, ctx)
        await ops.mkdir(ROOT, b"d", 0o755, ctx)
        await ops.rmdir(ROOT, b"d", ctx)
        told.clear()
        before = e.overlay.look_up

        async def look_up(parent: Node, name: bytes) -> Node:
            looked_up.append(name)
            return await before(parent, name)

        e.overlay.look_up = look_up  # type: ignore[method-assign]
        await ops.readdir(fh, 2, TOKEN)
        assert [name for name, _ in told] == names[1:] and dict(told)[b"f10"] == moved
        assert looked_up == [b"f00", b"f10"]
        told.clear()
        await ops.readdir(fh, 0, TOKEN)
        assert [name for name, _ in told] == names[1:] and len(looked_up) == 2, "from the start it is read anew"
