"""A file that changes behind the mount: never a mixture of versions, and nothing old after the time-out."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mounts.harness import Mounted, opened
from tests.mounts.test_filling import PAGE, pread_direct
from tests.support.models import write_gguf
from tests.support.waiting import wait_for

ATTR_TIMEOUT_S = 0.1
QUICK = ("settle=0", f"attr_timeout={ATTR_TIMEOUT_S}")
SEEN_S = 2.0
"""How soon a change must be seen: the attribute time-out, and what a loaded machine takes."""
ROUNDS = 200


def model(path: Path, seed: int) -> bytes:
    """A GGUF: its bytes. All seeds give the same header and size."""
    write_gguf(path, seed=seed, layers=(0,), experts=2, dense_bytes=300 << 10)
    return path.read_bytes()


def rewrite(path: Path) -> None:
    """In place, at the same size."""
    other = path.with_name("other")
    data = model(other, 2)
    other.unlink()
    with path.open("r+b") as file:
        file.write(data)


def restored_in_place(path: Path) -> None:
    """`touch -r` after a rewrite: only the ctime tells."""
    before = path.stat()
    rewrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more" * 5000)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 + 123)


def rename_over(path: Path) -> None:
    other = path.with_name("other")
    model(other, 2)
    other.rename(path)


def restored_rename_over(path: Path) -> None:
    """Same name, size and mtime; another inode."""
    other, before = path.with_name("other"), path.stat()
    model(other, 2)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(path)


def deleted_and_made_again(path: Path) -> None:
    path.unlink()
    model(path, 2)


CHANGES: dict[str, Callable[[Path], None]] = {
    f.__name__: f
    for f in (
        *(rewrite, restored_in_place, append, truncate),
        *(rename_over, restored_rename_over, deleted_and_made_again),
    )
}
NEW_INODE = {"rename_over", "restored_rename_over", "deleted_and_made_again"}


def pages_of(fd: int, size: int) -> list[tuple[int, bytes]]:
    """What an open file gives, read by read; a read that answers ESTALE is left out."""
    found = []
    for offset in range(0, size, 16 * PAGE):
        try:
            found.append((offset, os.pread(fd, 16 * PAGE, offset)))
        except OSError as error:
            assert error.errno == errno.ESTALE
    return found


def acl(*, user: int, mask: int) -> bytes:
    """The attribute that lets one more user read: rw- for the owner, r-- for everybody."""
    read, write, none = 4, 2, 0xFFFFFFFF
    entries = [(1, read | write, none), (2, read, user), (4, read, none), (16, mask, none), (32, read, none)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def stored(m: Mounted) -> list[bytes]:
    """The payloads of the range files."""
    return [path.read_bytes()[PAGE:] for path in m.range_files()]


@pytest.mark.mount
@pytest.mark.parametrize(
    ("change", "has_store"),
    [
        *((change, True) for change in CHANGES),
        *((change, False) for change in ("rewrite", "restored_in_place", "rename_over", "truncate")),
    ],
)
def test_a_change_is_seen_and_never_mixed(tree: Path, store: Path, change: str, has_store: bool) -> None:
    old = model(tree / "f", 1)
    with Mounted(tree, store=store if has_store else None, options=QUICK) as m:
        assert m.read("f") == old
        m.settle()
        ranges = len(m.range_files()) if has_store else 0
        assert not has_store or ranges > 5
        number = m.path("f").stat().st_ino
        m.drop_pages("f")
        with opened(m.path("f")) as fd:
            assert os.pread(fd, 1 << 16, 0) == old[: 1 << 16]
            CHANGES[change](tree / "f")
            new = (tree / "f").read_bytes()
            assert new != old
            # Read at once, so that pages of before and after the change meet if they can.
            early = pages_of(fd, len(old))
            wait_for(lambda: m.read("f"), lambda data: data == new, SEEN_S)
            for offset, piece in early + pages_of(fd, len(old)):
                assert piece == old[offset : offset + 16 * PAGE], f"at {offset}"
            assert m.path("f").stat().st_ino != number
        for _ in range(2):
            m.drop_pages("f")
            assert m.read("f") == new
            m.settle()
        if has_store and change not in NEW_INODE:
            kept = [payload for payload in stored(m) if payload[:PAGE] in old and payload[:PAGE] not in new]
            assert not kept, "what was stored of the old version is gone"


@pytest.fixture
def own_ext4(tree: Path, tmp_path: Path) -> Iterator[Path]:
    """The tree as a file system of its own, which gives the numbers of deleted files to the next ones."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, tree], check=True)
    yield tree
    subprocess.run(["umount", tree], check=True)


