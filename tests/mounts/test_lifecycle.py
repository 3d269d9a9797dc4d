"""From the first call to the last: mounting, refusals, unmounting, signals, kill -9, status."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mummufs import control
from mummufs.config import PASS_THROUGH_NOTE
from mummufs.store.layout import LOCK_NAME
from tests.faultfs.client import FaultFs
from tests.mounts.harness import COMMAND, REPOSITORY, Mounted, opened, run
from tests.support.models import write_native
from tests.support.waiting import wait_for

KIB = 1 << 10
LEAVE_S = 5.0
"""How soon a signal ends a mount that nobody holds."""
CUT_OFF_S = 6.0
"""How soon it ends one that somebody holds."""
STATUS_S = 5.0
KILLS = 10
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


class InFront(Mounted):
    """A mount by `--foreground`: its daemon is a child of the test, so that its exit code can be seen."""

    process: subprocess.Popen[str]

    def mount(self) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *self.arguments(), "--foreground"],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if "mounted at" in line:
                break
        else:
            pytest.fail("".join(lines))
        self.pid = self.process.pid

    def take_down(self) -> None:
        super().take_down()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=10)

    def signal(self, number: signal.Signals, limit_s: float) -> float:
        """Send a signal; the daemon ends in order within `limit_s`. Gives the seconds that it took."""
        begun = time.monotonic()
        self.process.send_signal(number)
        assert self.process.wait(limit_s + 20) == 0
        took = time.monotonic() - begun
        assert took < limit_s
        self.has_left()
        return took

    def has_left(self) -> None:
        """The mount has gone, and so have its socket and its lock."""
        assert not self.is_mounted
        assert not control.socket_path(self.mountpoint).exists()
        assert self.store is None or is_free(self.store)


@contextlib.contextmanager
def holder(command: list[str], seen: Path, **kwargs: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds a mount for the length of the block. `seen`: its working directory or standard input."""
    process = subprocess.Popen(command, **kwargs)
    try:
        wait_for(lambda: _links(process.pid), lambda links: os.fspath(seen) in links)
        yield process
    finally:
        process.kill()
        process.wait()


