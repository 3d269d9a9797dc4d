"""Files without ranges are the kernel's own to read: one mode for an inode while it is open, and never another byte."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounts.harness import Mounted, opened
from tests.mounts.lanes import KIB, Limited, Served, lane, ranges, warm
from tests.support.waiting import wait_for

ON = ("settle=0", "lane=on", "attr_timeout=0", "passthrough=on")
SIZE = 500 * KIB + 77


def plain(tree: Path, name: str = "plain", seed: int = 1) -> bytes:
    """A file that no manifest knows ranges of; its bytes."""
    data = random.Random(seed).randbytes(SIZE)
    (tree / name).write_bytes(data)
    return data


def known(m: Mounted, *names: str) -> None:
    """Open these files once, and wait until it is known whether they have ranges."""
    for name in names:
        with opened(m.path(name)) as fd:
            os.pread(fd, 1, 0)
    m.settle()
    wait_for(lambda: m.status()["gauges"]["open_handles"], lambda handles: handles == 0)


def passed(m: Mounted) -> int:
    """Inodes that are passed through now."""
    return int(lane(m)["passed_through"])


def need_passthrough(m: Mounted) -> None:
    """Skip where the kernel, or one that is imitated, does not offer it."""
    if not m.status()["backend"]["protocol"]["passthrough"]:
        with opened(m.path("plain")) as fd:
            assert os.pread(fd, SIZE, 0) == (m.source / "plain").read_bytes()
            assert passed(m) == 0
        pytest.skip("this kernel does not pass through")


@pytest.mark.mount
def test_a_file_without_ranges(tree: Path, store: Path) -> None:
    """From its second open on: the first one is how that is found out. No read of it arrives here."""
    data = plain(tree)
    with Mounted(tree, store=store, options=ON) as m:
        need_passthrough(m)
        known(m, "plain")
        assert passed(m) == 0
        with Served(m) as served, opened(m.path("plain")) as fd, opened(m.path("plain"), os.O_DIRECT) as direct:
            assert passed(m) == 1
            assert os.pread(fd, SIZE, 0) == data
            assert os.pread(fd, 5, SIZE - 2) == data[-2:]
            with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as pages, mmap.mmap(-1, 64 * KIB) as buffer:
                assert pages[:] == data
                assert os.preadv(direct, [buffer], 4096) == 64 * KIB
                assert buffer[:] == data[4096 : 4096 + 64 * KIB]
        assert served["reads.replied_bytes"] == 0
        wait_for(lambda: passed(m), lambda count: count == 0)
        assert m.read("plain") == data
        assert lane(m)["passthrough_refused"] == 0


@pytest.mark.mount
def test_one_mode_for_an_inode_while_it_is_open(tree: Path, store: Path) -> None:
    """What was opened before its ranges were known keeps its mode, and so do all who join it."""
    data = plain(tree)
    with Mounted(tree, store=store, options=ON) as m:
        need_passthrough(m)
        with opened(m.path("plain")) as first:
            os.pread(first, 1, 0)
            m.settle()
            with opened(m.path("plain")) as second:
                assert passed(m) == 0
                assert os.pread(second, SIZE, 0) == os.pread(first, SIZE, 0) == data
        wait_for(lambda: m.status()["gauges"]["open_handles"], lambda handles: handles == 0)
        with contextlib.ExitStack() as stack:
            fds = [stack.enter_context(opened(m.path("plain"))) for _ in range(10)]
            assert passed(m) == 1
            assert all(os.pread(fd, SIZE, 0) == data for fd in fds)
            os.close(os.dup(fds[0]))
        wait_for(lambda: passed(m), lambda count: count == 0)


@pytest.mark.mount
def test_a_mapping_keeps_the_mode(tree: Path, store: Path) -> None:
    """The kernel releases a file when its last mapping has gone."""
    data = plain(tree)
    with Mounted(tree, store=store, options=ON) as m:
        need_passthrough(m)
        known(m, "plain")
        with opened(m.path("plain")) as fd:
            pages = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        assert passed(m) == 1
        assert pages[:] == data
        assert m.read("plain") == data
        pages.close()
        wait_for(lambda: passed(m), lambda count: count == 0)


@pytest.mark.mount
def test_files_with_ranges_never(tree: Path, store: Path) -> None:
    data = ranges(tree, 200 * KIB, 200 * KIB)
    plain(tree)
    with Mounted(tree, store=store, options=ON) as m:
        need_passthrough(m)
        warm(m, "f")
        with opened(m.path("f")) as fd, Served(m) as served:
            assert passed(m) == 0
            assert os.pread(fd, len(data), 0) == data
        assert served["lane.hits"] > 0


@pytest.mark.mount
@pytest.mark.parametrize("option", ["passthrough=off", "lane=off"])
def test_switched_off(tree: Path, store: Path, option: str) -> None:
    data = plain(tree)
    with Mounted(tree, store=store, options=(*ON, option)) as m:
        known(m, "plain")
        with opened(m.path("plain")) as fd, Served(m) as served:
            assert os.pread(fd, SIZE, 0) == data
        assert served["reads.bypass_bytes"] > SIZE - 64 * KIB
        assert option == "lane=off" or (passed(m) == 0 and not m.status()["backend"]["protocol"]["passthrough"])


@pytest.mark.mount
def test_without_a_store_nothing_is_known_of_ranges(tree: Path) -> None:
    data = plain(tree)
    with Mounted(tree, options=ON) as m:
        known(m, "plain")
        with opened(m.path("plain")) as fd:
            assert passed(m) == 0
            assert os.pread(fd, SIZE, 0) == data


@pytest.fixture
def stacked(tmp_path: Path) -> Iterator[Path]:
    """A directory on a stacked file system, which the kernel takes no backing file from."""
    lower, top = tmp_path / "lower", tmp_path / "overlay"
    for path in (lower, top):
        path.mkdir()
    plain(lower)
    done = subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={lower}:{tmp_path / 'source'}", top],
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"no overlay here: {done.stderr.decode()}")
    yield top
    subprocess.run(["umount", top], check=True)


@pytest.mark.mount
def test_a_backing_that_the_kernel_refuses(tree: Path, store: Path, stacked: Path) -> None:
    """The reads come here then, and it is counted."""
    assert tree.is_dir()
    with Mounted(stacked, store=store, options=ON) as m:
        need_passthrough(m)
        known(m, "plain")
        with opened(m.path("plain")) as fd, Served(m) as served:
            assert os.pread(fd, SIZE, 0) == (stacked / "plain").read_bytes()
        assert served["reads.bypass_bytes"] > SIZE - 64 * KIB
        assert served.after["lane"]["passed_through"] == 0
        assert served.after["lane"]["passthrough_refused"] == 1


@pytest.mark.mount
def test_files_that_are_passed_through_are_bounded(tree: Path, store: Path) -> None:
    files = {f"plain{i or ''}": plain(tree, f"plain{i or ''}", seed=i) for i in range(4)}
    limits = {"mummufs.backends.fuse.modes:BACKINGS_MAX": 2}
    with Limited(tree, limits=limits, store=store, options=ON) as m:
        need_passthrough(m)
        known(m, *files)
        with contextlib.ExitStack() as stack:
            fds = {name: stack.enter_context(opened(m.path(name))) for name in files}
            assert passed(m) == 2
            for name, fd in fds.items():
                assert os.pread(fd, SIZE, 0) == files[name]


# ---------------------------------------------------------------------- the source changes


@pytest.mark.mount
def test_a_file_that_is_replaced_while_it_is_open(tree: Path, store: Path) -> None:
    """Who has it open reads on in the old one, whole; who opens it now reads the new one."""
    old = plain(tree)
    with Mounted(tree, store=store, options=ON) as m:
        need_passthrough(m)
        known(m, "plain")
        with opened(m.path("plain")) as fd:
            new = plain(tree, "fresh", seed=2)
            (tree / "fresh").rename(tree / "plain")
            assert m.read("plain") == new
            assert os.pread(fd, SIZE, 0) == old
            known_again = m.path("plain").stat().st_ino
            assert known_again != os.fstat(fd).st_ino
            m.settle()
            assert m.read("plain") == new
        assert m.read("plain") == new


@pytest.mark.mount
def test_a_file_that_is_rewritten_in_place_while_it_is_open(tree: Path, store: Path) -> None:
    """The handle is one of the source itself: it shows what the source has. What is opened now does so, too."""
    plain(tree)
    with Mounted(tree, store=store, options=ON) as m:
        need_passthrough(m)
        known(m, "plain")
        with opened(m.path("plain")) as fd:
            new = random.Random(9).randbytes(SIZE)
            with (tree / "plain").open("r+b") as file:
                file.write(new)
            assert os.pread(fd, SIZE, 0) == new
            assert m.read("plain") == new
        known(m, "plain")
        assert m.read("plain") == new


@pytest.mark.mount
def test_a_manifest_that_comes_later(tree: Path, store: Path) -> None:
    """A file that has ranges all of a sudden is served from the store with its next first open."""
    data = ranges(tree, 200 * KIB, 200 * KIB, name="plain")
    manifest = (tree / "plain.mummufs.json").read_bytes()
    (tree / "plain.mummufs.json").unlink()
    with Mounted(tree, store=store, options=ON) as m:
        need_passthrough(m)
        known(m, "plain")
        with opened(m.path("plain")) as fd:
            assert passed(m) == 1
            (tree / "plain.mummufs.json").write_bytes(manifest)
            os.utime(tree / "plain", ns=(10**18, 10**18))  # another version: it is looked at anew
            assert os.pread(fd, len(data), 0) == data
        warm(m, "plain")
        with Served(m) as served:
            assert m.read("plain") == data
        assert served["lane.hits"] > 0
        assert passed(m) == 0