@pytest.mark.mount
def test_an_inode_number_used_again(own_ext4: Path, store: Path) -> None:
    """What is stored of a deleted file is not given out as that of the file that got its inode number."""
    tree = own_ext4
    old = model(tree / "f", 1)
    inode = (tree / "f").stat().st_ino
    with Mounted(tree, store=store, options=QUICK) as m:
        assert m.read("f") == old
        m.settle()
    (tree / "f").unlink()
    new = model(tree / "g", 2)
    assert (tree / "g").stat().st_ino == inode, "the number was used again"
    with Mounted(tree, store=store, options=QUICK) as m:
        assert m.read("g") == new
        m.settle()
        assert not [payload for payload in stored(m) if payload[:PAGE] in old and payload[:PAGE] not in new]
        m.drop_pages("g")
        assert m.read("g") == new
        assert m.status()["reads"]["hits"] > 0


@pytest.mark.mount
@pytest.mark.parametrize("has_store", [True, False], ids=["store", "pass-through"])
def test_a_chmod_changes_no_contents(tree: Path, store: Path, has_store: bool) -> None:
    """chmod, link, rename: the number stays, open files go on, and the store serves it again."""
    data = model(tree / "f", 1)
    with Mounted(tree, store=store if has_store else None, options=QUICK) as m:
        assert m.read("f") == data
        m.settle()
        number = m.path("f").stat().st_ino
        m.drop_pages("f")
        with opened(m.path("f")) as fd, mmap.mmap(fd, 0, prot=mmap.PROT_READ) as pages:
            assert os.pread(fd, 1000, 0) == data[:1000]
            (tree / "f").chmod(0o600)
            wait_for(m.path("f").stat, lambda status: status.st_mode & 0o777 == 0o600, SEEN_S)
            assert m.path("f").stat().st_ino == number
            os.link(tree / "f", tree / "linked")
            (tree / "f").rename(tree / "renamed")
            wait_for(lambda: m.path("f").exists(), lambda there: not there, SEEN_S)
            assert os.pread(fd, len(data), 0) == data
            assert pages[:] == data
            for name in ("renamed", "linked"):
                assert m.path(name).stat().st_ino == number
                assert m.read(name) == data
        m.drop_pages()
        m.settle()
        before = m.status()["reads"]
        assert m.read("renamed") == data
        after = m.settle()["reads"]
        if has_store:
            assert after["hits"] > before["hits"]
            assert after["misses"] == before["misses"]


@pytest.mark.mount
@pytest.mark.parametrize("change", ["attribute", "same mode"])
def test_a_ctime_that_nothing_accounts_for_is_a_change(tree: Path, store: Path, change: str) -> None:
    """It may be a rewrite whose mtime was set back: open files answer ESTALE, and new opens find the same bytes."""
    data = model(tree / "f", 1)
    with Mounted(tree, store=store, options=QUICK) as m:
        assert m.read("f") == data
        m.settle()
        number, stale = m.path("f").stat().st_ino, m.status()["errors"]["stale"]
        ranges = len(m.range_files())
        assert ranges > 5
        with opened(m.path("f")) as fd:
            if change == "attribute":
                os.setxattr(tree / "f", "user.note", b"x")
            else:
                (tree / "f").chmod((tree / "f").stat().st_mode & 0o777)
            wait_for(lambda: m.path("f").stat().st_ino, lambda seen: seen != number, SEEN_S)
            m.drop_pages("f")
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            with pytest.raises(OSError) as raised:
                os.pread(fd, 1000, 0)
            assert raised.value.errno == errno.ESTALE
        assert m.settle()["errors"]["stale"] >= stale + ranges
        assert m.range_files() == []
        for _ in range(2):
            m.drop_pages("f")
            assert m.read("f") == data
            m.settle()
        assert len(m.range_files()) == ranges


@pytest.mark.mount
def test_an_acl_that_changes_the_mode_is_no_change_of_contents(tree: Path, store: Path) -> None:
    """As setfacl does for a user of his own: the group bits of the mode become its mask."""
    data = model(tree / "f", 1)
    with Mounted(tree, store=store, options=QUICK) as m:
        assert m.read("f") == data
        before = (tree / "f").stat()
        with opened(m.path("f")) as fd:
            os.setxattr(tree / "f", "system.posix_acl_access", acl(user=1234, mask=0o7))
            after = (tree / "f").stat()
            assert after.st_mode != before.st_mode
            wait_for(m.path("f").stat, lambda seen: seen.st_mode == after.st_mode, SEEN_S)
            assert m.path("f").stat().st_ino == before.st_ino
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(fd, len(data), 0) == data


