"""Every call to the source fails in turn, once and from then on: whoever asked gets that error or right bytes."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mummufs.engine.overlay import Handle
from mummufs.source.base import Attributes, Entry
from mummufs.source.memory import MemoryFile, MemorySource
from tests.engine.harness import Engine, FakeParser, contents, engine, make_table

WINDOW = 16 << 10
COUNT = 3
FOREVER = 1 << 40
DATA = contents(COUNT * WINDOW + 1000, 1)


class FaultySource(MemorySource):
    """A memory source of which those calls fail whose number, from 1, is in `fails`."""

    def __init__(self) -> None:
        super().__init__({b"dir/model": DATA, b"dir/other": b"plain", b"link": b""})
        self._calls_lock = threading.Lock()
        self.calls = 0
        self.fails = range(0)

    def _call(self) -> None:
        with self._calls_lock:
            self.calls += 1
            failing = self.calls in self.fails
        if failing:
            raise OSError(errno.EIO, "fails for the test")

    def stat(self, path: bytes) -> Attributes:
        self._call()
        return super().stat(path)

    def entries(self, path: bytes) -> Iterator[Entry]:
        self._call()
        return super().entries(path)

    def readlink(self, path: bytes) -> bytes:
        self._call()
        return super().readlink(path)

    def open(self, path: bytes) -> MemoryFile:
        self._call()
        return FaultyFile(self, path, super().open(path).node)

    def open_directory(self, path: bytes) -> int:
        self._call()
        return super().open_directory(path)

    def statfs(self) -> os.statvfs_result:
        self._call()
        return super().statfs()


class FaultyFile(MemoryFile):
    """An open file of it."""

    def read_into(self, buffer: memoryview, offset: int) -> int:
        self._fail()
        return super().read_into(buffer, offset)

    def attributes(self) -> Attributes:
        self._fail()
        return super().attributes()

    def _fail(self) -> None:
        assert isinstance(self._source, FaultySource)
        self._source._call()


async def _scenario(e: Engine) -> tuple[int, int]:
    """Look, list, open, read in every way; how many calls were answered, and how many with an error."""
    answered = failed = 0
    handles: list[Handle] = []
    for _ in range(2):
        try:
            folder = await e.overlay.look_up(e.overlay.nodes.root, b"dir")
            assert [x.name for x in await e.overlay.entries(folder)] == [b"model", b"other"]
            node = await e.overlay.look_up(folder, b"model")
            handles.append(await e.overlay.open(node))
            assert (await e.overlay.attributes(node)).size == len(DATA)
            assert (await e.overlay.statfs()).f_blocks > 0
            answered += 6
        except OSError as error:
            assert error.errno == errno.EIO
            failed += 1
        for handle in handles:
            for offset, size in ((0, WINDOW), (WINDOW + 5, 100), (WINDOW - 10, 20), (0, 2 * len(DATA))):
                try:
                    got = await e.overlay.read(handle, offset, size)
                except OSError as error:
                    assert error.errno == errno.EIO
                    failed += 1
                else:
                    assert got == DATA[offset : offset + size]
                    answered += 1
        await e.idle()
    for handle in handles:
        e.overlay.close(handle)
    return answered, failed


@pytest.mark.parametrize("persistently", [False, True])
async def test_the_nth_call_to_the_source_fails(tmp_path: Path, persistently: bool) -> None:
    n = 0
    while True:
        n += 1
        store = tmp_path / str(n)
        store.mkdir()
        source = FaultySource()
        parser = FakeParser({b"dir/model": make_table(len(DATA), [(i * WINDOW, WINDOW) for i in range(COUNT)])})
        async with engine(source, store, parser) as e:
            before = source.calls
            nth = before + n
            source.fails = range(nth, FOREVER if persistently else nth + 1)
            _, failed = await _scenario(e)
            done = source.calls < nth
            source.fails = range(0)
            assert e.counters.errors.handler == 0
            assert failed > 0 or not persistently or done
            with contextlib.closing(source):
                answered, failed = await _scenario(e)
            assert failed == 0, "it is as good as ever afterwards"
            assert answered == 2 * 6 + 4 + 2 * 4
            await e.idle()
            e.check()
        if done:
            assert n > 15
            return
