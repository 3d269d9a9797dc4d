"""A mount that is written to: it does what the source's own file system does, and the store keeps up."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounts import changing
from tests.mounts.harness import Mounted, opened
from tests.mounts.lanes import KIB, PAGE, Served, ranges, warm
from tests.support.waiting import wait_for

GROUP, OTHER_GROUP = 23456, 34567
USER = ("setpriv", "--reuid=12345", f"--regid={GROUP}", f"--groups={GROUP},{OTHER_GROUP}", "--")
WINDOW = 200 * KIB
FICLONE, FS_IOC_GETFLAGS = 0x40049409, 0x80086601


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user gets to; pytest's own are closed to others."""
    path = Path(tempfile.mkdtemp(prefix="writes-")).resolve()
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def change(cwd: Path, steps: str, *user: str) -> list[str]:
    """What each of these steps says in a directory."""
    script = cwd.parent / "changing.py"
    if not script.exists():
        shutil.copy(changing.__file__, script)
        script.chmod(0o644)
    command = [*user, sys.executable, "-S", "-I", os.fspath(script), steps]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.mount
@pytest.mark.parametrize("lane", ["auto", "off"])
def test_every_change_is_what_it_is_in_the_source(place: Path, lane: str) -> None:
    """As root and as somebody else, by a group that he is in besides, with setuid and setgid bits, umask and all."""
    source, plain, mountpoint = place / "source", place / "plain", place / "mnt"
    for folder in (source, plain, mountpoint):
        folder.mkdir(mode=0o755)
    options = ("allow_other", "suid", "dev", "attr_timeout=0", f"lane={lane}")
    with Mounted(source, mountpoint=mountpoint, options=options):
        for steps, user in (
            ("root", ()),
            ("user", USER),
            ("suid again", ()),
            ("user truncates", USER),
            ("suid again", ()),
            ("user empties", USER),
            ("suid again", ()),
        ):
            assert change(mountpoint, steps, *user) == change(plain, steps, *user), steps
        assert change(source, "suid again") == change(plain, "suid again"), "it is in the source"


