"""Signals to those who read through the lane, and the ends of a mount that is being read: nobody is left waiting."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from mummufs.backends.fuse import front
from mummufs.backends.fuse.changes import MirrorOperations
from mummufs.backends.fuse.device import LaneUnavailableError
from mummufs.backends.fuse.front import LaneOptions
from mummufs.backends.fuse.session import Session, SessionOptions
from mummufs.core.stats import Counters
from mummufs.engine.mirror import Mirror
from mummufs.engine.overlay import Overlay
from mummufs.mountinfo import mount_at, read_mountinfo
from tests.faultfs.client import FaultFs
from tests.mounts.harness import Mounted, opened
from tests.mounts.lanes import KIB, LANE, MIB, lane, ranges, warm
from tests.mounts.test_lifecycle import state
from tests.mounts.test_signals import InFront
from tests.support.descriptors import descriptors
from tests.support.waiting import wait_for

FREED_S = 3.0
"""How soon a process that is killed is gone: it is looked at five times a second."""

READS = {
    "read": "os.pread(fd, 1 << 20, 0)",
    "page": "os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM); os.pread(fd, 4096, 0)",
    "mmap": "mmap.mmap(fd, 0, prot=mmap.PROT_READ)[0]",
}
RAW = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
fd = os.open(sys.argv[1], os.O_RDONLY)
buffer = ctypes.create_string_buffer(65536)
print("ready", flush=True)
got = libc.pread(fd, buffer, 65536, 0)
assert got == 65536, (got, ctypes.get_errno())
assert seen
assert buffer.raw == open(sys.argv[2], "rb").read(65536)
"""


def reader(m: Mounted, code: str) -> subprocess.Popen[bytes]:
    """A process that reads the file once."""
    script = f"import mmap, os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); {code}"
    return subprocess.Popen([sys.executable, "-c", script, m.path("f")], stderr=subprocess.DEVNULL)


@pytest.mark.mount
@pytest.mark.parametrize("io", ["cached", "direct"])
@pytest.mark.parametrize("how", READS)
def test_a_reader_that_is_killed_is_gone_while_the_source_hangs(tree: Path, store: Path, io: str, how: str) -> None:
    """By O_DIRECT on a cached file the kernel says nothing of it, and only the time-out frees it."""
    data = ranges(tree, MIB)
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store, options=(*LANE, f"io={io}")) as m:
        if how == "mmap" and io == "direct" and not m.status()["backend"]["protocol"]["direct_mmap"]:
            return
        under.hang_reads("f")
        process = reader(m, READS[how])
        try:
            wait_for(m.status, lambda s: s["gauges"]["reads_in_flight"] > 0)
            process.kill()
            assert process.wait(FREED_S) == -signal.SIGKILL
            if io == "direct" and how != "mmap":
                assert wait_for(lambda: lane(m)["interrupted"], bool) == 1
                wait_for(lambda: lane(m)["reads_running"], lambda running: running == 0)
        finally:
            under.release_reads()
            process.kill()
            process.wait()
        wait_for(lambda: lane(m)["reads_running"], lambda running: running == 0)
        assert m.read("f") == data
        assert lane(m)["faults"] == lane(m)["lost_replies"] == 0


