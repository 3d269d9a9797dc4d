"""A cache fault is never a read fault: whatever happens to the store under load, bytes stay right and the mount up."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mounts.harness import Mounted, need_other_users
from tests.support.models import write_native
from tests.support.waiting import wait_for

KIB = 1 << 10


def delete(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    os.truncate(path, 0)


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def extend(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x" * 5000)


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096 + 77)
        byte = file.read(1)
        file.seek(4096 + 77)
        file.write(bytes([byte[0] ^ 1]))


def junk(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def symlink(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def sock(path: Path) -> None:
    path.unlink()
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path.name)
    finally:
        os.chdir(here)


FAULTS: dict[str, Callable[[Path], None]] = {
    f.__name__: f for f in (delete, empty, shorten, extend, flip, junk, directory, symlink, fifo, sock)
}


class Load:
    """Readers that compare everything they read, until the end of the block."""

    def __init__(self, m: Mounted, expected: dict[str, bytes], readers: int = 4) -> None:
        self._m = m
        self._expected = expected
        self._stop = threading.Event()
        self.wrong: list[str] = []
        self.passes = 0
        self._threads = [threading.Thread(target=self._read, args=(i,)) for i in range(readers)]

    def _read(self, number: int) -> None:
        rng = random.Random(number)
        while not self._stop.is_set():
            name = rng.choice(sorted(self._expected))
            try:
                self._m.drop_pages(name)
                if self._m.read(name) != self._expected[name]:
                    self.wrong.append(name)
            except OSError as error:
                self.wrong.append(f"{name}: {error}")
            self.passes += 1

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def model(tree: Path) -> dict[str, bytes]:
    names = ("a", "b")
    for i, name in enumerate(names):
        write_native(tree / name, seed=i, sizes=(200 * KIB,) * 10, gap=100)
    return {name: (tree / name).read_bytes() for name in names}


def foreign(store: Path) -> None:
    """Remove what a test put in place of a range file: the store leaves it alone, so the books would not agree."""
    for path in store.glob("ranges/*/*.rng"):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        elif path.is_symlink() or not path.is_file():
            path.unlink()


@pytest.mark.mount
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("when", ["open", "remounted"])
def test_range_files_that_go_bad(tree: Path, store: Path, fault: str, when: str) -> None:
    expected = model(tree)
    with Mounted(tree, store=store) as m:
        for name, data in expected.items():
            assert m.read(name) == data
        m.settle()
        if when == "remounted":
            m.remount()
        with Load(m, expected, readers=2) as load:
            victims = m.range_files()
            for path in victims:
                try:
                    FAULTS[fault](path)
                except OSError:
                    pass  # the mount was quicker
        assert not load.wrong
        m.drop_pages()
        for name, data in expected.items():
            assert m.read(name) == data
        status = m.settle()
        assert status["errors"]["store"] > 0
        foreign(store)
        m.drop_pages()
        for name, data in expected.items():
            assert m.read(name) == data
        m.settle()
        foreign(store)


def remove(directory: Path) -> bool:
    """Remove it with all that is in it; False where somebody has put something into it meanwhile."""
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


@pytest.mark.mount
def test_the_store_removed_under_load(tree: Path, store: Path) -> None:
    expected = model(tree)
    with Mounted(tree, store=store, check_books=False) as m:
        for name, data in expected.items():
            assert m.read(name) == data
        m.settle()
        with Load(m, expected) as load:
            for sub in store.glob("ranges/*"):
                remove(sub)
            wait_for(lambda: remove(store), bool)  # while it is removed it is filled
            seen = load.passes
            while load.passes < seen + 20 and not load.wrong:
                threading.Event().wait(0.01)
        assert not load.wrong
        assert m.status()["errors"]["store"] > 0
        assert m.status()["errors"]["handler"] == 0


@pytest.mark.mount
def test_a_store_that_may_not_be_read_any_more(tree: Path, store: Path) -> None:
    """As a normal user, because root reads everything: permissions of range files and folders are taken away."""
    need_other_users()
    model(tree)
    done = subprocess.run(
        [sys.executable, "-m", "tests.mounts.as_user", os.fspath(tree), os.fspath(store)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
