"""Who may use a mount, and who may make one: allow_other, other users, bind mounts, fusermount3."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mummufs import control
from mummufs.mountinfo import mount_at, read_mountinfo
from tests.mounts.as_user import USER, become, give, open_dev_fuse
from tests.mounts.harness import REPOSITORY, Mounted, need_other_users, opened, run
from tests.mounts.test_mirror import NOBODY, as_nobody
from tests.support.models import write_native
from tests.support.waiting import wait_for


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user gets to; pytest's own are closed to others."""
    path = Path(tempfile.mkdtemp(prefix="users-")).resolve()
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def folders(place: Path, *names: str) -> list[Path]:
    for name in names:
        (place / name).mkdir()
    return [place / name for name in names]


# ---------------------------------------------------------------------- a mount of root's


@pytest.mark.mount
@pytest.mark.parametrize("allowed", [True, False])
def test_allow_other(place: Path, allowed: bool) -> None:
    source, mountpoint = folders(place, "source", "mnt")
    (source / "f").write_text("for all")
    (source / "f").chmod(0o644)
    with Mounted(source, mountpoint=mountpoint, options=("allow_other",) if allowed else ()) as m:
        assert m.read("f") == b"for all"
        seen = as_nobody("cat", mountpoint / "f")
        assert (seen.returncode, seen.stdout) == ((0, b"for all") if allowed else (1, b""))
        assert allowed or b"Permission denied" in seen.stderr
        assert m.status()["options"]["allow_other"] is allowed


@pytest.mark.mount
def test_the_control_socket_is_for_root_and_the_mounting_user(place: Path) -> None:
    """Whatever the umask of who mounts, and whoever may use the mount."""
    source, mountpoint = folders(place, "source", "mnt")
    m = Mounted(source, mountpoint=mountpoint, options=("allow_other",))
    try:
        run(*m.arguments(), umask=0)
        path = control.socket_path(mountpoint)
        assert path.parent.stat().st_mode & 0o077 == 0 and path.stat().st_mode & 0o777 == 0o600
        connect = f"import socket; socket.socket(socket.AF_UNIX).connect({os.fspath(path)!r})"
        done = as_nobody(sys.executable, "-S", "-c", connect)
        assert done.returncode == 1 and b"PermissionError" in done.stderr
        assert m.status()["options"]["allow_other"]
    finally:
        m.take_down()


@pytest.mark.mount
def test_another_user_through_a_bind_mount_elsewhere(place: Path) -> None:
    """As a container sees it: another mount namespace, a bind mount, another user, a space in the path."""
    source, mountpoint, elsewhere = folders(place, "the source", "the mount", "models")
    write_native(source / "a model", sizes=(100_000,))
    (source / "a model").chmod(0o644)
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    with Mounted(source, mountpoint=mountpoint, store=place / "store", options=("allow_other", "settle=0")) as m:
        for _ in range(2):
            m.drop_pages()
            there = ["unshare", "-m", "--", "sh", "-c", script, "sh", os.fspath(mountpoint), os.fspath(elsewhere)]
            read = [*NOBODY, "cat", os.fspath(elsewhere / "a model")]
            seen = subprocess.run([*there, *read], capture_output=True, timeout=30, check=False)
            assert seen.stdout == (source / "a model").read_bytes(), seen.stderr
            m.settle()
        assert m.status()["reads"]["hits"] > 0
        assert list(elsewhere.iterdir()) == []


# ---------------------------------------------------------------------- a mount of somebody else's


def bind(file: Path, over: Path) -> None:
    """Have a file in another's place, for this process alone."""
    own, parent_s = (os.readlink(f"/proc/{pid}/ns/mnt") for pid in ("self", os.getppid()))
    assert own != parent_s, "the machine's own files are left alone"
    subprocess.run(["mount", "--bind", file, over], check=True, timeout=30)


