"""A source that changes all the time: an open file is one version, or it says ESTALE."""

from __future__ import annotations

import contextlib
import errno
import mmap
import operator
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.faultfs.client import FaultFs
from tests.hostile.support import KIB, MIB, PAGE, RANGE_BYTES, fill, model, read_all
from tests.mounts.harness import Mounted, opened
from tests.mounts.test_versions import QUICK, SEEN_S
from tests.mounts.test_versions import model as gguf
from tests.support.models import write_native
from tests.support.waiting import WAIT_S, wait_for

CHANGING_S = 3.0
SEEN_MIN = 5
ROUNDS = 25
READERS = 4


def write_version(path: Path, number: int) -> None:
    """A file whose every 8 bytes tell its version, put in place by a rename. All are of one size."""
    fresh = path.with_name("fresh")
    fresh.write_bytes(number.to_bytes(8, "big") * (1 << 17))
    fresh.rename(path)


def versions_in(data: bytes) -> set[bytes]:
    """The versions that these bytes are of."""
    return {data[i : i + 8] for i in range(0, len(data), 8)}


def nodes_left(m: Mounted) -> int:
    """How many inodes the kernel knows after it was told to forget what is not open; one is the root."""
    Path("/proc/sys/vm/drop_caches").write_text("2")
    return int(m.status()["gauges"]["inodes"])


def _manifest(tree: Path) -> None:
    """Ranges for the file `f` of `write_version`, whatever its version."""
    size = 1 << 20
    ranges = ",".join(
        f'{{"offset": {at}, "length": {128 * KIB}, "name": "{at}", "kind": "dense"}}'
        for at in range(0, size, 128 * KIB)
    )
    (tree / "f.mummufs.json").write_text(f'{{"version": 1, "file": "f", "size": {size}, "ranges": [{ranges}]}}')


@pytest.mark.mount
@pytest.mark.parametrize("has_store", [True, False], ids=["store", "pass-through"])
def test_a_file_replaced_again_and_again_is_never_mixed(tree: Path, store: Path, has_store: bool) -> None:
    """By read and by mapping: all bytes of one open file are of one version, and versions never go back."""
    _manifest(tree)
    write_version(tree / "f", 0)
    wrong: list[object] = []
    seen: set[bytes] = set()
    with Mounted(tree, store=store if has_store else None, options=QUICK) as m:
        stop = threading.Event()

        def reader(number: int) -> None:
            rng, last = random.Random(number), b""
            while not stop.is_set():
                try:
                    with opened(m.path("f")) as fd:
                        if rng.random() < 0.5:
                            found = b"".join(os.pread(fd, 64 * KIB, at) for at in range(0, 1 << 20, 64 * KIB))
                        else:
                            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                            found = os.pread(fd, 1 << 20, 0)
                except OSError as error:
                    if error.errno != errno.ESTALE:
                        wrong.append(error)
                    continue
                versions = versions_in(found)
                if len(versions) != 1 or len(found) != 1 << 20:
                    wrong.append(sorted(versions))
                elif min(versions) < last:
                    wrong.append((last, versions))
                last = max(versions | {last})
                seen.update(versions)

        readers = [threading.Thread(target=reader, args=(i,)) for i in range(4)]
        for thread in readers:
            thread.start()
        number, until = 0, time.monotonic() + CHANGING_S
        while time.monotonic() < until or (len(seen) <= SEEN_MIN and time.monotonic() < until + WAIT_S):
            number += 1
            write_version(tree / "f", number)
            stop.wait(0.03)
        stop.set()
        for thread in readers:
            thread.join()
        assert not wrong
        assert len(seen) > SEEN_MIN
        wait_for(lambda: versions_in(m.read("f")), lambda found: found == {number.to_bytes(8, "big")}, SEEN_S)


