"""A store that fails: the source answers within a second, nothing wrong is read, and the mount recovers by itself."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faultfs.client import FaultFs
from tests.hostile.damage import damage
from tests.hostile.support import (
    KIB,
    LOG_LINES_A_MINUTE,
    MIB,
    PAGE,
    ROUND_UP_S,
    changed,
    children,
    fill,
    hits,
    in_use,
    model,
    read_all,
    timed_reads,
)
from tests.mounts.harness import Mounted, opened, run
from tests.mounts.test_bytes import map_shared
from tests.mounts.test_filling import pread_direct
from tests.mounts.test_lifecycle import is_free
from tests.mounts.test_store_faults import Load
from tests.support.models import write_native
from tests.support.waiting import WAIT_S, wait_for

STALL_S = 1.0
"""How long a hit may wait for the store before the source answers."""


def back_to_hits(m: Mounted, expected: dict[str, bytes]) -> None:
    """Wait until the store serves again, while reading."""

    def served() -> bool:
        before = hits(m)
        read_all(m, expected)
        return hits(m) > before

    wait_for(served, bool)


@pytest.mark.mount
@pytest.mark.slow
def test_reads_of_the_store_fail_for_a_while(tree: Path, under: FaultFs) -> None:
    expected = model(tree, "a", "b")
    with Mounted(tree, store=under.mountpoint / "store") as m:
        assert fill(m, expected) >= 20
        usual = timed_reads(m, "a", expected["a"], 50)
        under.fail_reads(errno.EIO)
        took: list[float] = []
        seen: set[str] = set()
        until = time.monotonic() + 2
        while time.monotonic() < until:
            took += timed_reads(m, "a", expected["a"], 20, seed=len(took))
            seen.add(m.status()["state"])
        assert seen & {"degraded", "off"}, seen
        assert sorted(took)[int(0.99 * len(took))] < max(usual) + STALL_S
        read_all(m, expected)
        under.reset()
        back_to_hits(m, expected)
        wait_for(m.status, lambda s: s["state"] == "normal")
        fill(m, expected)
        before = m.status()["reads"]["misses"]
        read_all(m, expected)
        assert m.status()["reads"]["misses"] == before, "what was dropped has been filled again"
        assert len(m.log.read_text().splitlines()) <= LOG_LINES_A_MINUTE


@pytest.mark.mount
def test_a_store_that_hangs(tree: Path, under: FaultFs) -> None:
    """The hits that meet the hang wait a second; the ones after them do not wait at all."""
    expected = model(tree, "a", "b")
    with Mounted(tree, store=under.mountpoint / "store") as m:
        fill(m, expected)
        under.hang()
        try:
            first: list[float] = []
            readers = [
                threading.Thread(target=lambda i=i: first.extend(timed_reads(m, "a", expected["a"], 1, seed=i)))
                for i in range(8)
            ]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            assert len(first) == 8, "every one of them was right"
            assert max(first) < STALL_S + 2 * ROUND_UP_S
            assert m.status()["state"] == "off"
            later = timed_reads(m, "b", expected["b"], 100)
            assert max(later) < ROUND_UP_S
            assert sorted(os.listdir(m.mountpoint)) == sorted(os.listdir(tree))
        finally:
            under.resume()
        back_to_hits(m, expected)
        wait_for(m.status, lambda s: s["gauges"]["store_reads_threads_busy"] == 0)
        assert m.status()["errors"]["source"] == 0


@pytest.mark.mount
def test_a_file_that_is_first_opened_while_the_store_hangs(tree: Path, under: FaultFs) -> None:
    """Its header is parsed by a new process, which closes the store's files before it begins. That may hang; we not."""
    expected = model(tree, "a", "b")
    with Mounted(tree, store=under.mountpoint / "store") as m:
        fill(m, {"a": expected["a"]})
        under.hang()
        try:
            got: list[bytes] = []
            reader = threading.Thread(target=lambda: got.extend(map(m.read, ("b", "a"))), daemon=True)
            reader.start()
            reader.join(WAIT_S)
            assert got == [expected["b"], expected["a"]]
            assert wait_for(lambda: children(m.pid), bool), "one that hangs"
            assert m.status()["state"] == "off"
        finally:
            under.resume()
        back_to_hits(m, {"a": expected["a"]})
        wait_for(lambda: fill(m, expected), lambda n: n == 20)


