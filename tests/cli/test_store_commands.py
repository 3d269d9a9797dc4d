"""warm, pin, unpin, evict and residency as a user calls them: exit codes, sentences, tables. The daemon is made up."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mummufs import control
from mummufs.cli import cli
from mummufs.commands import located as located_module
from mummufs.commands.ranges import read_table
from mummufs.commands.status import _readable
from mummufs.commands.warm import REASONS, choose
from mummufs.core.errors import MummufsError, UsageError
from mummufs.mountinfo import MountEntry
from mummufs.store.layout import charge_of
from mummufs.store.pins import PATTERN_CHARS_MAX
from mummufs.storecontrol import PATHS_MAX
from tests.support.models import write_safetensors

WARM = {
    "state": "ended",
    "stopped": False,
    "failure": None,
    "counted": True,
    "files": 2,
    "files_done": 2,
    "files_without_ranges": 1,
    "files_failed": 0,
    "last_error": None,
    "looked_at_bytes": 6 << 20,
    "asked_ranges": 6,
    "asked_bytes": 6 << 20,
    "resident_ranges": 4,
    "resident_bytes": 4 << 20,
    "filled_ranges": 3,
    "filled_bytes": 3 << 20,
    "declined": {"budget": {"ranges": 2, "bytes": 2 << 20}},
}


def called(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def sentence(result: Result) -> str:
    """The one line on stderr of a failure, but for a progress bar's."""
    assert result.exception is None or isinstance(result.exception, SystemExit)
    [line] = [line for line in result.stderr.splitlines() if line.startswith("mummufs: ")]
    return line.removeprefix("mummufs: ")


def entry(mountpoint: Path, **more: Any) -> MountEntry:
    found = MountEntry(7, 1, (0, 9), "/", str(mountpoint), "ro", "fuse.mummufs", "/slow", "ro")
    return found._replace(**more)