@pytest.mark.mount
@pytest.mark.parametrize("has_store", [True, False], ids=["store", "pass-through"])
def test_a_rewrite_with_its_mtime_set_back_is_never_mixed(tree: Path, store: Path, has_store: bool) -> None:
    """In place, while readers are at it: whoever had the file open reads its version to the last byte, or ESTALE."""
    _manifest(tree)
    write_version(tree / "f", 0)
    before = (tree / "f").stat()
    wrong: list[object] = []
    refused: list[int] = []
    with Mounted(tree, store=store if has_store else None, options=QUICK) as m:

        def reader(number: int, version: bytes, fd: int, reading: threading.Barrier, stop: threading.Event) -> None:
            rng, last = random.Random(number), False
            reading.wait()
            while not last:
                last = stop.is_set()  # once more after the change
                offset = rng.randrange(256) * PAGE
                if rng.random() < 0.3:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                try:
                    found = versions_in(os.pread(fd, 16 * PAGE, offset))
                except OSError as error:
                    refused.append(error.errno or 0)
                    continue
                if found != {version}:
                    wrong.append((offset, version, sorted(found)))

        for number in range(1, ROUNDS):
            version = (number - 1).to_bytes(8, "big")
            wait_for(lambda: versions_in(m.read("f")), partial(operator.eq, {version}), SEEN_S)
            stop, reading = threading.Event(), threading.Barrier(READERS + 1)
            with contextlib.ExitStack() as stack:
                fds = [stack.enter_context(opened(m.path("f"))) for _ in range(READERS)]
                for fd in fds[::2]:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                arguments = [(READERS * number + i, version, fd, reading, stop) for i, fd in enumerate(fds)]
                readers = [threading.Thread(target=reader, args=each) for each in arguments]
                for thread in readers:
                    thread.start()
                reading.wait()
                with (tree / "f").open("r+b") as file:
                    file.write(number.to_bytes(8, "big") * (1 << 17))
                os.utime(tree / "f", ns=(before.st_atime_ns, before.st_mtime_ns))
                stop.set()
                for thread in readers:
                    thread.join()
            assert not wrong
        assert set(refused) == {errno.ESTALE}, "the change was met, and refused"


@pytest.mark.mount
def test_a_file_that_grows_is_a_prefix_of_itself(tree: Path, store: Path) -> None:
    """As a download is: whatever is read while it grows is what it will be."""
    whole = random.Random(3).randbytes(4 << 20)
    (tree / "f").write_bytes(whole[:1000])
    with Mounted(tree, store=store, options=QUICK) as m:
        with (tree / "f").open("ab", buffering=0) as file:
            size = 1000
            while size < len(whole):
                piece = whole[size : size + 123_457]
                file.write(piece)
                size += len(piece)
                with contextlib.suppress(OSError):
                    assert whole.startswith(m.read("f"))
        wait_for(lambda: m.read("f"), lambda data: data == whole, SEEN_S)


@pytest.mark.mount
@pytest.mark.parametrize("change", ["chmod", "rename", "link"])
def test_ranges_survive_what_changes_no_contents(tree: Path, store: Path, change: str) -> None:
    """They are proved or filled again by one pass, and serve as before."""
    expected = model(tree, "f")
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store, options=QUICK) as m:
        stored = fill(m, expected)
        name = "f"
        if change == "chmod":
            (tree / "f").chmod(0o600)
            wait_for(m.path("f").stat, lambda found: found.st_mode & 0o777 == 0o600, SEEN_S)
        else:
            name = "g"
            (tree / "f.mummufs.json").rename(tree / "g.mummufs.json")
            text = (tree / "g.mummufs.json").read_text().replace('"file": "f"', '"file": "g"')
            (tree / "g.mummufs.json").write_text(text)
            (tree / "f").rename(tree / "g") if change == "rename" else os.link(tree / "f", tree / "g")
            wait_for(m.path("g").exists, bool, SEEN_S)
        again = {name: expected["f"]}
        assert fill(m, again) == stored
        under.clear()
        read_all(m, again)
        assert not [read for read in under.reads() if read.offset >= PAGE], "all from the store"


@pytest.mark.mount
def test_hard_links_are_one_file(tree: Path, store: Path) -> None:
    """One inode, one set of ranges; a change by one name is seen by the other."""
    data = gguf(tree / "f", 1)
    os.link(tree / "f", tree / "linked")
    with Mounted(tree, store=store, options=QUICK) as m:
        assert m.path("f").stat().st_ino == m.path("linked").stat().st_ino
        stored = fill(m, {"f": data})
        assert stored > 5
        before = m.status()["reads"]["misses"]
        read_all(m, {"linked": data})
        assert m.status()["reads"]["misses"] == before
        assert len(m.range_files()) == stored
        with (tree / "linked").open("r+b") as file:
            file.write(b"changed")
        new = (tree / "f").read_bytes()
        for name in ("f", "linked"):
            wait_for(partial(m.read, name), lambda data: data == new, SEEN_S)
        (tree / "f").unlink()
        wait_for(lambda: m.path("f").exists(), lambda there: not there, SEEN_S)
        assert m.read("linked") == new


@pytest.mark.mount
def test_equal_inode_numbers_on_two_file_systems_inside_the_source(tree: Path, store: Path) -> None:
    """As subvolumes have them: same inode, size and mtime. Their ranges stay apart, over a remount too."""
    expected = {}
    places = [tree / "one", tree / "two"]
    mounted: list[Path] = []
    try:
        for seed, place in enumerate(places):
            place.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
            mounted.append(place)
            write_native(place / "f", seed=seed, sizes=(RANGE_BYTES,) * 5, gap=100)
            os.utime(place / "f", ns=(10**18, 10**18))
            expected[f"{place.name}/f"] = (place / "f").read_bytes()
        assert len({(place / "f").stat().st_ino for place in places}) == 1
        with Mounted(tree, store=store) as m:
            assert fill(m, expected) == 10
            m.remount()
            read_all(m, expected)
            assert m.status()["reads"]["misses"] == 0
    finally:
        for place in mounted:
            subprocess.run(["umount", place], check=True)