@pytest.mark.mount
def test_a_store_that_becomes_read_only(tree: Path, under: FaultFs) -> None:
    """Under load: hits go on, nothing new is stored, and once it may be written again fills begin again."""
    expected = model(tree, "a", "b")
    with Mounted(tree, store=under.mountpoint / "store") as m:
        fill(m, {"a": expected["a"]})
        stored = len(m.range_files())
        for op in ("create", "write", "mkdir", "rename", "unlink"):
            under.fail_op(op, errno.EROFS)
        with Load(m, expected) as load:
            wait_for(m.status, lambda s: s["state"] == "degraded")
            before = hits(m)
            wait_for(lambda: hits(m), lambda n: n > before + 20)
        assert not load.wrong
        assert len(m.range_files()) == stored
        under.reset()
        wait_for(lambda: fill(m, expected), lambda n: n > stored)


@pytest.mark.mount
@pytest.mark.parametrize("op", ["fsync", "write", "rename"])
def test_a_write_that_fails_publishes_nothing(tree: Path, under: FaultFs, op: str) -> None:
    """Every one, until it is mended: no range file, no temporary, and reads as ever. Then it is filled."""
    expected = model(tree, "a", "b")
    with Mounted(tree, store=under.mountpoint / "store") as m:
        under.fail_op(op, errno.EIO)
        for _ in range(3):
            read_all(m, expected)
        assert m.settle()["state"] == "degraded"
        assert m.range_files() == []
        assert list((under.mountpoint / "store/tmp").iterdir()) == []
        assert len(m.log.read_text().splitlines()) <= LOG_LINES_A_MINUTE
        under.reset()
        wait_for(lambda: fill(m, expected), lambda n: n == 20)


@pytest.mark.mount
def test_a_full_disk_under_a_large_budget(tree: Path, tmpfs: Callable[[str], Path]) -> None:
    """64 MB of disk, 10 GB of budget, nothing kept free: 160 MB are read in both ways."""
    disk = tmpfs("size=64m")
    names = [f"f{i}" for i in range(10)]
    for i, name in enumerate(names):
        write_native(tree / name, seed=i, sizes=(4 * MIB,) * 4, gap=10 * KIB)
    options = ("settle=0", "store_reserve=0")
    with Mounted(tree, store=disk / "store", store_size="10G", options=options) as m:
        for name in names:
            data = (tree / name).read_bytes()
            assert m.read(name) == data
            m.drop_pages(name)
            assert map_shared(m.path(name)) == data
            m.drop_pages(name)
        status = m.settle()
        assert status["state"] in ("normal", "degraded")
        assert 10 * MIB < status["store"]["used_bytes"] <= 64 * MIB
        before = hits(m)
        assert m.read(names[0]) == (tree / names[0]).read_bytes()
        assert hits(m) > before, "what found room is served"
        assert len(m.log.read_text().splitlines()) <= LOG_LINES_A_MINUTE


@pytest.mark.mount
def test_no_inodes_left(tree: Path, tmpfs: Callable[[str], Path]) -> None:
    expected = model(tree, "a", "b", ranges=20)
    with Mounted(tree, store=tmpfs("size=64m,nr_inodes=40") / "store") as m:
        for _ in range(3):
            read_all(m, expected)
        status = m.settle()
        assert 0 < status["store"]["ranges"] < 40
        assert status["state"] == "degraded"
        assert len(m.log.read_text().splitlines()) <= LOG_LINES_A_MINUTE


@pytest.mark.mount
def test_a_store_whose_directory_is_deleted_is_made_anew(tree: Path, store: Path) -> None:
    expected = model(tree, "a", "b")
    with Mounted(tree, store=store) as m:
        stored = fill(m, expected)
        with Load(m, expected, readers=2) as load:
            subprocess.run(["rm", "-rf", store], check=True)
            wait_for(lambda: store.is_dir() and m.range_files(), bool)
        assert not load.wrong
        wait_for(lambda: fill(m, expected), lambda n: n == stored)
        assert not is_free(store), "the new directory is locked too"