class Daemon:
    """Answers by request: a value, an exception, or a function of what is asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[Path, str, dict[str, Any]]] = []

    def request(self, mountpoint: Path, op: str, timeout_s: float = 5.0, **args: Any) -> dict[str, Any]:
        self.asked.append((mountpoint, op, args))
        answer = self.answers.get(op, {})
        if callable(answer):
            answer = answer(args)
        if isinstance(answer, BaseException):
            raise answer
        return dict(answer)

    def args(self, op: str) -> dict[str, Any]:
        """What was asked with this request, the last time."""
        return next(args for _, asked, args in reversed(self.asked) if asked == op)

    def finds(self, op: str, **found: Any) -> None:
        """A job ends at once, and has found this."""
        self.answers[op] = {"job": 3}
        self.answers["look"] = {"state": "ended", "stopped": False, "failure": None, "found": found, "next": None}


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "m p"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "model.gguf").write_bytes(b"x")
    (folder / "link").symlink_to("sub/model.gguf")
    (folder / "out").symlink_to("/etc")
    return folder


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, mounted: Path) -> Daemon:
    made = Daemon()
    monkeypatch.setattr(control, "request", made.request)
    entries = [entry(Path("/"), fstype="ext4", device=(8, 1)), entry(mounted)]
    monkeypatch.setattr(located_module, "read_mountinfo", lambda: entries)
    return made


# ---------------------------------------------------------------------- where paths lie


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("", ""),
        ("sub", "sub"),
        ("sub/model.gguf", "sub/model.gguf"),
        ("link", "sub/model.gguf"),
        ("sub/../link", "sub/model.gguf"),
        ("*.gguf", "*.gguf"),
        ("sub/../**/x[1]*", "**/x[1]*"),
        ("absent/file", "absent/file"),
    ],
)
def test_located(daemon: Daemon, mounted: Path, word: str, path: str) -> None:
    assert located_module.located([str(mounted / word)]) == (mounted, [path])


def test_relative_paths_and_one_named_twice(daemon: Daemon, mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mounted)
    assert located_module.located(["sub", "./sub/", "link"]) == (mounted, ["sub", "sub/model.gguf"])


@pytest.mark.parametrize("word", ["/etc", "out", "..", "a\0b"])
def test_what_is_in_no_mount(daemon: Daemon, mounted: Path, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mounted)
    for command in ("warm", "pin", "unpin", "evict", "residency"):
        done = called(command, word)
        assert done.exit_code == 2
        assert "is not in a mummufs mount: `mummufs status` lists" in sentence(done) or "is no path" in sentence(done)
    assert daemon.asked == []


def test_a_bind_mount_is_answered_for_by_its_daemon(
    daemon: Daemon, mounted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bind = tmp_path.resolve() / "bind"
    bind.mkdir()
    entries = [entry(mounted), entry(bind, root="/sub")]
    monkeypatch.setattr(located_module, "read_mountinfo", lambda: entries)
    monkeypatch.setattr(control, "socket_path", lambda path: path if path == mounted else path / "absent")
    assert located_module.located([str(bind / "model.gguf"), str(bind)]) == (mounted, ["sub/model.gguf", "sub"])


def test_paths_of_two_mounts_are_refused(daemon: Daemon, mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry(mounted), entry(mounted / "sub", device=(0, 10))]
    monkeypatch.setattr(located_module, "read_mountinfo", lambda: entries)
    done = called("warm", mounted, mounted / "sub")
    assert done.exit_code == 2
    assert "are in different mounts: name them in a command each" in sentence(done)


def test_too_many_paths_are_refused(daemon: Daemon, mounted: Path) -> None:
    done = called("pin", *(mounted / f"{'x' * 200}{i}" for i in range(300)))
    assert (done.exit_code, sentence(done)[:30]) == (2, "300 paths are too many at once")
    done = called("pin", *(mounted / str(i) for i in range(PATHS_MAX + 1)))
    assert (done.exit_code, sentence(done)[:30]) == (2, "257 paths are too many at once")


@pytest.mark.parametrize("pattern", ["", "x" * (PATTERN_CHARS_MAX + 1)])
def test_what_is_no_pattern_is_refused(daemon: Daemon, mounted: Path, pattern: str) -> None:
    for command in ("warm", "pin", "unpin", "evict"):
        done = called(command, mounted, "--ranges", pattern)
        assert done.exit_code == 2 and "--ranges takes a pattern of 1 to" in sentence(done)
    assert daemon.asked == []


def test_a_hung_mount_is_a_sentence(daemon: Daemon, mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(located_module, "probe", lambda *_, **__: TimeoutError())
    done = called("residency", mounted)
    assert done.exit_code == 1
    assert sentence(done).endswith("does not answer within 5 s: is what is mounted there hung?")


# ---------------------------------------------------------------------- warm


def test_warm_says_how_it_went(daemon: Daemon, mounted: Path) -> None:
    daemon.answers = {"warm": {"job": 5, "ahead": 0}, "warm_progress": WARM}
    done = called("warm", mounted / "sub", "--ranges", "blk.0.*")
    assert done.exit_code == 0
    assert daemon.args("warm") == {"paths": ["sub"], "ranges": "blk.0.*"}
    assert daemon.args("warm_progress") == {"job": 5}
    assert done.stdout.splitlines() == [
        "4.0 MiB of 6.0 MiB are in the store: 4 of 6 ranges, 3.0 MiB of them new",
        f"2 ranges, 2.0 MiB, are not: {REASONS['budget']}",
        "1 of 2 files have no range that is asked for",
    ]
    assert json.loads(called("warm", mounted, "--json").stdout) == {"schema": 1, **WARM}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"failure": "there is no file 'x' in the mount"}, "there is no file 'x' in the mount"),
        ({"stopped": True}, "somebody has stopped it; what is filled stays, and the same command goes on from here"),
        ({"resident_ranges": 0}, "nothing could be warmed"),
    ],
)
def test_warm_that_fails(daemon: Daemon, mounted: Path, change: dict[str, Any], told: str) -> None:
    daemon.answers = {"warm": {"job": 5, "ahead": 0}, "warm_progress": {**WARM, **change}}
    done = called("warm", mounted)
    assert (done.exit_code, sentence(done)) == (1, told)


def test_warm_in_the_background_and_its_end(daemon: Daemon, mounted: Path) -> None:
    daemon.answers = {"warm": {"job": 5, "ahead": 0}}
    done = called("warm", mounted, "--background")
    assert (done.exit_code, [op for _, op, _ in daemon.asked]) == (0, ["warm"])
    assert f"`mummufs status '{mounted}'` shows how far it is" in done.stdout
    assert called("warm", mounted, "--stop").exit_code == 0
    assert daemon.args("warm_stop") == {}


def test_an_interrupted_warm_is_stopped(daemon: Daemon, mounted: Path) -> None:
    daemon.answers = {"warm": {"job": 5, "ahead": 0}, "warm_progress": KeyboardInterrupt()}
    done = called("warm", mounted)
    assert (done.exit_code, sentence(done)[:30]) == (1, "stopped; what is filled stays,")
    assert daemon.args("warm_stop") == {"job": 5}


def test_warm_by_a_profile(daemon: Daemon, mounted: Path, tmp_path: Path) -> None:
    lines = [
        {"mummufs_profile": 1},
        {"path": "sub/model.gguf", "size": 1 << 20},
        [8192, 4096, 1.0],
        [0, 4096, 5.0],
        [4096, 4096, 3.0],
        {"path": "elsewhere", "size": 4096},
        [0, 4096, 9.0],
        {"end": 4},
    ]
    os.truncate(mounted / "sub" / "model.gguf", 1 << 20)
    profile = tmp_path / "profile"
    profile.write_text("\n".join(map(json.dumps, lines)))
    daemon.answers = {
        "warm_windows": {"draft": 2, "room_bytes": 2 * charge_of(4096)},
        "warm": {"job": 5, "ahead": 0},
        "warm_progress": WARM,
    }
    assert called("warm", mounted / "sub", "--profile", profile).exit_code == 0
    assert daemon.args("warm_windows") == {
        "draft": 2,
        "path": "sub/model.gguf",
        "windows": [0, 4096, 4096, 4096],
    }
    assert daemon.args("warm") == {"draft": 2, "ranges": "*"}
    done = called("warm", mounted / "other", "--profile", profile)
    assert (done.exit_code, sentence(done)) == (1, "the profile has no range of these paths")
    done = called("warm", mounted, "--profile", tmp_path / "absent")
    assert done.exit_code == 2
    assert sentence(done).endswith("absent' cannot be used: No such file or directory")


def test_the_room_of_a_warm_by_a_profile_is_for_what_is_asked_for_and_there(
    daemon: Daemon, mounted: Path, tmp_path: Path
) -> None:
    """Neither hotter ranges of other names take it, nor those of a file that is another one by now."""
    model = mounted / "new.safetensors"
    write_safetensors(model, experts=2)
    table = read_table(model, None)
    assert table is not None
    windows = [(w.offset, w.size, w.name) for w in table]
    experts = [(offset, size) for offset, size, name in windows if ".experts.1." in name]
    lines: list[object] = [{"mummufs_profile": 1}, {"path": "sub/model.gguf", "size": 4096}, [0, 4096, 60.0]]
    lines.append({"path": model.name, "size": model.stat().st_size})
    lines += [[offset, size, 1.0 if (offset, size) in experts else 9.0] for offset, size, _ in windows]
    profile = tmp_path / "profile"
    profile.write_text("\n".join(map(json.dumps, [*lines, {"end": len(windows) + 1}])))
    daemon.answers = {
        "status": {"options": {"manifest": None}},
        "warm_windows": {"draft": 2, "room_bytes": sum(charge_of(size) for _, size in experts)},
        "warm": {"job": 5, "ahead": 0},
        "warm_progress": WARM,
    }
    done = called("warm", mounted, "--profile", profile, "--ranges", "*.experts.1.*")
    assert done.exit_code == 0
    assert done.stderr == "1 files of the profile are not in the mount, or have another size: left out\n"
    assert daemon.args("warm_windows")["windows"] == [number for window in experts for number in window]
    assert daemon.args("warm") == {"draft": 2, "ranges": "*.experts.1.*"}


def test_the_hottest_are_chosen_and_sorted() -> None:
    hot = [(b"b", 9, 4096), (b"a", 5, 4096), (b"b", 3, 4096), (b"a", 1, 4096)]
    assert choose(hot, 3 * charge_of(4096)) == {b"a": [(5, 4096)], b"b": [(3, 4096), (9, 4096)]}
    assert list(choose(hot, 1 << 30)) == [b"a", b"b"]
    assert choose(hot, 0) == {}


# ---------------------------------------------------------------------- pins and evictions

READ: dict[str, Any] = {"files_failed": 0, "last_error": None}
CHANGE = {"files": 1, "ranges": 3, "bytes": 3 << 20, "absent_ranges": 0, "absent_bytes": 0, "note": "", **READ}


@pytest.mark.parametrize(
    ("change", "tail"),
    [
        ({}, ""),
        (
            {"absent_ranges": 1, "absent_bytes": 1 << 20},
            "; 1.0 MiB of it are absent and being brought in the background",
        ),
        ({"absent_ranges": 1, "absent_bytes": 1 << 20, "note": "why"}, "; 1.0 MiB of it are absent: why"),
    ],
)
def test_pin(daemon: Daemon, mounted: Path, change: dict[str, Any], tail: str) -> None:
    daemon.finds("pin", **{**CHANGE, **change})
    done = called("pin", mounted / "*.gguf", "--ranges", "blk.*")
    assert (done.exit_code, done.stdout) == (0, f"pinned 3 ranges of 1 files, 3.0 MiB of the budget{tail}\n")
    assert daemon.args("pin") == {"paths": ["*.gguf"], "ranges": "blk.*"}


def test_unpin(daemon: Daemon, mounted: Path) -> None:
    daemon.finds("unpin", **CHANGE)
    done = called("unpin", mounted)
    assert (done.exit_code, done.stdout) == (0, "unpinned 3 ranges of 1 files, 3.0 MiB of the budget\n")
    assert daemon.args("unpin") == {"paths": [""], "ranges": None}


def test_a_job_that_fails_is_a_sentence(daemon: Daemon, mounted: Path) -> None:
    daemon.finds("pin", **CHANGE)
    daemon.answers["look"]["failure"] = "too much is pinned"
    done = called("pin", mounted)
    assert (done.exit_code, sentence(done), done.stdout) == (1, "too much is pinned", "")
    daemon.answers["look"] = KeyboardInterrupt()
    assert sentence(called("pin", mounted)) == "interrupted; what was done up to now stays done"
    assert daemon.args("look_stop") == {"job": 3}
    daemon.answers["pin"] = MummufsError("this mount has no store")
    assert (called("pin", mounted).exit_code, sentence(called("pin", mounted))) == (1, "this mount has no store")


def test_the_list_of_pins(daemon: Daemon, mounted: Path) -> None:
    def page(args: dict[str, Any]) -> dict[str, Any]:
        one = {
            "path": f"sub/{args['from']}",
            "ranges": "*",
            "file_ranges": 2,
            "file_bytes": 1 << 20,
            "file_ranges_left_out": args["from"],
            "found": True,
        }
        following = None if args["from"] else 1
        return {"pins": [one], "next": following, "asked_bytes": 2 << 20, "allowed_bytes": 9 << 20}

    daemon.answers["pins"] = page
    done = called("pin", "--list", mounted)
    assert done.exit_code == 0
    head, first, second, foot = done.stdout.splitlines()
    assert " ".join(head.split()) == "path ranges pinned of the file bytes"
    assert " ".join(first.split()) == "sub/0 * 2 ranges 1.0 MiB"
    assert " ".join(second.split()) == "sub/1 * 2 ranges, 1 left out 1.0 MiB"
    assert foot == "2 pins, 2.0 MiB of the 9.0 MiB that may be pinned"
    found = json.loads(called("pin", "--list", mounted, "--json").stdout)
    assert ([pin["path"] for pin in found["pins"]], found["allowed_bytes"]) == (["sub/0", "sub/1"], 9 << 20)


def test_wrong_calls(daemon: Daemon, mounted: Path) -> None:
    wrong: list[list[str | Path]] = [
        ["pin", mounted, "--json"],
        ["pin", "--list", mounted, mounted / "sub"],
        ["pin", mounted, "--ranges", ""],
        ["warm", mounted, "--ranges", ""],
        ["unpin", mounted, "--ranges", ""],
    ]
    for words in wrong:
        done = called(*words)
        assert done.exit_code == 2
        assert sentence(done)
    for command in ("warm", "pin", "unpin", "evict", "residency"):
        assert called(command).exit_code == 2
    assert daemon.asked == []


EVICTED = {
    "files": 1,
    "evicted_ranges": 3,
    "evicted_bytes": 3 << 20,
    "pinned_ranges": 0,
    "pinned_bytes": 0,
    "filling_ranges": 0,
    "filling_bytes": 0,
    **READ,
}


def test_evict(daemon: Daemon, mounted: Path) -> None:
    daemon.finds("evict", **EVICTED)
    done = called("evict", mounted, "--force")
    assert (done.exit_code, done.stdout) == (0, "evicted 3 ranges, 3.0 MiB\n")
    assert daemon.args("evict") == {"paths": [""], "ranges": "*", "force": True}
    daemon.finds("evict", **{**EVICTED, "pinned_ranges": 2, "pinned_bytes": 1 << 20, "filling_ranges": 1})
    done = called("evict", mounted)
    assert done.exit_code == 1
    assert done.stdout.splitlines()[1] == "1 ranges are just being filled, and stay"
    assert sentence(done) == "2 ranges, 1.0 MiB, are pinned and stay: `mummufs unpin` them first, or use --force"


# ---------------------------------------------------------------------- residency


def layer(model: str, name: str, *sizes: int) -> dict[str, Any]:
    keys = ("dense_bytes", "dense_resident_bytes", "expert_bytes", "expert_resident_bytes")
    return {"model": model, "layer": name, **dict(zip(keys, sizes, strict=True))}


def test_residency(daemon: Daemon, mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mib = 1 << 20
    pages = [
        [layer("a", "0", 2 * mib, mib, 0, 0), layer("a", "1", 0, 0, 4 * mib, mib)],
        [layer("a", "other", mib, mib, 0, 0), layer("b", "0", mib, 0, 0, 0)],
    ]

    def look(args: dict[str, Any]) -> dict[str, Any]:
        at = args.get("from", 0)
        found = {"files": 2, "files_without_ranges": 0, "layers": pages[at], **READ}
        return {"state": "ended", "stopped": False, "failure": None, "found": found, "next": None if at else 1}

    daemon.answers = {"residency": {"job": 1}, "look": look}
    done = called("residency", mounted)
    assert done.exit_code == 0
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines == [
        "a:",
        "layer dense resident % experts resident %",
        "0 2.0 MiB 1.0 MiB 50 % - - -",
        "1 - - - 4.0 MiB 1.0 MiB 25 %",
        "other 1.0 MiB 1.0 MiB 100 % - - -",
        "total 3.0 MiB 2.0 MiB 67 % 4.0 MiB 1.0 MiB 25 %",
        "b:",
        "layer dense resident % experts resident %",
        "0 1.0 MiB 0 B 0 % - - -",
        "total 1.0 MiB 0 B 0 % - - -",
        "3.0 MiB of 8.0 MiB are in the store, 38 %",
    ]
    monkeypatch.setitem(READ, "files_failed", 1)
    monkeypatch.setitem(READ, "last_error", "'d/a' cannot be read: Permission denied")
    told = called("residency", mounted, "--json")
    assert told.stderr == "1 files were passed over, the last one: 'd/a' cannot be read: Permission denied\n"
    found = json.loads(told.stdout)
    assert found["files_failed"] == 1
    assert (found["schema"], found["files"], found["dense_bytes"]) == (1, 2, 4 * mib)
    assert [model["model"] for model in found["models"]] == ["a", "b"]
    assert found["models"][0]["expert_resident_bytes"] == mib
    assert found["models"][0]["layers"][0] == {
        "layer": "0",
        "dense_bytes": 2 * mib,
        "dense_resident_bytes": mib,
        "expert_bytes": 0,
        "expert_resident_bytes": 0,
    }


def test_residency_of_what_has_no_ranges(daemon: Daemon, mounted: Path) -> None:
    daemon.finds("residency", files=1, files_without_ranges=1, layers=[], **READ)
    done = called("residency", mounted)
    assert (done.exit_code, sentence(done)) == (1, "none of these files has ranges: they are passed through")


def test_a_usage_error_is_one(daemon: Daemon) -> None:
    with pytest.raises(UsageError):
        located_module.located([])
    assert os.path.isabs(located_module._real("x"))


def test_what_was_declined_is_readable_in_a_status() -> None:
    declined = {"budget": {"ranges": 2, "bytes": 2 << 20}, "source": {"ranges": 1, "bytes": 10}}
    assert _readable("declined", declined) == "budget ranges 2, bytes 2.0 MiB, source ranges 1, bytes 10 B"
    assert _readable("declined", {}) == "-"
