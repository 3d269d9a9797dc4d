"""Directories are read some entries at a time."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from mummufs.engine import listing
from mummufs.engine.listing import Listing
from mummufs.source.base import Entry
from mummufs.source.memory import MemorySource
from tests.engine.harness import Engine, FakeParser, engine

NAMES = [b"%02d" % i for i in range(10)]


class Streamed(MemorySource):
    """Counts the entries that it has looked at, and the directories that are open."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(NAMES, b"x"))
        self.looked_at = 0
        self.opened = 0
        self.fails_at: int | None = None

    def entries(self, path: bytes) -> Iterator[Entry]:
        self.opened += 1
        try:
            for entry in super().entries(path):
                if self.looked_at == self.fails_at:
                    raise OSError(errno.EIO, "a bad sector")
                self.looked_at += 1
                yield entry
        finally:
            self.opened -= 1


@pytest.fixture(autouse=True)
def four_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "ENTRIES_AT_ONCE", 4)


def begin(e: Engine) -> Listing:
    return e.overlay.listings.begin(e.overlay.nodes.root)


@pytest.mark.parametrize("count", [0, 3, 4, 8, 10])
async def test_no_more_is_looked_at_than_is_read(tmp_path: Path, count: int) -> None:
    source = Streamed()
    for name in NAMES[count:]:
        source.remove(name)
    async with engine(source, tmp_path, FakeParser()) as e:
        read = begin(e)
        for i in range(count):
            assert await read.reach(i)
            assert read.entries[i].name == NAMES[i] and source.looked_at == min(count, i // 4 * 4 + 4)
            assert e.overlay.listings.streams == source.opened <= 1
        assert not await read.reach(count)
        assert [entry.name for entry in read.entries] == NAMES[:count] == [x.name for x in await begin(e).all()]
        assert source.opened == e.overlay.listings.streams == 0


async def test_who_leaves_early_leaves_nothing_open(tmp_path: Path) -> None:
    source = Streamed()
    async with engine(source, tmp_path, FakeParser()) as e:
        read = begin(e)
        assert await read.reach(0) and source.opened == 1
        read.close()
        assert source.opened == e.overlay.listings.streams == 0 and source.looked_at == 4


async def test_beyond_the_limit_a_directory_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "STREAMS_MAX", 2)
    source = Streamed()
    async with engine(source, tmp_path, FakeParser()) as e:
        some = [begin(e) for _ in range(4)]
        assert [await one.reach(0) for one in some] == [True] * 4
        assert source.opened == e.overlay.listings.streams == 2
        assert [len(one.entries) for one in some] == [4, 4, 10, 10]
        assert [[x.name for x in await one.all()] for one in some] == [NAMES] * 4


@pytest.mark.parametrize("fails_at", [0, 6])
async def test_an_error_is_no_end(tmp_path: Path, fails_at: int) -> None:
    source = Streamed()
    source.fails_at = fails_at
    async with engine(source, tmp_path, FakeParser()) as e:
        read = begin(e)
        for _ in range(3):
            with pytest.raises(OSError, match=r"Errno 5\]"):
                await read.all()
        assert source.opened == e.overlay.listings.streams == 0
        source.fails_at = None
        assert len(await begin(e).all()) == len(NAMES), "another look is another chance"
