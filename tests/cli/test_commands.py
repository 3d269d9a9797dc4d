"""The commands as a user calls them: exit codes, sentences, tables and JSON. Control answers are made up here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

import mummufs
from mummufs import unmount
from mummufs.cli import cli
from mummufs.commands import output
from mummufs.commands import ranges as ranges_command
from mummufs.commands import status as status_command
from mummufs.core.errors import MummufsError
from mummufs.mountinfo import MountEntry

ENTRY = MountEntry(7, 1, (0, 9), "/", "/m p", "ro", "fuse.mummufs", "/slow", f"ro,user_id={os.geteuid()},group_id=0")

STATUS: dict[str, object] = {
    "schema": 1,
    "uptime_s": 200.5,
    "mountpoint": "/m p",
    "source": "/slow",
    "state": "normal",
    "store": {"dir": None, "budget_bytes": 64 << 30, "used_bytes": 3 << 29, "ranges": 12, "filling": 0},
    "reads": {
        "hits": 5,
        "misses": 6,
        "bypasses": 7,
        "hit_bytes": 1 << 20,
        "miss_bytes": 0,
        "bypass_bytes": 0,
    },
    "options": {"allow_other": True, "settle_s": 5.0},
}


def called(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def sentence(result: Result) -> str:
    """The one line on stderr of a failure."""
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("mummufs: ") and result.stderr.count("\n") == 1
    return result.stderr.removeprefix("mummufs: ").strip()


class Control:
    """Stands in for `mummufs.control`: sockets and what is behind them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.behind: dict[Path, Mapping[str, object] | Exception] = {}
        self.entries: list[MountEntry] = []
        module = types.ModuleType("mummufs.control")
        for name in ("socket_path", "sockets", "request", "request_socket", "daemon_pid"):
            setattr(module, name, getattr(self, name))
        monkeypatch.setitem(sys.modules, "mummufs.control", module)
        monkeypatch.setattr(mummufs, "control", module, raising=False)
        monkeypatch.setattr(status_command, "read_mountinfo", lambda: self.entries)
        monkeypatch.setattr(unmount, "read_mountinfo", lambda: self.entries)

    def mounted(self, entry: MountEntry, answer: Mapping[str, object] | Exception) -> None:
        self.entries.append(entry)
        self.behind[self.socket_path(Path(entry.mountpoint))] = answer

    def socket_path(self, mountpoint: Path) -> Path:
        return Path(f"/run/x/{mountpoint.name}.sock")

    def sockets(self) -> list[Path]:
        return list(self.behind)

    def request(self, mountpoint: Path, op: str, timeout_s: float) -> Mapping[str, object]:
        return self.request_socket(self.socket_path(mountpoint), op, timeout_s)

    def request_socket(self, path: Path, op: str, timeout_s: float) -> Mapping[str, object]:
        assert op == "status" and timeout_s < 5
        answer = self.behind.get(path, FileNotFoundError(2, "No such file"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def daemon_pid(self, mountpoint: Path, timeout_s: float) -> int | None:
        return None


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Control:
    return Control(monkeypatch)


def test_version() -> None:
    done = called("--version")
    assert (done.exit_code, done.output) == (0, f"mummufs, version {mummufs.__version__}\n")


def test_status_of_all_is_a_table(control: Control) -> None:
    control.mounted(ENTRY, STATUS)
    done = called("status")
    assert done.exit_code == 0
    head, row = done.stdout.splitlines()
    assert " ".join(head.split()) == "mountpoint source state used budget ranges hits misses bypasses hit bytes"
    assert " ".join(row.split()) == "/m p /slow normal 1.5 GiB 64.0 GiB 12 5 6 7 1.0 MiB"


def test_status_of_all_as_json(control: Control) -> None:
    control.mounted(ENTRY, STATUS)
    done = called("status", "--json")
    assert json.loads(done.stdout) == {"schema": 1, "mounts": [STATUS]}
    assert done.exit_code == 0


def test_without_mounts_status_says_so(control: Control) -> None:
    assert called("status").stdout == "no mounts\n"
    assert json.loads(called("status", "--json").stdout) == {"schema": 1, "mounts": []}


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (MummufsError("no answer within 4 s"), "no answer within 4 s"),
        (FileNotFoundError(2, "x"), "its daemon is gone"),
        (ConnectionRefusedError(111, "x"), "its daemon is gone"),
    ],
)
def test_a_daemon_that_does_not_answer_is_named(control: Control, failure: Exception, reason: str) -> None:
    control.mounted(ENTRY, STATUS)
    control.mounted(ENTRY._replace(mountpoint="/hung", device=(0, 10)), failure)
    done = called("status")
    assert done.exit_code == 1
    assert sentence(done).startswith(f"'/hung' does not answer: {reason}")
    assert "no answer" in done.stdout
    mounts = json.loads(called("status", "--json").stdout)["mounts"]
    assert (mounts[0], mounts[1]["mountpoint"], mounts[1]["state"]) == (STATUS, "/hung", "no answer")


