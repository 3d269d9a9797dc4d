"""What only a real directory has: special files, descriptors, extended attributes, other file systems."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from pathlib import Path

import pytest

from mummufs.source.base import Place
from mummufs.source.tree import TreeSource, open_beneath
from tests.source.trees import DiskTree
from tests.support.descriptors import descriptors


def test_a_fifo_is_listed_and_refused_without_waiting(disk: DiskTree) -> None:
    os.mkfifo(disk.path(b"fifo"))
    before = descriptors()
    with pytest.raises(OSError) as caught:
        disk.source.open(b"fifo")
    assert caught.value.errno == errno.EINVAL
    assert [entry.name for entry in disk.source.entries(b"")] == [b"fifo"]
    assert not descriptors() - before


def test_a_fifo_that_appears_between_look_and_open_does_not_hold_the_thread(
    disk: DiskTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(disk.path(b"fifo"))
    disk.write(b"a", b"x")
    regular = disk.source.stat(b"a")
    monkeypatch.setattr(disk.source, "stat", lambda _: regular)
    before = descriptors()
    with pytest.raises(OSError) as caught:
        disk.source.open(b"fifo")
    assert caught.value.errno == errno.EINVAL
    assert not descriptors() - before


def test_a_socket_is_no_file(disk: DiskTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(os.fsdecode(disk.root))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")
        with pytest.raises(OSError) as caught:
            disk.source.open(b"sock")
    assert caught.value.errno == errno.EINVAL


def test_extended_attributes(disk: DiskTree) -> None:
    disk.write(b"a", b"x")
    try:
        os.setxattr(disk.path(b"a"), b"user.mummu", b"\xff\0value")
    except OSError as error:
        pytest.skip(f"the file system of the temporary directory has no user attributes: {error}")
    file = disk.source.open(b"a")
    assert file.getxattr(b"user.mummu") == b"\xff\0value"
    assert b"user.mummu" in file.listxattr()
    os.symlink(b"a", disk.path(b"l"))
    link = disk.source.object(Place(b"l", disk.source.stat(b"l").file))
    assert b"user.mummu" not in link.listxattr(), "a link is not followed"


def test_no_call_leaves_a_descriptor_behind(disk: DiskTree) -> None:
    disk.write(b"d/a", b"x")
    os.symlink(b"a", disk.path(b"l"))
    before = descriptors()
    disk.source.stat(b"d/a")
    disk.source.readlink(b"l")
    disk.source.open(b"d/a").listxattr()
    list(disk.source.entries(b""))
    next(disk.source.entries(b""))
    for call in (disk.source.open, disk.source.open_directory, disk.source.stat):
        for path in (b"nothing", b"l/x", b".."):
            with pytest.raises(OSError):
                call(path)
    disk.source.open(b"d/a")
    assert not descriptors() - before


def test_a_descriptor_for_a_child(disk: DiskTree) -> None:
    disk.write(b"d/a", b"bytes")
    fd = disk.source.open_directory(b"d")
    assert os.listdir(fd) == ["a"]
    assert not os.get_inheritable(fd)
    os.close(fd)
    file = disk.source.open(b"d/a")
    assert os.pread(file.fileno(), 5, 0) == b"bytes"
    file.close()


def test_a_directory_replaced_by_a_symlink_does_not_lead_outside(disk: DiskTree, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/a").write_bytes(b"secret")
    disk.write(b"d/a", b"x")
    root = os.open(disk.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.rename(disk.path(b"d"), disk.path(b"old"))
        os.symlink(tmp_path / "secret", disk.path(b"d"))
        with pytest.raises(OSError) as caught:
            open_beneath(root, b"d/a", os.O_RDONLY)
        assert caught.value.errno == errno.ELOOP
    finally:
        os.close(root)


def test_a_zero_byte_does_not_cut_a_path(disk: DiskTree) -> None:
    disk.write(b"a", b"x")
    with pytest.raises(OSError):
        disk.source.stat(b"a\0b")


def test_an_entry_that_vanishes_is_left_out(disk: DiskTree, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (b"a", b"b", b"c"):
        disk.write(name, b"x")
    entries = disk.source.entries(b"")
    first = next(entries).name
    gone = min({b"a", b"b", b"c"} - {first})
    disk.remove(gone)
    assert {first, *(entry.name for entry in entries)} == {b"a", b"b", b"c"} - {gone}


def test_reads_go_on_until_the_buffer_is_full(disk: DiskTree, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.write(b"a", b"0123456789")
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: whole(fd, [buffers[0][:3]], offset))
    file = disk.source.open(b"a")
    buffer = bytearray(8)
    assert file.read_into(memoryview(buffer), 1) == 8
    assert buffer == b"12345678"
    file.close()


def test_another_file_system_below_has_an_identity_of_its_own() -> None:
    source = TreeSource("/")
    try:
        proc = source.stat(b"proc")
        listed = next(entry.attributes for entry in source.entries(b"") if entry.name == b"proc")
        assert proc.file == listed.file
        assert proc.file.filesystem != source.stat(b"").file.filesystem
    finally:
        source.close()


def test_the_identity_of_a_file_system_is_that_of_the_last_mount(disk: DiskTree) -> None:
    disk.write(b"a", b"x")
    again = TreeSource(os.fsdecode(disk.root))
    try:
        assert again.stat(b"a").file == disk.source.stat(b"a").file
    finally:
        again.close()


def test_a_root_that_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        TreeSource(tmp_path / "root")
    (tmp_path / "root").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        TreeSource(tmp_path / "root")


def test_a_path_of_any_length(disk: DiskTree) -> None:
    """Who is in a directory gets deeper than the kernel takes at once."""
    name, path = b"n" * 250, b""
    fd = os.open(disk.path(b""), os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(17):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd, path = below, path + name + b"/"
    os.symlink(b"/", b"out", dir_fd=fd)
    os.close(fd)
    before = descriptors()
    assert disk.source.stat(path + b"out").is_file is False
    for refused in (path + b"out/etc", path + b"../" * 18, path + b"none/" + path):
        with pytest.raises(OSError) as caught:
            disk.source.stat(refused)
        assert caught.value.errno in (errno.ELOOP, errno.EXDEV, errno.ENOENT)
    assert not descriptors() - before
    shutil.rmtree(disk.path(name))
