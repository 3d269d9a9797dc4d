"""The helper of mount(8): its flags and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mummufs
from mummufs import mount_helper
from mummufs.config import PASS_THROUGH_NOTE, MountConfig
from mummufs.core.errors import MummufsError, UsageError
from mummufs.mount_helper import run


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("my models", "mountpoint"):
        (tmp_path / name).mkdir()
    return tmp_path


class Launch:
    """Stands in for the start of the daemon."""

    def __init__(self, outcome: list[str] | Exception) -> None:
        self.outcome = outcome
        self.config: MountConfig | None = None
        self.environ: object = None

    def __call__(self, config: MountConfig, environ: object) -> list[str]:
        self.config, self.environ = config, environ
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def launched(monkeypatch: pytest.MonkeyPatch, outcome: list[str] | Exception) -> Launch:
    launch = Launch(outcome)
    monkeypatch.setattr(mount_helper, "mount_in_background", launch)
    return launch


def arguments(tree: Path, *more: str) -> list[str]:
    return [str(tree / "my models"), str(tree / "mountpoint"), *more]


def test_it_mounts_as_mount_8_asks(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    launch = launched(monkeypatch, [PASS_THROUGH_NOTE])
    options = f'ro,noexec,nofail,x-systemd.automount,store="{tree}/a,b",store_gb=2'
    assert run(arguments(tree, "-nv", "-t", "fuse.mummufs", "-o", options, "-o", "allow_other"), {"A": "b"}) == 0
    assert launch.config is not None
    assert launch.config.fsname == str(tree / "my models")
    assert launch.config.store_dir == tree / "a,b"
    assert (launch.config.store_bytes, launch.config.allow_other) == (2 << 30, True)
    assert launch.config.mount_flags == ("noexec",)
    assert launch.environ == {"A": "b"}
    out, err = capfd.readouterr()
    assert out == f"mount.mummufs: '{tree}/my models' is mounted at '{tree}/mountpoint'\n"
    assert err == f"mount.mummufs: {PASS_THROUGH_NOTE}\n"


def test_without_v_success_is_silent(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    launched(monkeypatch, [])
    assert run(arguments(tree), {}) == 0
    assert capfd.readouterr() == ("", "")


def test_flags_may_come_first(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = launched(monkeypatch, [])
    assert run(["-n", "-o", "ro", *arguments(tree)], {}) == 0
    assert launch.config is not None


def test_fake_only_checks(tree: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    launch = launched(monkeypatch, [])
    assert run(arguments(tree, "-sfv", "-o", "rw,unheard_of"), {}) == 0
    assert launch.config is None
    out, err = capfd.readouterr()
    assert "would be mounted at" in out
    assert "unheard_of" in err
    assert run(arguments(tree, "-f", "-o", "nonsense"), {}) == 1


def test_sloppy_warns_of_unknown_options(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments(tree, "-sf", "-o", "ro,nonsense=1"), {}) == 0
    assert capfd.readouterr().err == "mount.mummufs: unknown option 'nonsense' is ignored\n"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (UsageError("no"), 1),
        (MummufsError("no"), 32),
        (PermissionError(13, "Permission denied"), 1),
        (OSError(24, "Too many open files"), 2),
    ],
)
def test_exit_codes_are_those_of_mount_8(
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    failure: Exception,
    code: int,
) -> None:
    launched(monkeypatch, failure)
    assert run(arguments(tree), {}) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("mount.mummufs: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "a source and a mountpoint are needed"),
        (["/a", "/b", "/c"], "a source and a mountpoint are needed"),
        (["/a", "/b", "-z"], "option -z not recognized"),
        (["/a", "/b", "-o"], "option -o requires argument"),
        (["/a", "/b", "-t", "ext4"], "type 'ext4' is not of mummufs"),
        (["/absent source", "/absent"], "the source '/absent source' cannot be used"),
        (["/", "/proc", "-o", "remount"], "remount is not supported"),
        (["/", "/proc", "-o", "stor=/x"], "the nearest known one is 'store'"),
    ],
)
def test_a_wrong_call_is_one_sentence_and_code_1(
    capfd: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert run(words, {}) == 1
    err = capfd.readouterr().err
    assert err.startswith("mount.mummufs: ") and sentence in err
    assert err.count("\n") == 1


def test_help_and_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["-h"], {}) == 0
    assert run(["-V"], {}) == 0
    assert capfd.readouterr().out == f"{mount_helper.USAGE}\nmount.mummufs {mummufs.__version__}\n"


def test_it_runs_from_an_empty_environment(tree: Path) -> None:
    code = f"import sys; sys.path.insert(0, {os.getcwd()!r}); from mummufs.mount_helper import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments(tree, "-fv", "-o", "ro")],
        env={},
        cwd="/",
        capture_output=True,
        check=False,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "would be mounted" in done.stdout
