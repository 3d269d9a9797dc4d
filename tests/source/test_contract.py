"""The contract of `source.base`, which every source keeps."""

from __future__ import annotations

import errno
import stat

import pytest

from mummufs.core.ranges import FileId
from mummufs.source.base import SourceFile, Wanted
from tests.source.trees import Tree

DATA = bytes(range(256)) * 40
BAD_NAME = b"caf\xe9 \xff\n*"


def read(file: SourceFile, offset: int, size: int) -> bytes:
    buffer = bytearray(b"\xaa" * size)
    n = file.read_into(memoryview(buffer), offset)
    assert 0 <= n <= size
    assert buffer[n:] == b"\xaa" * (size - n), "what was not read is left as it was"
    return bytes(buffer[:n])


def test_attributes_of_a_file(tree: Tree) -> None:
    tree.write(b"d/a", DATA)
    found = tree.source.stat(b"d/a")
    assert found.is_file and not found.is_directory
    assert found.size == len(DATA) == found.version.size
    assert found.nlink == 1 and found.blocks * 512 >= len(DATA)
    assert found.version == (found.size, found.mtime_ns, found.ctime_ns)


def test_the_root_and_directories(tree: Tree) -> None:
    tree.write(b"d/a", DATA)
    assert tree.source.stat(b"").is_directory and tree.source.stat(b"d").is_directory
    assert tree.source.stat(b"").file != tree.source.stat(b"d").file
    assert tree.source.stat(b"").file.filesystem == tree.source.stat(b"d/a").file.filesystem


def test_entries_have_the_attributes_of_stat(tree: Tree) -> None:
    for path in (b"a", b"d/b", b"d/c/e", BAD_NAME):
        tree.write(path, path)
    tree.symlink(b"to-nowhere", b"/no/such/place")
    found = {entry.name: entry.attributes for entry in tree.source.entries(b"")}
    assert found.keys() == {b"a", b"d", BAD_NAME, b"to-nowhere"}
    assert {name: found[name].file for name in found} == {name: tree.source.stat(name).file for name in found}
    assert found[BAD_NAME] == tree.source.stat(BAD_NAME)
    assert {entry.name for entry in tree.source.entries(b"d")} == {b"b", b"c"}


def test_a_listing_that_is_given_up_can_be_begun_again(tree: Tree) -> None:
    for i in range(20):
        tree.write(b"%d" % i, b"")
    entries = tree.source.entries(b"")
    next(entries)
    del entries
    assert len(list(tree.source.entries(b""))) == 20


def test_names_that_are_no_text(tree: Tree) -> None:
    tree.write(b"d/" + BAD_NAME, DATA)
    file = tree.source.open(b"d/" + BAD_NAME)
    assert read(file, 0, 10) == DATA[:10]
    file.close()
    tree.symlink(b"l", BAD_NAME)
    assert tree.source.readlink(b"l") == BAD_NAME


@pytest.mark.parametrize("target", [b"a", b"/etc/passwd", b"../..", b"x" * 300])
def test_a_symlink_is_itself(tree: Tree, target: bytes) -> None:
    tree.write(b"a", DATA)
    tree.symlink(b"l", target)
    assert stat.S_ISLNK(tree.source.stat(b"l").mode) and tree.source.stat(b"l").size == len(target)
    assert tree.source.readlink(b"l") == target


def test_readlink_of_what_is_none(tree: Tree) -> None:
    tree.write(b"d/a", DATA)
    for path in (b"d", b"d/a", b"nothing"):
        with pytest.raises(OSError):
            tree.source.readlink(path)


@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, 0), (0, 1), (0, len(DATA)), (17, 4000), (len(DATA) - 1, 1), (4096, 4096)],
)
def test_a_read_inside_the_file_is_whole(tree: Tree, offset: int, size: int) -> None:
    tree.write(b"a", DATA)
    file = tree.source.open(b"a")
    assert read(file, offset, size) == DATA[offset : offset + size]
    file.close()


@pytest.mark.parametrize("offset", [len(DATA) - 3, len(DATA), len(DATA) + 1, 1 << 40, (1 << 62) + 1])
def test_a_read_is_short_only_at_end_of_file(tree: Tree, offset: int) -> None:
    tree.write(b"a", DATA)
    file = tree.source.open(b"a")
    assert read(file, offset, 100) == DATA[offset:]
    file.close()


def test_an_empty_file(tree: Tree) -> None:
    tree.write(b"a", b"")
    file = tree.source.open(b"a")
    assert read(file, 0, 10) == b"" and file.attributes().size == 0
    file.close()


def test_an_open_file_outlives_its_name(tree: Tree) -> None:
    tree.write(b"a", DATA)
    identity = tree.source.stat(b"a").file
    file = tree.source.open(b"a")
    tree.rename(b"a", b"b")
    assert file.attributes().file == identity == tree.source.stat(b"b").file
    tree.remove(b"b")
    assert file.attributes().file == identity and file.attributes().nlink == 0
    assert read(file, 5, 50) == DATA[5:55]
    file.close()
    for path in (b"a", b"b"):
        with pytest.raises(FileNotFoundError):
            tree.source.stat(path)


def test_hard_links_are_one_file(tree: Tree) -> None:
    tree.write(b"a", DATA)
    tree.link(b"a", b"b")
    assert tree.source.stat(b"a") == tree.source.stat(b"b")
    assert tree.source.stat(b"a").nlink == 2
    tree.remove(b"a")
    assert tree.source.stat(b"b").nlink == 1


