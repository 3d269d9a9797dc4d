"""The structures of Windows' calls, and what is in the buffers that they fill. The same bytes on every system."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator

from mummufs.win32.api import TAG_SYMLINK, FileState

_LISTED = struct.Struct("<I4x6q4I2Q")
"""FILE_ID_EXTD_DIR_INFO: next, times, size, allocated, attributes, name's bytes, -, tag, id; then the name."""
_SYMLINK_NAMES_AT, _MOUNT_POINT_NAMES_AT = 20, 16
_NT_PREFIX, _NT_UNC_PREFIX = "\\??\\", "\\??\\UNC\\"


class Overlapped(ctypes.Structure):
    """OVERLAPPED."""

    _fields_ = (
        ("Internal", ctypes.c_void_p),
        ("InternalHigh", ctypes.c_void_p),
        ("Offset", ctypes.c_uint32),
        ("OffsetHigh", ctypes.c_uint32),
        ("hEvent", ctypes.c_void_p),
    )


class BasicInfo(ctypes.Structure):
    """FILE_BASIC_INFO."""

    _fields_ = (
        ("created", ctypes.c_int64),
        ("accessed", ctypes.c_int64),
        ("written", ctypes.c_int64),
        ("changed", ctypes.c_int64),
        ("attributes", ctypes.c_uint32),
    )


class StandardInfo(ctypes.Structure):
    """FILE_STANDARD_INFO."""

    _fields_ = (
        ("allocated", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("links", ctypes.c_uint32),
        ("delete_pending", ctypes.c_ubyte),
        ("directory", ctypes.c_ubyte),
    )


class TagInfo(ctypes.Structure):
    """FILE_ATTRIBUTE_TAG_INFO."""

    _fields_ = (("attributes", ctypes.c_uint32), ("tag", ctypes.c_uint32))


class IdInfo(ctypes.Structure):
    """FILE_ID_INFO, its 128 bits in halves."""

    _fields_ = (("volume", ctypes.c_uint64), ("id_low", ctypes.c_uint64), ("id_high", ctypes.c_uint64))


class SecurityAttributes(ctypes.Structure):
    """SECURITY_ATTRIBUTES."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("descriptor", ctypes.c_void_p),
        ("inherit", ctypes.c_int32),
    )


class MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("total", "free", "page", "page_free", "virtual", "virtual_free", "x")),
    )


def listed(data: bytes, volume: int) -> Iterator[tuple[str, FileState]]:
    """The lines of a listing, without "." and ".."."""
    at = 0
    while True:
        following, created, accessed, written, changed, size, allocated, attributes, length, _, tag, low, high = (
            _LISTED.unpack_from(data, at)
        )
        start = at + _LISTED.size
        name = data[start : start + length].decode("utf-16-le", "surrogatepass")
        if name not in (".", ".."):
            times = (created, accessed, written, changed)
            yield name, FileState(attributes, tag, volume, low ^ high, 1, size, allocated, *times)
        if not following:
            return
        at += following


def link_target(data: bytes) -> str:
    """What a REPARSE_DATA_BUFFER of a symlink or a junction says."""
    tag, _, _, offset, length = struct.unpack_from("<IHHHH", data)
    start = (_SYMLINK_NAMES_AT if tag == TAG_SYMLINK else _MOUNT_POINT_NAMES_AT) + offset
    target = data[start : start + length].decode("utf-16-le", "surrogatepass")
    if target.startswith(_NT_UNC_PREFIX):
        return "\\\\" + target[len(_NT_UNC_PREFIX) :]
    return target.removeprefix(_NT_PREFIX)
