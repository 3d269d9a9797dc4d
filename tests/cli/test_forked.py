"""The tests' own way to run the command line says what a process of its own says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import REPOSITORY, call


@pytest.mark.parametrize(
    "arguments",
    [("--version",), ("ranges", "--no-such-option"), ("ranges", "/no/such/\udcff"), ("umount", "/proc")],
    ids=["well", "usage", "failure", "refusal"],
)
def test_a_fork_says_what_a_process_says(arguments: tuple[str, ...]) -> None:
    forked = call(*arguments)
    command = [sys.executable, "-m", "mummufs", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (forked.returncode, forked.stdout, forked.stderr) == (done.returncode, done.stdout, done.stderr)
    assert forked.stdout + forked.stderr


def test_a_fork_has_the_environment_of_its_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, mountpoint = tmp_path / "source", tmp_path / "mnt"
    source.mkdir()
    mountpoint.mkdir()
    monkeypatch.setenv("MUMMU_DISK_CACHE_GB", "nonsense")
    done = call("mount", source, mountpoint, "--store", tmp_path / "store")
    assert done.returncode == 2
    assert "nonsense" in done.stderr
