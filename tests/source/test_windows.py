"""The source of Windows, over a Windows of the tests' own: the contract, and what is not so elsewhere."""

from __future__ import annotations

import errno
import random
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from mummufs.core.unbuffered import GRAIN_BYTES
from mummufs.source.base import RENAME_EXCHANGE, RENAME_NOREPLACE, Creator, NewAttributes, Place
from mummufs.source.windows import WindowsSource
from mummufs.source.windowschanges import SECURITY_ATTRIBUTE
from mummufs.win32 import api
from tests.source import test_contract as contract
from tests.source.trees import WindowsTree

NOT_SO = {
    "test_entries_have_the_attributes_of_stat",  # with names that are no text
    "test_names_that_are_no_text",
    "test_a_symlink_is_itself",  # its size
    "test_a_chmod_is_a_version_with_the_same_contents",  # there is no mode
    "test_hard_links_are_one_file",  # a listing does not count them, and stat does
    "test_closed_is_closed",  # fileno() has another errno
}
for _name, _test in vars(contract).items():
    if _name.startswith("test_") and _name not in NOT_SO:
        globals()[_name] = _test

US = Creator(0, 0, 0)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[WindowsTree]:
    (tmp_path / "root").mkdir()
    found = WindowsTree(tmp_path / "root")
    yield found
    assert not found.win32.mixed, "no file is read past the cache and through it at once"
    assert found.win32.open_handles == 0, "every handle is closed"


def place(tree: WindowsTree, path: bytes) -> Place:
    return Place(path, tree.windows.stat(path).file)


def code_of(function: object, *arguments: object) -> int:
    assert callable(function)
    with pytest.raises(OSError) as caught:
        function(*arguments)
    return caught.value.errno or 0


def test_what_the_contract_leaves_out_is_there() -> None:
    assert {name for name in vars(contract) if name.startswith("test_")} >= NOT_SO


def test_names_are_found_as_they_are_spelt_and_no_other_way(tree: WindowsTree) -> None:
    tree.write(b"Dir/Model.gguf", b"x")
    assert tree.windows.stat(b"Dir/Model.gguf").size == 1
    for path in (b"dir/Model.gguf", b"Dir/MODEL.GGUF", b"DIR"):
        assert code_of(tree.windows.stat, path) == errno.ENOENT
        assert code_of(tree.windows.open, path) == errno.ENOENT


def test_a_symlink_and_what_it_says(tree: WindowsTree) -> None:
    tree.write(b"d/a", b"x")
    tree.symlink(b"l", b"d/a")
    found = tree.windows.stat(b"l")
    assert stat.S_ISLNK(found.mode) and found.size == 0
    assert tree.windows.readlink(b"l") == b"d/a"


def test_a_closed_file(tree: WindowsTree) -> None:
    tree.write(b"a", b"x" * 5000)
    file = tree.windows.open(b"a")
    assert code_of(file.fileno) == errno.EOPNOTSUPP
    file.close()
    file.close()
    assert code_of(file.attributes) == code_of(file.read_into, memoryview(bytearray(1)), 0) == errno.EBADF


@pytest.mark.parametrize("unbuffered", [False, True])
def test_reads_past_the_cache_and_through_it(tree: WindowsTree, unbuffered: bool) -> None:
    data = random.Random(1).randbytes(3 * GRAIN_BYTES + 777)
    tree.write(b"a", data)
    source = WindowsSource("C:\\", tree.win32, unbuffered=unbuffered)
    file = source.open(b"a")
    for offset, size in ((0, len(data)), (1, 5), (GRAIN_BYTES - 1, 2), (len(data) - 3, 10), (4096, GRAIN_BYTES)):
        place = bytearray(size)
        n = file.read_into(memoryview(place), offset)
        assert bytes(place[:n]) == data[offset : offset + size]
    (opened,) = [o for o in tree.win32._open.values() if o.access & api.GENERIC_READ]
    assert bool(opened.flags & api.FLAG_NO_BUFFERING) is unbuffered
    file.close()


@pytest.mark.parametrize(
    ("size", "memory", "budget", "unbuffered"),
    [(1 << 20, 64 << 30, 0, False), (1 << 20, 1 << 19, 0, True), (1 << 20, 1 << 21, 3 << 20, True)],
)
def test_buffered_or_not_is_decided_by_what_fits(
    tree: WindowsTree, monkeypatch: pytest.MonkeyPatch, size: int, memory: int, budget: int, unbuffered: bool
) -> None:
    tree.write(b"d/a", bytes(size))
    tree.win32._memory_bytes = memory
    monkeypatch.setattr(WindowsSource, "_probe", lambda *_: 1e10)
    assert WindowsSource("C:\\", tree.win32, ram_budget_bytes=budget).unbuffered is unbuffered


