"""How a daemon ends: by a signal, held or not, while the source hangs, and by kill -9."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from mummufs import control
from tests.faultfs.client import FaultFs
from tests.mounts.harness import COMMAND, REPOSITORY, Mounted, opened, run
from tests.mounts.test_lifecycle import GONE, KIB, LEAVE_S, is_free, model, state, why_not_listed
from tests.support.waiting import WAIT_S, wait_for

CUT_OFF_S = 6.0
"""How soon a signal ends a mount that somebody holds."""
KILLS = 10


class InFront(Mounted):
    """A mount by `--foreground`: its daemon is a child of the test, so that its exit code can be seen."""

    process: subprocess.Popen[str]

    def mount(self) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *self.arguments(), "--foreground"],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if "mounted at" in line:
                break
        else:
            self.take_down()
            pytest.fail("".join(lines))
        self.take_in()

    def take_down(self) -> None:
        try:
            super().take_down()
        finally:
            self.process.kill()
            self.process.communicate()

    def signal(self, number: signal.Signals, limit_s: float) -> float:
        """Send a signal; the daemon ends in order within `limit_s`. Gives the seconds that it took."""
        begun = time.monotonic()
        self.process.send_signal(number)
        assert self.process.wait(limit_s + 20) == 0
        took = time.monotonic() - begun
        assert took < limit_s
        self.has_left()
        return took

    def has_left(self) -> None:
        """The mount has gone, and so have its socket and its lock."""
        assert not self.is_mounted
        assert not control.socket_path(self.mountpoint).exists()
        assert self.store is None or is_free(self.store)


@pytest.mark.mount
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(tree: Path, store: Path, number: signal.Signals) -> None:
    data = model(tree)
    with InFront(tree, store=store) as m:
        with opened(m.path("f")) as fd:
            os.pread(fd, 1, 0)
        m.settle()
        assert m.read("f") == data
        m.signal(number, LEAVE_S)
        assert not list((store / "tmp").iterdir())
        assert m.range_files(), "the fills that had their bytes were written"


@pytest.mark.mount
def test_a_signal_while_somebody_holds_it(tree: Path, store: Path) -> None:
    """Detached at once, served for some seconds more, then cut off; the log says who it was."""
    data = model(tree)
    with InFront(tree, store=store) as m, m.path("f").open("rb", buffering=0) as file:
        fd = file.fileno()
        m.process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        wait_for(lambda: m.is_mounted, lambda mounted: not mounted, 2)
        assert os.pread(fd, 1000, 0) == data[:1000], "who holds it is served meanwhile"
        assert m.process.wait(30) == 0
        assert 3 < time.monotonic() - begun < CUT_OFF_S
        m.has_left()
        with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
            os.pread(fd, 1000, 700 * KIB)
        with contextlib.suppress(OSError):  # close(2) tells of the lost connection, too
            file.close()
        assert "was still in use and has been cut off" in m.log.read_text()
        assert f"pid {os.getpid()} " in m.log.read_text()


@pytest.mark.mount
@pytest.mark.parametrize("known", [True, False], ids=["ranges known", "while parsing"])
def test_a_signal_while_the_source_hangs(tree: Path, store: Path, known: bool) -> None:
    model(tree)
    with FaultFs(tree) as under, InFront(under.mountpoint, store=store, check_books=False) as m:
        if known:
            with opened(m.path("f")) as fd:
                os.pread(fd, 1, 0)
            m.settle()
        under.hang_reads()
        outcome: list[OSError | bytes] = []

        def read() -> None:
            try:
                outcome.append(m.read("f"))
            except OSError as error:
                outcome.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        under.wait_reads(1)
        begun = time.monotonic()
        m.process.send_signal(signal.SIGTERM)
        # The kernel keeps a process until the last of its reads has been answered; all that others see of it goes.
        wait_for(lambda: state(m.pid), lambda letter: letter in GONE, CUT_OFF_S)
        assert time.monotonic() - begun < CUT_OFF_S
        m.has_left()
        reader.join(WAIT_S)
        assert not reader.is_alive()
        assert isinstance(outcome[0], OSError)
        under.release_reads()
        assert m.process.wait(WAIT_S) == 0


@pytest.mark.mount
def test_kill_9_again_and_again(tree: Path, store: Path) -> None:
    data = model(tree)
    with Mounted(tree, store=store) as m:
        for i in range(KILLS):
            assert m.read("f") == data
            reads = m.settle()["reads"]
            if i > 0:
                assert reads["hits"] > 0, "the store has survived"
                assert reads["misses"] == 0
            m.kill()
            wait_for(lambda: why_not_listed(m.mountpoint), lambda error: error == errno.ENOTCONN)
            if i == 0:
                done = run("status", check=False)
                assert done.returncode == 1
                assert os.fspath(m.mountpoint) in "".join(done.stdout.split())
                m.mount()
            else:
                m.mount()
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        assert sum(f" {m.mountpoint} " in line for line in lines) == 1
        m.kill()
        m.umount()
        assert not m.is_mounted


@pytest.mark.mount
def test_an_old_daemon_leaves_the_next_mount_alone(tree: Path, tmp_path: Path) -> None:
    """One that was detached and is still held, while something new is mounted in its place."""
    data = model(tree)
    with InFront(tree) as old, old.path("f").open("rb", buffering=0) as file:
        run("umount", old.mountpoint, "--lazy")
        with Mounted(tree, mountpoint=old.mountpoint) as m:
            assert m.pid != old.pid
            old.process.send_signal(signal.SIGTERM)
            assert old.process.wait(CUT_OFF_S) == 0
            assert f"pid {os.getpid()} " in old.log.read_text()
            assert m.status()["pid"] == m.pid
            assert m.read("f") == data
        with contextlib.suppress(OSError):
            file.close()