PAST_THE_CACHE = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY)
os.setgroups([]), os.setgid(12345), os.setuid(12345)
print(os.pwrite(fd, b"new", 1), oct(os.stat(sys.argv[1]).st_mode & 0o7777))
"""
"""Writes as a normal user, and looks at the mode."""


@pytest.mark.mount
@pytest.mark.parametrize("lane", ["auto", "off"])
def test_a_write_past_the_page_cache_takes_setuid_and_setgid_away(place: Path, lane: str) -> None:
    """There the kernel leaves it to us, whoever has opened the file, and has to hear of the mode that it has then."""
    source, mountpoint = place / "source", place / "mnt"
    for folder in (source, mountpoint):
        folder.mkdir(mode=0o755)
    (source / "f").write_bytes(b"old")
    (source / "f").chmod(0o6777)
    options = ("allow_other", "suid", "io=direct", "attr_timeout=60", f"lane={lane}")
    with Mounted(source, mountpoint=mountpoint, options=options) as m:
        assert oct(m.path("f").stat().st_mode & 0o7777) == "0o6777"
        command = [sys.executable, "-S", "-I", "-c", PAST_THE_CACHE, os.fspath(m.path("f"))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert (done.stdout, done.stderr) == ("3 0o777\n", "")


def read_only(path: Path) -> int:
    return os.open(path, os.O_RDONLY)


@pytest.mark.mount
def test_a_model_is_written_through_the_mount(tree: Path, store: Path) -> None:
    """By write, mapping and truncation: readers see it at once, and what was not touched stays in the store."""
    data = bytearray(ranges(tree, *(WINDOW,) * 6))
    with Mounted(tree, store=store, options=("settle=0", "attr_timeout=0")) as m:
        warm(m, "f")
        path, kept = m.path("f"), len(m.range_files())
        number, reader = path.stat().st_ino, read_only(path)
        with opened(path, os.O_RDWR) as fd:
            os.pwrite(fd, b"n" * 1000, 2 * WINDOW + 50)
            data[2 * WINDOW + 50 : 2 * WINDOW + 1050] = b"n" * 1000
            assert os.pread(reader, len(data), 0) == data
            with mmap.mmap(fd, 0) as memory:
                memory[4 * WINDOW : 4 * WINDOW + 5] = data[4 * WINDOW : 4 * WINDOW + 5] = b"apple"
                memory.flush()
            assert (tree / "f").read_bytes() == data == m.read("f")
            assert m.status()["gauges"]["files_written"] == 1
        wait_for(lambda: m.status()["gauges"], lambda g: not g["files_written"] and not g["files_settling"])
        assert m.status()["fills"]["stamped"] == len(m.range_files()) >= kept - 4
        m.settle()
        with Served(m) as served:
            m.drop_pages("f")
            assert m.read("f") == data
        assert served["reads.hit_bytes"] > 0 and path.stat().st_ino == number
        warm(m, "f")
        with Served(m) as served:
            m.drop_pages("f")
            assert m.read("f") == data
        assert served["reads.hit_bytes"] >= len(data) - 3 * PAGE
        os.utime(path, ns=(1, 1))
        os.chmod(path, 0o600)
        path.rename(m.path("g"))
        os.truncate(m.path("g"), len(data) - 10)
        assert m.read("g") == data[:-10] == os.pread(reader, 1 << 24, 0)
        os.close(reader)
        wait_for(lambda: m.status()["gauges"], lambda g: not g["files_settling"])


@pytest.mark.mount
def test_what_is_local_and_what_is_refused(tree: Path) -> None:
    (tree / "f").write_bytes(b"x" * 10_000)
    with Mounted(tree) as m:
        with opened(m.path("f"), os.O_RDWR) as fd:
            with pytest.raises(OSError, match=os.strerror(errno.EOPNOTSUPP)):
                changing.fallocate(fd, 1, 0, 100)
            with pytest.raises(OSError, match=os.strerror(errno.EOPNOTSUPP)):
                changing.fallocate(fd, 3, 0, 100)  # punch a hole
            for request, code in ((FICLONE, errno.EOPNOTSUPP), (FS_IOC_GETFLAGS, errno.ENOTTY)):
                with pytest.raises(OSError, match=os.strerror(code)):
                    fcntl.ioctl(fd, request, fd)
            assert os.lseek(fd, 0, os.SEEK_DATA) == 0 and os.lseek(fd, 5, os.SEEK_HOLE) == 10_000
            fcntl.flock(fd, fcntl.LOCK_EX)
            with opened(tree / "f") as below, opened(m.path("f")) as beside:
                fcntl.flock(below, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it is not known there
                with pytest.raises(BlockingIOError):
                    fcntl.flock(beside, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with pytest.raises(OSError, match=os.strerror(errno.EOPNOTSUPP)):
            os.open(m.mountpoint, os.O_TMPFILE | os.O_RDWR)
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            changing.rename2(os.fsencode(m.path("f")), os.fsencode(m.path("g")), 4)  # RENAME_WHITEOUT
        shutil.copy(m.path("f"), m.path("copy"))
        assert (tree / "copy").read_bytes() == b"x" * 10_000


@pytest.mark.mount
def test_a_file_that_the_kernel_passes_through_is_written(tree: Path, store: Path) -> None:
    """Both by who opens it when it is read so already and by who comes first; nobody is told that it has changed."""
    (tree / "f").write_bytes(b"x" * 10_000)
    options = ("settle=0", "attr_timeout=0", "lane=on", "passthrough=on")
    with Mounted(tree, store=store, options=options) as m:
        path = m.path("f")
        m.read("f")
        wait_for(lambda: m.status()["gauges"]["parsing"], lambda count: count == 0)
        number = path.stat().st_ino
        with opened(path) as reader:
            passed = m.status()["lane"]["passed_through"]
            with opened(path, os.O_RDWR) as fd:
                os.pwrite(fd, b"one", 9_999)
                assert os.pread(reader, 5, 9_998) == b"xone" and os.fstat(reader).st_size == 10_002
            assert os.pread(reader, 5, 9_998) == b"xone" and os.fstat(reader).st_size == 10_002
            assert path.stat().st_ino == number
        with opened(path, os.O_RDWR) as fd, opened(path) as reader:
            os.pwrite(fd, b"two", 0)
            assert os.pread(reader, 4, 0) == b"twox"
        assert (tree / "f").read_bytes()[:3] == b"two" and path.stat().st_ino == number
        assert passed == 1 or m.status()["lane"]["passthrough_refused"]
