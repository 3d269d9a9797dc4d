"""What Windows is told of a file: attributes, times, and what a symlink says. Pure."""

from __future__ import annotations

import re
import stat
import struct
from typing import NamedTuple

from mummufs.backends.winfsp.names import encoded
from mummufs.source.base import Attributes

READONLY = 0x1
DIRECTORY = 0x10
NORMAL = 0x80
REPARSE_POINT = 0x400
NOT_CONTENT_INDEXED = 0x2000
"""Set on everything: an indexer would read the whole of the slow volume."""
SYMLINK_TAG = 0xA000000C
ALLOCATION_UNIT_BYTES = 4096

FILETIME_EPOCH = 116_444_736_000_000_000
"""1970 in steps of 100 ns since 1601."""
_FILETIME_MAX = (1 << 63) - 1
_SYMLINK = struct.Struct("<IHHHHHHI")
_SYMLINK_HEAD_BYTES = 8
_RELATIVE = 1
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_NT_PREFIX = "\\??\\"


class FileInfo(NamedTuple):
    """The fields of FSP_FSCTL_FILE_INFO that are not always zero."""

    attributes: int
    reparse_tag: int
    allocation_size: int
    size: int
    creation_time: int
    last_access_time: int
    last_write_time: int
    change_time: int
    file_index: int


def filetime(ns: int) -> int:
    """Nanoseconds since 1970 as a FILETIME."""
    return min(_FILETIME_MAX, max(0, ns // 100 + FILETIME_EPOCH))


def from_filetime(time: int) -> int:
    """A FILETIME as nanoseconds since 1970."""
    return (time - FILETIME_EPOCH) * 100


def file_info(found: Attributes, *, to_directory: bool = False, read_only: bool = True) -> FileInfo:
    """What Windows is told.

    Args:
        to_directory: it is a symlink, and leads to a directory: Windows has two kinds of them.
        read_only: files that may not be written to by anybody say so.
    """
    mtime = filetime(found.mtime_ns)
    size = found.size if found.is_file else 0
    allocated = max(found.blocks * 512, size) if found.is_file else 0
    return FileInfo(
        attributes=attributes(found.mode, to_directory=to_directory, read_only=read_only),
        reparse_tag=SYMLINK_TAG if stat.S_ISLNK(found.mode) else 0,
        allocation_size=-(-allocated // ALLOCATION_UNIT_BYTES) * ALLOCATION_UNIT_BYTES,
        size=size,
        creation_time=min(mtime, filetime(found.ctime_ns)),
        last_access_time=filetime(found.atime_ns),
        last_write_time=mtime,
        change_time=filetime(found.ctime_ns),
        file_index=found.file.inode,
    )


def attributes(mode: int, *, to_directory: bool = False, read_only: bool = True) -> int:
    """The FILE_ATTRIBUTE_* bits of a mode."""
    bits = NOT_CONTENT_INDEXED
    if stat.S_ISDIR(mode) or to_directory:
        bits |= DIRECTORY
    elif read_only and not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
        bits |= READONLY
    if stat.S_ISLNK(mode):
        bits |= REPARSE_POINT
    return bits


def link_target(target: bytes) -> str:
    """What a symlink of the source says, as Windows writes it."""
    return target.decode("utf-8", "surrogatepass").replace("/", "\\")


def is_absolute(target: str) -> bool:
    """Whether a target names a volume, so that it may lead out of ours."""
    return bool(_DRIVE.match(target)) or target.startswith("\\\\")


def symlink_buffer(target: str) -> bytes:
    """A REPARSE_DATA_BUFFER of a symlink (MS-FSCC 2.1.2.4)."""
    if is_absolute(target):
        substitute = _NT_PREFIX + ("UNC" + target[1:] if target.startswith("\\\\") else target)
        flags = 0
    else:
        substitute, flags = target, _RELATIVE
    name, shown = substitute.encode("utf-16-le", "surrogatepass"), target.encode("utf-16-le", "surrogatepass")
    size = _SYMLINK.size - _SYMLINK_HEAD_BYTES + len(name) + len(shown)
    return _SYMLINK.pack(SYMLINK_TAG, size, 0, 0, len(name), len(name), len(shown), flags) + name + shown


def parse_symlink_buffer(data: bytes) -> bytes:
    """What a symlink says, as a source keeps it: the target of a REPARSE_DATA_BUFFER, with "/".

    Raises:
        ValueError: it is not that of a symlink.
    """
    if len(data) < _SYMLINK.size:
        raise ValueError("a reparse buffer is cut short")
    tag, size, _, offset, length, _, _, flags = _SYMLINK.unpack_from(data)
    start = _SYMLINK.size + offset
    if tag != SYMLINK_TAG or _SYMLINK_HEAD_BYTES + size > len(data) or start + length > len(data) or length % 2:
        raise ValueError("a reparse buffer is not that of a symlink")
    target = data[start : start + length].decode("utf-16-le", "surrogatepass")
    if not flags & _RELATIVE:
        target = target.removeprefix(_NT_PREFIX)
        target = "\\\\" + target[4:] if target.startswith("UNC\\") else target
    return encoded(target.replace("\\", "/"))