def _links(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
            return [os.readlink(f"/proc/{pid}/{name}") for name in ("cwd", "fd/0")]
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
        pid = m.status()["pid"]
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
def test_an_old_daemon_leaves_the_next_mount_alone(tree: Path, tmp_path: Path) -> None:
    """One that was detached and is still held, while something new is mounted in its place."""
    data = model(tree)
    with InFront(tree) as old, old.path("f").open("rb", buffering=0) as file:
        run("umount", old.mountpoint, "--lazy")
        with Mounted(tree, mountpoint=old.mountpoint) as m:
            assert m.pid != old.pid
            old.process.send_signal(signal.SIGTERM)
            assert old.process.wait(CUT_OFF_S) == 0
            assert f"pid {os.getpid()} " in old.log.read_text()
            assert m.status()["pid"] == m.pid
            assert m.read("f") == data
        with contextlib.suppress(OSError):
            file.close()


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


# ---------------------------------------------------------------------- signals


@pytest.mark.mount
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(tree: Path, store: Path, number: signal.Signals) -> None:
    data = model(tree)
    with InFront(tree, store=store) as m:
        with opened(m.path("f")) as fd:
            os.pread(fd, 1, 0)
        m.settle()
        assert m.read("f") == data
        m.signal(number, LEAVE_S)
        assert not list((store / "tmp").iterdir())
        assert m.range_files(), "the fills that had their bytes were written"


@pytest.mark.mount
def test_a_signal_while_somebody_holds_it(tree: Path, store: Path) -> None:
    """Detached at once, served for some seconds more, then cut off; the log says who it was."""
    data = model(tree)
    with InFront(tree, store=store) as m, m.path("f").open("rb", buffering=0) as file:
        fd = file.fileno()
        m.process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        wait_for(lambda: m.is_mounted, lambda mounted: not mounted, 2)
        assert os.pread(fd, 1000, 0) == data[:1000], "who holds it is served meanwhile"
        assert m.process.wait(30) == 0
        assert 3 < time.monotonic() - begun < CUT_OFF_S
        m.has_left()
        with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
            os.pread(fd, 1000, 700 * KIB)
        with contextlib.suppress(OSError):  # close(2) tells of the lost connection, too
            file.close()
        assert "was still in use and has been cut off" in m.log.read_text()
        assert f"pid {os.getpid()} " in m.log.read_text()


@pytest.mark.mount
@pytest.mark.parametrize("known", [True, False], ids=["ranges known", "while parsing"])
def test_a_signal_while_the_source_hangs(tree: Path, store: Path, known: bool) -> None:
    model(tree)
    with FaultFs(tree) as under, InFront(under.mountpoint, store=store, check_books=False) as m:
        if known:
            with opened(m.path("f")) as fd:
                os.pread(fd, 1, 0)
            m.settle()
        under.hang_reads()
        outcome: list[OSError | bytes] = []

        def read() -> None:
            try:
                outcome.append(m.read("f"))
            except OSError as error:
                outcome.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        under.wait_reads(1)
        begun = time.monotonic()
        m.process.send_signal(signal.SIGTERM)
        # The kernel keeps a process until the last of its reads has been answered; all that others see of it goes.
        wait_for(lambda: state(m.pid), lambda letter: letter in GONE, CUT_OFF_S)
        assert time.monotonic() - begun < CUT_OFF_S
        m.has_left()
        reader.join(5)
        assert not reader.is_alive()
        assert isinstance(outcome[0], OSError)
        under.release_reads()
        assert m.process.wait(10) == 0


@pytest.mark.mount
def test_kill_9_again_and_again(tree: Path, store: Path) -> None:
    data = model(tree)
    with Mounted(tree, store=store) as m:
        for i in range(KILLS):
            assert m.read("f") == data
            reads = m.settle()["reads"]
            if i > 0:
                assert reads["hits"] > 0, "the store has survived"
                assert reads["misses"] == 0
            m.kill()
            wait_for(lambda: why_not_listed(m.mountpoint), lambda error: error == errno.ENOTCONN)
            if i == 0:
                done = run("status", check=False)
                assert done.returncode == 1
                assert os.fspath(m.mountpoint) in "".join(done.stdout.split())
                m.mount()
            else:
                m.mount()
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        assert sum(f" {m.mountpoint} " in line for line in lines) == 1
        m.kill()
        m.umount()
        assert not m.is_mounted


# ---------------------------------------------------------------------- status


@pytest.mark.mount
def test_status_of_all_mounts(tree: Path, store: Path) -> None:
    def listed(*arguments: str) -> tuple[int, dict[str, Mapping[str, Any]], str]:
        done = run("status", *arguments, "--json", check=False)
        return done.returncode, {m["mountpoint"]: m for m in json.loads(done.stdout)["mounts"]}, done.stderr

    with Mounted(tree, store=store) as m, Mounted(tree) as other:
        places = [os.fspath(mount.mountpoint) for mount in (m, other)]
        _, mounts, _ = listed()
        assert [mounts[place]["state"] for place in places] == ["normal", "pass-through"]
        os.kill(other.pid, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            one = subprocess.Popen(
                [*COMMAND, "status", places[1]], cwd=REPOSITORY, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
            )
            code, mounts, _ = listed()
            assert time.monotonic() - begun < STATUS_S
            _, said = one.communicate(timeout=STATUS_S)
            assert time.monotonic() - begun < STATUS_S + 0.5
        finally:
            os.kill(other.pid, signal.SIGCONT)
        assert code == 1
        assert (mounts[places[0]]["state"], mounts[places[1]]["state"]) == ("normal", "no answer")
        assert one.returncode == 1
        assert b"does not answer" in said
        assert run("status", places[1]).returncode == 0
