"""A mapping that is walked page by page finds its pages in the page cache, pushed there, and each of them is right."""

from __future__ import annotations

import errno
import mmap
import os
import random
import threading
import time
from pathlib import Path

import pytest

from mummufs import control
from tests.mounts.harness import Mounted, opened
from tests.mounts.lanes import KIB, LANE, PAGE, Served, lane, ranges, warm
from tests.mounts.test_filling import pread_direct
from tests.support.waiting import wait_for

TAIL = 1234
PUSHED_S = 60
"""How long it goes on until something was pushed."""
CHANGING_S = 3.0
VERSION_BYTES = 256 * KIB


def walk(m: Mounted, size: int) -> bytes:
    """Every page of the file in order, each by a fault of its own."""
    with opened(m.path("f")) as fd, mmap.mmap(fd, 0, prot=mmap.PROT_READ) as pages:
        pages.madvise(mmap.MADV_RANDOM)
        return b"".join(pages[at : min(at + PAGE, size)] for at in range(0, size, PAGE))


def touches(m: Mounted) -> list[float]:
    """The heat of each window, in touches, in order of offset."""
    m.status()  # the lane's are taken in
    heat = control.request(m.mountpoint, "heat_page")["ranges"]
    assert isinstance(heat, list)
    return [2**log2 for _, _, _, _, log2 in sorted(heat, key=lambda row: row[2])]


@pytest.mark.mount
def test_a_walk_through_a_mapping(tree: Path, store: Path) -> None:
    """Over several windows, to an end of file that is in the middle of a page."""
    data = ranges(tree, *(300 * KIB,) * 6, 77 * PAGE + TAIL)
    with Mounted(tree, store=store, options=LANE) as m:
        warm(m, "f")
        before = touches(m)
        with Served(m) as served:
            assert walk(m, len(data)) == data
        assert served["lane.pushed_bytes"] > len(data) // 4
        assert served["lane.hits"] < len(data) // PAGE, "not every page was asked for"
        assert served["reads.misses"] == 0
        assert served.after["lane"]["push_queued_bytes_max"] > 0
        assert served.after["lane"]["push_failed"] == 0
        wait_for(lambda: lane(m)["push_queued_bytes"], lambda queued: queued == 0)
        added = [after - first for after, first in zip(touches(m), before, strict=True)]
        assert added == pytest.approx([1] * 7, abs=0.2), "a walk through a window is one touch, as one read of it"
        assert m.read("f") == data, "and what was pushed and not read is right, too"


@pytest.mark.mount
def test_a_walk_by_reads(tree: Path, store: Path) -> None:
    """read(2) page by page where the caller has forbidden read-ahead."""
    data = ranges(tree, *(300 * KIB,) * 4)
    with Mounted(tree, store=store, options=LANE) as m:
        warm(m, "f")
        with opened(m.path("f")) as fd, Served(m) as served:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            assert b"".join(os.pread(fd, PAGE, at) for at in range(0, len(data), PAGE)) == data
        assert served["lane.pushed_bytes"] > len(data) // 4


@pytest.mark.mount
def test_what_is_no_walk(tree: Path, store: Path) -> None:
    """O_DIRECT does not look into the page cache, and pages here and there do not show what comes next."""
    data = ranges(tree, *(300 * KIB,) * 4)
    apart = list(range(0, len(data) - PAGE, 3 * PAGE))
    random.Random(4).shuffle(apart)
    with Mounted(tree, store=store, options=LANE) as m:
        warm(m, "f")
        with opened(m.path("f")) as fd, Served(m) as served:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            for at in apart:
                assert os.pread(fd, PAGE, at) == data[at : at + PAGE]
            for at in range(0, 300 * KIB, PAGE):
                assert pread_direct(m.path("f"), at, PAGE) == data[at : at + PAGE]
        assert served["lane.hits"] > len(apart)
        assert served["lane.pushed_bytes"] == served["lane.push_dropped"] == 0