@pytest.mark.mount
def test_range_files_deleted_and_damaged_all_the_time(tree: Path, store: Path) -> None:
    """For some seconds here; `scripts/soak damage` does it for an hour."""
    done = damage(tree, store, seconds=3, seed=4)
    assert done["damaged"] > 20 and done["fills"] > 40 and done["passes"] > 10


@pytest.mark.mount
def test_every_flipped_bit_is_counted_once(tree: Path, store: Path) -> None:
    expected = model(tree, "a", "b")
    rng = random.Random(5)
    with Mounted(tree, store=store) as m:
        stored = fill(m, expected)
        for path in m.range_files():
            with changed(path) as data:
                data[rng.randrange(PAGE, len(data))] ^= 1 << rng.randrange(8)
        read_all(m, expected)
        assert m.settle()["errors"]["corrupt"] == stored
        assert fill(m, expected) == stored
        payloads = [path.read_bytes()[PAGE:] for path in m.range_files()]
        assert all(any(payload in data for data in expected.values()) for payload in payloads), "each was written anew"


@pytest.mark.mount
def test_64_readers_never_pass_the_budget(tree: Path, tmpfs: Callable[[str], Path]) -> None:
    """Looked at every few milliseconds, deleted files that are still open included."""
    budget, slack = 8 * MIB, 8 * PAGE  # the lock, a probe, and an evicted file's last page
    disk = tmpfs("size=256m")
    expected = model(tree, *(f"f{i}" for i in range(16)))
    empty_bytes = in_use(disk)
    with Mounted(tree, store=disk / "store", store_size=str(budget)) as m:
        most, stop = [0], threading.Event()
        wrong: list[tuple[str, int]] = []

        def watch() -> None:
            while not stop.wait(0.005):
                most[0] = max(most[0], in_use(disk) - empty_bytes)

        def reader(number: int) -> None:
            rng = random.Random(number)
            for name in rng.sample(sorted(expected), 4):
                with opened(m.path(name)) as fd:
                    at = rng.randrange(len(expected[name]) // PAGE) * PAGE
                    for piece in range(at, min(len(expected[name]), at + 2 * MIB), 256 * KIB):
                        got = os.pread(fd, 256 * KIB, piece)
                        wrong.extend([(name, piece)] * (got != expected[name][piece : piece + 256 * KIB]))

        readers = [threading.Thread(target=reader, args=(i,)) for i in range(64)]
        watcher = threading.Thread(target=watch)
        for thread in (watcher, *readers):
            thread.start()
        for thread in readers:
            thread.join()
        status = m.settle()
        stop.set()
        watcher.join()
        assert not wrong
        assert status["evictions"]["ranges"] > 0
        assert budget / 2 < most[0] <= budget + slack
        assert status["gauges"]["fill_bytes_in_flight_max"] <= 256 * MIB


@pytest.mark.mount
def test_the_scan_of_the_store_is_killed(tree: Path, under: FaultFs) -> None:
    """The mount goes on, says so, serves what is stored, and scans again."""
    expected = model(tree, "a", "b")
    with Mounted(tree, store=under.mountpoint / "store") as m:
        fill(m, expected)
        m.umount()
        for path in m.range_files():  # so that the scan is there until it is killed; heat comes before it
            under.hang_reads(path.relative_to(under.mountpoint))
        assert run(*m.arguments()).returncode == 0
        m.pid = m.status()["pid"]
        found = wait_for(lambda: [pid for pid, line in children(m.pid).items() if "store.scan" in line], bool)
        os.kill(found[0], 9)
        under.release_reads()
        wait_for(m.log.read_text, lambda text: "the scan of the store failed" in text)
        read_all(m, expected)
        assert m.status()["reads"]["hits"] > 0
        assert pread_direct(m.path("a"), 0, PAGE) == expected["a"][:PAGE]
        assert wait_for(m.status, lambda s: s["state"] == "normal")["store"]["ranges"] == 20
