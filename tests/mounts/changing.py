"""Change the current directory in every way, and print what each call said and what is there in the end.

    python -S changing.py STEPS

It is run in a mount and in a directory of the file system below it: both have to say the same.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import sys
from collections.abc import Callable, Iterator

NOREPLACE, EXCHANGE = 1, 2
BODY = bytes(range(256)) * 64
libc = ctypes.CDLL(None, use_errno=True)


def _error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def rename2(old: bytes, new: bytes, flags: int) -> None:
    if libc.renameat2(-100, old, -100, new, flags) != 0:
        raise _error()


def fallocate(fd: int, mode: int, offset: int, size: int) -> None:
    if libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(size)) != 0:
        raise _error()


class Opened:
    def __init__(self, path: str, flags: int, mode: int = 0o666) -> None:
        self.fd = os.open(path, flags, mode)

    def __enter__(self) -> int:
        return self.fd

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def write(path: str, data: bytes, flags: int = os.O_WRONLY | os.O_CREAT, offset: int | None = None) -> int:
    with Opened(path, flags) as fd:
        return os.write(fd, data) if offset is None else os.pwrite(fd, data, offset)


def read(path: str) -> bytes:
    with Opened(path, os.O_RDONLY) as fd:
        return b"".join(iter(lambda: os.read(fd, 1 << 20), b""))


def mapped(path: str, offset: int, data: bytes) -> bytes:
    with Opened(path, os.O_RDWR) as fd, mmap.mmap(fd, 0) as memory:
        memory[offset : offset + len(data)] = data
        memory.flush()
        return os.pread(fd, len(data) + 4, offset)


def unlinked(path: str) -> tuple[bytes, int, int]:
    with Opened(path, os.O_RDWR | os.O_CREAT) as fd:
        os.write(fd, b"before")
        os.unlink(path)
        os.pwrite(fd, b"after", 3)
        os.fchmod(fd, 0o640)
        os.ftruncate(fd, 7)
        found = os.fstat(fd)
        return os.pread(fd, 100, 0), found.st_nlink, found.st_mode


def renamed(path: str, new: str) -> bytes:
    with Opened(path, os.O_RDWR) as fd:
        os.rename(path, new)
        os.pwrite(fd, b"REN", 0)
        os.fsync(fd)
        os.fdatasync(fd)
    return read(new)[:6]


def appended(path: str) -> bytes:
    with Opened(path, os.O_RDWR | os.O_APPEND) as one, Opened(path, os.O_WRONLY | os.O_APPEND) as two:
        for fd, text in ((one, b"1"), (two, b"2"), (one, b"3")):
            os.write(fd, text)
        return os.pread(one, 100, max(0, os.fstat(one).st_size - 3))


def synced_directory() -> None:
    with Opened(".", os.O_RDONLY | os.O_DIRECTORY) as fd:
        os.fsync(fd)


def direct(path: str) -> bytes:
    with Opened(path, os.O_RDWR | os.O_DIRECT) as fd, mmap.mmap(-1, 8192) as buffer:
        buffer[:] = b"d" * 8192
        os.pwritev(fd, [buffer], 4096)
        return os.preadv(fd, [buffer], 0).to_bytes(4, "big") + buffer[4090:4100]


def copied(path: str, new: str) -> tuple[int, bytes]:
    with Opened(path, os.O_RDONLY) as source, Opened(new, os.O_WRONLY | os.O_CREAT) as target:
        count = os.copy_file_range(source, target, 1000)
    return count, read(new)


def allocated(path: str) -> int:
    with Opened(path, os.O_RDWR | os.O_CREAT) as fd:
        os.posix_fallocate(fd, 0, 10_000)
        return os.fstat(fd).st_size


def times(path: str) -> tuple[int, int]:
    os.utime(path, ns=(1_000_000_001, 2_000_000_002))
    found = os.stat(path)
    return found.st_atime_ns, found.st_mtime_ns


STEPS: dict[str, list[Callable[[], object]]] = {
    "root": [
        lambda: os.umask(0o027),
        lambda: write("f", BODY),
        lambda: write("f", b"xyz", os.O_WRONLY, 5000),
        lambda: write("f", b"no", os.O_RDONLY),
        lambda: write("f", b"no", os.O_WRONLY | os.O_CREAT | os.O_EXCL),
        lambda: write("new", b"new", os.O_WRONLY | os.O_CREAT | os.O_EXCL),
        lambda: write("none", b"no", os.O_WRONLY),
        lambda: appended("new"),
        lambda: mapped("f", 4094, b"mapped"),
        lambda: mapped("f", 0, b"at its start"),
        lambda: direct("f"),
        lambda: unlinked("gone"),
        lambda: write("t", b"trunc"),
        lambda: write("t", b"T", os.O_WRONLY | os.O_TRUNC),
        lambda: os.close(os.open("t", os.O_RDONLY | os.O_TRUNC)),
        lambda: os.truncate("t", 5000),
        lambda: os.truncate("t", 10),
        lambda: os.truncate("nothing", 10),
        lambda: os.mkdir("d"),
        lambda: os.mkdir("d"),
        lambda: os.mkdir("d/e", 0o7777),
        lambda: os.rmdir("d"),
        lambda: os.unlink("d"),
        lambda: os.rmdir("f"),
        lambda: renamed("new", "d/newer"),
        lambda: os.rename("d", "d/e/f"),
        lambda: os.rename("f", "d"),
        lambda: os.rename("d", "f"),
        lambda: rename2(b"f", b"t", NOREPLACE),
        lambda: rename2(b"f", b"none", EXCHANGE),
        lambda: rename2(b"f", b"t", EXCHANGE),
        lambda: rename2(b"t", b"f2", NOREPLACE),
        lambda: rename2(b"f2", b"d", EXCHANGE),
        lambda: os.rename("d", "f3"),
        lambda: os.rename("f2", "d"),
        lambda: os.link("f3", "d/hard"),
        lambda: os.link("f3", "d/hard"),
        lambda: os.link("d", "dlink"),
        lambda: os.unlink("f3"),
        lambda: os.stat("d/hard").st_nlink,
        lambda: os.symlink("d/hard", "soft"),
        lambda: os.symlink("x" * 5000, "soft2"),
        lambda: os.link("soft", "soft3", follow_symlinks=False),
        lambda: len(read("soft")),
        lambda: os.chown("soft", 7, 8, follow_symlinks=False),
        lambda: os.mkfifo("fifo"),
        lambda: os.mknod("dev", 0o640 | stat.S_IFCHR, os.makedev(1, 300)),
        lambda: os.mknod("node", 0o600 | stat.S_IFREG),
        lambda: os.chmod("d/hard", 0o4755),
        lambda: os.chown("d/hard", 12345, 12345),
        lambda: os.chmod("d", 0o2775),
        lambda: times("d/hard"),
        lambda: os.setxattr("d/hard", "user.one", b"1", os.XATTR_CREATE),
        lambda: os.setxattr("d/hard", "user.one", b"1", os.XATTR_CREATE),
        lambda: os.setxattr("d/hard", "user.two", b"1", os.XATTR_REPLACE),
        lambda: os.setxattr("d/hard", "user.one", b"2\0", os.XATTR_REPLACE),
        lambda: os.setxattr("d", "user.three", b""),
        lambda: os.removexattr("d", "user.three"),
        lambda: os.removexattr("d", "user.three"),
        synced_directory,
        lambda: copied("d/hard", "copy"),
        lambda: allocated("allocated"),
        lambda: os.mkdir("n" * 256),
        lambda: os.mkdir("shared"),
        lambda: os.chown("shared", 0, 34567),
        lambda: os.chmod("shared", 0o2770),
        lambda: os.mkdir("open"),
        lambda: os.chmod("open", 0o1777),
        lambda: write("open/root's", b"r"),
        lambda: os.chmod("open/root's", 0o666),
        lambda: write("suid", b"suid"),
        lambda: os.chmod("suid", 0o6777),
        lambda: os.mkdir("closed", 0o700),
    ],
    "user": [
        lambda: os.umask(0o022),
        lambda: write("open/mine", b"m"),
        lambda: os.mkdir("open/my folder"),
        lambda: os.symlink("x", "open/my link"),
        lambda: os.mkfifo("open/my fifo"),
        lambda: write("shared/for all of us", b"s"),
        lambda: os.mkdir("shared/folder"),
        lambda: os.chmod("shared/for all of us", 0o2755),
        lambda: write("closed/x", b"no"),
        lambda: write("x", b"no"),
        lambda: os.unlink("open/root's"),
        lambda: os.rename("open/root's", "open/mine too"),
        lambda: os.chmod("open/root's", 0o600),
        lambda: os.utime("open/root's", ns=(1, 1)),
        lambda: os.utime("open/root's"),
        lambda: write("open/root's", b"user"),
        lambda: os.chown("open/mine", 0, -1),
        lambda: os.chown("open/mine", -1, 34567),
        lambda: os.chown("open/mine", -1, 1),
        lambda: os.mknod("open/dev", 0o600 | stat.S_IFCHR, os.makedev(1, 3)),
        lambda: write("suid", b"S", os.O_WRONLY, 1),
        lambda: oct(os.stat("suid").st_mode),
        lambda: os.setxattr("open/mine", "trusted.x", b"1"),
        lambda: os.setxattr("open/root's", "user.x", b"1"),
        lambda: os.link("open/root's", "open/linked"),
    ],
    "suid again": [lambda: os.chmod("suid", 0o6777)],
    "user truncates": [lambda: os.truncate("suid", 2), lambda: oct(os.stat("suid").st_mode)],
    "user empties": [
        lambda: os.close(os.open("suid", os.O_WRONLY | os.O_TRUNC)),
        lambda: oct(os.stat("suid").st_mode),
    ],
}


def said(step: Callable[[], object]) -> str:
    try:
        return repr(step())
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def tree(path: str = ".") -> Iterator[str]:
    """Everything below, and all that is known of it but the times and the numbers."""
    for name in sorted(os.listdir(path)):
        full = f"{path}/{name}"
        found = os.lstat(full)
        kind = stat.S_IFMT(found.st_mode)
        links = 0 if kind == stat.S_IFDIR else found.st_nlink
        more: object = None
        if kind == stat.S_IFREG:
            more = (found.st_size, hash_of(full))
        elif kind == stat.S_IFLNK:
            more = os.readlink(full)
        xattrs = {name: os.getxattr(full, name, follow_symlinks=False) for name in _xattrs(full)}
        yield f"{full} {found.st_mode:o} {links} {found.st_uid} {found.st_gid} {found.st_rdev} {more} {xattrs}"
        if kind == stat.S_IFDIR:
            yield from tree(full)


def hash_of(path: str) -> int:
    total = 0
    for byte in read(path):
        total = (total * 31 + byte) % (1 << 61)
    return total


def _xattrs(path: str) -> list[str]:
    return sorted(os.listxattr(path, follow_symlinks=False))


if __name__ == "__main__":
    for number, one in enumerate(STEPS[sys.argv[1]]):
        print(number, said(one))
    if os.geteuid() == 0:
        print(*tree(), sep="\n")
