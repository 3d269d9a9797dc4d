"""`mummufs profile`: heat by path, out of one source and into another. The daemon is made up here."""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import mummufs
from mummufs import unmount
from mummufs.cli import cli
from mummufs.core.ranges import FileId
from mummufs.engine.heatpages import PAGE_RANGES
from mummufs.mountinfo import MountEntry
from mummufs.profile import ProfileRange, parse_profile, profile_lines
from mummufs.source.tree import TreeSource
from tests.support.models import write_native

KIB = 1 << 10
ENTRY = MountEntry(7, 1, (0, 9), "/m", "/m", "ro", "fuse.mummufs", "/slow", f"ro,user_id={os.geteuid()}")


class Daemon:
    """Stands in for `mummufs.control` and what is behind it.

    Attributes:
        heat: what the mount knows, a row a range.
        paths: of the files that it has looked up.
        recalled: the rows that it was given, page by page.
    """

    def __init__(self, source: Path) -> None:
        self.source = source
        self.heat: list[list[float]] = []
        self.paths: dict[FileId, str] = {}
        self.recalled: list[list[list[float]]] = []

    def request(self, mountpoint: Path, op: str, timeout_s: float = 5.0, **asked: Any) -> dict[str, Any]:
        assert mountpoint == Path("/m")
        if op == "status":
            return {"source": str(self.source), "options": {"manifest": None}}
        if op == "heat_page":
            at = asked["walk"] or 0
            return {"walk": at + 2, "ranges": self.heat[at : at + 2], "more": at + 2 < len(self.heat)}
        if op == "heat_paths":
            return {"paths": [self.paths.get(FileId(*file)) for file in asked["files"]]}
        assert op == "heat_recall"
        json.dumps(asked)
        self.recalled.append(asked["ranges"])
        return {"ranges": len(asked["ranges"])}


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    source = tmp_path / "source"
    (source / "models").mkdir(parents=True)
    made = Daemon(source)
    module = types.ModuleType("mummufs.control")
    module.request = made.request  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mummufs.control", module)
    monkeypatch.setattr(mummufs, "control", module, raising=False)
    monkeypatch.setattr(unmount, "read_mountinfo", lambda: [ENTRY])
    return made


def model(source: Path, name: str) -> tuple[FileId, int]:
    """A file of three windows of 256 KiB; its identity and size."""
    path = source / name
    write_native(path, sizes=[256 * KIB] * 3, gap=0)
    attributes = TreeSource(source).stat(os.fsencode(name))
    return attributes.file, attributes.size


def called(*words: str) -> Result:
    return CliRunner().invoke(cli, ["profile", *words])


def test_save_writes_what_is_hot_by_path(daemon: Daemon, tmp_path: Path) -> None:
    a, size = model(daemon.source, "models/a")
    b, _ = model(daemon.source, "b")
    daemon.paths[a] = "models/a"
    daemon.heat = [
        [*b, 0, 256 * KIB, 0.5],
        [*a, 256 * KIB, 256 * KIB, 2.0],
        [*a, 0, 256 * KIB, -1.0],
        [*a, 512 * KIB, 1 << 30, 1.0],
        [1, 2, 0, 4096, 3.0],
    ]
    file = tmp_path / "p.jsonl"
    done = called("save", "/m", str(file))
    assert done.exit_code == 0, done.output
    assert parse_profile(file.read_bytes()) == [
        ProfileRange(b"b", 0, 256 * KIB, 0.5, size),
        ProfileRange(b"models/a", 0, 256 * KIB, -1.0, size),
        ProfileRange(b"models/a", 256 * KIB, 256 * KIB, 2.0, size),
    ]
    assert done.stdout == f"the heat of 3 ranges of 2 files is in {file}\n"
    assert "2 ranges were left out" in done.stderr
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []


def test_a_path_that_leads_elsewhere_by_now_is_not_believed(daemon: Daemon, tmp_path: Path) -> None:
    a, _ = model(daemon.source, "a")
    model(daemon.source, "b")
    daemon.paths[a] = "b"
    daemon.heat = [[*a, 0, 256 * KIB, 0.5]]
    assert called("save", "/m", str(tmp_path / "p")).exit_code == 0
    assert parse_profile((tmp_path / "p").read_bytes()) == []