def test_a_bind_mount_is_answered_for_by_its_mount(control: Control) -> None:
    control.mounted(ENTRY, STATUS)
    control.entries.append(ENTRY._replace(mountpoint="/bind"))
    done = called("status")
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 2)


def test_a_mount_of_another_user_is_listed_and_no_failure(control: Control) -> None:
    other = os.geteuid() + 1
    control.entries.append(ENTRY._replace(super_options=f"ro,user_id={other},group_id=0"))
    done = called("status")
    assert done.exit_code == 0
    assert f"/m p        /slow   of user {other}" in done.stdout


def test_status_of_one(control: Control) -> None:
    control.mounted(ENTRY, STATUS)
    done = called("status", "/m p")
    assert done.exit_code == 0
    rows = {tuple(part.strip() for part in line.split("  ", 1)) for line in done.stdout.splitlines()}
    assert {
        ("uptime", "3 min 20 s"),
        ("store used bytes", "1.5 GiB"),
        ("store dir", "-"),
        ("reads hits", "5"),
    } <= rows
    assert {("options allow other", "yes"), ("options settle", "5 s")} <= rows
    assert json.loads(called("status", "/m p", "--json").stdout) == STATUS


def test_status_of_one_that_fails_is_a_sentence(control: Control) -> None:
    control.mounted(ENTRY, MummufsError("the daemon does not answer within 4 s"))
    done = called("status", "/m p")
    assert (done.exit_code, sentence(done)) == (1, "the daemon does not answer within 4 s")
    done = called("status", "/absent place")
    assert (done.exit_code, sentence(done)) == (1, "nothing is mounted at '/absent place'")


def test_umount_refuses_what_is_not_its_own(control: Control) -> None:
    done = called("umount", "/absent")
    assert (done.exit_code, sentence(done)) == (1, "nothing is mounted at '/absent'")
    control.entries.append(ENTRY._replace(fstype="ext4"))
    done = called("umount", "/m p")
    assert (done.exit_code, sentence(done)) == (
        2,
        "'/m p' is a mount of type ext4, not of mummufs: use umount",
    )


@pytest.mark.parametrize(("flags", "code"), [([], 1), (["--lazy"], 0)])
def test_umount_tells_who_keeps_the_daemon(
    control: Control, monkeypatch: pytest.MonkeyPatch, flags: list[str], code: int
) -> None:
    control.entries = [ENTRY, ENTRY._replace(mountpoint="/bind")]
    monkeypatch.setattr(unmount, "detach", lambda _mountpoint, **_: control.entries.remove(ENTRY))
    done = called("umount", "/m p", *flags)
    assert done.exit_code == code
    assert "it is also mounted at '/bind'" in sentence(done)


def test_mount_refuses_bad_input_with_code_2(tmp_path: Path) -> None:
    done = called("mount", str(tmp_path / "absent"), str(tmp_path))
    assert done.exit_code == 2
    assert sentence(done).endswith("absent' cannot be used: No such file or directory")


