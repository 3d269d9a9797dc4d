"""Reading /proc: what is mounted where, and who holds it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mummufs import mountinfo
from mummufs.mountinfo import (
    Holder,
    MountEntry,
    holders,
    is_dead,
    is_stopped,
    mount_at,
    parse_mountinfo,
    probe,
    read_mountinfo,
    resolve_mountpoint,
)

MOUNTINFO = rb"""22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:21 / /proc rw,nosuid - proc proc rw
77 22 0:45 / /mnt/with\040space ro,nosuid,nodev shared:7 master:2 - fuse.mummufs /slow/my\040models ro,user_id=0
78 22 0:45 /sub /back\134slash ro - fuse.mummufs /slow/my\040models ro
79 77 0:46 / /mnt/with\040space rw - tmpfs none rw,size=1k
80 22 0:47 / /mnt/tab\011new\012line\043\377 rw - fuse.mummufs  rw
a line that is cut
81 22 0:x / /bad rw - ext4 /dev/x rw
"""


def test_entries_with_escapes_and_optional_fields() -> None:
    entries = parse_mountinfo(MOUNTINFO)
    assert [e.mount_id for e in entries] == [22, 30, 77, 78, 79, 80]
    assert entries[2] == MountEntry(
        77,
        22,
        (0, 45),
        "/",
        "/mnt/with space",
        "ro,nosuid,nodev",
        "fuse.mummufs",
        "/slow/my models",
        "ro,user_id=0",
    )
    assert entries[3].mountpoint == "/back\\slash"
    assert os.fsencode(entries[5].mountpoint) == b"/mnt/tab\tnew\nline#\xff"
    assert entries[5].source == ""


def test_the_topmost_mount_is_found_by_its_exact_path() -> None:
    entries = parse_mountinfo(MOUNTINFO)
    found = mount_at(Path("/mnt/with space"), entries)
    assert found is not None and found.fstype == "tmpfs"
    assert mount_at(Path("/mnt"), entries) is None


def test_garbage_has_no_entries() -> None:
    assert parse_mountinfo(b"") == []
    assert parse_mountinfo(b"\0\xff - \n - - -\n1 2 3:4") == []


def test_the_live_file_is_understood() -> None:
    root = mount_at(Path("/proc"), read_mountinfo())
    assert root is not None and root.fstype == "proc"


def test_a_mountpoint_is_resolved_without_touching_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "loop").symlink_to("loop")
    entry = parse_mountinfo(MOUNTINFO)[2]._replace(mountpoint=str(tmp_path / "real" / "m"))
    assert resolve_mountpoint(tmp_path / "link" / "m", [entry]) == tmp_path / "real" / "m"
    assert resolve_mountpoint(tmp_path / "link", []) == tmp_path / "real"
    assert resolve_mountpoint(tmp_path / "link" / "..", []) == tmp_path
    # A name that is mounted on is taken as it is: this one could not be looked at at all.
    entry = entry._replace(mountpoint=str(tmp_path / "loop"))
    assert resolve_mountpoint(tmp_path / "loop", [entry]) == tmp_path / "loop"
    monkeypatch.chdir(tmp_path)
    assert resolve_mountpoint(Path("link"), []) == tmp_path / "real"


class Place:
    """Stands in for a path whose stat fails or hangs."""

    def __init__(self, number: int) -> None:
        self.number = number

    def stat(self) -> None:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    ("number", "dead"),
    [(errno.ENOTCONN, True), (errno.ECONNABORTED, True), (errno.EIO, False), (errno.ENOENT, False)],
)
def test_a_dead_mount_is_known_by_its_error(number: int, dead: bool) -> None:
    assert is_dead(Place(number)) is dead  # type: ignore[arg-type]


def test_a_place_that_does_not_answer_is_a_time_out(tmp_path: Path) -> None:
    import threading

    release = threading.Event()

    class Hung:
        def stat(self) -> None:
            release.wait()

    error = probe(Hung(), timeout_s=0.01)  # type: ignore[arg-type]
    release.set()
    assert error is not None and error.errno == errno.ETIMEDOUT
    assert probe(tmp_path) is None


class FakeProc:
    """A /proc of text files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def process(
        self, name: str, namespace: int, mounts: bytes, maps: str = "", fds: dict[int, int] | None = None
    ) -> None:
        base = self.root / name
        for part in ("ns", "fd", "fdinfo"):
            (base / part).mkdir(parents=True)
        (base / "ns" / "mnt").symlink_to(f"mnt:[{namespace}]")
        (base / "root").symlink_to("/")
        (base / "cwd").symlink_to("/")
        (base / "mountinfo").write_bytes(mounts)
        (base / "maps").write_text(maps)
        (base / "cmdline").write_bytes(f"program\0--of={name}\0".encode())
        for number, mount_id in (fds or {}).items():
            (base / "fdinfo" / str(number)).write_text(f"pos:\t0\nflags:\t0100000\nmnt_id:\t{mount_id}\nino:\t7\n")
            (base / "fd" / str(number)).symlink_to(f"/m/file{number}")


MOUNTED = b"%d 1 0:99 / %s ro - fuse.mummufs /slow ro\n"
UNMOUNTED = b"22 1 0:20 / / rw - ext4 /dev/root rw\n"


