"""Names, patterns, statuses, times, descriptors and links of the WinFsp backend: all pure."""

from __future__ import annotations

import errno
import re
import stat
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.backends.winfsp import info, ntstatus, security
from mummufs.backends.winfsp.names import (
    Component,
    components,
    decoded,
    encoded,
    folded,
    is_creatable,
    matches,
    units,
)
from mummufs.core.ranges import FileId
from mummufs.source.base import Attributes


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("\\", []),
        ("", []),
        ("\\a", [("a", 1)]),
        ("\\models\\a.gguf", [("models", 1), ("a.gguf", 8)]),
        ("\\a\\", [("a", 1)]),
    ],
)
def test_components_say_where_they_begin(path: str, parts: list[tuple[str, int]]) -> None:
    assert list(components(path)) == [Component(*part) for part in parts]


@given(st.text(st.characters(exclude_characters='\\/:*?"<>|', min_codepoint=32), min_size=1, max_size=120))
def test_a_name_comes_back_from_its_bytes(name: str) -> None:
    assert decoded(encoded(name)) == (name if units(name) <= 255 else None)


@pytest.mark.parametrize(
    "name", [b"", b"a:b", b"a\\b", b'"', b"a*", b"\x01", b"caf\xe9", b"x" * 256, "𝄞".encode() * 128]
)
def test_what_no_file_on_windows_can_be_named(name: bytes) -> None:
    assert decoded(name) is None


@pytest.mark.parametrize(
    "name", ["CON", "con.txt", "Com1", "LPT9.gguf", "nul .x", "aux", "a.", "a ", "COM¹", "a?b", "conin$"]
)
def test_names_that_are_not_given_to_new_files(name: str) -> None:
    assert not is_creatable(name)


@pytest.mark.parametrize("name", ["CONSOLE", "COM", "COM10", "a.con", ".gguf", "model-Q4_K_M.gguf", "ä", "nul_"])
def test_names_that_are(name: str) -> None:
    assert is_creatable(name)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("Model.GGUF", "model.gguf", True),
        ("Straße", "STRASSE", False),
        ("straße", "STRAßE", True),
        ("é", "É", True),
        ("ı", "i", False),
        ("𐐨", "𐐀", False),
        ("a", "b", False),
        ("ﬁ", "FI", False),
    ],
)
def test_names_compare_as_ntfs_compares_them(a: str, b: str, same: bool) -> None:
    assert (folded(a) == folded(b)) is same


@given(st.text(max_size=40))
def test_folding_twice_is_folding_once_and_keeps_the_length(name: str) -> None:
    assert folded(folded(name)) == folded(name) and len(folded(name)) == len(name)


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("*", "anything", True),
        ("*", "", True),
        ("*.gguf", "A.GGUF", True),
        ("*.gguf", "a.gguf.part", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("<.gguf", "x.y.gguf", True),
        ('a">>', "a", True),
        ('a">>', "a.b", True),
        ("", "", True),
        ("", "a", False),
        ("model.gguf", "MODEL.gguf", True),
        ("?" * 5, "abcd", False),
    ],
)
def test_patterns(pattern: str, name: str, fits: bool) -> None:
    assert matches(pattern, name) is fits


@given(st.text("ab.*?", max_size=12), st.text("ab.", max_size=12))
def test_patterns_against_regular_expressions(pattern: str, name: str) -> None:
    expression = "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern)
    assert matches(pattern, name) is bool(re.fullmatch(expression, name))


def test_a_pattern_that_would_keep_a_regular_expression_busy() -> None:
    assert not matches("*a" * 60 + "b", "a" * 200)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (errno.ENOENT, 0xC0000034),
        (errno.ESTALE, 0xC0000098),
        (errno.EIO, 0xC0000185),
        (errno.EROFS, 0xC00000A2),
        (errno.ETIMEDOUT, 0xC00000B5),
        (errno.ECANCELED, 0xC0000120),
        (errno.EBUSY, 0xC0000043),
        (12345, 0xC0000185),
    ],
)
def test_an_errno_becomes_a_status(code: int, status: int) -> None:
    assert ntstatus.status_of(OSError(code, "")) == status


def test_every_status_of_the_table_is_an_error() -> None:
    assert all(status >> 30 == 3 for status in ntstatus.NTSTATUS_OF.values())
    assert ntstatus.status_of(ValueError()) == ntstatus.UNEXPECTED_IO_ERROR
    assert ntstatus.status_of(OSError("without an errno")) == ntstatus.IO_DEVICE_ERROR
    assert ntstatus.status_of(ntstatus.StatusError(ntstatus.REPARSE)) == ntstatus.REPARSE
    assert (ntstatus.signed(0xC0000034), ntstatus.signed(0x104)) == (-1073741772, 0x104)


def test_times() -> None:
    assert info.filetime(0) == 116444736000000000
    assert info.filetime(1248562800 * 10**9) == 128930364000000000  # 2009-07-25 23:00
    assert info.filetime(-(1 << 62)) > 0 and info.filetime(-(1 << 70)) == 0 and info.filetime(1 << 80) == (1 << 63) - 1


