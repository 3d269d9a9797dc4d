"""A source that is not there: nothing is taken for deleted, and it may come back, or come late."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from pathlib import Path

import pytest

from tests.faultfs.client import FaultFs
from tests.hostile.support import KIB, MIB, PAGE, errno_of, fill, hits, model, read_all
from tests.mounts.harness import Mounted, opened, run
from tests.mounts.test_filling import pread_direct
from tests.mounts.test_lifecycle import GONE, state, wait_gone
from tests.support.waiting import wait_for

ABSENT = {errno.EIO, errno.ENOTCONN}


@pytest.mark.mount
@pytest.mark.parametrize("offline", [False, True], ids=["", "offline_reads"])
def test_the_source_goes_away_and_comes_back(tree: Path, store: Path, tmp_path: Path, offline: bool) -> None:
    """Nothing is purged. With `offline_reads` what is stored is served, to open files and to new opens."""
    expected = model(tree, "a", "b")
    model(tree, "cold")
    place = tmp_path / "volume"
    options = ("settle=0", "attr_timeout=0", *(["offline_reads"] if offline else []))
    with FaultFs(tree, mountpoint=place) as first, Mounted(place, store=store, options=options) as m:
        stored = fill(m, expected)
        m.path("cold").stat()
        with opened(m.path("a")) as fd:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            first.process.kill()
            first.process.wait()
            whole = len(expected["a"]) // PAGE * PAGE
            codes = {
                "open file": errno_of(lambda: os.pread(fd, 64 * KIB, 128 * KIB)),
                "new open": errno_of(lambda: pread_direct(m.path("b"), 128 * KIB, 64 * KIB)),
                "cold": errno_of(lambda: pread_direct(m.path("cold"), 0, PAGE)),
                "unknown": errno_of(m.path("nobody").stat),
            }
            if offline:
                assert codes["open file"] is None
                assert os.pread(fd, whole, 0) == expected["a"][:whole]
                assert codes["new open"] is None
                for name, data in expected.items():
                    assert pread_direct(m.path(name), 128 * KIB, MIB) == data[128 * KIB : 128 * KIB + MIB]
            else:
                assert codes["new open"] in ABSENT
            assert codes["cold"] in ABSENT
            assert codes["unknown"] in ABSENT
        assert m.settle()["errors"]["handler"] == 0
        assert len(m.range_files()) == stored, "nothing was taken for deleted"
        m.umount()
        first.close()
        with FaultFs(tree, mountpoint=place) as again:
            m.mount()
            assert m.status()["store"]["ranges"] == stored
            read_all(m, expected)
            assert not [read for read in again.reads() if read.offset >= PAGE], "all from the store"
            m.umount()


@pytest.mark.mount
@pytest.mark.parametrize("offline", [False, True], ids=["", "offline_reads"])
def test_the_source_comes_back_under_a_running_mount(tree: Path, store: Path, tmp_path: Path, offline: bool) -> None:
    """It is found again within the attribute time-out, by files too that are held open since before."""
    expected = model(tree, "a", "cold")
    place = tmp_path / "volume"
    options = ("settle=0", "attr_timeout=0.1", *(["offline_reads"] if offline else []))
    with FaultFs(tree, mountpoint=place) as first, Mounted(place, store=store, options=options) as m:
        stored = fill(m, {"a": expected["a"]})
        with opened(m.path("cold")), opened(m.path("a")):
            first.process.kill()
            first.process.wait()
            wait_for(lambda: errno_of(lambda: pread_direct(m.path("cold"), 0, PAGE)), lambda code: code in ABSENT)
            first.close()
            with FaultFs(tree, mountpoint=place):
                wait_for(lambda: errno_of(lambda: os.listdir(m.mountpoint)), lambda code: code is None, 2)
                wait_for(lambda: errno_of(lambda: read_all(m, expected)), lambda code: code is None, 2)
                assert len(m.range_files()) >= stored
        assert m.settle()["errors"]["handler"] == 0


@pytest.mark.mount
def test_a_file_opened_while_the_source_was_absent(tree: Path, store: Path) -> None:
    """With `offline_reads`: it gives what is stored, EIO for the rest, and once the source is back everything."""
    expected = model(tree, "f")
    options = ("settle=0", "attr_timeout=0", "offline_reads")
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store, options=options) as m:
        pread_direct(m.path("f"), 0, PAGE)
        m.settle()
        for op in ("lookup", "getattr", "open", "read"):
            under.fail_op(op, errno.EIO)
        with opened(m.path("f"), os.O_RDONLY | os.O_DIRECT):
            assert pread_direct(m.path("f"), 8 * PAGE, PAGE) == expected["f"][8 * PAGE : 9 * PAGE]
            assert errno_of(lambda: pread_direct(m.path("f"), 1 << 20, PAGE)) == errno.EIO
            under.reset()
            assert pread_direct(m.path("f"), 1 << 20, PAGE) == expected["f"][1 << 20 : (1 << 20) + PAGE]
            read_all(m, expected)


@pytest.mark.mount
def test_the_source_is_unmounted_lazily(tree: Path, store: Path) -> None:
    """The daemon holds on to the volume that it has: an empty mountpoint is not taken for an empty volume."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tree], check=True)
    try:
        expected = model(tree, "a", "b")
        with Mounted(tree, store=store, options=("settle=0", "attr_timeout=0")) as m:
            stored = fill(m, expected)
            subprocess.run(["umount", "-l", tree], check=True)
            assert list(tree.iterdir()) == []
            assert {"a", "b"} <= set(os.listdir(m.mountpoint))
            read_all(m, expected)
            assert hits(m) > 0
            assert len(m.range_files()) == stored
    finally:
        subprocess.run(["umount", "-l", tree], check=False, capture_output=True)


@pytest.mark.mount
def test_a_source_that_is_mounted_late(tree: Path, store: Path, tmp_path: Path) -> None:
    """What a store holds of it survives the time without it; then its contents appear."""
    back = tmp_path / "volume"
    back.mkdir()
    expected = model(back, "a", "b")
    options = ("settle=0", "attr_timeout=0.2")
    with Mounted(tree, store=store, options=options) as m:
        with FaultFs(back, mountpoint=tree):
            wait_for(lambda: sorted(os.listdir(m.mountpoint)), lambda names: "a" in names, 2)
            stored = fill(m, expected)
            m.umount()
        m.mount()
        assert os.listdir(m.mountpoint) == []
        with FaultFs(back, mountpoint=tree) as late:
            wait_for(lambda: os.listdir(m.mountpoint), lambda names: "a" in names, 2)
            assert len(m.range_files()) == stored
            read_all(m, expected)
            assert not [read for read in late.reads() if read.offset >= PAGE], "all from the store"
            m.umount()


@pytest.mark.mount
def test_a_held_mount_lets_its_store_go(tree: Path, store: Path) -> None:
    """Unmounted lazily while a file is open: the next mount of the store waits for it, and both read right."""
    expected = model(tree, "a")
    with Mounted(tree, store=store) as m:
        stored = fill(m, expected)
        old = m.pid
        with opened(m.path("a")) as fd:
            done = run("umount", m.mountpoint, "--lazy")
            assert f"pid {os.getpid()} " in done.stderr
            again = Mounted(tree, store=store)
            mounting = threading.Thread(target=again.mount)
            mounting.start()
            assert os.pread(fd, 1 << 22, 0) == expected["a"]
            assert state(old) not in GONE
        try:
            mounting.join()
            wait_gone(old)
            assert len(again.range_files()) == stored
            read_all(again, expected)
            assert again.status()["reads"]["misses"] == 0
        finally:
            again.take_down()
