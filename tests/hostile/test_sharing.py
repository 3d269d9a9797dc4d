"""A mount that others use: users who may not read, and containers that outlive a daemon."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.support import hits, read_all
from tests.mounts.harness import Mounted
from tests.mounts.lanes import warm
from tests.mounts.test_mirror import as_nobody
from tests.support.models import write_native

KIB = 1 << 10
MODEL = {"sizes": (200 * KIB,) * 4, "gap": 0}


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user gets to; pytest's own are closed to others."""
    path = Path(tempfile.mkdtemp(prefix="sharing-")).resolve()
    path.chmod(0o755)
    for name in ("source", "source/closed", "mnt"):
        (path / name).mkdir()
    (path / "source/closed").chmod(0o700)
    yield path
    shutil.rmtree(path)


def read_by_nobody(path: Path, *how: str) -> bytes | None:
    """A file as somebody without rights reads it; None where that is refused."""
    done = as_nobody("dd", f"if={path}", "bs=1M", "status=none", *how)
    assert (done.returncode == 0) != (b"Permission denied" in done.stderr), done.stderr
    return done.stdout if done.returncode == 0 else None


@pytest.mark.mount
def test_who_is_refused_by_the_source_is_refused_what_is_in_the_store(place: Path) -> None:
    """Cold, from the page cache, and by a read that arrives at the store; and as soon as the mode says so."""
    source, names = place / "source", ("f", "closed/f")
    for name in names:
        write_native(source / name, seed=len(name), **MODEL)  # type: ignore[arg-type]
    (source / "f").chmod(0o600)
    (source / "closed/f").chmod(0o644)
    data = {name: (source / name).read_bytes() for name in names}
    options = ("allow_other", "settle=0", "attr_timeout=0")
    with Mounted(source, mountpoint=place / "mnt", store=place / "store", options=options) as m:
        ways = ((), ("iflag=direct",))

        def seen(name: str) -> list[bytes | None]:
            return [read_by_nobody(m.path(name), *how) for how in ways]

        for state in ("cold", "in the store", "in the page cache"):
            if state == "in the store":
                warm(m, *names)
            if state == "in the page cache":
                read_all(m, data)
                assert hits(m) > 0
            for name in names:
                assert seen(name) == [None, None], (state, name)
        for path in (source / "f", m.path("f")):  # behind the mount and through it
            path.chmod(0o644)
            assert seen("f") == [data["f"]] * 2
            path.chmod(0o600)
            assert seen("f") == [None, None]
        m.path("closed").chmod(0o755)
        assert seen("closed/f") == [data["closed/f"]] * 2


CONTAINER = """
set -e
mount --make-rslave /
mount --rbind "$1" "$2"
mount --bind "$1/mnt" "$3"
echo ready
exec sleep 600
"""
"""It gets the folder of the mountpoint, and the mount by itself at another place."""


@contextlib.contextmanager
def shared(place: Path) -> Iterator[None]:
    """Others hear of what is mounted below, as they do of everything where systemd has made "/"."""
    subprocess.run(["mount", "--bind", place, place], check=True)
    try:
        subprocess.run(["mount", "--make-shared", place], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@contextlib.contextmanager
def container(place: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with mounts of its own."""
    command = ["unshare", "-m", "--propagation", "unchanged", "sh", "-c", CONTAINER, "sh"]
    paths = [os.fspath(path) for path in (place, place / "folder", place / "single")]
    with subprocess.Popen([*command, *paths], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def inside(process: subprocess.Popen[str], script: str, *paths: Path) -> subprocess.CompletedProcess[bytes]:
    """Run something in the container."""
    command = ["nsenter", f"--target={process.pid}", "--mount", "--root", "sh", "-c", script, "sh"]
    command += map(os.fspath, paths)
    return subprocess.run(command, capture_output=True, timeout=30, check=False)


@pytest.mark.mount
def test_a_container_over_the_end_of_a_daemon(place: Path) -> None:
    """Where it has the folder that the mountpoint lies in, as a slave, it has the next mount at once."""
    write_native(place / "source/f", **MODEL)  # type: ignore[arg-type]
    data = (place / "source/f").read_bytes()
    for name in ("folder", "single"):
        (place / name).mkdir()
    by_folder, single = place / "folder/mnt/f", place / "single/f"
    with (
        shared(place),
        Mounted(place / "source", mountpoint=place / "mnt", store=place / "store") as m,
        container(place) as process,
    ):
        for path in (by_folder, single):
            assert inside(process, 'cat "$1"', path).stdout == data
        m.kill()
        m.mount()
        assert inside(process, 'cat "$1"', by_folder).stdout == data
        assert b"Transport endpoint is not connected" in inside(process, 'cat "$1"', single).stderr
        script = 'umount -l "$1" && mount --bind "$2" "$1" && cat "$1/f"'
        assert inside(process, script, single.parent, m.mountpoint).stdout == data
        assert m.read("f") == data
