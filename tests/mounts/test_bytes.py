"""Every byte through the mount is the source's: by read, mmap and O_DIRECT, cold, warm, and while evicting."""

from __future__ import annotations

import itertools
import mmap
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mounts.harness import Mounted, opened
from tests.support.trees import SPARSE_BYTES, write_models, write_odd_things

READERS = 32


def read_whole(path: Path) -> bytes:
    return path.read_bytes()


def read_at_random(path: Path) -> bytes:
    """The file, put together from reads of random lengths in random order."""
    size = path.stat().st_size
    rng = random.Random(size)
    cuts = sorted({0, size, *(rng.randrange(size) for _ in range(40))}) if size else [0]
    pieces = list(itertools.pairwise(cuts))
    rng.shuffle(pieces)
    data = bytearray(size)
    with opened(path) as fd:
        for start, end in pieces:
            data[start:end] = os.pread(fd, end - start, start)
    return bytes(data)


def _mapped(path: Path, flags: int) -> bytes:
    if path.stat().st_size == 0:
        return b""
    with opened(path) as fd, mmap.mmap(fd, 0, flags=flags, prot=mmap.PROT_READ) as pages:
        return bytes(pages)


def map_shared(path: Path) -> bytes:
    return _mapped(path, mmap.MAP_SHARED)


def map_private(path: Path) -> bytes:
    return _mapped(path, mmap.MAP_PRIVATE)


def read_direct(path: Path) -> bytes:
    """By O_DIRECT, in aligned pieces of an odd number of pages."""
    size, piece = path.stat().st_size, 37 * 4096
    data = bytearray()
    with opened(path, os.O_RDONLY | os.O_DIRECT) as fd, mmap.mmap(-1, piece) as buffer:
        while len(data) < size:
            n = os.preadv(fd, [buffer], len(data))
            assert n > 0, "a read before end of file gives bytes"
            data += buffer[:n]
    return bytes(data)


WAYS: dict[str, Callable[[Path], bytes]] = {
    "read": read_whole,
    "random": read_at_random,
    "mmap shared": map_shared,
    "mmap private": map_private,
    "O_DIRECT": read_direct,
}


@pytest.fixture
def models(tree: Path) -> list[Path]:
    return write_models(tree)


@pytest.mark.mount
@pytest.mark.parametrize("way", WAYS)
def test_models_cold_and_warm(tree: Path, store: Path, models: list[Path], way: str) -> None:
    with Mounted(tree, store=store) as m:
        for warm in (False, True):
            m.drop_pages()
            before = m.settle()
            for name in models:
                assert WAYS[way](m.path(name)) == (tree / name).read_bytes(), f"{name}, warm: {warm}"
            after = m.settle()
        assert after["reads"]["hit_bytes"] > before["reads"]["hit_bytes"]
        assert after["reads"]["miss_bytes"] == before["reads"]["miss_bytes"], "a warm pass misses nothing"


@pytest.mark.mount
def test_models_while_evicting(tree: Path, store: Path, models: list[Path]) -> None:
    """With a store of a quarter of the models, two passes in every way evict all the time."""
    total = sum((tree / name).stat().st_size for name in models)
    options = ("settle=0", "policy=lru")  # the default would rather keep what it has
    with Mounted(tree, store=store, store_size=str(total // 4), options=options) as m:
        for _ in range(2):
            for way, read in WAYS.items():
                m.drop_pages()
                for name in models:
                    assert read(m.path(name)) == (tree / name).read_bytes(), f"{name} by {way}"
        assert m.settle()["evictions"]["ranges"] > 0


@pytest.mark.mount
def test_32_readers_at_once(tree: Path, store: Path, models: list[Path]) -> None:
    total = sum((tree / name).stat().st_size for name in models)
    for size in (str(total // 4), "1G"):
        wrong: list[str] = []
        with Mounted(tree, store=store, store_size=size) as m:

            def reader(number: int, m: Mounted = m, wrong: list[str] = wrong) -> None:
                rng = random.Random(number)
                try:
                    for name in rng.sample(models, len(models)):
                        way = rng.choice(list(WAYS))
                        if WAYS[way](m.path(name)) != (tree / name).read_bytes():
                            wrong.append(f"{name} by {way}")
                except OSError as error:
                    wrong.append(str(error))

            threads = [threading.Thread(target=reader, args=(i,)) for i in range(READERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not wrong
            assert m.settle()["fills"]["completed"] > 0


@pytest.mark.mount
def test_odd_files(tree: Path, store: Path) -> None:
    write_odd_things(tree)
    with Mounted(tree, store=store) as m:
        for name in sorted(os.listdir(tree)):
            path = tree / name
            if path.is_file() and name not in ("sparse", "fifo", "socket"):
                for way, read in WAYS.items():
                    assert read(m.path(name)) == path.read_bytes(), f"{name} by {way}"
        rng = random.Random(5)
        offsets = [0, (4 << 30) - 3000, SPARSE_BYTES - 70_000, *(rng.randrange(SPARSE_BYTES) for _ in range(50))]
        with opened(m.path("sparse")) as through, opened(tree / "sparse") as direct:
            for offset in offsets:
                assert os.pread(through, 66_000, offset) == os.pread(direct, 66_000, offset)
            assert os.pread(through, 10, SPARSE_BYTES) == b""


@pytest.mark.mount
def test_pass_through_writes_nothing(tree: Path, models: list[Path], tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    with Mounted(tree) as m:
        for name in models:
            assert m.read(name) == (tree / name).read_bytes()
        status = m.status()
        assert status["state"] == "pass-through"
        assert status["store"]["dir"] is None
        assert status["reads"]["bypass_bytes"] == status["reads"]["replied_bytes"] > 0
    assert sorted(tmp_path.rglob("*")) == before