def test_the_real_command_prints_no_traceback(tmp_path: Path) -> None:
    for words in (["mount", "a\udcff", "b"], ["mount", "/", "/proc"], ["ranges", "/"], ["umount", "/proc"]):
        done = subprocess.run([sys.executable, "-m", "mummufs", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith("mummufs: ") and done.stderr.count("\n") == 1


def test_a_wrong_call_is_code_2() -> None:
    for words in (
        ["mount", "/a"],
        ["nonsense"],
        ["status", "--nonsense"],
        ["mount", "/a", "/b", "--ready-fd", "1"],
    ):
        done = called(*words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "Error: " in done.stderr


def native(folder: Path) -> Path:
    """A file with a native manifest beside it, of one range with a name that is no fit for a terminal."""
    file = folder / "data.bin"
    file.write_bytes(bytes(100_000))
    entry = {"offset": 4096, "length": 65536, "name": "a[red]\x1b[2Jb"}
    manifest = {"version": 1, "file": file.name, "size": 100_000, "ranges": [entry]}
    (folder / "data.bin.mummufs.json").write_text(json.dumps(manifest))
    return file


def test_ranges_of_a_file(tmp_path: Path) -> None:
    done = called("ranges", str(native(tmp_path)))
    assert done.exit_code == 0
    head, row, foot = done.stdout.splitlines()
    assert head.split() == ["offset", "length", "name", "kind"]
    assert row.split() == ["4096", "65536", r"a[red]\x1b[2Jb", "dense"]
    assert foot == "1 ranges, 64.0 KiB of 97.7 KiB (native)"


def test_ranges_as_json(tmp_path: Path) -> None:
    file = native(tmp_path)
    assert json.loads(called("ranges", str(file), "--json").stdout) == {
        "schema": 1,
        "file": str(file),
        "size": 100_000,
        "format": "native",
        "bytes": 65536,
        "ranges": [{"offset": 4096, "length": 65536, "name": "a[red]\x1b[2Jb", "kind": "dense"}],
    }


def test_ranges_named_by_a_manifest_elsewhere(tmp_path: Path) -> None:
    file = native(tmp_path)
    (tmp_path / "else").mkdir()
    manifest = (tmp_path / "data.bin.mummufs.json").rename(tmp_path / "else" / "m.json")
    assert "no ranges" in called("ranges", str(file)).stdout
    assert "1 ranges" in called("ranges", str(file), "--manifest", str(manifest)).stdout


def test_a_file_of_no_known_format_has_no_ranges(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("x" * 5000)
    done = called("ranges", str(tmp_path / "notes"))
    assert (done.exit_code, done.stdout) == (0, "no ranges: no known format; the file is passed through\n")
    answer = json.loads(called("ranges", str(tmp_path / "notes"), "--json").stdout)
    assert (answer["format"], answer["size"], answer["ranges"]) == (None, 5000, [])


def test_a_broken_header_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + b"\xff" * 60)
    done = called("ranges", str(tmp_path / "m.gguf"))
    assert done.exit_code == 1
    assert "m.gguf' has no usable ranges: " in sentence(done)


@pytest.mark.parametrize("kind", ["absent", "directory", "fifo"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    done = called("ranges", str(path))
    assert done.exit_code == 2
    assert sentence(done).startswith(f"'{path}' ")


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "pass", "print('Znonsense', end='')"])
def test_a_parser_that_goes_wrong_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    real = subprocess.run
    monkeypatch.setattr(
        "mummufs.commands.ranges.subprocess.run",
        lambda _command, **more: real([sys.executable, "-c", code], **more),
    )
    done = called("ranges", str(native(tmp_path)))
    assert done.exit_code == 1
    assert "could not be parsed" in sentence(done) or "no usable ranges" in sentence(done)


def test_a_parser_that_never_ends_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.run
    monkeypatch.setattr(ranges_command, "PARSE_S", 0.05)
    monkeypatch.setattr(
        "mummufs.commands.ranges.subprocess.run",
        lambda _command, **more: real([sys.executable, "-c", "import signal; signal.pause()"], **more),
    )
    done = called("ranges", str(native(tmp_path)))
    assert done.exit_code == 1
    assert "could not be read within 0.05 s" in sentence(done)


def test_a_table_on_a_terminal_is_drawn_and_escapes_nothing_but_the_unprintable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    drawing = Console(width=60, file=sys.stdout, force_terminal=False)
    monkeypatch.setattr("rich.console.Console", lambda: drawing)
    output.print_table(("name", "size"), [("[bold]x[/] [1/4]\x1b", "10")], right=frozenset({"size"}))
    drawn = capsys.readouterr().out
    assert "│ [bold]x[/] [1/4]\\x1b │   10 │" in drawn


def test_printable_keeps_text_and_escapes_the_rest() -> None:
    assert output.printable("Größe 模型 a/b [1]") == "Größe 模型 a/b [1]"
    assert output.printable("a\n\x1b[0m\udcff\u202e") == r"a\n\x1b[0m\udcff\u202e"
