"""The contract of `source.base` for what changes a tree, which every source keeps."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from mummufs.core.ranges import FileId
from mummufs.source.base import (
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    Attributes,
    Creator,
    NewAttributes,
    Place,
    SourceDirectory,
    SourceObject,
    WritableFile,
)
from tests.source.trees import Tree
from tests.support.descriptors import descriptors

OURS = Creator(os.geteuid(), os.getegid(), 0o022)
DATA = bytes(range(256)) * 40


def place(tree: Tree, path: bytes) -> Place:
    return Place(path, tree.source.stat(path).file)


@pytest.fixture
def root(tree: Tree) -> Iterator[SourceDirectory]:
    directory = tree.source.directory(place(tree, b""))
    yield directory
    directory.close()


@pytest.fixture
def opened(tree: Tree) -> Iterator[WritableFile]:
    tree.write(b"a", DATA)
    file = tree.source.open_to_write(place(tree, b"a"))
    yield file
    file.close()


def contents(tree: Tree, path: bytes) -> bytes:
    file = tree.source.open(path)
    buffer = bytearray(file.attributes().size)
    assert file.read_into(memoryview(buffer), 0) == len(buffer)
    file.close()
    return bytes(buffer)


def errno_of(call: Callable[[], object]) -> int:
    with pytest.raises(OSError) as caught:
        call()
    assert caught.value.errno is not None
    return caught.value.errno


def test_a_file_is_created_and_written(tree: Tree, root: SourceDirectory) -> None:
    file = root.create(b"new", 0o666, OURS)
    assert file.write(b"there", 5) == 5 and file.write(b"hello", 0) == 5
    assert file.attributes() == tree.source.stat(b"new")
    file.sync()
    file.sync(data_only=True)
    file.flush()
    file.close()
    found = tree.source.stat(b"new")
    assert stat.S_IMODE(found.mode) == 0o644 and (found.uid, found.gid) == (OURS.uid, OURS.gid)
    assert contents(tree, b"new") == b"hellothere"


def test_a_name_that_is_taken_is_not_created(tree: Tree, root: SourceDirectory) -> None:
    tree.write(b"d/a", DATA)
    tree.symlink(b"l", b"nowhere")
    for name in (b"d", b"l"):
        for call in (
            lambda name=name: root.create(name, 0o600, OURS),
            lambda name=name: root.mkdir(name, 0o700, OURS),
            lambda name=name: root.symlink(name, b"x", OURS),
            lambda name=name: root.mknod(name, stat.S_IFIFO | 0o600, 0, OURS),
            lambda name=name: root.link(tree.source.object(place(tree, b"d/a")), name),
        ):
            assert errno_of(call) == errno.EEXIST
    assert tree.source.readlink(b"l") == b"nowhere" and {e.name for e in tree.source.entries(b"")} == {b"d", b"l"}


def test_a_write_goes_where_it_says_and_nowhere_else(tree: Tree, opened: WritableFile) -> None:
    before = tree.source.stat(b"a")
    assert opened.write(b"xyz", 100) == 3
    assert contents(tree, b"a") == DATA[:100] + b"xyz" + DATA[103:]
    assert tree.source.stat(b"a").version.differs_in_contents(before.version)
    assert opened.write(b"end", len(DATA) + 5) == 3
    assert contents(tree, b"a")[len(DATA) :] == bytes(5) + b"end"
    buffer = bytearray(3)
    assert opened.read_into(memoryview(buffer), 100) == 3 and buffer == b"xyz"
    reader = opened.to_read()
    assert reader.attributes() == opened.attributes()
    reader.close()


def test_only_regular_files_are_written(tree: Tree) -> None:
    tree.write(b"d/a", DATA)
    tree.symlink(b"l", b"d/a")
    for path in (b"d", b"l", b""):
        assert errno_of(partial(tree.source.open_to_write, place(tree, path))) == errno.EINVAL


def test_another_object_at_the_place_is_refused(tree: Tree) -> None:
    tree.write(b"a", DATA)
    tree.write(b"d/a", DATA)
    file, directory = place(tree, b"a"), place(tree, b"d")
    tree.replace(b"a", DATA[::-1])
    tree.rename(b"d", b"e") if not hasattr(tree, "root") else os.rename(tree.root + b"/d", tree.root + b"/e")
    tree.write(b"d/b", DATA)
    before = descriptors()
    for call in (
        lambda: tree.source.open_to_write(file),
        lambda: tree.source.object(file),
        lambda: tree.source.directory(directory),
    ):
        assert errno_of(call) == errno.ESTALE
    assert not descriptors() - before
    assert errno_of(lambda: tree.source.object(Place(b"nothing", FileId(1, 1)))) == errno.ENOENT


def test_attributes_are_set(tree: Tree, opened: WritableFile) -> None:
    by_place = tree.source.object(place(tree, b"a"))
    for number, target in enumerate((opened, by_place)):
        target.set_attributes(NewAttributes(mode=0o640 + number))
        target.set_attributes(NewAttributes(uid=os.geteuid(), gid=os.getegid()))
        target.set_attributes(NewAttributes(atime_ns=5_000_000_001 + number))
        target.set_attributes(NewAttributes(mtime_ns=-7_000_000_001 - number))
        found = tree.source.stat(b"a")
        assert stat.S_IMODE(found.mode) == 0o640 + number
        assert (found.atime_ns, found.mtime_ns) == (5_000_000_001 + number, -7_000_000_001 - number)
        target.set_attributes(NewAttributes(size=5000 - number))
        assert contents(tree, b"a") == DATA[: 5000 - number]
        target.set_attributes(NewAttributes(size=6000))
        assert contents(tree, b"a") == DATA[: 5000 - number].ljust(6000, b"\0")
        target.set_attributes(NewAttributes(size=0))
        target.set_attributes(NewAttributes(size=7000, mtime_ns=1))
        assert tree.source.stat(b"a").mtime_ns == 1
        opened.write(DATA, 0)
    by_place.close()


def test_privileges_are_dropped(tree: Tree, opened: WritableFile) -> None:
    for mode, left in ((0o6755, 0o755), (0o4644, 0o644), (0o644, 0o644)):
        opened.set_attributes(NewAttributes(mode=mode))
        before = tree.source.stat(b"a")
        opened.drop_privileges()
        after = tree.source.stat(b"a")
        assert stat.S_IMODE(after.mode) == left
        assert (after.size, after.mtime_ns) == (before.size, before.mtime_ns)


def test_the_times_of_a_symlink_are_its_own(tree: Tree) -> None:
    tree.write(b"a", DATA)
    tree.symlink(b"l", b"a")
    before = tree.source.stat(b"a")
    link = tree.source.object(place(tree, b"l"))
    link.set_attributes(NewAttributes(mtime_ns=77, uid=os.geteuid()))
    link.close()
    assert tree.source.stat(b"l").mtime_ns == 77 and tree.source.stat(b"a") == before


def test_directories_are_made_and_removed(tree: Tree, root: SourceDirectory) -> None:
    root.mkdir(b"d", 0o777, OURS)
    assert tree.source.stat(b"d").is_directory and stat.S_IMODE(tree.source.stat(b"d").mode) == 0o755
    inner = tree.source.directory(place(tree, b"d"))
    inner.create(b"a", 0o600, OURS).close()
    inner.sync()
    inner.sync(data_only=True)
    assert errno_of(lambda: root.rmdir(b"d")) == errno.ENOTEMPTY
    assert errno_of(lambda: root.unlink(b"d")) in (errno.EISDIR, errno.EPERM)
    assert errno_of(lambda: inner.rmdir(b"a")) == errno.ENOTDIR
    inner.unlink(b"a")
    root.rmdir(b"d")
    assert not list(tree.source.entries(b""))
    for call in (lambda: root.rmdir(b"d"), lambda: root.unlink(b"a")):
        assert errno_of(call) == errno.ENOENT
    inner.close()
    inner.close()
    assert errno_of(lambda: inner.create(b"a", 0o600, OURS)) == errno.EBADF


def test_nodes_and_symlinks_are_made(tree: Tree, root: SourceDirectory) -> None:
    root.mknod(b"fifo", stat.S_IFIFO | 0o666, 0, OURS)
    root.mknod(b"file", stat.S_IFREG | 0o604, 0, OURS)
    root.symlink(b"link", b"../any\xff where", OURS)
    assert tree.source.stat(b"fifo").mode == stat.S_IFIFO | 0o644
    assert tree.source.stat(b"file").mode == stat.S_IFREG | 0o604
    assert tree.source.readlink(b"link") == b"../any\xff where"


def test_links(tree: Tree, root: SourceDirectory) -> None:
    tree.write(b"d/a", DATA)
    tree.symlink(b"l", b"nowhere")
    for path, name in ((b"d/a", b"b"), (b"l", b"m")):
        existing: SourceObject = tree.source.object(place(tree, path))
        root.link(existing, name)
        existing.close()
        assert tree.source.stat(name) == tree.source.stat(path) and tree.source.stat(path).nlink == 2
    directory = tree.source.object(place(tree, b"d"))
    assert errno_of(lambda: root.link(directory, b"e")) == errno.EPERM
    directory.close()


def test_an_open_file_outlives_its_name(tree: Tree, root: SourceDirectory, opened: WritableFile) -> None:
    root.rename(b"a", root, b"b")
    opened.write(b"one", 0)
    root.unlink(b"b")
    assert opened.write(b"two", 0) == 3 and opened.attributes().nlink == 0
    opened.set_attributes(NewAttributes(mode=0o600, size=3))
    assert opened.attributes().size == 3


def test_rename(tree: Tree, root: SourceDirectory) -> None:
    tree.write(b"d/a", DATA)
    tree.write(b"b", DATA[:7])
    d = tree.source.directory(place(tree, b"d"))
    assert errno_of(lambda: d.rename(b"a", root, b"b", RENAME_NOREPLACE)) == errno.EEXIST
    assert errno_of(lambda: d.rename(b"a", root, b"c", RENAME_EXCHANGE)) == errno.ENOENT
    assert errno_of(lambda: d.rename(b"no", root, b"c")) == errno.ENOENT
    assert errno_of(lambda: d.rename(b"a", root, b"c", 1 << 10)) == errno.EINVAL
    first, second = tree.source.stat(b"d/a").file, tree.source.stat(b"b").file
    d.rename(b"a", root, b"b", RENAME_EXCHANGE)
    assert (tree.source.stat(b"d/a").file, tree.source.stat(b"b").file) == (second, first)
    d.rename(b"a", root, b"c", RENAME_NOREPLACE)
    root.rename(b"c", root, b"b")
    assert tree.source.stat(b"b").file == second and {e.name for e in tree.source.entries(b"")} == {b"b", b"d"}
    tree.write(b"d/x", DATA)
    root.rename(b"d", root, b"e")
    assert contents(tree, b"e/x") == DATA
    d.close()


def test_extended_attributes(tree: Tree, opened: WritableFile) -> None:
    by_place = tree.source.object(place(tree, b"a"))
    try:
        opened.setxattr(b"user.mummu", b"\xff\0")
    except OSError as error:
        pytest.skip(f"the file system of the temporary directory has no user attributes: {error}")
    assert by_place.getxattr(b"user.mummu") == b"\xff\0"
    by_place.setxattr(b"user.mummu", b"")
    assert by_place.getxattr(b"user.mummu") == b""
    by_place.removexattr(b"user.mummu")
    assert b"user.mummu" not in opened.listxattr()
    assert errno_of(lambda: opened.removexattr(b"user.mummu")) == errno.ENODATA
    by_place.close()


@pytest.mark.parametrize("name", [b"", b".", b"..", b"../a", b"d/a", b"/etc/x", b"a\0b"])
def test_no_name_leads_outside(tree: Tree, name: bytes) -> None:
    tree.write(b"d/a", DATA)
    tree.write(b"b", DATA)
    d, existing = tree.source.directory(place(tree, b"d")), tree.source.object(place(tree, b"b"))
    for call in (
        lambda: d.create(name, 0o600, OURS),
        lambda: d.mkdir(name, 0o700, OURS),
        lambda: d.mknod(name, stat.S_IFIFO | 0o600, 0, OURS),
        lambda: d.symlink(name, b"x", OURS),
        lambda: d.link(existing, name),
        lambda: d.unlink(name),
        lambda: d.rmdir(name),
        lambda: d.rename(name, d, b"b"),
        lambda: d.rename(b"a", d, name),
    ):
        assert errno_of(call) == errno.EINVAL
    d.close()
    existing.close()


def test_no_place_leads_outside(tree: Tree) -> None:
    tree.write(b"d/a", DATA)
    tree.symlink(b"up", b"..")
    tree.symlink(b"e", b"d")
    for path in (b"..", b"up/root", b"/etc/passwd", b"e/a"):
        nowhere = Place(path, FileId(1, 1))
        for call in (tree.source.open_to_write, tree.source.object, tree.source.directory):
            assert errno_of(partial(call, nowhere)) != errno.ESTALE


def test_closed_is_closed(opened: WritableFile) -> None:
    opened.close()
    opened.close()
    for call in (
        lambda: opened.write(b"x", 0),
        lambda: opened.set_attributes(NewAttributes(mode=0o600)),
        opened.sync,
        opened.flush,
        opened.attributes,
        opened.drop_privileges,
    ):
        assert errno_of(call) == errno.EBADF


def test_every_change_moves_the_ctime(tree: Tree, opened: WritableFile, root: SourceDirectory) -> None:
    seen: list[Attributes] = [opened.attributes()]
    for change in (
        lambda: opened.write(b"x", 0),
        lambda: opened.set_attributes(NewAttributes(size=3)),
        lambda: opened.set_attributes(NewAttributes(mode=0o600)),
        lambda: root.link(opened, b"b"),
        lambda: root.unlink(b"b"),
    ):
        change()
        seen.append(opened.attributes())
    assert all(before.ctime_ns <= after.ctime_ns for before, after in itertools.pairwise(seen))
    assert seen[0].ctime_ns < seen[-1].ctime_ns or hasattr(tree, "root")