def test_a_replaced_file_is_another_file(tree: Tree) -> None:
    tree.write(b"a", DATA)
    before = tree.source.stat(b"a")
    file = tree.source.open(b"a")
    tree.replace(b"a", DATA[::-1])
    assert tree.source.stat(b"a").file != before.file
    assert read(file, 0, 100) == DATA[:100] and file.attributes().file == before.file
    file.close()


def test_a_file_rewritten_in_place_is_another_version_of_it(tree: Tree) -> None:
    tree.write(b"a", DATA)
    before = tree.source.stat(b"a")
    file = tree.source.open(b"a")
    tree.write(b"a", DATA[::-1])
    after = tree.source.stat(b"a")
    assert after.file == before.file == file.attributes().file
    assert after.version != before.version and after.version == file.attributes().version
    assert after.version.differs_in_contents(before.version)
    assert read(file, 0, 100) == DATA[::-1][:100]
    file.close()


def test_a_chmod_is_a_version_with_the_same_contents(tree: Tree) -> None:
    tree.write(b"a", DATA)
    before = tree.source.stat(b"a")
    tree.chmod(b"a", 0o640)
    after = tree.source.stat(b"a")
    assert stat.S_IMODE(after.mode) == 0o640
    assert after.version != before.version and not after.version.differs_in_contents(before.version)


@pytest.mark.parametrize("path", [b"d", b"", b"l", b"to-d"])
def test_only_regular_files_are_opened(tree: Tree, path: bytes) -> None:
    tree.write(b"d/a", DATA)
    tree.symlink(b"l", b"d/a")
    tree.symlink(b"to-d", b"d")
    with pytest.raises(OSError) as caught:
        tree.source.open(path)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("path", [b"nothing", b"d/nothing", b"nothing/at/all"])
def test_what_is_missing(tree: Tree, path: bytes) -> None:
    tree.write(b"d/a", DATA)
    for call in (tree.source.stat, tree.source.open, tree.source.readlink, tree.source.open_directory):
        if call == tree.source.open_directory and not hasattr(tree, "root"):
            continue
        with pytest.raises(FileNotFoundError):
            call(path)
    with pytest.raises(FileNotFoundError):
        list(tree.source.entries(path))


def test_a_file_has_no_entries(tree: Tree) -> None:
    tree.write(b"a", DATA)
    with pytest.raises(NotADirectoryError):
        list(tree.source.entries(b"a"))


@pytest.mark.parametrize("path", [b"..", b"../root/a", b"d/../../root/a", b"/", b"/etc/passwd", b"out/passwd", b"up/a"])
def test_no_path_leads_outside(tree: Tree, path: bytes) -> None:
    tree.write(b"a", DATA)
    tree.write(b"d/a", DATA)
    tree.symlink(b"out", b"/etc")
    tree.symlink(b"up", b"..")
    for call in (tree.source.stat, tree.source.open, tree.source.readlink, tree.source.open_directory):
        with pytest.raises(OSError):
            call(path)
    with pytest.raises(OSError):
        list(tree.source.entries(path))


def test_a_symlink_inside_is_not_followed_either(tree: Tree) -> None:
    tree.write(b"d/a", DATA)
    tree.symlink(b"e", b"d")
    for call in (tree.source.stat, tree.source.open):
        with pytest.raises(OSError):
            call(b"e/a")


def test_closed_is_closed(tree: Tree) -> None:
    tree.write(b"a", DATA)
    file = tree.source.open(b"a")
    file.close()
    file.close()
    with pytest.raises(OSError) as caught:
        read(file, 0, 1)
    assert caught.value.errno == errno.EBADF
    with pytest.raises(OSError):
        file.attributes()
    with pytest.raises(OSError):
        file.fileno()


def test_open_files_outlive_the_source(tree: Tree) -> None:
    tree.write(b"a", DATA)
    file = tree.source.open(b"a")
    tree.source.close()
    tree.source.close()
    assert read(file, 0, 9) == DATA[:9]
    file.close()


def test_no_extended_attributes(tree: Tree) -> None:
    tree.write(b"a", DATA)
    file = tree.source.open(b"a")
    assert isinstance(file.listxattr(), list)
    with pytest.raises(OSError) as caught:
        file.getxattr(b"user.none")
    assert caught.value.errno in {errno.ENODATA, errno.EOPNOTSUPP}
    file.close()


def test_the_size_of_the_volume(tree: Tree) -> None:
    answer = tree.source.statfs()
    assert answer.f_blocks >= answer.f_bfree >= 0 and answer.f_frsize > 0


def test_identities_are_numbers_of_64_bits(tree: Tree) -> None:
    tree.write(b"a", DATA)
    identity = tree.source.stat(b"a").file
    assert isinstance(identity, FileId)
    assert all(0 <= number < 1 << 64 for number in identity)


def test_many_reads_by_one_call(tree: Tree) -> None:
    """In any order, overlapping, of any size, and beyond the end: each as if it were read by itself."""
    tree.write(b"a", DATA)
    file = tree.source.open(b"a")
    spans = [(5000, 3000), (0, 1), (4096, 4096), (6000, 10), (len(DATA) - 7, 100), (len(DATA) + 9000, 5), (17, 0)]
    wanted = [Wanted(offset, memoryview(bytearray(b"\xaa" * size))) for offset, size in spans]
    got = file.read_many(wanted)
    assert got == [len(DATA[offset : offset + size]) for offset, size in spans]
    for (offset, size), part, n in zip(spans, wanted, got, strict=True):
        assert part.place == DATA[offset : offset + size] + b"\xaa" * (size - n)
    assert file.read_many([]) == []
    file.close()
