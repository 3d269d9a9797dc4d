"""Mounting for the lane: what fusermount3 is asked for, and what becomes of a mount that is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mummufs.backends.fuse import device
from mummufs.backends.fuse.device import LaneUnavailableError, MountRequest
from tests.mounts.harness import REPOSITORY


def request(folder: Path, *, fsname: str = "/a source", allow_other: bool = False) -> MountRequest:
    return MountRequest(folder, fsname, "mummufs", allow_other, ["ro", "noexec"])


def test_what_fusermount_is_asked_for(tmp_path: Path) -> None:
    """Commas and backslashes of a name are its own."""
    words = device._fusermount_options(request(tmp_path, fsname="/a,b\\c", allow_other=True))
    assert words == "default_permissions,fsname=/a\\,b\\\\c,subtype=mummufs,ro,noexec,allow_other"


@pytest.fixture
def fusermount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fusermount3 of the test's, first in PATH, for a user who is not root."""
    path = tmp_path / "bin/fusermount3"
    path.parent.mkdir()
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return path


def script(path: Path, *lines: str) -> None:
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)


def test_fusermount_refuses(fusermount: Path, tmp_path: Path) -> None:
    """Its last word is passed on, and nothing is left open."""
    script(fusermount, "echo one >&2", "echo 'fusermount3: option allow_other is not allowed' >&2", "exit 1")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(LaneUnavailableError, match=r"fast lane: fusermount3: option allow_other is not allowed"):
        device.mount(request(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_fusermount_says_nothing(fusermount: Path, tmp_path: Path) -> None:
    script(fusermount, "exit 0")
    with pytest.raises(LaneUnavailableError, match="fusermount3 failed"):
        device.mount(request(tmp_path))


def test_fusermount_does_not_answer(fusermount: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "FUSERMOUNT_WAIT_S", 0.1)
    script(fusermount, "exec sleep 60")
    with pytest.raises(LaneUnavailableError, match="fusermount3 does not answer"):
        device.mount(request(tmp_path))


def test_there_is_no_fusermount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(device, "FUSERMOUNT_DEFAULT", str(tmp_path / "none"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LaneUnavailableError, match="No such file"):
        device.mount(request(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may put something in the place of /dev/fuse")
def test_root_without_a_device(tmp_path: Path) -> None:
    """In a namespace of its own, /dev/fuse is something else."""
    (tmp_path / "mnt").mkdir()
    code = (
        "import sys; from tests.backends.test_device import request; from pathlib import Path;"
        " from mummufs.backends.fuse import device; device.mount(request(Path(sys.argv[1])))"
    )
    shell = 'mount --bind /dev/null /dev/fuse && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", shell, "sh", sys.executable, "-c", code, tmp_path / "mnt"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot be mounted for the fast lane: Invalid argument" in done.stderr
