r"""What is asked of Windows, in Python's values: the seam at which tests put a Windows of their own.

Paths are absolute, begin with `\\?\` and hold "\" only, so that they may be long and mean just what they say. Handles
are integers that are not zero. Every failure is an OSError with an errno (`error`); the one of a file that somebody
else has open in a way that forbids the call is EBUSY.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

LONG_PREFIX = "\\\\?\\"
UNC_PREFIX = "\\\\?\\UNC\\"

GENERIC_READ, GENERIC_WRITE = 0x80000000, 0x40000000
DELETE, READ_CONTROL, WRITE_DAC, WRITE_OWNER = 0x10000, 0x20000, 0x40000, 0x80000
READ_DATA, READ_ATTRIBUTES, WRITE_ATTRIBUTES = 0x1, 0x80, 0x100
SHARE_READ, SHARE_WRITE, SHARE_DELETE = 1, 2, 4
SHARE_ALL = SHARE_READ | SHARE_WRITE | SHARE_DELETE
CREATE_NEW, CREATE_ALWAYS, OPEN_EXISTING, OPEN_ALWAYS = 1, 2, 3, 4
FLAG_OVERLAPPED, FLAG_NO_BUFFERING = 0x40000000, 0x20000000
FLAG_BACKUP_SEMANTICS, FLAG_OPEN_REPARSE_POINT = 0x02000000, 0x00200000

ATTRIBUTE_READONLY, ATTRIBUTE_DIRECTORY, ATTRIBUTE_NORMAL, ATTRIBUTE_REPARSE_POINT = 0x1, 0x10, 0x80, 0x400
TAG_SYMLINK, TAG_MOUNT_POINT = 0xA000000C, 0xA0000003

FILETIME_EPOCH = 116_444_736_000_000_000
"""1970 in steps of 100 ns since 1601."""

ERRNO_OF = {
    2: errno.ENOENT,  # FILE_NOT_FOUND
    3: errno.ENOENT,  # PATH_NOT_FOUND
    4: errno.EMFILE,  # TOO_MANY_OPEN_FILES
    5: errno.EACCES,  # ACCESS_DENIED
    6: errno.EBADF,  # INVALID_HANDLE
    8: errno.ENOMEM,  # NOT_ENOUGH_MEMORY
    14: errno.ENOMEM,  # OUTOFMEMORY
    15: errno.ENODEV,  # INVALID_DRIVE
    17: errno.EXDEV,  # NOT_SAME_DEVICE
    19: errno.EROFS,  # WRITE_PROTECT
    21: errno.ENXIO,  # NOT_READY
    32: errno.EBUSY,  # SHARING_VIOLATION
    33: errno.EBUSY,  # LOCK_VIOLATION
    38: 0,  # HANDLE_EOF: not a failure
    39: errno.ENOSPC,  # HANDLE_DISK_FULL
    50: errno.EOPNOTSUPP,  # NOT_SUPPORTED
    53: errno.EHOSTUNREACH,  # BAD_NETPATH
    55: errno.ENODEV,  # DEV_NOT_EXIST
    59: errno.EIO,  # UNEXP_NET_ERR
    64: errno.ECONNABORTED,  # NETNAME_DELETED
    67: errno.ENODEV,  # BAD_NET_NAME
    80: errno.EEXIST,  # FILE_EXISTS
    87: errno.EINVAL,  # INVALID_PARAMETER
    112: errno.ENOSPC,  # DISK_FULL
    121: errno.ETIMEDOUT,  # SEM_TIMEOUT
    123: errno.EINVAL,  # INVALID_NAME
    145: errno.ENOTEMPTY,  # DIR_NOT_EMPTY
    183: errno.EEXIST,  # ALREADY_EXISTS
    206: errno.ENAMETOOLONG,  # FILENAME_EXCED_RANGE
    223: errno.EFBIG,  # FILE_TOO_LARGE
    267: errno.ENOTDIR,  # DIRECTORY
    303: errno.EBUSY,  # DELETE_PENDING
    433: errno.ENODEV,  # NO_SUCH_DEVICE
    1142: errno.EMLINK,  # TOO_MANY_LINKS
    1167: errno.ENODEV,  # DEVICE_NOT_CONNECTED
    1224: errno.EBUSY,  # USER_MAPPED_FILE
    1295: errno.EDQUOT,  # DISK_QUOTA_EXCEEDED
    1307: errno.EPERM,  # INVALID_OWNER
    1308: errno.EPERM,  # INVALID_PRIMARY_GROUP
    1314: errno.EPERM,  # PRIVILEGE_NOT_HELD
    1450: errno.ENOMEM,  # NO_SYSTEM_RESOURCES
    1920: errno.ELOOP,  # CANT_ACCESS_FILE
    4390: errno.EINVAL,  # NOT_A_REPARSE_POINT
}
"""GetLastError() -> errno. What is not listed is EIO: the device, or the file system, is at fault."""


def error(code: int, path: str | None = None) -> OSError:
    """The OSError for a code of GetLastError()."""
    number = ERRNO_OF.get(code, errno.EIO)
    return OSError(number, f"{os.strerror(number)} (Windows error {code})", path)


class FileState(NamedTuple):
    """What Windows says of an open file. Times are FILETIMEs."""

    attributes: int
    tag: int
    volume: int
    file_id: int
    links: int
    size: int
    allocated: int
    created: int
    accessed: int
    written: int
    changed: int

    @property
    def is_directory(self) -> bool:
        return bool(self.attributes & ATTRIBUTE_DIRECTORY) and not self.is_link

    @property
    def is_link(self) -> bool:
        """Whether it is a symlink, or a junction, which leads to a directory as one does."""
        return bool(self.attributes & ATTRIBUTE_REPARSE_POINT) and self.tag in (TAG_SYMLINK, TAG_MOUNT_POINT)


class Space(NamedTuple):
    """Bytes of a volume: in all, free, and free for this user."""

    total: int
    free: int
    available: int


class Win32(Protocol):
    """The calls. Each raises OSError."""

    def open(self, path: str, access: int, share: int, creation: int, flags: int = 0, sddl: str | None = None) -> int:
        """CreateFile. A new file gets the security descriptor that `sddl` is the text of."""
        ...

    def close(self, handle: int) -> None: ...

    def state(self, handle: int) -> FileState: ...

    def changed(self, handle: int) -> int:
        """The change time alone: every hit asks for it."""
        ...

    def read(self, handle: int, requests: Sequence[tuple[int, memoryview]]) -> list[int]:
        """Read all of these `(offset, place)` at once, from a handle that was opened overlapped; the bytes of each."""
        ...

    def write(self, handle: int, data: memoryview, offset: int) -> int: ...

    def flush(self, handle: int) -> None:
        """Wait until what was written is on the disk."""
        ...

    def set_size(self, handle: int, size: int) -> None: ...

    def set_basic(self, handle: int, attributes: int, accessed: int, written: int) -> None:
        """Set attributes and times, in FILETIMEs; 0 leaves each as it is."""
        ...

    def lock(self, handle: int) -> bool:
        """Take an exclusive lock on a byte far behind the end; False if another handle has it."""
        ...

    def move(self, old: str, new: str, *, replace: bool) -> None:
        """Rename, on the same volume."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file, or a symlink to one."""
        ...

    def make_directory(self, path: str, sddl: str | None = None) -> None: ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory, or a symlink to one."""
        ...

    def make_link(self, path: str, target: str, *, to_directory: bool) -> None:
        """Make a symlink."""
        ...

    def add_name(self, existing: str, path: str) -> None:
        """Make a hard link."""
        ...

    def entries(self, path: str) -> Iterator[tuple[str, FileState]]:
        """What is in a directory, without "." and "..". How many links each has is not told: 1."""
        ...

    def final_path(self, handle: int) -> str:
        """The path of an open file, its names spelt as they are on the disk."""
        ...

    def link_target(self, handle: int) -> str:
        """What a symlink or a junction says, as it was written."""
        ...

    def security(self, handle: int) -> bytes:
        """The self-relative security descriptor of an open file: owner, group and list."""
        ...

    def set_security(self, handle: int, descriptor: bytes) -> None: ...

    def space(self, path: str) -> Space: ...

    def volume_name(self, path: str) -> str:
        """Which file system a path is on: "NTFS", "ReFS", ..."""
        ...

    def memory_bytes(self) -> int:
        """RAM of the machine."""
        ...


def long_path(path: str) -> str:
    r"""An absolute path of Windows with the prefix that lets it be long."""
    path = path.replace("/", "\\")
    if path.startswith(LONG_PREFIX):
        return path
    return UNC_PREFIX + path[2:] if path.startswith("\\\\") else LONG_PREFIX + path


def ns_of(filetime: int) -> int:
    """A FILETIME as nanoseconds since 1970."""
    return (filetime - FILETIME_EPOCH) * 100


def filetime_of(ns: int) -> int:
    """Nanoseconds since 1970 as a FILETIME; never 0, which means none."""
    return max(1, ns // 100 + FILETIME_EPOCH)
