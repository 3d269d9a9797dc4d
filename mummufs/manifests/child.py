"""Parses one file's header in a process of its own.

    python -m mummufs.manifests.child FD DIR_FD NAME_HEX [MANIFEST_FD]

FD is the model file, DIR_FD its folder (-1: nothing beside it is looked at), NAME_HEX its name in hexadecimal, and
MANIFEST_FD a native manifest given by an option. Standard output gets one status byte and its payload:

    T   a range table, as `RangeTable.to_bytes`
    N   nothing: no format recognises the file
    E   the reason why there are no ranges, in UTF-8

A process of its own, because parsing holds Python busy for up to seconds, and so that a hostile header can take no
more memory and time than the limits below. This is the one file of the package that does I/O.
"""

from __future__ import annotations

import os
import resource
import signal
import stat
import sys
from types import FrameType

from mummufs.core.errors import ManifestError
from mummufs.core.manifest import RangeTable
from mummufs.manifests.base import SIDE_FILE_BYTES_MAX, Subject
from mummufs.manifests.registry import read_manifest

ADDRESS_SPACE_BYTES_MAX = 512 << 20
CPU_S_MAX = 60
REASON_CHARS_MAX = 1000

STATUS_TABLE = b"T"
STATUS_NONE = b"N"
STATUS_ERROR = b"E"


class DirSiblings:
    """The plain files of an open folder. Symbolic links are not followed, so nothing outside it is read."""

    def __init__(self, dir_fd: int) -> None:
        self._dir_fd = dir_fd

    def read(self, name: bytes, limit_bytes: int) -> bytes | None:
        """As `Siblings.read`."""
        fd = self._open(name)
        if fd is None:
            return None
        try:
            return read_whole(fd, limit_bytes, name)
        finally:
            os.close(fd)

    def size(self, name: bytes) -> int | None:
        """As `Siblings.size`."""
        fd = self._open(name)
        if fd is None:
            return None
        try:
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def _open(self, name: bytes) -> int | None:
        if self._dir_fd < 0 or b"/" in name or b"\0" in name or name in (b"", b".", b".."):
            return None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(name, flags, dir_fd=self._dir_fd)
        except OSError:  # absent, a link, unreadable, or a name that is too long
            return None
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        return None


def read_whole(fd: int, limit_bytes: int, name: bytes) -> bytes:
    """All bytes of an open file.

    Raises:
        ManifestError: it is larger than `limit_bytes`.
    """
    size = os.fstat(fd).st_size
    if size > limit_bytes:
        raise ManifestError(f"{os.fsdecode(name)!r} beside it has {size} bytes, more than the limit of {limit_bytes}")
    return read_at(fd, 0, size)


def read_at(fd: int, offset: int, size: int) -> bytes:
    """The bytes at `offset`: short only at end of file."""
    parts: list[bytes] = []
    while size > 0:
        part = os.pread(fd, size, offset)
        if not part:
            break
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def answer(fd: int, dir_fd: int, name: bytes, manifest_fd: int | None = None) -> tuple[bytes, bytes]:
    """The status byte and its payload for one open file."""
    try:
        explicit = None if manifest_fd is None else read_whole(manifest_fd, SIDE_FILE_BYTES_MAX, b"the given manifest")
        size = os.fstat(fd).st_size
        subject = Subject(name, size, lambda offset, count: read_at(fd, offset, count), DirSiblings(dir_fd))
        manifest = read_manifest(subject, explicit)
        if manifest is None:
            return STATUS_NONE, b""
        table = RangeTable.from_manifest(manifest)
        del manifest, explicit  # the table's bytes take their place
        return STATUS_TABLE, table.to_bytes()
    except ManifestError as error:
        reason = str(error)
    except MemoryError:
        reason = f"parsing its header takes more than {ADDRESS_SPACE_BYTES_MAX >> 20} MiB of memory"
    except OSError as error:
        reason = f"its header cannot be read: {error.strerror or error}"
    except Exception as error:  # a parser's own mistake must not end in a traceback: the file has no ranges
        reason = f"its header cannot be parsed: {type(error).__name__}: {error}"
    return STATUS_ERROR, reason[:REASON_CHARS_MAX].encode("utf-8", "replace")


def _limit_resources() -> None:
    """Bound what a hostile header can take. A limit that is lower already stays."""
    for kind, wanted in ((resource.RLIMIT_AS, ADDRESS_SPACE_BYTES_MAX), (resource.RLIMIT_CPU, CPU_S_MAX)):
        soft, hard = resource.getrlimit(kind)
        known = [x for x in (soft, hard, wanted) if x != resource.RLIM_INFINITY]
        resource.setrlimit(kind, (min(known), hard))
    signal.signal(signal.SIGXCPU, _out_of_time)


def _out_of_time(_signal: int, _frame: FrameType | None) -> None:
    raise ManifestError(f"parsing its header takes more than {CPU_S_MAX} s")


def main(arguments: list[str]) -> int:
    """Exit code 0 whatever the answer is, 2 for a wrong call."""
    try:
        fd, dir_fd = int(arguments[0]), int(arguments[1])
        name = bytes.fromhex(arguments[2])
        manifest_fd = int(arguments[3]) if len(arguments) > 3 else None
    except (IndexError, ValueError):
        sys.stderr.write("usage: python -m mummufs.manifests.child FD DIR_FD NAME_HEX [MANIFEST_FD]\n")
        return 2
    _limit_resources()
    for part in answer(fd, dir_fd, name, manifest_fd):
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