@pytest.mark.mount
def test_a_bind_mount_of_one_file_stays_on_its_version(tree: Path, store: Path, tmp_path: Path) -> None:
    """It names an inode, and a version is an inode: it gives its version or ESTALE, and never the next one."""
    expected = model(tree, "f")
    target = tmp_path / "bound"
    target.write_bytes(b"")
    with Mounted(tree, store=store, options=QUICK) as m:
        fill(m, expected)
        subprocess.run(["mount", "--bind", m.path("f"), target], check=True)
        try:
            assert target.read_bytes() == expected["f"]
            write_native(tree / "new", seed=99, sizes=(RANGE_BYTES,) * 10, gap=100)
            (tree / "new").rename(tree / "f")
            new = (tree / "f").read_bytes()
            wait_for(lambda: m.read("f"), lambda data: data == new, SEEN_S)
            try:
                assert target.read_bytes() == expected["f"]
            except OSError as error:
                assert error.errno == errno.ESTALE
            assert m.read("f") == new
        finally:
            subprocess.run(["umount", target], check=True)


@pytest.mark.mount
@pytest.mark.parametrize("how", ["directory", "fifo", "symlink"])
def test_a_name_that_becomes_something_else_while_it_is_open(tree: Path, store: Path, how: str) -> None:
    expected = model(tree, "f")
    make: dict[str, Callable[[Path], None]] = {
        "directory": Path.mkdir,
        "fifo": os.mkfifo,
        "symlink": lambda path: path.symlink_to("nowhere"),
    }
    with Mounted(tree, store=store, options=QUICK) as m:
        fill(m, expected)
        with opened(m.path("f")) as fd, mmap.mmap(fd, 0, prot=mmap.PROT_READ) as pages:
            (tree / "f").unlink()
            make[how](tree / "f")
            mode = (tree / "f").lstat().st_mode
            wait_for(lambda: m.path("f").lstat().st_mode, lambda seen: seen == mode, SEEN_S)
            assert pages[:] == expected["f"]
            try:
                assert os.pread(fd, 1 << 22, 0) == expected["f"]
            except OSError as error:
                assert error.errno == errno.ESTALE
        assert m.settle()["errors"]["handler"] == 0


@pytest.mark.mount
@pytest.mark.alone
def test_what_is_pushed_late_goes_to_no_other_version(tree: Path, tmp_path: Path) -> None:
    """A push that the store holds up, to an inode number that the kernel has forgotten meanwhile. The file has been
    rewritten since, and would get that number again: its pages would be those of the old version."""
    write_native(tree / "f", seed=1, sizes=(MIB,), gap=PAGE)
    old = (tree / "f").read_bytes()
    new = bytes(255 - byte for byte in old)
    with (
        FaultFs(tmp_path) as under,
        Mounted(tree, store=under.mountpoint / "store", options=(*QUICK, "lane=on", "push=on")) as m,
    ):
        fill(m, {"f": old})
        m.drop_pages("f")
        with opened(m.path("f")) as fd, mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            mapped.madvise(mmap.MADV_RANDOM)
            number = os.fstat(fd).st_ino
            assert mapped[4 * PAGE] == old[4 * PAGE]
            under.hang()
            assert mapped[5 * PAGE] == old[5 * PAGE], "the source has answered it"
        try:
            assert m.status()["lane"]["push_queued_bytes"] > 0, "a walk was seen"
            with (tree / "f").open("r+b") as file:
                file.write(new)
            wait_for(partial(nodes_left, m), lambda nodes: nodes == 1)
            assert os.stat(m.path("f")).st_ino != number
        finally:
            under.resume()
        wait_for(m.status, lambda s: s["lane"]["push_queued_bytes"] == 0)
        assert m.read("f") == new


@pytest.mark.mount
def test_a_file_that_somebody_writes_to_is_not_stored(tree: Path, store: Path) -> None:
    """The second store to a page of a mapping moves no time, nor does a write that goes on."""
    write_native(tree / "f", sizes=(MIB,), gap=PAGE)
    with Mounted(tree, store=store, options=QUICK) as m:
        with (tree / "f").open("r+b") as file, mmap.mmap(file.fileno(), 0) as writer:
            writer[5 * PAGE] ^= 0xFF
            for _ in range(2):
                m.drop_pages("f")
                assert m.read("f") == writer[:]
                assert m.settle()["store"]["ranges"] == 0
            assert m.status()["fills"]["unsettled"] > 0
            writer[5 * PAGE] ^= 0xFF
        data = (tree / "f").read_bytes()
        assert m.read("f") == data
        assert fill(m, {"f": data}) == 1