@pytest.mark.mount
@pytest.mark.parametrize("io", ["cached", "direct"])
def test_a_signal_with_a_handler_interrupts_no_read(tree: Path, store: Path, io: str) -> None:
    """As on a disk: the read ends with its bytes, and EINTR is nothing that an engine has to know."""
    ranges(tree, MIB)
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store, options=(*LANE, f"io={io}")) as m:
        under.hang_reads("f")
        process = subprocess.Popen(
            [sys.executable, "-c", RAW, m.path("f"), tree / "f"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            wait_for(m.status, lambda s: s["gauges"]["reads_in_flight"] > 0)
            for _ in range(3):
                process.send_signal(signal.SIGUSR1)
            assert m.status()["gauges"]["reads_in_flight"] > 0
        finally:
            under.release_reads()
            _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert lane(m)["interrupted"] == 0


# ---------------------------------------------------------------------- the end under load

LOOP = """
import errno, mmap, os, random, sys
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
plain = open(sys.argv[2], "rb").read()
buffer = mmap.mmap(-1, 1 << 16)
rng = random.Random(int(sys.argv[3]))
print("ready", flush=True)
while True:
    at = rng.randrange(len(plain) - (1 << 16)) // 4096 * 4096
    try:
        n = os.preadv(fd, [buffer], at)
    except OSError as error:
        sys.exit(0 if error.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO) else 1)
    assert n == 1 << 16 and buffer[:] == plain[at : at + n], at
"""


@contextmanager
def readers(m: Mounted, tree: Path, count: int = 4) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that read hits until the mount is gone."""
    processes = [
        subprocess.Popen([sys.executable, "-c", LOOP, m.path("f"), tree / "f", str(i)], stdout=subprocess.PIPE)
        for i in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        before = lane(m)["hits"]
        wait_for(lambda: lane(m)["hits"], lambda hits: hits > before + 100)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def sigterm(m: Mounted) -> None:
    os.kill(m.pid, signal.SIGTERM)


def sigkill(m: Mounted) -> None:
    os.kill(m.pid, signal.SIGKILL)


@pytest.mark.mount
@pytest.mark.parametrize("end", [sigterm, sigkill])
def test_the_daemon_ends_under_load(tree: Path, store: Path, end: Callable[[Mounted], None]) -> None:
    """Every reader has its bytes up to then, and an error after that; nobody waits for ever."""
    ranges(tree, *(200 * KIB,) * 20)
    with InFront(tree, store=store, options=LANE, check_books=False) as m:
        warm(m, "f")
        with readers(m, tree) as processes:
            end(m)
            assert [process.wait(30) for process in processes] == [0] * len(processes)
            assert m.process.wait(30) == (0 if end is sigterm else -signal.SIGKILL)
        if end is sigterm:
            m.has_left()


@pytest.mark.mount
def test_a_lazy_unmount_while_it_is_read(tree: Path, store: Path) -> None:
    """Who has it open is served as long as he wants; then the daemon ends by itself."""
    data = ranges(tree, *(200 * KIB,) * 10)
    with InFront(tree, store=store, options=LANE, check_books=False) as m:
        warm(m, "f")
        with opened(m.path("f")) as fd:
            subprocess.run(["umount", "-l", m.mountpoint], check=True, timeout=30)
            assert not m.is_mounted
            for _ in range(20):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                assert os.pread(fd, len(data), 0) == data
            assert m.process.poll() is None
        assert m.process.wait(30) == 0
        m.has_left()


@pytest.mark.mount
def test_an_unmount_right_after_reads(tree: Path, store: Path) -> None:
    """Again and again: pushes and replies that are under way hold nothing up."""
    data = ranges(tree, *(200 * KIB,) * 4)
    with Mounted(tree, store=store, options=LANE) as m:
        warm(m, "f")
        for _ in range(2):
            with opened(m.path("f")) as fd:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
                assert os.pread(fd, 4096, 0) + os.pread(fd, 4096, 4096) == data[:8192]
            m.umount()
            wait_for(lambda: state(m.pid), lambda found: not found)
            m.mount()
        assert m.read("f") == data


@pytest.mark.mount
def test_threads_do_not_leak(tree: Path, store: Path) -> None:
    """Opening, reading and closing by many threads leaves the daemon with the threads that it had."""
    data = ranges(tree, *(200 * KIB,) * 4)
    with Mounted(tree, store=store, options=LANE) as m:
        warm(m, "f")

        def count() -> int:
            return len(os.listdir(f"/proc/{m.pid}/task"))

        def read() -> None:
            for _ in range(20):
                assert m.read("f") == data
                m.drop_pages("f")

        def round_of_reads() -> None:
            threads = [threading.Thread(target=read) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        round_of_reads()
        before = count()
        round_of_reads()
        assert count() <= before + 2
        assert lane(m)["servers"] == 4


@pytest.mark.mount
def test_a_lane_that_gets_no_descriptors_leaves_no_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is mounted before the lane has all that it needs: what is mounted then is taken away again."""

    def none_left(*_: object) -> None:
        assert mount_at(tmp_path, read_mountinfo()) is not None
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(front, "Relay", none_left)
    session = Session(
        MirrorOperations(cast(Overlay, None), cast(Mirror, None), Counters(), 1.0),
        tmp_path,
        SessionOptions("source", lane="on", lane_options=LaneOptions(64)),
    )
    before = descriptors()
    with pytest.raises(LaneUnavailableError, match=os.strerror(errno.EMFILE)):
        session.mount()
    assert mount_at(tmp_path, read_mountinfo()) is None
    assert not descriptors() - before
