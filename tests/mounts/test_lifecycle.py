"""Mounting, refusals, unmounting and status; how a daemon ends otherwise is in test_signals."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mummufs import control
from mummufs.config import PASS_THROUGH_NOTE
from mummufs.store.layout import LOCK_NAME
from tests.mounts.harness import COMMAND, REPOSITORY, Mounted, opened, run
from tests.support.models import write_native
from tests.support.waiting import wait_for

KIB = 1 << 10
LEAVE_S = 5.0
"""How soon a daemon ends that nobody holds."""
STATUS_S = 5.0
"""How long `status` may wait for a daemon that does not answer."""
GONE = {"", "Z", "X"}


def state(pid: int) -> str:
    """A process's state letter; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def wait_gone(pid: int, limit_s: float = LEAVE_S) -> None:
    wait_for(lambda: state(pid), lambda letter: letter in GONE, limit_s)


def is_free(store: Path) -> bool:
    """Whether nobody has the store's lock."""
    with opened(store / LOCK_NAME, os.O_RDWR) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def why_not_listed(path: Path) -> int | None:
    """The errno of a directory that cannot be listed."""
    try:
        os.listdir(path)
    except OSError as error:
        return error.errno
    return None


def openers(path: Path) -> set[int]:
    """The processes that have a file open."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(link) == os.fspath(path):
                found.add(int(link.parts[2]))
    return found


def model(tree: Path) -> bytes:
    write_native(tree / "f", sizes=(200 * KIB,) * 6, gap=100)
    return (tree / "f").read_bytes()


@contextlib.contextmanager
def holder(command: list[str], seen: Path, **kwargs: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds a mount for the length of the block. `seen`: its working directory or standard input."""
    process = subprocess.Popen(command, **kwargs)
    try:
        wait_for(lambda: _held(process.pid), lambda held: any(os.path.samestat(seen.stat(), one) for one in held))
        yield process
    finally:
        process.kill()
        process.wait()


def _held(pid: int) -> list[os.stat_result]:
    """What a sleeping process has. Not by path: of a mount in another namespace it is as seen from that one's root."""
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
            return [os.stat(f"/proc/{pid}/{name}") for name in ("cwd", "fd/0")]
    return []


# ---------------------------------------------------------------------- mounting


@pytest.mark.mount
def test_without_a_store_one_line_says_so(tree: Path) -> None:
    (tree / "f").write_text("x")
    m = Mounted(tree, options=())
    try:
        done = run(*m.arguments())
        assert m.read("f") == b"x", "it answers at once"
        assert done.stderr == f"mummufs: {PASS_THROUGH_NOTE}\n"
        assert done.stdout == ""
        answer = json.loads(run("status", m.mountpoint, "--json").stdout)
        assert answer["state"] == "pass-through"
        assert answer["store"] == {"dir": None, "budget_bytes": 0, "used_bytes": 0, "ranges": 0, "filling": 0}
        socket = control.socket_path(m.mountpoint)
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    finally:
        m.take_down()
    assert not socket.exists()


@pytest.mark.mount
def test_a_log_on_a_full_disk_is_told_and_keeps_nobody_from_the_mount(tree: Path) -> None:
    (tree / "f").write_text("x")
    m = Mounted(tree)
    try:
        done = run("mount", tree, m.mountpoint, "--log-file", "/dev/full")
        told = "mummufs: the log file '/dev/full' cannot be written now, so log lines are lost: No space left on device"
        assert done.stderr == f"{told}\nmummufs: {PASS_THROUGH_NOTE}\n"
        assert m.read("f") == b"x"
        run("umount", m.mountpoint)
    finally:
        m.take_down()


@pytest.mark.mount
def test_what_cannot_be_is_refused_in_a_sentence(tree: Path, tmp_path: Path) -> None:
    free, used, file = tmp_path / "free", tmp_path / "used", tmp_path / "file"
    free.mkdir()
    used.mkdir()
    file.touch()
    with Mounted(tree, mountpoint=used):
        refused: dict[str, tuple[str | Path, ...]] = {
            r"the store '.*' lies in the source": (tree, free, "--store", tree / "store"),
            r"the store '.*' lies in the mountpoint": (tree, free, "--store", free / "store"),
            r"the source '.*/missing' cannot be used: No such file": (tmp_path / "missing", free),
            r"the source '.*' is not a directory": (file, free),
            r"the mountpoint '.*' cannot be used: No such file": (tree, tmp_path / "missing"),
            r"the mountpoint '.*' is not a directory": (tree, file),
            r"the mountpoint '.*' is in use": (tree, used),
            r"lies in the source '.*': the mount would show itself": (tree.parent, free),
            r"unknown option 'stor'; the nearest known one is 'store'": (tree, free, "-o", "stor=/x"),
            r"the store '.*' is not a directory": (tree, free, "--store", file),
        }
        for sentence, arguments in refused.items():
            done = run("mount", *arguments, check=False)
            assert done.returncode == 2, sentence
            assert re.fullmatch(f"mummufs: .*{sentence}.*\n", done.stderr), done.stderr
            assert done.stdout == ""
    assert f" {free} " not in Path("/proc/self/mountinfo").read_text()
    assert not list(free.iterdir())
    assert not list(tree.iterdir())