def by_user(function: Callable[[Path], None], place: Path) -> None:
    """Run a function that turns into a normal user, in a process with a mount namespace of its own."""
    need_other_users()
    code = f"import sys; from {function.__module__} import *; {function.__name__}(Path(sys.argv[1]))"
    environ = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
    done = subprocess.run(
        ["unshare", "-m", "--", sys.executable, "-c", code, place],
        cwd=REPOSITORY,
        env=environ,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _turn_into_user(place: Path, *, user_allow_other: bool = False) -> tuple[Path, Path, Path]:
    """Source, mountpoint and a runtime directory of the user's, whom this process is from now on."""
    open_dev_fuse()
    source, mountpoint, runtime = folders(place, "source", "mnt", "runtime")
    conf = place / "fuse.conf"
    conf.write_text("user_allow_other\n" if user_allow_other else "")
    conf.chmod(0o644)
    bind(conf, Path("/etc/fuse.conf"))
    write_native(source / "f", sizes=(100_000,) * 3)
    (source / "closed").write_text("secret")
    give(place, USER)
    (source / "closed").chmod(0)
    for name in ("to write to", "to cut", "to empty"):
        (source / f"root's, {name}").write_text("root's")
        (source / f"root's, {name}").chmod(0o6777)
    become(USER)
    os.environ["XDG_RUNTIME_DIR"] = os.fspath(runtime)
    return source, mountpoint, runtime


def mounts_and_unmounts(place: Path) -> None:
    source, mountpoint, runtime = _turn_into_user(place)
    with Mounted(source, mountpoint=mountpoint, store=place / "store") as m:
        for _ in range(2):
            m.drop_pages("f")
            assert m.read("f") == (source / "f").read_bytes()
            m.settle()
        assert m.status()["reads"]["hits"] > 0
        entry = mount_at(mountpoint, read_mountinfo())
        assert entry is not None
        assert (entry.fstype, entry.source) == ("fuse.mummufs", os.fspath(source))
        assert f"user_id={os.geteuid()}" in entry.super_options
        socket = control.socket_path(mountpoint)
        assert socket.parent.parent == runtime
        assert socket.exists()
        with pytest.raises(PermissionError):
            m.read("closed")
        _writes(m, source)
        with opened(m.path("f")) as fd, subprocess.Popen(["sleep", "64"], stdin=fd) as holder:
            done = run("umount", mountpoint, check=False)
            holder.kill()
            assert done.returncode == 1
            assert f"pid {holder.pid} (sleep 64), open file" in done.stderr
        m.umount()
        assert not m.is_mounted
        assert not socket.exists()


def _writes(m: Mounted, source: Path) -> None:
    """Files of the user's, also such as he may write and not read, or read and not write once they are closed."""
    for name, mode in (("ordinary", 0o644), ("to write", 0o200), ("to read", 0o400)):
        with opened(m.path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            os.fchmod(fd, mode)
            assert os.write(fd, b"written") == 7
            os.ftruncate(fd, 5)
        found = (source / name).stat()
        assert (found.st_size, found.st_mode & 0o777, found.st_uid) == (5, mode, os.geteuid())
    with opened(m.path("to write"), os.O_WRONLY) as fd:
        os.write(fd, b"W")
    with pytest.raises(PermissionError):
        os.open(m.path("to write"), os.O_RDONLY)
    with pytest.raises(PermissionError):
        os.open(m.path("to read"), os.O_WRONLY)
    with pytest.raises(PermissionError):
        os.chown(m.path("ordinary"), 0, 0)
    with opened(m.path("made"), os.O_WRONLY | os.O_CREAT) as fd:
        os.write(fd, b"x")
        os.chmod(m.path("made"), 0o600)
        m.path("made").rename(m.path("ordinary"))
    assert (source / "ordinary").read_bytes() == b"x"
    m.path("ordinary").unlink()
    with opened(m.path("root's, to write to"), os.O_WRONLY) as fd:  # he may set no modes there
        os.write(fd, b"u")
    os.truncate(m.path("root's, to cut"), 2)
    m.path("root's, to empty").write_bytes(b"")
    assert {oct(path.stat().st_mode & 0o7777) for path in source.glob("root's*")} == {"0o777"}


def replaces_a_dead_mount(place: Path) -> None:
    source, mountpoint, _ = _turn_into_user(place)
    with Mounted(source, mountpoint=mountpoint) as m:
        m.kill()
        wait_for(lambda: _errno_of_stat(mountpoint), lambda error: error == errno.ENOTCONN)
        done = run(*m.arguments())
        assert "replaced the mount that a killed daemon left" in done.stderr
        assert m.read("f") == (source / "f").read_bytes()
        os.kill(m.status()["pid"], 15)
        wait_for(lambda: m.is_mounted, lambda mounted: not mounted)


def may_not_allow_others(place: Path) -> None:
    source, mountpoint, _ = _turn_into_user(place)
    done = run("mount", source, mountpoint, "-o", "allow_other", check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"(mummufs: no store directory.*\n)?mummufs: .* cannot be mounted .*\n", done.stderr), (
        done.stderr
    )


def may_allow_others(place: Path) -> None:
    source, mountpoint, _ = _turn_into_user(place, user_allow_other=True)
    with Mounted(source, mountpoint=mountpoint, options=("allow_other",)) as m:
        assert m.read("f") == (source / "f").read_bytes()


def may_not_use_what_is_root_s(place: Path) -> None:
    (place / "root's store").mkdir(mode=0o755)
    (place / "root's place").mkdir(mode=0o755)
    source, mountpoint, _ = _turn_into_user(place / "own")
    refused = {
        r"the store .* belongs to user 0: name one of your own": ("--store", place / "root's store"),
        r"the store .* cannot be used: Permission denied": ("--store", place / "root's place" / "store"),
    }
    for sentence, arguments in refused.items():
        done = run("mount", source, mountpoint, *arguments, check=False)
        assert (done.returncode, bool(re.fullmatch(f"mummufs: {sentence}\n", done.stderr))) == (2, True), done.stderr
    assert mount_at(mountpoint, read_mountinfo()) is None


def _errno_of_stat(path: Path) -> int | None:
    try:
        os.statvfs(path)
    except OSError as error:
        return error.errno
    return None


@pytest.mark.mount
@pytest.mark.parametrize(
    "function", [mounts_and_unmounts, replaces_a_dead_mount, may_not_allow_others, may_allow_others]
)
def test_a_normal_user(place: Path, function: Callable[[Path], None]) -> None:
    by_user(function, place)


@pytest.mark.mount
def test_a_normal_user_and_what_is_root_s(place: Path) -> None:
    (place / "own").mkdir()
    by_user(may_not_use_what_is_root_s, place)
