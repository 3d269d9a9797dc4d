"""Run as a normal user: permissions of range files and folders are taken away while the mount is read.

    python -m tests.mounts.as_user SOURCE STORE

root may read whatever its permissions are, so this part of the store's faults needs somebody else.
"""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mounts.harness import Mounted
from tests.support.namespaces import leave_mount_namespace

USER = "nobody"


def become(user: str) -> None:
    """Be this user from now on, in all of its ids."""
    who = pwd.getpwnam(user)
    os.environ.pop("XDG_RUNTIME_DIR", None)
    os.environ["HOME"] = "/"
    os.setgroups([])
    os.setresgid(who.pw_gid, who.pw_gid, who.pw_gid)
    os.setresuid(who.pw_uid, who.pw_uid, who.pw_uid)


def open_dev_fuse() -> None:
    """Have /dev/fuse as udev makes it, usable by everybody, in a mount namespace of our own."""
    if os.stat("/dev/fuse").st_mode & 0o006 == 0o006:
        return
    leave_mount_namespace()
    node = tempfile.mktemp(prefix="fuse-")
    os.mknod(node, stat.S_IFCHR | 0o666, os.stat("/dev/fuse").st_rdev)
    os.chmod(node, 0o666)
    subprocess.run(["mount", "--bind", node, "/dev/fuse"], check=True, timeout=30)
    os.unlink(node)


def give(path: Path, user: str) -> None:
    """Hand a tree to a user, and let others through to it."""
    who = pwd.getpwnam(user)
    for parent in path.parents:
        if parent.stat().st_uid == os.getuid() and os.fspath(parent).startswith(tempfile.gettempdir() + "/"):
            parent.chmod(0o755)
    for found in (path, *path.rglob("*")):
        os.chown(found, who.pw_uid, who.pw_gid)


def check(source: Path, store: Path) -> None:
    """Read, take permissions away, read again."""
    names = [p.name for p in source.iterdir()]

    def read(m: Mounted) -> None:
        m.drop_pages()
        for name in names:
            assert m.read(name) == (source / name).read_bytes()
        m.settle()

    with Mounted(source, store=store) as m:
        read(m)
        assert m.range_files()
        m.remount()
        for path in m.range_files():
            path.chmod(0)
        read(m)
        assert m.status()["errors"]["store"] > 0
        m.check_books()
        for path in m.range_files():
            path.chmod(0)
        m.remount()
        read(m)
        m.check_books()
        for folder in store.glob("ranges/*"):
            folder.chmod(0)
        read(m)
        m.remount()
        read(m)
        m.check_books()


if __name__ == "__main__":
    open_dev_fuse()
    _source, _store = Path(sys.argv[1]), Path(sys.argv[2])
    _store.mkdir()
    give(_source, USER)
    give(_store, USER)
    become(USER)
    check(_source, _store)