@pytest.mark.mount
@pytest.mark.parametrize("change", [rewrite, restored_in_place])
def test_mapped_pages_of_an_old_version(tree: Path, store: Path, change: Callable[[Path], None]) -> None:
    """A mapping shows the version that it was made of, or SIGBUS; a new one shows the new version."""
    old = model(tree / "f", 1)
    with (
        Mounted(tree, store=store, options=QUICK) as m,
        opened(m.path("f")) as fd,
        mmap.mmap(fd, 0, prot=mmap.PROT_READ) as pages,
    ):
        assert pages[:] == old
        change(tree / "f")
        new = (tree / "f").read_bytes()
        wait_for(lambda: m.read("f"), lambda data: data == new, SEEN_S)
        assert pages[:] == old
        with opened(m.path("f")) as other, mmap.mmap(other, 0, prot=mmap.PROT_READ) as seen:
            assert seen[:] == new


@pytest.mark.mount
def test_deleted(tree: Path, store: Path) -> None:
    old = model(tree / "f", 1)
    with Mounted(tree, store=store, options=QUICK) as m, opened(m.path("f")) as fd:
        assert os.pread(fd, 1000, 0) == old[:1000]
        (tree / "f").unlink()
        wait_for(lambda: m.path("f").exists(), lambda there: not there, SEEN_S)
        assert os.listdir(m.mountpoint) == []
        for offset, piece in pages_of(fd, len(old)):
            assert piece == old[offset : offset + 16 * PAGE]


@pytest.mark.mount
def test_replaced_by_something_else(tree: Path, store: Path) -> None:
    """A file becomes a directory, a symlink, a fifo, and a file again."""
    model(tree / "f", 1)
    with Mounted(tree, store=store, options=QUICK) as m:
        m.read("f")
        m.settle()
        (tree / "f").unlink()
        (tree / "f").mkdir()
        (tree / "f" / "inside").write_text("x")
        wait_for(m.path("f").is_dir, bool, SEEN_S)
        assert m.read("f/inside") == b"x"
        shutil.rmtree(tree / "f")
        (tree / "f").symlink_to("nowhere")
        wait_for(m.path("f").is_symlink, bool, SEEN_S)
        (tree / "f").unlink()
        os.mkfifo(tree / "f")
        wait_for(m.path("f").is_fifo, bool, SEEN_S)
        (tree / "f").unlink()
        data = model(tree / "f", 3)
        wait_for(m.path("f").is_file, bool, SEEN_S)
        assert m.read("f") == data


@pytest.mark.mount
@pytest.mark.parametrize("how", ["in place", "mtime restored in place", "renamed over", "mtime restored, renamed over"])
def test_every_one_of_many_changes_is_seen(tree: Path, store: Path, how: str) -> None:
    """The same size each time. Without a time-out, so that the next look must see it."""
    path = tree / "t"
    path.write_text("foo000")
    first = path.stat()
    with Mounted(tree, store=store, options=("settle=0", "attr_timeout=0")) as m:
        for i in range(ROUNDS):
            target = tree / "new" if "renamed" in how else path
            with target.open("r+" if target is path else "w") as file:
                file.write(f"foo{i:03}")
            if "restored" in how:
                os.utime(target, ns=(first.st_atime_ns, first.st_mtime_ns))
            if target is not path:
                target.rename(path)
            assert m.read("t") == b"foo%03d" % i


@pytest.mark.mount
def test_the_time_out_is_the_limit(tree: Path) -> None:
    """With the default of 1 s."""
    (tree / "t").write_text("old")
    with Mounted(tree) as m:
        assert m.read("t") == b"old"
        (tree / "t").write_text("new")
        wait_for(lambda: m.read("t"), lambda data: data == b"new", 1 + SEEN_S)


@pytest.mark.mount
def test_a_file_rewritten_while_it_is_filled_is_not_stored(tree: Path, store: Path) -> None:
    old = model(tree / "f", 1)
    with Mounted(tree, store=store, options=QUICK) as m:
        for _ in range(3):
            with opened(m.path("f")) as fd:
                pread_direct(m.path("f"), 0, PAGE)
                rewrite(tree / "f")
                pages_of(fd, len(old))
            m.settle()
        new = (tree / "f").read_bytes()
        wait_for(lambda: m.read("f"), lambda data: data == new, SEEN_S)
        m.settle()
        m.drop_pages("f")
        assert m.read("f") == new
        assert all(payload.rstrip(b"\0") in new for payload in stored(m))