@pytest.mark.mount
@pytest.mark.parametrize("option", ["push=off", "io=direct"])
def test_nothing_is_pushed_where_it_is_switched_off(tree: Path, store: Path, option: str) -> None:
    data = ranges(tree, *(300 * KIB,) * 4)
    with Mounted(tree, store=store, options=(*LANE, option, "prefetch=order")) as m:
        warm(m, "f")
        with opened(m.path("f")) as fd:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            assert b"".join(os.pread(fd, PAGE, at) for at in range(0, len(data), PAGE)) == data
        assert lane(m)["pushed_bytes"] == lane(m)["push_queued_bytes_max"] == 0
        assert (m.status()["prefetch"] is None) == (option == "io=direct"), "nor fetched where reads are unbuffered"


@pytest.mark.mount
def test_walks_while_evicting(tree: Path, store: Path) -> None:
    """Ranges go in the middle of a push, and every byte is right."""
    size = 256 * KIB
    data = ranges(tree, *(size,) * 12)
    wrong: list[int] = []
    options = (*LANE, "policy=lru")
    with Mounted(tree, store=store, store_size=str(5 * (size + 2 * PAGE)), options=options) as m:
        warm(m, "f")

        def walker(number: int) -> None:
            rng = random.Random(number)
            with opened(m.path("f")) as fd:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
                for _ in range(25):
                    start = rng.randrange(12) * size
                    os.posix_fadvise(fd, start, size, os.POSIX_FADV_DONTNEED)
                    for _ in range(2):  # the first fills it, perhaps
                        pread_direct(m.path("f"), start, size)
                    for at in range(start, start + size // 2, PAGE):
                        wrong.extend([at] * (os.pread(fd, PAGE, at) != data[at : at + PAGE]))

        threads = [threading.Thread(target=walker, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert m.settle()["evictions"]["ranges"] > 0
        assert lane(m)["pushed_bytes"] > 0
        assert lane(m)["faults"] == 0


@pytest.mark.mount
def test_walks_through_a_file_that_is_replaced(tree: Path, store: Path) -> None:
    """What is pushed of one version is never read by who has opened another."""

    def write(number: int) -> None:
        fresh = tree / "fresh"
        fresh.write_bytes(number.to_bytes(8, "big") * (VERSION_BYTES // 8))
        fresh.rename(tree / "f")

    half = VERSION_BYTES // 2
    parts = ",".join(f'{{"offset": {at}, "length": {half}, "name": "{at}", "kind": "dense"}}' for at in (0, half))
    (tree / "f.mummufs.json").write_text(f'{{"version": 1, "file": "f", "size": {VERSION_BYTES}, "ranges": [{parts}]}}')
    write(0)
    wrong: list[object] = []
    whole = [0]
    rest = [0.0]
    stop = threading.Event()
    with Mounted(tree, store=store, options=(*LANE, "attr_timeout=0.05")) as m:
        warm(m, "f")

        def walker() -> None:
            while not stop.wait(rest[0]):
                try:
                    with opened(m.path("f")) as fd:
                        pread_direct(m.path("f"), 0, half)
                        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # pages that are there need no push
                        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
                        found = b"".join(os.pread(fd, PAGE, at) for at in range(0, VERSION_BYTES, PAGE))
                except OSError as error:
                    wrong.extend([] if error.errno == errno.ESTALE else [error])
                    continue
                if len({found[at : at + 8] for at in range(0, len(found), 8)}) != 1:
                    wrong.append("versions mixed")
                whole[0] += 1

        threads = [threading.Thread(target=walker) for _ in range(3)]
        for thread in threads:
            thread.start()
        number, until, pause = 0, time.monotonic() + CHANGING_S, 1.0
        while (now := time.monotonic()) < until or (
            (whole[0] < 20 or lane(m)["pushed_bytes"] == 0) and now < until + PUSHED_S
        ):
            number += 1
            write(number)
            if now >= until:  # in the end time and cores enough for a version to be parsed, stored, and walked through
                pause, rest[0] = 2 * pause, 0.3
            stop.wait(0.1 if now < until else pause)
        stop.set()
        for thread in threads:
            thread.join()
        assert not wrong
        assert whole[0] >= 20
        assert lane(m)["pushed_bytes"] > 0
        wait_for(lambda: m.read("f")[:8], lambda found: found == number.to_bytes(8, "big"))
