"""Readers of every kind while somebody writes: whoever begins to read after a write has returned sees what it wrote."""

from __future__ import annotations

import json
import mmap
import os
import random
import struct
import threading
from pathlib import Path

import pytest

from tests.mounts.harness import Mounted, opened

pytestmark = [pytest.mark.mount, pytest.mark.slow]

PAGE = 4096
PAGES = 600
RANGES = 12
ROUNDS = 60
READERS = 3
WAYS = ("cached", "direct", "mapped", "walk")


def page_of(number: int) -> bytes:
    """A page that holds the number of the write that wrote it, all over."""
    return struct.pack("=Q", number) * (PAGE // 8)


def oldest(page: bytes) -> int:
    """The smallest number in it: a page may be read while it is written."""
    return int(min(struct.unpack(f"={PAGE // 8}Q", page)))


class Written:
    """What has been written for certain."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.latest = [0] * PAGES
        self.ended = False
        self.wrong: list[str] = []
        self.read = dict.fromkeys(WAYS, 0)

    def write(self) -> None:
        """Some writes for each open, by write(2) and by mappings; then close, so that ranges are believed again."""
        rng, number = random.Random(1), 0
        for _ in range(ROUNDS):
            with opened(self.path, os.O_RDWR) as fd:
                for _ in range(rng.randrange(1, 4)):
                    number += 1
                    first = rng.randrange(PAGES)
                    count = min(PAGES - first, rng.choice((1, 5, 40)))
                    data = page_of(number) * count
                    if rng.random() < 0.7:
                        os.pwrite(fd, data, first * PAGE)
                    else:
                        with mmap.mmap(fd, 0) as memory:
                            memory[first * PAGE : first * PAGE + len(data)] = data
                    self.latest[first : first + count] = [number] * count
            for _ in range(rng.randrange(4)):
                self.read_all(rng)
        self.ended = True

    def read_all(self, rng: random.Random) -> None:
        """Have the store filled again."""
        self._compare(rng, "cached", 0, PAGES)

    def read_on(self, seed: int) -> None:
        """Read pieces in every way until nobody writes."""
        rng = random.Random(seed)
        while not self.ended:
            first = rng.randrange(PAGES)
            self._compare(rng, rng.choice(WAYS), first, min(PAGES - first, rng.choice((1, 10, 60))))

    def _compare(self, rng: random.Random, way: str, first: int, count: int) -> None:
        with opened(self.path, os.O_RDONLY | (os.O_DIRECT if way == "direct" else 0)) as fd:
            if way != "direct" and rng.random() < 0.8:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            before = self.latest[first : first + count]
            data = self._read(fd, way, first, count)
        for i, number in enumerate(before):
            page = data[i * PAGE : (i + 1) * PAGE]
            if len(page) < PAGE or oldest(page) < number:
                self.wrong.append(f"page {first + i} by {way}: {len(page)} bytes, older than write {number}")
                return
        self.read[way] += 1

    @staticmethod
    def _read(fd: int, way: str, first: int, count: int) -> bytes:
        if way == "cached":
            return os.pread(fd, count * PAGE, first * PAGE)
        if way == "direct":
            with mmap.mmap(-1, count * PAGE) as buffer:
                return buffer[: os.preadv(fd, [buffer], first * PAGE)]
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as memory:
            memory.madvise(mmap.MADV_RANDOM if way == "walk" else mmap.MADV_NORMAL)
            return b"".join(memory[i * PAGE : (i + 1) * PAGE] for i in range(first, first + count))


@pytest.mark.parametrize("lane", ["auto", "off"])
def test_no_read_that_begins_after_a_write_sees_what_was_before(tree: Path, store: Path, lane: str) -> None:
    size = PAGES * PAGE
    (tree / "f").write_bytes(page_of(0) * PAGES)
    ranges = [{"offset": at, "length": size // RANGES, "name": f"r{at}"} for at in range(0, size, size // RANGES)]
    (tree / "f.mummufs.json").write_text(json.dumps({"version": 1, "file": "f", "size": size, "ranges": ranges}))
    options = ("settle=0", "attr_timeout=0", f"lane={lane}")
    with Mounted(tree, store=store, options=options) as m:
        written = Written(m.path("f"))
        readers = [threading.Thread(target=written.read_on, args=(seed,)) for seed in range(READERS)]
        for reader in readers:
            reader.start()
        try:
            written.write()
        finally:
            written.ended = True
            for reader in readers:
                reader.join()
        for _ in range(3):  # what the store has in the end is right too
            m.settle()
            m.drop_pages("f")
            written.read_all(random.Random(0))
        assert not written.wrong
        assert all(written.read.values()), written.read
        m.settle()
        with opened(written.path, os.O_RDWR) as fd:  # by now the store has all of it, which is not so at every write
            os.pwrite(fd, page_of(0), 0)
        status = m.settle()
        assert status["fills"]["stamped"] >= RANGES - 1 and status["reads"]["hits"] > 0
