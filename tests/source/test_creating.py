"""Whose what is created is: as root, for other users, in directories that are theirs, their groups' or nobody's."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mummufs.source import creating
from mummufs.source.base import Creator, Place
from tests.source.trees import DiskTree

USER, GROUP, OTHER_GROUP = 12345, 23456, 34567
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root creates for others")


def in_a_thread(call: Callable[[], object]) -> object:
    """The ids belong to a thread: none of the tests may lose its own."""
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(call).result()
        assert pool.submit(_ids).result() == _ids(), "the thread has its own ids back"
        return result


def _ids() -> tuple[str, ...]:
    lines = Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text().splitlines()
    return tuple(line for line in lines if line.startswith(("Uid", "Gid", "Groups", "Cap", "Umask")))


def make(disk: DiskTree, name: bytes, mode: int, creator: Creator) -> os.stat_result:
    def create() -> None:
        directory = disk.source.directory(Place(b"", disk.source.stat(b"").file))
        directory.create(name, mode, creator).close()
        directory.mkdir(name + b"-d", mode, creator)
        directory.symlink(name + b"-l", b"x", creator)
        directory.mknod(name + b"-f", stat.S_IFIFO | mode, 0, creator)

    in_a_thread(create)
    found = os.lstat(disk.path(name))
    for suffix in (b"-d", b"-l", b"-f"):
        other = os.lstat(disk.path(name + suffix))
        assert (other.st_uid, other.st_gid) == (found.st_uid, found.st_gid)
    return found


@root_only
def test_it_is_the_creator_s(disk: DiskTree) -> None:
    os.chmod(disk.root, 0o777)
    found = make(disk, b"a", 0o666, Creator(USER, GROUP, 0o027))
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (USER, GROUP, 0o640)
    assert make(disk, b"b", 0o666, Creator(0, 0, 0)).st_uid == 0


@root_only
def test_a_group_that_the_source_does_not_see_is_no_hindrance(disk: DiskTree) -> None:
    """The kernel has let the creator in by a group that he is in besides; his fsgid is another."""
    os.chown(disk.root, 0, OTHER_GROUP)
    os.chmod(disk.root, 0o770)
    found = make(disk, b"a", 0o644, Creator(USER, GROUP, 0))
    assert (found.st_uid, found.st_gid) == (USER, GROUP)


@root_only
def test_the_group_of_a_setgid_directory_is_handed_down(disk: DiskTree) -> None:
    os.chown(disk.root, 0, OTHER_GROUP)
    os.chmod(disk.root, 0o2777)
    found = make(disk, b"a", 0o2775, Creator(USER, GROUP, 0))
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (USER, OTHER_GROUP, 0o2775)
    assert os.lstat(disk.path(b"a-d")).st_mode & stat.S_ISGID


@root_only
def test_a_default_acl_decides_in_the_umask_s_place(disk: DiskTree) -> None:
    acl = subprocess.run(["setfacl", "-d", "-m", "u::rw,g::rw,o::-", os.fsdecode(disk.root)], check=False)
    if acl.returncode != 0:
        pytest.skip("the file system of the temporary directory has no ACLs")
    assert stat.S_IMODE(make(disk, b"a", 0o666, Creator(0, 0, 0o077)).st_mode) == 0o660


@root_only
def test_a_creation_that_fails_leaves_the_thread_as_it_was(disk: DiskTree) -> None:
    disk.write(b"a", b"")

    def create() -> None:
        directory = disk.source.directory(Place(b"", disk.source.stat(b"").file))
        with pytest.raises(FileExistsError):
            directory.create(b"a", 0o666, Creator(USER, GROUP, 0))

    in_a_thread(create)


@root_only
def test_the_umask_of_other_threads_is_not_touched(disk: DiskTree) -> None:
    before = _ids()
    make(disk, b"a", 0o666, Creator(USER, GROUP, 0o123))
    assert _ids() == before


@root_only
def test_where_no_thread_may_have_a_umask_of_its_own(disk: DiskTree, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forbidden:
        def __getattr__(self, name: str) -> object:
            return (lambda *_: -1) if name == "unshare" else getattr(libc, name)

    libc = creating._libc
    monkeypatch.setattr(creating, "_libc", Forbidden())
    os.chmod(disk.root, 0o777)
    before = _ids()
    found = make(disk, b"a", 0o666, Creator(USER, GROUP, 0o027))
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (USER, 0o640)
    assert _ids() == before
