"""Faults in and under the lane: the engine answers, the caller has the right bytes, and the mount goes on."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faultfs.client import FaultFs
from tests.hostile.support import (
    KIB,
    LOG_LINES_A_MINUTE,
    MIB,
    PAGE,
    ROUND_UP_S,
    errno_of,
    fill,
    model,
    read_all,
    threads,
    timed_reads,
)
from tests.hostile.test_liveness import Planted
from tests.mounts.harness import Mounted, opened
from tests.mounts.lanes import LANE, Served, lane, warm
from tests.mounts.test_filling import pread_direct
from tests.mounts.test_lane_modes import known
from tests.support.waiting import WAIT_S, wait_for

SERVERS = 4
STALL_S = 1.0
"""How long a hit may wait for the store before the source answers."""


def back_to_the_lane(m: Mounted, expected: dict[str, bytes]) -> None:
    """Wait until hits are the lane's again, while reading."""

    def served() -> bool:
        with Served(m) as seen:
            read_all(m, expected)
        return seen["lane.hits"] > 0

    wait_for(served, bool)


# ---------------------------------------------------------------------- the store hangs


@pytest.mark.mount
def test_hits_that_meet_a_store_that_hangs(tree: Path, under: FaultFs) -> None:
    """Each is answered in its time, right, and once; servers and threads are bounded, and the lane recovers."""
    expected = model(tree, "a", "b")
    with Mounted(tree, store=under.mountpoint / "store", options=LANE) as m:
        fill(m, expected)
        back_to_the_lane(m, expected)
        before = threads(m.pid)
        under.hang()
        try:
            took: list[float] = []
            readers = [
                threading.Thread(target=lambda i=i: took.extend(timed_reads(m, "a", expected["a"], 1, seed=i)))
                for i in range(12)
            ]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            assert len(took) == 12, "every one of them was right"
            assert max(took) < STALL_S + 2 * ROUND_UP_S
            seen = lane(m)
            assert 1 <= seen["stuck"] <= SERVERS
            assert seen["replaced"] == seen["stuck"]
            assert max(timed_reads(m, "b", expected["b"], 50)) < STALL_S + ROUND_UP_S
            assert lane(m)["replaced"] <= SERVERS
        finally:
            under.resume()
        wait_for(lambda: lane(m)["stuck"], lambda stuck: stuck == 0)
        back_to_the_lane(m, expected)
        wait_for(m.status, lambda s: s["gauges"]["store_reads_threads_busy"] == 0)
        wait_for(lambda: threads(m.pid), lambda count: count <= before + 16)
        assert lane(m)["faults"] == 0


@pytest.mark.mount
def test_a_store_that_comes_back_before_the_source(tree: Path, under: FaultFs) -> None:
    """A hit whose server was given up is not lost to a source that hangs."""
    expected = model(tree, "a")
    with FaultFs(tree) as source, Mounted(source.mountpoint, store=under.mountpoint / "store", options=LANE) as m:
        fill(m, expected)
        back_to_the_lane(m, expected)
        source.hang_reads()
        under.hang()
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.append(pread_direct(m.path("a"), 8 * PAGE, 64 * KIB)), daemon=True)
        try:
            reader.start()
            wait_for(lambda: lane(m)["stuck"], lambda stuck: stuck == 1)
        finally:
            under.resume()
        try:
            reader.join(WAIT_S)
            assert got == [expected["a"][8 * PAGE : 8 * PAGE + 64 * KIB]]
        finally:
            source.release_reads()
        wait_for(lambda: lane(m)["stuck"], lambda stuck: stuck == 0)
        back_to_the_lane(m, expected)


@pytest.mark.mount
def test_a_walk_that_meets_a_store_that_hangs(tree: Path, under: FaultFs) -> None:
    """The page that the pusher holds is answered by the engine."""
    expected = model(tree, "a")
    with Mounted(tree, store=under.mountpoint / "store", options=LANE) as m:
        fill(m, expected)
        back_to_the_lane(m, expected)
        m.drop_pages("a")
        with opened(m.path("a")) as fd:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            at = 10 * PAGE
            assert os.pread(fd, PAGE, at) == expected["a"][at : at + PAGE]
            under.hang()
            try:
                got: list[bytes] = []

                reader = threading.Thread(
                    target=lambda: got.extend(os.pread(fd, PAGE, page * PAGE) for page in range(11, 40)), daemon=True
                )
                reader.start()
                reader.join(WAIT_S)
            finally:
                under.resume()
            assert b"".join(got) == expected["a"][11 * PAGE : 40 * PAGE]
        back_to_the_lane(m, expected)


# ---------------------------------------------------------------------- range files go bad


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 5000)