@pytest.mark.mount
def test_one_mount_for_a_store(tree: Path, store: Path) -> None:
    """Another is refused by the name of the holder, unless that one leaves in time."""
    with Mounted(tree, store=store) as m:
        other = Mounted(tree, store=store)
        try:
            done = run(*other.arguments(), check=False)
            assert done.returncode == 1
            assert re.fullmatch(rf"mummufs: .*in use by a mount of process {m.pid}: .*\n", done.stderr), done.stderr
            assert not other.is_mounted
            waiting = subprocess.Popen([*COMMAND, *other.arguments()], cwd=REPOSITORY, stdin=subprocess.DEVNULL)
            wait_for(lambda: openers(store / LOCK_NAME) - {m.pid}, bool)
            m.umount()
            assert waiting.wait(20) == 0
            assert other.status()["store"]["dir"] == os.fspath(store)
        finally:
            other.take_down()


@pytest.mark.mount
def test_the_environment_names_the_store(tree: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = model(tree)
    monkeypatch.setenv("MUMMU_DISK_CACHE_DIR", os.fspath(store))
    monkeypatch.setenv("MUMMU_DISK_CACHE_GB", "2")
    with Mounted(tree) as m:
        wait_for(m.status, lambda status: status["state"] == "normal")
        assert m.read("f") == data
        answer = m.settle()["store"]
        assert (answer["dir"], answer["budget_bytes"]) == (os.fspath(store), 2 << 30)
        assert answer["ranges"] == len(list(store.glob("ranges/*/*.rng"))) > 0
    monkeypatch.delenv("MUMMU_DISK_CACHE_GB")
    with Mounted(tree) as m:
        assert m.status()["store"]["budget_bytes"] == 64 << 30


@pytest.mark.mount
def test_a_manifest_elsewhere_names_ranges(tree: Path, store: Path, tmp_path: Path) -> None:
    data = model(tree)
    manifest = tmp_path / "elsewhere, it is.json"
    (tree / "f.mummufs.json").rename(manifest)
    with Mounted(tree, store=store) as m:
        assert m.read("f") == data
        assert m.settle()["store"]["ranges"] == 0
    with Mounted(tree, store=store, options=("settle=0", f'manifest="{manifest}"')) as m:
        assert m.read("f") == data
        assert m.settle()["store"]["ranges"] == 6


@pytest.mark.mount
def test_the_store_is_closed_to_others(tree: Path, store: Path) -> None:
    model(tree)
    m = Mounted(tree, store=store)
    try:
        run(*m.arguments(), umask=0)
        m.take_in()
        m.read("f")
        m.settle()
        assert m.range_files()
        for path in (store, *store.rglob("*")):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    finally:
        m.take_down()


@pytest.mark.mount
def test_ranges_of_a_file_in_the_mount(tree: Path) -> None:
    model(tree)
    with Mounted(tree) as m:
        here, there = (json.loads(run("ranges", path, "--json").stdout) for path in (m.path("f"), tree / "f"))
    assert here["ranges"] == there["ranges"]
    assert len(here["ranges"]) == 6


@pytest.mark.mount
def test_the_daemon_stands_alone(tree: Path, store: Path, tmp_path: Path) -> None:
    """No terminal, no directory and no descriptor of whoever started it."""
    m = Mounted(tree, store=store)
    try:
        with opened(tmp_path / "inherited", os.O_CREAT | os.O_RDWR) as fd:
            run(*m.arguments(), pass_fds=(fd,))
        m.take_in()
        pid = m.pid
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        session, terminal = int(fields[3]), int(fields[4])
        assert (session, terminal) == (pid, 0)
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        own = re.compile(r"/dev/null|/dev/fuse|(socket|pipe):\[\d+\]|anon_inode:.*")
        known = {*map(os.fspath, (tree, store, store / LOCK_NAME, m.log))}
        assert not [link for link in links if not own.fullmatch(link) and link not in known]
        assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    finally:
        m.take_down()


# ---------------------------------------------------------------------- unmounting


@pytest.mark.mount
def test_who_keeps_a_mount_busy_is_named(tree: Path, store: Path) -> None:
    (tree / "f").write_text("x")
    with Mounted(tree, store=store) as m:
        with m.path("f").open() as file, holder(["sleep", "61"], m.path("f"), stdin=file) as process:
            file.close()
            done = run("umount", m.mountpoint, check=False)
            assert done.returncode == 1
            assert f"pid {process.pid} (sleep 61), open file {m.path('f')}" in done.stderr
            assert m.read("f") == b"x"
        with holder(["sleep", "62"], m.mountpoint, cwd=m.mountpoint) as process:
            done = run("umount", m.mountpoint, check=False)
            assert done.returncode == 1
            assert f"pid {process.pid} (sleep 62), working directory" in done.stderr
        m.umount()
        assert state(m.pid) in GONE


@pytest.mark.mount
@pytest.mark.parametrize("lazy", [False, True])
def test_who_holds_it_in_another_namespace_is_named(tree: Path, store: Path, lazy: bool) -> None:
    (tree / "f").write_text("x")
    with Mounted(tree, store=store) as m:
        command = ["unshare", "-m", "--", "sh", "-c", f"cd '{m.mountpoint}' && exec sleep 63"]
        with holder(command, m.mountpoint) as process:
            done = run("umount", m.mountpoint, *(["--lazy"] if lazy else []), check=False)
            assert done.returncode == (0 if lazy else 1)
            assert f"its daemon (pid {m.pid}) lives until the last holder lets go" in done.stderr
            assert f"pid {process.pid} (sleep 63)" in done.stderr
            assert not m.is_mounted
            assert state(m.pid) not in GONE
        wait_gone(m.pid)
        assert is_free(store)


@pytest.mark.mount
def test_a_lazy_unmount_serves_its_holders(tree: Path, store: Path) -> None:
    data = model(tree)
    with Mounted(tree, store=store) as m:
        with m.path("f").open("rb", buffering=0) as file:
            done = run("umount", m.mountpoint, "--lazy")
            assert f"held by pid {os.getpid()} " in done.stderr
            assert not m.is_mounted
            assert file.read() == data
        wait_gone(m.pid)
        m.mount()
        assert m.read("f") == data


@pytest.mark.mount
@pytest.mark.parametrize("lazy", [False, True])
def test_a_daemon_that_is_stopped_is_told(tree: Path, store: Path, lazy: bool) -> None:
    with Mounted(tree, store=store) as m:
        os.kill(m.pid, signal.SIGSTOP)
        try:
            wait_for(lambda: state(m.pid), lambda letter: letter == "T")
            done = run("umount", m.mountpoint, *(["--lazy"] if lazy else []), check=False)
            assert done.returncode == (0 if lazy else 1)
            assert done.stderr == (
                f"mummufs: '{m.mountpoint}' is unmounted, but its daemon (pid {m.pid}) is stopped, so it cannot end:"
                f" let it go on with `kill -CONT {m.pid}`\n"
            )
            assert not m.is_mounted
        finally:
            os.kill(m.pid, signal.SIGCONT)
        wait_gone(m.pid)
        assert is_free(store)


@pytest.mark.mount
def test_plain_umount_ends_the_daemon(tree: Path, store: Path) -> None:
    data = model(tree)
    with Mounted(tree, store=store) as m:
        assert m.read("f") == data
        subprocess.run(["umount", m.mountpoint], check=True, timeout=30)
        wait_gone(m.pid)
        assert not control.socket_path(m.mountpoint).exists()
        assert is_free(store)
        assert run("status", m.mountpoint, check=False).returncode == 1


# ---------------------------------------------------------------------- status


@pytest.mark.mount
def test_status_of_all_mounts(tree: Path, store: Path) -> None:
    def listed(*arguments: str) -> tuple[int, dict[str, Mapping[str, Any]], str]:
        done = run("status", *arguments, "--json", check=False)
        return done.returncode, {m["mountpoint"]: m for m in json.loads(done.stdout)["mounts"]}, done.stderr

    with Mounted(tree, store=store) as m, Mounted(tree) as other:
        places = [os.fspath(mount.mountpoint) for mount in (m, other)]
        begun = time.monotonic()
        _, mounts, _ = listed()
        usual_s = time.monotonic() - begun  # most of it is the start of a process, which the limit does not mean
        assert [mounts[place]["state"] for place in places] == ["normal", "pass-through"]
        os.kill(other.pid, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            one = subprocess.Popen(
                [*COMMAND, "status", places[1]], cwd=REPOSITORY, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
            )
            code, mounts, _ = listed()
            _, said = one.communicate(timeout=60)
            assert time.monotonic() - begun - 2 * usual_s < STATUS_S, "both processes start on one machine"
        finally:
            os.kill(other.pid, signal.SIGCONT)
        assert code == 1
        assert (mounts[places[0]]["state"], mounts[places[1]]["state"]) == ("normal", "no answer")
        assert one.returncode == 1
        assert b"does not answer" in said
        assert run("status", places[1]).returncode == 0
