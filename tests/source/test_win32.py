"""The structures of Windows' calls: their sizes, and what is read out of buffers."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

import pytest

from mummufs.backends.winfsp.info import symlink_buffer
from mummufs.win32 import structures
from mummufs.win32.api import ERRNO_OF, FILETIME_EPOCH, FileState, error, filetime_of, ns_of
from mummufs.win32.calls import real_win32


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *(("Overlapped", 32), ("BasicInfo", 40), ("StandardInfo", 24), ("TagInfo", 8), ("IdInfo", 24)),
        *(("SecurityAttributes", 24), ("MemoryStatus", 64)),
    ],
)
def test_sizes_are_those_of_64_bits(name: str, size: int) -> None:
    assert ctypes.sizeof(getattr(structures, name)) == size


def line(name: str, following: int, file_id: int, attributes: int = 0x20, size: int = 5) -> bytes:
    text = name.encode("utf-16-le", "surrogatepass")
    head = struct.pack("<II6q4I", following, 0, 1, 2, 3, 4, size, 4096, attributes, len(text), 0, 0)
    return (head + file_id.to_bytes(16, "little") + text).ljust(following or 0, b"\0")


def test_a_listing() -> None:
    lines = [(".", 1), ("..", 2), ("größe", 3), ("half \ud800", (7 << 64) | 4)]
    data = b"".join(line(name, 128 if i < 3 else 0, number) for i, (name, number) in enumerate(lines))
    found = list(structures.listed(data + bytes(500), volume=9))
    assert [name for name, _ in found] == ["größe", "half \ud800"]
    assert found[0][1] == FileState(0x20, 0, 9, 3, 1, 5, 4096, 1, 2, 3, 4)
    assert found[1][1].file_id == 7 ^ 4


@pytest.mark.parametrize("target", ["..\\b", "D:\\m\\a", "\\\\host\\share\\a", "\\a"])
def test_what_a_symlink_says(target: str) -> None:
    assert structures.link_target(symlink_buffer(target)) == target


def test_what_a_junction_says() -> None:
    name = "\\??\\D:\\m".encode("utf-16-le")
    data = struct.pack("<IHHHHHH", 0xA0000003, 8 + len(name), 0, 0, len(name), len(name), 0) + name
    assert structures.link_target(data) == "D:\\m"


def test_times_and_errors() -> None:
    assert ns_of(FILETIME_EPOCH) == 0 and ns_of(filetime_of(123_456_700)) == 123_456_700
    assert filetime_of(-(1 << 80)) == 1, "0 would mean none"
    assert all(code == 0 or os.strerror(code) for code in ERRNO_OF.values())
    assert error(1314).errno == errno.EPERM and error(5, "x").filename == "x"


def test_there_is_no_windows_here() -> None:
    with pytest.raises(OSError, match="does not run Windows"):
        real_win32()
