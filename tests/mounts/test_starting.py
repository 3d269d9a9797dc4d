"""Starting and closing under odd circumstances: names, two at once, an early end, a source that hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from mummufs import control
from mummufs.mountinfo import mount_at, read_mountinfo
from tests.faultfs.client import FaultFs
from tests.mounts.harness import COMMAND, REPOSITORY, Mounted, run
from tests.support.models import write_native
from tests.support.waiting import wait_for

pytestmark = pytest.mark.mount


@pytest.mark.parametrize("name", ["modèle", "日本", "a,b", "back\\slash", 'quo"te', "sp ace", "\udcff\udcfe"])
def test_a_source_of_any_name(tmp_path: Path, name: str) -> None:
    source = tmp_path / name
    source.mkdir()
    (source / "f").write_bytes(b"bytes")
    with Mounted(source) as m:
        assert m.read("f") == b"bytes"
        entry = mount_at(m.mountpoint, read_mountinfo())
        assert entry is not None
        assert entry.source == os.fspath(source)


def test_of_two_mounts_at_once_one_is_refused(tmp_path: Path, tree: Path) -> None:
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    command = [*COMMAND, "mount", os.fspath(tree), os.fspath(mountpoint)]
    both = [subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=60)[1] for process in both]
    try:
        assert sorted(process.returncode for process in both) == [0, 2]
        refused = told[[process.returncode for process in both].index(2)]
        assert str(mountpoint) in refused
        assert "Traceback" not in refused
        assert [e.mountpoint for e in read_mountinfo()].count(os.fspath(mountpoint)) == 1
    finally:
        run("umount", mountpoint, check=False)
    assert mount_at(mountpoint, read_mountinfo()) is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_mount_that_is_ended_early_leaves_nothing(tmp_path: Path, tree: Path, number: signal.Signals) -> None:
    """The daemon waits for its source, so that the signal is sure to come before it is ready."""
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    with FaultFs(tree) as under:
        under.set_attr_delay(1)
        command = [*COMMAND, "mount", os.fspath(under.mountpoint), os.fspath(mountpoint)]
        before = signal.signal(number, signal.SIG_DFL)  # where tests run under nohup, the child would inherit that
        process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
        signal.signal(number, before)

        def daemons() -> list[int]:
            path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            return [int(pid) for pid in path.read_text().split()] if path.exists() else []

        found = wait_for(daemons, bool)
        process.send_signal(number)
        process.wait(30)
        under.set_attr_delay(0)
        wait_for(lambda: [pid for pid in found if Path(f"/proc/{pid}").exists()], lambda left: not left)
    assert mount_at(mountpoint, read_mountinfo()) is None


def test_closing_a_file_of_a_source_that_hangs_holds_up_nothing(tree: Path, store: Path) -> None:
    """A close asks a file system in user space to flush, and waits for its answer."""
    write_native(tree / "model", sizes=(1 << 20,), gap=0)
    (tree / "plain").write_bytes(b"x" * 10_000)
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store) as m:
        m.read("model")
        m.settle()
        files = [os.open(m.path(name), os.O_RDONLY) for name in ("model", "plain")]
        os.read(files[1], 5000)
        under.hang()
        try:
            os.close(files[1])
            begun = time.monotonic()
            wait_for(m.status, lambda s: s["gauges"]["open_files"] == 1)
            os.posix_fadvise(files[0], 0, 0, os.POSIX_FADV_DONTNEED)
            assert len(os.pread(files[0], 4096, 0)) == 4096
            assert control.request(m.mountpoint, "status")["reads"]["hits"] > 0
            assert time.monotonic() - begun < 2
        finally:
            under.resume()
            os.close(files[0])


def test_range_tables_keep_to_their_share_of_the_budget(tree: Path, store: Path) -> None:
    for i in range(80):
        write_native(tree / f"f{i}", sizes=(3000, 5000), gap=10)
    with Mounted(tree, store=store, store_size="1M") as m:
        for i in range(80):
            m.read(f"f{i}")
        status = m.settle()["store"]
        assert 0 < status["tables_bytes"] <= status["budget_bytes"] // 8
        disk = sum(p.stat().st_blocks * 512 for p in store.rglob("*") if p.is_file())
        assert disk <= status["budget_bytes"] + 4096, "the lock file is not counted"
        assert status["ranges"] > 0
