"""What is filled, what it costs the source, and what survives an eviction."""

from __future__ import annotations

import itertools
import mmap
import os
import random
import threading
from pathlib import Path

import pytest

from tests.faultfs.client import FaultFs
from tests.mounts.harness import Mounted, opened
from tests.support.models import Written, write_native

KIB, MIB = 1 << 10, 1 << 20
PAGE = 4096


def window(w: Written) -> tuple[int, int]:
    """The window of a range: its start and end in the file."""
    return w.offset // PAGE * PAGE, -(-(w.offset + w.size) // PAGE) * PAGE


def pread_direct(path: Path, offset: int, size: int) -> bytes:
    """One O_DIRECT read: it arrives at the mount whatever the page cache holds."""
    with opened(path, os.O_RDONLY | os.O_DIRECT) as fd, mmap.mmap(-1, size) as buffer:
        n = os.preadv(fd, [buffer], offset)
        return buffer[:n]


def one_range(tree: Path, size: int) -> tuple[bytes, int, int]:
    """A file with one range in its middle: its bytes and the window."""
    written = write_native(tree / "f", sizes=(size,), gap=300 * KIB + 123)
    return (tree / "f").read_bytes(), *window(written[0])


@pytest.mark.mount
@pytest.mark.parametrize("order", ["forward", "backward", "random"])
def test_one_pass_over_the_source_for_a_range(tree: Path, store: Path, order: str) -> None:
    data, start, end = one_range(tree, 8 * MIB + 1000)
    offsets = list(range(start, end - 128 * KIB, 128 * KIB))
    if order == "backward":
        offsets.reverse()
    if order == "random":
        random.Random(3).shuffle(offsets)
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store) as m:
        with opened(m.path("f"), os.O_RDONLY | os.O_DIRECT) as fd, mmap.mmap(-1, 128 * KIB) as buffer:
            m.settle()
            under.clear()
            for offset in offsets:
                assert os.preadv(fd, [buffer], offset) == 128 * KIB
                assert buffer[:] == data[offset : offset + 128 * KIB]
        status = m.settle()
        cost = sum(r.returned or 0 for r in under.reads())
        assert cost / (end - start) <= 1.1
        assert status["fills"]["completed"] == 1
        assert status["source_reads"]["bytes"] == cost


@pytest.mark.mount
def test_32_readers_cause_one_fill(tree: Path, store: Path) -> None:
    data, start, end = one_range(tree, 16 * MIB)
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store) as m:
        pread_direct(m.path("f"), 0, PAGE)
        m.settle()
        under.clear()
        wrong: list[int] = []

        def reader(number: int) -> None:
            rng = random.Random(number)
            for _ in range(4):
                offset = rng.randrange(start, end - MIB) // PAGE * PAGE
                if pread_direct(m.path("f"), offset, MIB) != data[offset : offset + MIB]:
                    wrong.append(offset)

        threads = [threading.Thread(target=reader, args=(i,)) for i in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        status = m.settle()
        assert not wrong
        assert status["fills"]["completed"] == 1
        assert sum(r.returned or 0 for r in under.reads()) / (end - start) <= 1.1


@pytest.mark.mount
def test_a_graze_does_not_fill(tree: Path, store: Path) -> None:
    """Reads of one range that run over into its neighbours, as read-ahead does, leave the neighbours alone."""
    written = write_native(tree / "f", sizes=(4 * MIB, 4 * MIB, 4 * MIB), gap=0)
    data = (tree / "f").read_bytes()
    start, end = window(written[1])
    with Mounted(tree, store=store) as m:
        path = m.path("f")
        pread_direct(path, 0, PAGE)
        m.settle()
        before = m.status()["store"]["ranges"]
        for offset in range(start - 128 * KIB, end, 512 * KIB):  # a larger read may come as several requests
            assert pread_direct(path, offset, 512 * KIB) == data[offset : offset + 512 * KIB]
        for _ in range(4):  # the same bytes again and again count once
            pread_direct(path, end - 128 * KIB, 256 * KIB)
            pread_direct(path, start - 128 * KIB, 256 * KIB)
        assert m.settle()["store"]["ranges"] == before + 1


@pytest.mark.mount
def test_wider_requests_fill_what_they_cover(tree: Path, store: Path) -> None:
    """transformers-style: 256 KiB requests, in order, over tensors of 200 KiB."""
    write_native(tree / "f", sizes=(200 * KIB,) * 40, gap=0)
    data = (tree / "f").read_bytes()
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store) as m:
        pread_direct(m.path("f"), 0, PAGE)
        m.settle()
        under.clear()
        got = b"".join(pread_direct(m.path("f"), at, 256 * KIB) for at in range(0, len(data), 256 * KIB))
        assert got == data
        status = m.settle()
        assert status["store"]["ranges"] == 40
        cost = sum(r.returned or 0 for r in under.reads())
        assert cost / len(data) <= 1.6, "bytes that only grazed a range are read once more when it is filled"


