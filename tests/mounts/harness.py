"""A real mount in a process of its own, for the length of a test. It is always unmounted, and its books are checked."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from mummufs import control
from mummufs.core.errors import MummufsError
from mummufs.unmount import Ended, end_mount, resolved
from tests.mounts.ways import OPTIONS_ENV
from tests.support import commands
from tests.support.waiting import wait_for

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "mummufs"]
MOUNT_S = 30.0
SETTLE_S = 120.0
"""Headers are parsed behind everything else that a machine has to do."""


def why_no_mounts() -> str | None:
    """Why this machine cannot mount; None where it can."""
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    if os.geteuid() != 0:
        return "the mount tests need root: they drop caches, change users and bind mounts"
    return None


def need_mounts() -> None:
    """Skip the test where the machine cannot mount. In CI that is a failure."""
    reason = why_no_mounts()
    if reason is None:
        return
    if os.environ.get("CI"):
        pytest.fail(f"this test may not be left out in CI: {reason}")
    pytest.skip(reason)


def need_other_users() -> None:
    """Skip the test where another user cannot get to this checkout: it says nothing of the machine."""
    closed = [path for path in (REPOSITORY, *REPOSITORY.parents) if not path.stat().st_mode & 0o001]
    if closed:
        pytest.skip(f"this checkout lies in {closed[0]}, where no other user gets to it")


def run(*arguments: str | os.PathLike[str], check: bool = True, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line of this checkout. What it says is told where it fails and `check` is set."""
    done = subprocess.run(
        [*COMMAND, *(os.fspath(argument) for argument in arguments)],
        cwd=REPOSITORY,
        text=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
        **kwargs,
    )
    assert not check or done.returncode == 0, f"exit code {done.returncode}: {done.stdout}{done.stderr}"
    return done


