"""What WinFsp is told of a failure: the one table from errno to NTSTATUS. Pure."""

from __future__ import annotations

import errno

SUCCESS = 0
REPARSE = 0x00000104
BUFFER_OVERFLOW = 0x80000005
INVALID_HANDLE = 0xC0000008
INVALID_PARAMETER = 0xC000000D
NO_SUCH_DEVICE = 0xC000000E
INVALID_DEVICE_REQUEST = 0xC0000010
END_OF_FILE = 0xC0000011
ACCESS_DENIED = 0xC0000022
BUFFER_TOO_SMALL = 0xC0000023
OBJECT_NAME_INVALID = 0xC0000033
OBJECT_NAME_NOT_FOUND = 0xC0000034
OBJECT_NAME_COLLISION = 0xC0000035
OBJECT_PATH_NOT_FOUND = 0xC000003A
SHARING_VIOLATION = 0xC0000043
QUOTA_EXCEEDED = 0xC0000044
NONEXISTENT_EA_ENTRY = 0xC0000051
DISK_FULL = 0xC000007F
FILE_INVALID = 0xC0000098
INSUFFICIENT_RESOURCES = 0xC000009A
MEDIA_WRITE_PROTECTED = 0xC00000A2
IO_TIMEOUT = 0xC00000B5
FILE_IS_A_DIRECTORY = 0xC00000BA
NOT_SUPPORTED = 0xC00000BB
NOT_SAME_DEVICE = 0xC00000D4
UNEXPECTED_IO_ERROR = 0xC00000E9
DIRECTORY_NOT_EMPTY = 0xC0000101
NOT_A_DIRECTORY = 0xC0000103
NAME_TOO_LONG = 0xC0000106
TOO_MANY_OPENED_FILES = 0xC000011F
CANCELLED = 0xC0000120
CANNOT_DELETE = 0xC0000121
IO_DEVICE_ERROR = 0xC0000185
DEVICE_NOT_CONNECTED = 0xC000009D
TOO_MANY_LINKS = 0xC0000265
NOT_A_REPARSE_POINT = 0xC0000275
REPARSE_POINT_NOT_RESOLVED = 0xC0000280
FILE_TOO_LARGE = 0xC0000904

_BY_NAME = {
    "EPERM": ACCESS_DENIED,
    "ENOENT": OBJECT_NAME_NOT_FOUND,
    "EINTR": CANCELLED,
    "EIO": IO_DEVICE_ERROR,
    "ENXIO": NO_SUCH_DEVICE,
    "EBADF": INVALID_HANDLE,
    "EAGAIN": INSUFFICIENT_RESOURCES,
    "ENOMEM": INSUFFICIENT_RESOURCES,
    "EACCES": ACCESS_DENIED,
    "EBUSY": SHARING_VIOLATION,
    "EEXIST": OBJECT_NAME_COLLISION,
    "EXDEV": NOT_SAME_DEVICE,
    "ENODEV": NO_SUCH_DEVICE,
    "ENOTDIR": NOT_A_DIRECTORY,
    "EISDIR": FILE_IS_A_DIRECTORY,
    "EINVAL": INVALID_PARAMETER,
    "ENFILE": TOO_MANY_OPENED_FILES,
    "EMFILE": TOO_MANY_OPENED_FILES,
    "ETXTBSY": SHARING_VIOLATION,
    "EFBIG": FILE_TOO_LARGE,
    "ENOSPC": DISK_FULL,
    "EROFS": MEDIA_WRITE_PROTECTED,
    "EMLINK": TOO_MANY_LINKS,
    "ENAMETOOLONG": NAME_TOO_LONG,
    "ENOSYS": INVALID_DEVICE_REQUEST,
    "ENOTEMPTY": DIRECTORY_NOT_EMPTY,
    "ELOOP": REPARSE_POINT_NOT_RESOLVED,
    "ENODATA": NONEXISTENT_EA_ENTRY,
    "ETIMEDOUT": IO_TIMEOUT,
    "ENOTCONN": DEVICE_NOT_CONNECTED,
    "EOPNOTSUPP": NOT_SUPPORTED,
    "ENOTSUP": NOT_SUPPORTED,
    "EDQUOT": QUOTA_EXCEEDED,
    "ESTALE": FILE_INVALID,
    "ECANCELED": CANCELLED,
}
"""By name: not every system knows every one of them."""

NTSTATUS_OF: dict[int, int] = {
    getattr(errno, name): status for name, status in _BY_NAME.items() if hasattr(errno, name)
}
"""errno -> NTSTATUS. ESTALE, which says that the source has moved on from what was opened, is FILE_INVALID: "the volume
for a file has been externally altered so that the opened file is no longer valid"."""


class StatusError(Exception):
    """A refusal that Windows has a word of its own for.

    Attributes:
        status: the NTSTATUS.
        at: for REPARSE: where in the path the first reparse point begins, in UTF-16 units.
    """

    def __init__(self, status: int, at: int = 0) -> None:
        super().__init__(f"NTSTATUS {status:#010x}")
        self.status = status
        self.at = at


def status_of(error: BaseException) -> int:
    """The status for an error; UNEXPECTED_IO_ERROR for one that is a fault of ours."""
    if isinstance(error, StatusError):
        return error.status
    if isinstance(error, OSError):
        return NTSTATUS_OF.get(error.errno or errno.EIO, IO_DEVICE_ERROR)
    return UNEXPECTED_IO_ERROR


def signed(status: int) -> int:
    """A status as the 32 bits with a sign that a callback returns."""
    return status - (1 << 32) if status >= 1 << 31 else status