@pytest.mark.mount
@pytest.mark.parametrize("policy", ["hotness", "lru"])
def test_the_hot_expert_survives_an_eviction(tree: Path, store: Path, policy: str) -> None:
    """One range is read again and again, others once, the hot one not last; then an insert forces an eviction."""
    size, count = 256 * KIB, 16
    written = write_native(tree / "f", sizes=(size,) * count, gap=0)
    data = (tree / "f").read_bytes()
    charge = size + 2 * PAGE
    with Mounted(tree, store=store, store_size=str(9 * charge), options=("settle=0", f"policy={policy}")) as m:

        def read(i: int) -> None:
            w = written[i]
            start, end = window(w)
            assert pread_direct(m.path("f"), start, end - start) == data[start:end]
            m.settle()

        def misses() -> int:
            return int(m.settle()["reads"]["misses"])

        read(0)
        m.settle()
        for _ in range(6):
            read(0)
        for i in range(1, 8):
            read(i)
        assert m.status()["evictions"]["ranges"] == 0, "so far everything has room"
        for i in range(8, 12):
            read(i)
        assert m.status()["evictions"]["ranges"] >= 3
        before = misses()
        read(0)
        survived = misses() == before
        assert survived == (policy == "hotness")


@pytest.mark.mount
def test_a_range_larger_than_the_store_is_declined(tree: Path, store: Path) -> None:
    written = write_native(tree / "f", sizes=(6 * MIB, 100 * KIB), gap=0)
    data = (tree / "f").read_bytes()
    with Mounted(tree, store=store, store_size="4M") as m:
        start, end = window(written[0])
        pread_direct(m.path("f"), 0, PAGE)
        m.settle()
        for offset, _ in itertools.product(range(start, end - MIB, MIB), range(2)):
            assert pread_direct(m.path("f"), offset, MIB) == data[offset : offset + MIB]
        status = m.settle()
        assert status["fills"]["declined"] > 0
        assert status["store"]["ranges"] == 0


@pytest.mark.mount
def test_fills_stop_while_the_file_system_is_nearly_full(tree: Path, store: Path) -> None:
    write_native(tree / "f", sizes=(MIB, MIB), gap=0)
    with Mounted(tree, store=store, options=("settle=0", "store_reserve=1000T")) as m:
        for _ in range(2):
            assert m.read("f") == (tree / "f").read_bytes()
            m.drop_pages()
        status = m.settle()
        assert status["store"]["ranges"] == 0
        assert status["fills"]["aborted"] > 0
        assert "kept free" in m.log.read_text()


@pytest.mark.mount
def test_a_file_that_has_just_changed_is_not_stored(tree: Path, store: Path) -> None:
    write_native(tree / "f", sizes=(MIB,), gap=0)
    with Mounted(tree, store=store, options=("settle=3600",)) as m:
        assert m.read("f") == (tree / "f").read_bytes()
        status = m.settle()
        assert status["store"]["ranges"] == 0
        assert status["fills"]["unsettled"] > 0