class Mounted:
    """A mount of `source`, at a new directory of its own unless one is named.

    Attributes:
        mountpoint: where it is.
        store: its store's directory; None for pass-through.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        store: Path | None = None,
        store_size: str = "1G",
        options: Sequence[str] = ("settle=0",),
        mountpoint: Path | None = None,
        check_books: bool = True,
    ) -> None:
        self.source = Path(source)
        self.store = store
        self._own = None if mountpoint else tempfile.TemporaryDirectory(prefix="mounted-")
        self.mountpoint = mountpoint or Path(self._own.name if self._own else "").resolve() / "mnt"
        self.mountpoint.mkdir(exist_ok=True)
        self.log = Path(tempfile.mkstemp(prefix="mounted-log-")[1])
        self._store_size = store_size
        self._options = options
        self._check_books = check_books
        self.pid = 0

    def __enter__(self) -> Self:
        try:
            self.mount()
        except BaseException:  # there will be no __exit__
            self.take_down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None and self.is_mounted and self._check_books:
                self.check_books()
        finally:
            self.take_down()

    def arguments(self) -> list[str]:
        """The arguments of `mummufs mount`."""
        arguments = ["mount", os.fspath(self.source), os.fspath(self.mountpoint), "--log-file", os.fspath(self.log)]
        if self.store is not None:
            arguments += ["--store", os.fspath(self.store), "--store-size", self._store_size]
        options = [word for word in (os.environ.get(OPTIONS_ENV), *self._options) if word]
        if options:
            arguments += ["-o", ",".join(options)]
        return arguments

    def mount(self) -> None:
        """Mount, and wait until the store has been accounted for."""
        done = commands.call(*self.arguments())
        assert done.returncode == 0, done.stderr + self.log.read_text()
        self.take_in()

    def take_in(self) -> None:
        """Wait until the store has been accounted for, before which nothing is filled; by whatever means it mounted."""
        self.pid = wait_for(self.status, lambda status: status["state"] in ("normal", "pass-through"))["pid"]

    def umount(self) -> None:
        """Unmount in order, as `mummufs umount` does, without a process each time."""
        note = self._end().note
        assert note is None, note

    def remount(self) -> None:
        """Unmount and mount again, over the same store."""
        self.settle()
        self.umount()
        self.mount()

    def kill(self) -> None:
        """kill -9 the daemon; the mountpoint is dead then."""
        os.kill(self.pid, signal.SIGKILL)
        wait_for(lambda: os.path.exists(f"/proc/{self.pid}/fd/0") and _state(self.pid), lambda state: not state)

    @property
    def is_mounted(self) -> bool:
        """Whether the mountpoint is one of ours, dead or alive."""
        name = os.fspath(self.mountpoint).replace(" ", "\\040")  # as mountinfo has it
        return f" {name} " in Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")

    def take_down(self) -> None:
        """Unmount by whatever means it takes."""
        if self.is_mounted:
            with contextlib.suppress(MummufsError):
                self._end()
        if self.is_mounted:
            subprocess.run(["umount", "-l", os.fspath(self.mountpoint)], check=False, timeout=30)
            if self.pid and _state(self.pid):
                os.kill(self.pid, signal.SIGKILL)
        self.log.unlink(missing_ok=True)
        if self._own is not None:
            self._own.cleanup()

    def _end(self) -> Ended:
        path = resolved(os.fspath(self.mountpoint))
        return end_mount(path, control.daemon_pid(path), lazy=False)

    # ------------------------------------------------------------------ looking

    def status(self) -> dict[str, Any]:
        """What `mummufs status --json` prints, asked for without a process each time."""
        return control.request(self.mountpoint, "status")

    def settle(self) -> dict[str, Any]:
        """Wait until nothing is being parsed, filled or evicted; the status then."""

        def quiet(status: dict[str, Any]) -> bool:
            gauges, store = status["gauges"], status["store"]
            return not (
                status["state"] == "scanning"
                or store["filling"]
                or store.get("evicting")
                or gauges.get("parsing")
                or gauges["reads_in_flight"]
                or gauges["files_settling"]
                or gauges.get("evictions_queued")
            )

        return wait_for(self.status, quiet, SETTLE_S)

    def check_books(self) -> None:
        """At rest: every byte replied is accounted for, the gauges are zero, and the store is what the index says."""
        status = self.settle()
        reads, gauges = status["reads"], status["gauges"]
        assert reads["hit_bytes"] + reads["miss_bytes"] + reads["bypass_bytes"] == reads["replied_bytes"]
        assert gauges["reads_in_flight_bytes"] == 0
        assert status["errors"]["handler"] == 0, self.log.read_text()
        if self.store is None:
            return
        assert gauges["fill_bytes_in_flight"] == 0
        assert status["store"]["used_bytes"] <= status["store"]["budget_bytes"]
        if self.store.is_dir():
            assert len(self.range_files()) == status["store"]["ranges"]
            assert not list((self.store / "tmp").iterdir()), "no temporary is left"

    def range_files(self) -> list[Path]:
        """The range files in the store."""
        assert self.store is not None
        return sorted(self.store.glob("ranges/*/*.rng"))

    # ------------------------------------------------------------------ reading

    def path(self, name: str | os.PathLike[str]) -> Path:
        """A path in the mount."""
        return self.mountpoint / name

    def read(self, name: str | os.PathLike[str]) -> bytes:
        """A whole file through the mount."""
        return self.path(name).read_bytes()

    def drop_pages(self, *names: str | os.PathLike[str]) -> None:
        """Have the kernel forget the pages of these files (of every file below the mountpoint, if none is named)."""
        paths = [self.path(name) for name in names] or [p for p in self.mountpoint.rglob("*") if p.is_file()]
        for path in paths:
            with opened(path) as fd:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> Iterator[int]:
    """A descriptor for the length of a block."""
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def _state(pid: int) -> str:
    """A process's state letter; empty where it is gone or a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""
    return "" if state in "ZX" else state