def change(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(3 * PAGE)
        file.write(b"not what it was")


@pytest.mark.mount
@pytest.mark.parametrize("fault", [cut, change, Path.unlink])
def test_range_files_that_go_bad_under_the_lane(tree: Path, store: Path, fault: Callable[[Path], None]) -> None:
    """Right bytes, each entry dropped once, and filled anew."""
    expected = model(tree, "a")
    with Mounted(tree, store=store, options=LANE) as m:
        stored = fill(m, expected)
        back_to_the_lane(m, expected)
        before = m.status()
        for path in m.range_files():
            fault(path)
        read_all(m, expected)
        read_all(m, expected)
        after = m.settle()
        assert after["errors"]["store"] - before["errors"]["store"] == stored
        wait_for(lambda: fill(m, expected), lambda count: count == stored)
        back_to_the_lane(m, expected)
        assert lane(m)["faults"] == 0


@pytest.mark.mount
def test_no_read_that_begins_after_a_change_sees_old_bytes(tree: Path, store: Path) -> None:
    """Each version is warm in the lane when the next one comes."""
    size = 400 * KIB
    parts = ",".join(
        f'{{"offset": {at}, "length": {100 * KIB}, "name": "{at}", "kind": "dense"}}'
        for at in range(0, size, 100 * KIB)
    )
    (tree / "f.mummufs.json").write_text(f'{{"version": 1, "file": "f", "size": {size}, "ranges": [{parts}]}}')
    served = []
    with Mounted(tree, store=store, options=(*LANE, "attr_timeout=0")) as m:
        for number in range(1, 16):
            data = number.to_bytes(8, "big") * (size // 8)
            if number % 3 == 0:
                with (tree / "f").open("r+b") as file:
                    file.write(data)
            else:
                (tree / "fresh").write_bytes(data)
                (tree / "fresh").rename(tree / "f")
            assert m.read("f") == data, f"version {number}"
            warm(m, "f")
            with Served(m) as seen:
                assert pread_direct(m.path("f"), 0, 64 * KIB) == data[: 64 * KIB]
                assert m.read("f") == data
            served.append(seen["lane.hits"])
    assert all(served), served


# ---------------------------------------------------------------------- faults of ours

BY_ENGINE = ("Server._hit", "Server._fill", "Server._note", "Pusher.saw_page", "Pusher._push", "Pusher._fill")
"""After these the engine, or somebody else, still has the bytes."""
LOST = ("Server._read", "LaneReads._outcome", "LaneReads._reply")
"""After these nothing is left but an error for that caller."""


def walk(m: Mounted, expected: bytes) -> None:
    """Pages one by one: the pusher sees them."""
    m.drop_pages("f")
    with opened(m.path("f")) as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for at in range(0, 64 * PAGE, PAGE):
            assert os.pread(fd, PAGE, at) == expected[at : at + PAGE]


@pytest.mark.mount
@pytest.mark.parametrize("kind", ["RuntimeError", "MemoryError"])
def test_an_exception_in_the_lane(tree: Path, store: Path, kind: str) -> None:
    expected = model(tree, "f")
    (tree / "plain").write_bytes(bytes(range(256)) * 1000)
    with Planted(tree, store=store, options=(*LANE, "attr_timeout=0"), check_books=False) as m:
        fill(m, expected)
        back_to_the_lane(m, expected)
        for place in BY_ENGINE:
            m.plant(place, kind=kind)
            read_all(m, expected)
            walk(m, expected["f"])
            assert set(m.raised) == {place}
            m.plan.unlink()
            back_to_the_lane(m, expected)
        assert lane(m)["faults"] + lane(m)["push_failed"] > 0
        for place in LOST:
            m.plant(place, kind=kind)
            # what lies in no range is the engine's to answer
            assert errno_of(lambda: pread_direct(m.path("plain"), 0, MIB)) == errno.EIO, place
            assert set(m.raised) == {place}
            m.plan.unlink()
            read_all(m, expected)
        assert len([line for line in m.log.read_text().splitlines() if line[:2] == "20"]) <= LOG_LINES_A_MINUTE
        assert m.process.poll() is None


@pytest.mark.mount
def test_an_exception_on_the_way_to_libfuse(tree: Path, store: Path) -> None:
    expected = model(tree, "f")
    (tree / "plain").write_bytes(bytes(range(256)) * 1000)
    options = ("settle=0", "lane=on", "attr_timeout=0")
    with Planted(tree, store=store, options=options, check_books=False) as m:
        fill(m, expected)
        known(m, "plain")
        for place in ("Server._other", "Relay.forward"):
            m.plant(place, kind="KeyError")
            assert errno_of(lambda: os.stat(m.path("nothing"))) == errno.EIO, place
            m.plan.unlink()
            assert errno_of(lambda: os.stat(m.path("nothing"))) == errno.ENOENT
        for place in ("Relay._opened", "OpenModes.open"):
            m.plant(place, kind="KeyError")
            assert errno_of(lambda: os.open(m.path("f"), os.O_RDONLY)) == errno.EIO, place
            m.plan.unlink()
            read_all(m, expected)
        m.plant("Front.report", kind="KeyError")
        read_all(m, expected)
        wait_for(lambda: m.raised, bool)
        m.plan.unlink()
        if m.status()["backend"]["protocol"]["passthrough"]:
            m.plant("Front.open_backing", kind="KeyError")
            assert errno_of(lambda: m.read("plain")) in (None, errno.EIO)
            assert m.raised
            m.plan.unlink()
        assert m.read("plain") == (tree / "plain").read_bytes()
        back_to_the_lane(m, expected)
        assert m.process.poll() is None
