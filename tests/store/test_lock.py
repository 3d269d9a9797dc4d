"""One mount per store."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mummufs.core.errors import StoreBusyError
from mummufs.store.lock import StoreLock
from tests.support.descriptors import descriptors

ROOT = Path(__file__).resolve().parents[2]
_HOLD = """
import sys
from pathlib import Path
from mummufs.store.lock import StoreLock
lock = StoreLock(Path(sys.argv[1]), 0)
print("held", flush=True)
sys.stdin.readline()
lock.release()
"""


@contextmanager
def _holder(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock until it is told to let go, or is killed."""
    command = [sys.executable, "-c", _HOLD, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"held\n"
            yield child
        finally:
            child.kill()


def test_the_lock_names_its_holder_and_is_private(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        lock = StoreLock(tmp_path, 0)
    finally:
        os.umask(before)
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600
    lock.release()
    lock.release()
    assert (tmp_path / "lock").read_text() == ""


def test_a_second_mount_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    before = descriptors()
    with _holder(tmp_path) as child:
        with pytest.raises(StoreBusyError) as caught:
            StoreLock(tmp_path, 0)
        assert caught.value.pid == child.pid
        assert f"process {child.pid}" in str(caught.value) and str(tmp_path) in str(caught.value)
    assert not descriptors() - before


def test_a_holder_that_cannot_be_named(tmp_path: Path) -> None:
    with _holder(tmp_path):
        (tmp_path / "lock").write_text("nonsense")
        with pytest.raises(StoreBusyError, match="another process") as caught:
            StoreLock(tmp_path, 0)
        assert caught.value.pid is None


def test_a_lock_left_by_a_killed_process_is_free(tmp_path: Path) -> None:
    with _holder(tmp_path) as child:
        child.kill()
        child.wait(10)
        assert (tmp_path / "lock").read_text() == f"{child.pid}\n"
        lock = StoreLock(tmp_path, 0)
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_mount_waits_for_one_that_is_leaving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _holder(tmp_path) as child:
        polls: list[float] = []

        def let_go(seconds: float) -> None:
            """In place of the pause between two tries: the holder is told to leave, and has left."""
            polls.append(seconds)
            assert child.stdin is not None
            child.stdin.write(b"\n")
            child.stdin.flush()
            child.wait()  # without a time-out, which would be a pause of its own

        monkeypatch.setattr(time, "sleep", let_go)
        lock = StoreLock(tmp_path, 60)
        assert len(polls) == 1 and child.returncode == 0
        lock.release()


def test_it_does_not_wait_longer_than_it_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds

    with _holder(tmp_path):
        monkeypatch.setattr(time, "sleep", pause)
        monkeypatch.setattr(time, "monotonic", lambda: now)
        with pytest.raises(StoreBusyError):
            StoreLock(tmp_path, 10)
    assert 1010 <= now < 1010.5


def test_a_full_file_system_is_no_reason_to_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    lock = StoreLock(tmp_path, 0)
    with pytest.raises(StoreBusyError):
        StoreLock(tmp_path, 0)
    lock.release()
    StoreLock(tmp_path, 0).release()


@pytest.mark.parametrize("kind", ["directory", "symlink", "missing"])
def test_a_lock_file_that_cannot_be_made(tmp_path: Path, kind: str) -> None:
    before = descriptors()
    if kind == "directory":
        (tmp_path / "lock").mkdir()
    if kind == "symlink":
        (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        StoreLock(tmp_path / "none" if kind == "missing" else tmp_path, 0)
    assert not descriptors() - before and not (tmp_path / "elsewhere").exists()