def test_a_source_whose_bytes_do_not_come_from_the_cache_is_read_past_it(
    tree: WindowsTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.write(b"a", bytes(1 << 20))
    clock = iter(range(100))
    monkeypatch.setattr("mummufs.source.windows.time.perf_counter", lambda: float(next(clock)))
    assert WindowsSource("C:\\", tree.win32).unbuffered, "a second for a megabyte is no cache"


def test_a_root_that_is_none(tree: WindowsTree) -> None:
    tree.write(b"file", b"x")
    assert code_of(WindowsSource, "C:\\file", tree.win32) == errno.ENOTDIR
    assert code_of(WindowsSource, "C:\\nothing", tree.win32) == errno.ENOENT


def test_the_descriptor_is_an_attribute(tree: WindowsTree) -> None:
    tree.write(b"a", b"x")
    assert tree.windows.open(b"a").getxattr(SECURITY_ATTRIBUTE) == b"inherited"
    target = tree.windows.object(place(tree, b"a"))
    target.setxattr(SECURITY_ATTRIBUTE, b"other")
    assert tree.windows.open(b"a").getxattr(SECURITY_ATTRIBUTE) == b"other"
    assert code_of(target.setxattr, b"user.x", b"y") == errno.EOPNOTSUPP
    assert code_of(target.removexattr, b"user.x") == errno.ENODATA
    target.close()


def test_files_are_written(tree: WindowsTree) -> None:
    root = tree.windows.directory(place(tree, b""))
    file = root.create(b"new", 0o666, US)
    assert file.write(b"hello", 3) == 5
    file.sync()
    file.set_attributes(NewAttributes(size=6))
    file.set_attributes(NewAttributes(mtime_ns=10**18, mode=0o444))
    assert (file.attributes().mtime_ns, file.attributes().size) == (10**18, 6)
    buffer = bytearray(10)
    assert file.read_into(memoryview(buffer), 0) == 6 and buffer[:6] == b"\0\0\0hel"
    file.close()
    assert not tree.windows.stat(b"new").mode & stat.S_IWUSR
    assert code_of(tree.windows.open_to_write, place(tree, b"new")) == errno.EACCES, "it is read-only"
    assert code_of(root.create, b"NEW", 0o666, US) == errno.EEXIST
    target = tree.windows.object(place(tree, b"new"))
    target.set_attributes(NewAttributes(mode=0o644))
    target.close()
    writer = tree.windows.open_to_write(place(tree, b"new"))
    assert writer.write(b"x", 0) == 1
    writer.close()
    root.close()


def test_names_are_changed(tree: WindowsTree) -> None:
    root = tree.windows.directory(place(tree, b""))
    root.mkdir(b"d", 0o777, US)
    below = tree.windows.directory(place(tree, b"d"))
    below.create(b"a", 0o666, US).close()
    root.create(b"b", 0o666, US).close()
    assert code_of(below.rename, b"a", root, b"b", RENAME_NOREPLACE) == errno.EEXIST
    assert code_of(below.rename, b"a", root, b"b", RENAME_EXCHANGE) == errno.EINVAL
    identity = tree.windows.stat(b"d/a").file
    below.rename(b"a", root, b"b")
    assert tree.windows.stat(b"b").file == identity
    root.rename(b"b", root, b"B")
    assert {e.name for e in tree.windows.entries(b"")} == {b"B", b"d"}
    assert tree.windows.stat(b"B").file == identity and code_of(tree.windows.stat, b"b") == errno.ENOENT
    assert code_of(root.rename, b"b", root, b"c") == errno.ENOENT, "it is spelt otherwise"
    assert code_of(root.unlink, b"d") == errno.EISDIR and code_of(root.rmdir, b"B") == errno.ENOTDIR
    root.symlink(b"l", b"d", US)
    root.unlink(b"l")
    root.link(tree.windows.object(place(tree, b"B")), b"again")
    assert tree.windows.stat(b"again").nlink == 2
    below.create(b"x", 0o666, US).close()
    assert code_of(root.rmdir, b"d") == errno.ENOTEMPTY
    below.unlink(b"x")
    root.rmdir(b"d")
    below.close()
    assert code_of(below.unlink, b"x") == errno.EBADF
    root.close()


def test_a_place_that_holds_another_file_is_refused(tree: WindowsTree) -> None:
    tree.write(b"a", b"x")
    old = place(tree, b"a")
    tree.replace(b"a", b"y")
    for function in (tree.windows.open_to_write, tree.windows.object, tree.windows.directory):
        assert code_of(function, old) == errno.ESTALE


def test_an_open_file_may_be_renamed_and_removed(tree: WindowsTree) -> None:
    """Every file is opened so that others may do with it what they like."""
    tree.write(b"a", b"x" * 5000)
    file = tree.windows.open(b"a")
    root = tree.windows.directory(place(tree, b""))
    root.rename(b"a", root, b"b")
    root.unlink(b"b")
    buffer = bytearray(5000)
    assert file.read_into(memoryview(buffer), 0) == 5000 and buffer == b"x" * 5000
    root.close()
    file.close()


def test_windows_errors_become_errnos() -> None:
    assert api.error(32).errno == errno.EBUSY and api.error(2).errno == errno.ENOENT
    assert api.error(99999).errno == errno.EIO and "99999" in str(api.error(99999))
    assert api.long_path("D:/models/a") == "\\\\?\\D:\\models\\a" == api.long_path("\\\\?\\D:\\models\\a")
    assert api.long_path("\\\\host\\share\\a") == "\\\\?\\UNC\\host\\share\\a"
