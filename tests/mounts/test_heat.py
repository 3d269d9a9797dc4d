"""What a mount has learned of its ranges outlives it, however it ends, and goes to another mount as a profile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from mummufs.cli import cli
from mummufs.mount import HEAT_SAVE_ENV
from tests.mounts.harness import Mounted
from tests.support.models import write_gguf
from tests.support.waiting import wait_for


def read_twice(m: Mounted, name: str) -> bytes:
    """The first pass may come before the ranges are known; the second touches each."""
    m.read(name)
    m.settle()
    m.drop_pages(name)
    data = m.read(name)
    m.settle()
    return data


@pytest.mark.mount
def test_heat_outlives_a_kill(tree: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HEAT_SAVE_ENV, "0.2")
    write_gguf(tree / "m.gguf")
    with Mounted(tree, store=store) as m:
        expected = read_twice(m, "m.gguf")
        saved = wait_for(m.status, lambda s: s["heat"]["saved_ranges"] == s["store"]["ranges"])["heat"]["saved_ranges"]
        assert saved > 20
        m.kill()
        m.mount()
        assert m.status()["heat"]["recalled"] == saved
        assert m.read("m.gguf") == expected
        m.settle()
        wear = m.status()["wear"]
        assert wear["ranges_bytes"] == 0, "all of it was there"
        assert wear["served_bytes"] > 0


def profile(*words: object) -> str:
    """Run `mummufs profile` in this process; what it prints."""
    done = CliRunner().invoke(cli, ["profile", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.mount
def test_a_profile_warms_another_mount(tree: Path, store: Path, tmp_path: Path) -> None:
    """It goes by path: to a copy of the model, whose inode is another, and which nobody has opened yet."""
    write_gguf(tree / "m.gguf")
    with Mounted(tree, store=store) as m:
        read_twice(m, "m.gguf")
        hot = m.status()["store"]["ranges"]
        assert f"heat of {hot} ranges of 1 files" in profile("save", m.mountpoint, tmp_path / "profile")
    shutil.copytree(tree, tmp_path / "copy")
    with Mounted(tmp_path / "copy", store=tmp_path / "other") as m:
        assert f"heat of {hot} ranges of 1 files" in profile("load", m.mountpoint, tmp_path / "profile")
        assert m.status()["gauges"]["heat_remembered"] == hot > 20