def test_load_recalls_what_fits_and_tells_the_rest(daemon: Daemon, tmp_path: Path) -> None:
    a, size = model(daemon.source, "models/a")
    (daemon.source / "plain").write_bytes(b"x" * 100)
    wanted = [
        ProfileRange(b"gone", 0, 4096, 1.0, 8192),
        ProfileRange(b"models", 0, 4096, 1.0, 8192),
        ProfileRange(b"models/a", 0, 256 * KIB, 1.0, size),
        ProfileRange(b"models/a", 256 * KIB, 256 * KIB, 3.0, size),
        ProfileRange(b"models/a", 4096, 4096, 2.0, size),
        ProfileRange(b"plain", 0, 100, 1.0, 100),
        ProfileRange(b"plain", 0, 50, 1.0, 50),
    ]
    file = tmp_path / "p"
    file.write_bytes(b"".join(profile_lines(wanted)))
    done = called("load", "/m", str(file), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["ranges"], found["files"]) == (2, 1)
    assert daemon.recalled == [[[*a, 256 * KIB, 256 * KIB, 3.0], [*a, 0, 256 * KIB, 1.0]]], "the hottest first"
    reasons = {s["path"]: (s["ranges"], s["reason"]) for s in found["skipped"]}
    assert reasons == {
        "gone": (1, "it is not in the source: No such file or directory"),
        "models": (1, "it is no regular file in the source"),
        "models/a": (1, "its ranges lie otherwise"),
        "plain": (2, "no ranges are known of it"),
    }
    text = called("load", "/m", str(file)).stdout
    assert text.startswith("the heat of 2 ranges of 1 files was recalled\n")
    assert "its ranges lie otherwise" in text


def test_a_file_of_another_size_is_another_model(daemon: Daemon, tmp_path: Path) -> None:
    _, size = model(daemon.source, "a")
    file = tmp_path / "p"
    file.write_bytes(b"".join(profile_lines([ProfileRange(b"a", 0, 256 * KIB, 1.0, size + 1)])))
    done = called("load", "/m", str(file))
    assert done.exit_code == 1
    assert f"it has {size} bytes in the source, and {size + 1} in the profile" in done.stdout
    assert "is it the same model?" in done.stderr
    assert daemon.recalled == []


def test_heat_goes_in_by_pages(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, size = model(daemon.source, "a")
    monkeypatch.setattr("mummufs.engine.heatpages.PAGE_RANGES", 2)
    wanted = [ProfileRange(b"a", i * 256 * KIB, 256 * KIB, float(i), size) for i in range(3)]
    (tmp_path / "p").write_bytes(b"".join(profile_lines(wanted)))
    assert called("load", "/m", str(tmp_path / "p")).exit_code == 0
    assert [len(page) for page in daemon.recalled] == [2, 1]


def test_a_page_fits_a_request() -> None:
    from mummufs.control import REQUEST_BYTES_MAX

    largest = [(1 << 64) - 1, (1 << 64) - 1, (1 << 63) - 1, (1 << 63) - 1, -1.2345678901234567e-300]
    request = json.dumps({"op": "heat_recall", "ranges": [largest] * PAGE_RANGES})
    assert len(request) < REQUEST_BYTES_MAX


def test_what_cannot_be_is_told(daemon: Daemon, tmp_path: Path) -> None:
    done = called("load", "/m", str(tmp_path / "none"))
    assert done.exit_code == 2 and "cannot be used: " in done.stderr
    done = called("save", "/m", str(tmp_path / "no" / "such" / "p"))
    assert done.exit_code == 2 and "there is no folder" in done.stderr
    (tmp_path / "p").write_text('{"mummufs_profile": 7}')
    assert called("save", "/m", str(tmp_path / "p")).exit_code == 0, "a profile is replaced by the next"
    (tmp_path / "model").write_bytes(b"weights")
    (tmp_path / "link").symlink_to("model")
    os.mkfifo(tmp_path / "fifo")
    for name in ("", "/", "model", "link", "fifo", ".", str(tmp_path)):
        done = called("save", "/m", str(tmp_path / name) if name not in ("", "/") else name)
        assert done.exit_code == 2 and done.stderr.startswith("mummufs: '"), name
    assert (tmp_path / "model").read_bytes() == b"weights"
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []
    daemon.source.rename(tmp_path / "away")
    done = called("save", "/m", str(tmp_path / "p"))
    assert done.exit_code == 1 and "cannot be opened" in done.stderr