def test_holders_are_found_in_all_namespaces(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path / "proc")
    here, there = MOUNTED % (999991, b"/m"), MOUNTED % (999992, b"/bound")
    proc.process("self", 1, here)
    proc.process("10", 1, here, fds={3: 22, 4: 999991})
    proc.process("11", 1, here)
    proc.process("12", 1, here, maps="7f00-7f01 r--s 00000000 00:63 5   /m/model\n7f02-7f03 r--p 0 00:14 6 /lib/c\n")
    proc.process("20", 2, there)
    proc.process("21", 2, there)
    proc.process("30", 3, there, fds={5: 999992})
    proc.process("31", 3, there)
    proc.process("40", 4, UNMOUNTED)
    found = holders((0, 99), proc=proc.root)
    assert found == [
        Holder(10, "program --of=10", "open file", "/m/file4"),
        Holder(12, "program --of=12", "mapped file", "/m/model"),
        Holder(20, "program --of=20", "mount namespace with it at", "/bound"),
        Holder(30, "program --of=30", "open file", "/m/file5"),
    ]
    assert str(found[0]) == "pid 10 (program --of=10), open file /m/file4"
    assert [h.pid for h in holders((0, 99), proc=proc.root, skip_pids=[10, 20])] == [12, 21, 30]


def test_a_file_on_a_detached_mount_is_found_by_the_mount_s_id(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path / "proc")
    proc.process("self", 1, UNMOUNTED)
    proc.process("10", 1, UNMOUNTED, fds={4: 999991})
    assert holders((0, 99), proc=proc.root) == []
    assert [h.pid for h in holders((0, 99), mount_ids=[999991], proc=proc.root)] == [10]
    # The same id may meanwhile be that of another mount, here of one in another namespace.
    proc.process("11", 5, b"999991 1 0:77 / /new ro - fuse.mummufs /other ro\n")
    assert holders((0, 99), mount_ids=[999991], proc=proc.root) == []


def test_a_file_system_with_the_device_number_of_one_that_has_gone_is_another(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path / "proc")
    proc.process("self", 1, UNMOUNTED)
    proc.process("10", 2, MOUNTED % (999991, b"/m"), "7f00-7f01 r--s 00000000 00:63 5   /m/model\n", fds={4: 999991})
    assert [h.use for h in holders((0, 99), source="/slow", proc=proc.root)] == ["mapped file", "open file"]
    assert holders((0, 99), source="/gone", mount_ids=[999991], proc=proc.root) == []


def test_a_root_is_known_by_what_it_is(tmp_path: Path) -> None:
    """Not by its path, which may lie outside of what this process sees."""
    proc = FakeProc(tmp_path / "proc")
    proc.process("self", 1, UNMOUNTED)
    for name, root, at in (
        ("10", "/", b"/a"),
        ("11", "/.", b"/a"),
        ("12", tmp_path, b"/b"),
        ("13", f"{tmp_path}/.", b"/b"),
    ):
        proc.process(name, 2, MOUNTED % (999991, at))
        (proc.root / name / "root").unlink()
        (proc.root / name / "root").symlink_to(root)
    assert [(h.pid, h.path) for h in holders((0, 99), proc=proc.root)] == [(10, "/a"), (12, "/b")]


def test_a_process_that_may_not_be_looked_at_is_left_out(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path / "proc")
    proc.process("self", 1, UNMOUNTED)
    (proc.root / "50").mkdir()
    (proc.root / "version").write_text("a kernel")
    assert holders((0, 99), proc=proc.root) == []


@pytest.mark.parametrize("how", ["working directory", "open file"])
def test_a_live_process_is_found(tmp_path: Path, how: str) -> None:
    (tmp_path / "data").write_bytes(b"x")
    tree = max(
        (e for e in read_mountinfo() if tmp_path.is_relative_to(e.mountpoint)),
        key=lambda e: len(e.mountpoint),
    )
    opened = (tmp_path / "data").open("rb") if how == "open file" else None
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # not an open file on the same mount, as what collects the test's output may be
        cwd=tmp_path if how == "working directory" else "/proc",
        pass_fds=[opened.fileno()] if opened else [],
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == b"up\n"
        mine = [h for h in holders(tree.device) if h.pid == child.pid and h.use == how]
        expected = tmp_path if how == "working directory" else tmp_path / "data"
        assert [h.path for h in mine] == [str(expected)]
        assert "print('up'" in mine[0].command
    finally:
        child.communicate()
        if opened:
            opened.close()


@pytest.mark.parametrize(
    ("line", "stopped"),
    [("7 (x) T 1 2", True), ("7 (x) t 1 2", True), ("7 (x) S 1 2", False), ("7 (a ) T b) S 1 2", False), ("", False)],
)
def test_a_stopped_process_is_known(tmp_path: Path, line: str, stopped: bool) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(line)
    assert is_stopped(7, tmp_path) is stopped
    assert not is_stopped(8, tmp_path)


def test_a_long_command_line_is_cut(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path / "proc")
    proc.process("10", 1, MOUNTED % (999991, b"/m"), fds={4: 999991})
    (proc.root / "10" / "cmdline").write_bytes(b"x" * 5000)
    assert len(holders((0, 99), proc=proc.root)[0].command) == mountinfo.COMMAND_CHARS_MAX
