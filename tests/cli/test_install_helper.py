"""The links that mount(8) looks for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mummufs.cli import cli
from mummufs.commands.install_helper import LINK_NAMES, install_links, remove_links
from mummufs.core.errors import MummufsError


@pytest.fixture
def script(tmp_path: Path) -> Path:
    found = tmp_path / "bin" / "mount.mummufs"
    found.parent.mkdir()
    found.write_text("#!/bin/sh\n")
    return found


@pytest.fixture
def sbin(tmp_path: Path) -> Path:
    (tmp_path / "sbin").mkdir()
    return tmp_path / "sbin"


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def test_install_and_remove_are_each_other_s_inverse(script: Path, sbin: Path) -> None:
    (sbin / "mount.other").write_text("x")
    install_links(sbin, script)
    assert [(sbin / name).readlink() for name in LINK_NAMES] == [script, script]
    assert all("is there already" in line for line in install_links(sbin, script))
    remove_links(sbin, script)
    assert names(sbin) == ["mount.other"]
    assert all("is not there" in line for line in remove_links(sbin, script))


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "directory"])
@pytest.mark.parametrize("name", LINK_NAMES)
def test_what_is_not_ours_stays_and_nothing_is_half_done(script: Path, sbin: Path, kind: str, name: str) -> None:
    foreign = sbin / name
    if kind == "file":
        foreign.write_text("x")
    elif kind == "directory":
        foreign.mkdir()
    else:
        foreign.symlink_to("/bin/sh" if kind == "link" else "/no/such/program")
    with pytest.raises(MummufsError, match="is not of this installation: remove it first"):
        install_links(sbin, script)
    assert names(sbin) == [name]
    assert any("stays" in line for line in remove_links(sbin, script))
    assert names(sbin) == [name]


def test_the_link_of_an_installation_that_is_gone_is_replaced(script: Path, sbin: Path) -> None:
    (sbin / "mount.mummufs").symlink_to("/gone/bin/mount.mummufs")
    install_links(sbin, script)
    assert (sbin / "mount.mummufs").readlink() == script


def test_the_link_of_another_live_installation_is_not(script: Path, sbin: Path, tmp_path: Path) -> None:
    other = tmp_path / "mount.mummufs"
    other.write_text("x")
    (sbin / "mount.mummufs").symlink_to(other)
    with pytest.raises(MummufsError, match="is not of this installation"):
        install_links(sbin, script)
    assert (sbin / "mount.mummufs").readlink() == other


def test_the_command(script: Path, sbin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(script.parent / "python"))
    done = CliRunner().invoke(cli, ["install-helper", "--dir", str(sbin)])
    assert done.exit_code == 0
    assert names(sbin) == sorted(LINK_NAMES)
    done = CliRunner().invoke(cli, ["install-helper", "--dir", str(sbin), "--remove"])
    assert done.exit_code == 0
    assert names(sbin) == []


def test_a_missing_script_or_directory_is_a_sentence(
    tmp_path: Path, sbin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "empty" / "python"))
    done = CliRunner().invoke(cli, ["install-helper", "--dir", str(sbin)])
    assert (done.exit_code, "is not there: install the package with pip" in done.stderr) == (1, True)
    done = CliRunner().invoke(cli, ["install-helper", "--dir", str(tmp_path / "absent")])
    assert (done.exit_code, "is not a directory" in done.stderr) == (2, True)


def test_missing_rights_are_a_sentence(script: Path, sbin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(link: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied", str(link))

    monkeypatch.setattr(sys, "executable", str(script.parent / "python"))
    monkeypatch.setattr(Path, "symlink_to", refuse)
    done = CliRunner().invoke(cli, ["install-helper", "--dir", str(sbin)])
    assert (done.exit_code, "may not be changed by this user: use sudo" in done.stderr) == (1, True)