@given(st.integers(-11644473600 * 10**9, 1 << 62))
def test_a_time_comes_back_to_100_ns(ns: int) -> None:
    assert info.from_filetime(info.filetime(ns)) == ns // 100 * 100


def attributes_of(mode: int, **changes: int) -> Attributes:
    values = {"nlink": 1, "uid": 0, "gid": 0, "rdev": 0, "size": 5000, "blocks": 10}
    times = {"atime_ns": 30, "mtime_ns": 20 * 100, "ctime_ns": 10 * 100}
    return Attributes(file=FileId(1, 77), mode=mode, **{**values, **times, **changes})


def test_what_windows_is_told_of_a_file() -> None:
    found = info.file_info(attributes_of(stat.S_IFREG | 0o644))
    assert (found.size, found.allocation_size, found.file_index) == (5000, 8192, 77)
    assert found.attributes == info.NOT_CONTENT_INDEXED and found.reparse_tag == 0
    assert found.creation_time == found.change_time == info.FILETIME_EPOCH + 10
    assert found.last_write_time == info.FILETIME_EPOCH + 20
    assert info.file_info(attributes_of(stat.S_IFREG | 0o444)).attributes & info.READONLY
    assert info.file_info(attributes_of(stat.S_IFDIR | 0o555)).attributes == info.NOT_CONTENT_INDEXED | info.DIRECTORY
    assert info.file_info(attributes_of(stat.S_IFDIR | 0o755)).size == 0
    link = info.file_info(attributes_of(stat.S_IFLNK | 0o777), to_directory=True)
    assert link.attributes == info.NOT_CONTENT_INDEXED | info.DIRECTORY | info.REPARSE_POINT
    assert (link.reparse_tag, link.size) == (info.SYMLINK_TAG, 0)


@pytest.mark.parametrize(
    ("target", "substitute", "flags"),
    [
        ("..\\b", "..\\b", 1),
        ("D:\\m\\a", "\\??\\D:\\m\\a", 0),
        ("\\\\host\\share\\a", "\\??\\UNC\\host\\share\\a", 0),
        ("\\a", "\\a", 1),
    ],
)
def test_a_symlink_as_windows_has_it(target: str, substitute: str, flags: int) -> None:
    data = info.symlink_buffer(target)
    tag, size, reserved, at, length, shown_at, shown, found = struct.unpack_from("<IHHHHHHI", data)
    assert (tag, reserved, found, 8 + size) == (0xA000000C, 0, flags, len(data))
    assert data[20 + at : 20 + at + length].decode("utf-16-le") == substitute
    assert data[20 + shown_at : 20 + shown_at + shown].decode("utf-16-le") == target
    assert info.parse_symlink_buffer(data) == target.replace("\\", "/").encode()


@pytest.mark.parametrize("data", [b"", b"x" * 30, info.symlink_buffer("a")[:-1], b"\x03\0\0\xa0" + bytes(30)])
def test_a_reparse_buffer_of_something_else(data: bytes) -> None:
    with pytest.raises(ValueError, match="reparse buffer"):
        info.parse_symlink_buffer(data)


def aces_of(descriptor: bytes) -> list[tuple[bytes, int]]:
    """The entries of a descriptor's list, taken apart by the offsets that it states."""
    revision, _, control, owner, group, sacl, dacl = struct.unpack_from("<BBHIIII", descriptor)
    assert revision == 1 and control & 0x8004 == 0x8004 and sacl == 0 and owner and group
    _, _, size, count, _ = struct.unpack_from("<BBHHH", descriptor, dacl)
    assert dacl + size == len(descriptor)
    at, found = dacl + 8, []
    for _ in range(count):
        kind, flags, size, rights = struct.unpack_from("<BBHI", descriptor, at)
        assert (kind, flags) == (0, 0)
        found.append((descriptor[at + 8 : at + size], rights))
        at += size
    assert at == len(descriptor)
    return found


def test_a_descriptor_made_of_a_mode() -> None:
    descriptor = security.from_mode(stat.S_IFREG | 0o640, 1000, 100)
    rights = dict(aces_of(descriptor))
    assert rights[security.SYSTEM] == rights[security.ADMINISTRATORS] == security.ALL
    assert rights[security.user_sid(1000)] == security.READ | security.WRITE
    assert rights[security.group_sid(100)] == security.READ and security.EVERYONE not in rights
    owner, group = struct.unpack_from("<II", descriptor, 4)
    assert descriptor[owner:].startswith(security.user_sid(1000))
    assert descriptor[group:].startswith(security.group_sid(100))
    assert security.sid(5, 32, 544).hex() == "01020000000000052000000020020000"  # S-1-5-32-544


def test_everyone_may_what_others_may() -> None:
    for mode, rights in ((0o5, security.READ | security.EXECUTE), (0o4, security.READ), (0o7, 0x1301FF & ~0x000000)):
        found = dict(aces_of(security.from_mode(mode, 0, 0)))
        assert found[security.EVERYONE] & rights == found[security.EVERYONE]
        assert bool(mode & 4) == bool(found[security.EVERYONE] & 0x1)
