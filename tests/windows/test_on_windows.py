"""The cases, and what only Windows has, over a mount that `mummufs mount` makes there. Nothing here runs elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.trees import write_models
from tests.windows.cases import CASES, models_of

pytestmark = pytest.mark.skipif(sys.platform != "win32", reason="this machine does not run Windows")

DRIVE = Path("M:\\")


def run(*arguments: str) -> str:
    """Run the command line of this checkout."""
    done = subprocess.run(
        [sys.executable, "-m", "mummufs", *arguments], text=True, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    write_models(root)
    return root


@pytest.fixture(scope="module", params=["buffered", "unbuffered"])
def mount(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    os.environ["MUMMUFS_UNBUFFERED"] = "1" if request.param == "unbuffered" else "0"
    store, log = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("log") / "log"
    run("mount", str(source), "M:", "--store", str(store), "-o", "settle=0,attr_timeout=0.2", "--log-file", str(log))
    try:
        yield DRIVE
        status = json.loads(run("status", "M:", "--json"))
        assert status["errors"]["handler"] == 0, log.read_text("utf-8")
        assert status["reads"]["hit_bytes"] > 0 and status["backend"]["source_io"] == request.param
    finally:
        run("umount", "M:")
    assert not DRIVE.exists()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_case(mount: Path, source: Path, case: Callable[[Path, Path], None]) -> None:
    case(mount, source)


def test_names_in_any_case(mount: Path, source: Path) -> None:
    for name in models_of(source):
        assert (mount / str(name).upper()).read_bytes() == (source / name).read_bytes()


def test_a_name_whose_case_is_changed(mount: Path, source: Path) -> None:
    (mount / "case").write_bytes(b"x")
    (mount / "case").rename(mount / "CASE")
    assert "CASE" in os.listdir(source) and "case" not in os.listdir(source)
    (mount / "CASE").unlink()


def test_a_file_that_is_open_is_deleted_when_it_is_closed(mount: Path) -> None:
    (mount / "open").write_bytes(b"x")
    with (mount / "open").open("rb"), pytest.raises(PermissionError):
        (mount / "open").unlink()  # Python shares no deletion
    (mount / "open").unlink()
    assert not (mount / "open").exists()


def test_reserved_names_are_not_created(mount: Path) -> None:
    with pytest.raises(OSError):
        Path("\\\\?\\M:\\nul.txt").write_bytes(b"x")
    assert "nul.txt" not in os.listdir(mount)
