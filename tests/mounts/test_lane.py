"""The lane serves what is in the store by itself, and its bytes are the source's: whole, stitched, cut, unaligned."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mummufs.backends.fuse import wire
from mummufs.mount import MASKED_ENV
from tests.mounts.harness import Mounted, opened, run
from tests.mounts.lanes import KIB, LANE, MIB, PAGE, Limited, Served, lane, pread, ranges, warm
from tests.mounts.test_filling import pread_direct
from tests.mounts.test_users import _turn_into_user, by_user, place
from tests.mounts.ways import SINCE, WAYS

KERNEL = tuple(int(number) for number in os.uname().release.split("-")[0].split(".")[:2])
__all__ = ["Path", "a_user_has_the_lane", "a_user_s_lane_is_refused", "place"]
PIPE_MAX_BYTES = int(Path("/proc/sys/fs/pipe-max-size").read_text())
SOCKET_DEFAULT_BYTES = 212_992
"""net.core.wmem_max as Linux has it."""


@pytest.mark.mount
@pytest.mark.parametrize("io", ["cached", "direct"])
def test_a_hit_is_the_lane_s(tree: Path, store: Path, io: str) -> None:
    """No read of these reaches the engine: it has replied nothing that the lane has not."""
    data = ranges(tree, *(200 * KIB,) * 10)
    with Mounted(tree, store=store, options=(*LANE, f"io={io}")) as m:
        warm(m, "f")
        assert m.status()["backend"]["lane"] == "on"
        assert m.status()["backend"]["io"] == io
        with Served(m) as served:
            assert pread_direct(m.path("f"), 64 * KIB, 64 * KIB) == data[64 * KIB : 128 * KIB]
            assert m.read("f") == data
        assert served["lane.hits"] == served["reads.hits"] > 0
        assert served["lane.hit_bytes"] == served["reads.hit_bytes"] == served["reads.replied_bytes"]
        assert served["reads.replied_bytes"] >= 64 * KIB + len(data)
        assert served["reads.miss_bytes"] == served["reads.bypass_bytes"] == 0
        assert lane(m)["faults"] == lane(m)["replaced"] == lane(m)["lost_replies"] == 0


@pytest.mark.mount
def test_one_read_of_several_windows(tree: Path, store: Path) -> None:
    """Windows that share pages, put together in one answer, up to the end of the file."""
    sizes = (100_001, 70_003, 131_072, 66_666, 90_909)
    data = ranges(tree, *sizes)
    with Mounted(tree, store=store, options=LANE) as m:
        warm(m, "f")
        for start, size in ((0, 512 * KIB), (96 * KIB, 128 * KIB), (PAGE, 300 * KIB), (len(data) // PAGE * PAGE, PAGE)):
            with Served(m) as served:
                assert pread_direct(m.path("f"), start, size) == data[start : start + size]
            assert served["lane.hits"] == 1, (start, size)
            assert served["lane.hit_bytes"] == min(size, len(data) - start)


@pytest.mark.mount
def test_reads_at_any_byte(tree: Path, store: Path) -> None:
    """With io=direct the kernel asks for the very bytes that a caller wants."""
    data = ranges(tree, 100_001, 70_003, 131_072, 66_666, 300_000)
    rng = random.Random(11)
    cases = [(rng.randrange(len(data)), rng.randrange(1, 300 * KIB)) for _ in range(200)]
    cases += [(len(data) - 1, 1), (len(data) - 1, 100), (0, 2 * MIB), (4095, 2), (100_000, 2), (170_004, 1)]
    with Mounted(tree, store=store, options=(*LANE, "io=direct")) as m, opened(m.path("f")) as fd:
        warm(m, "f")
        with Served(m) as served:
            for offset, size in cases:
                assert os.pread(fd, size, offset) == data[offset : offset + size], (offset, size)
            assert os.pread(fd, 10, len(data)) == b""
        assert served["lane.hits"] >= len(cases)
        assert served["lane.hit_bytes"] == sum(min(size, len(data) - offset) for offset, size in cases)


@pytest.mark.mount
def test_a_read_that_is_partly_in_no_range_is_the_engine_s(tree: Path, store: Path) -> None:
    data = ranges(tree, 128 * KIB, 128 * KIB, gap=64 * KIB)
    with Mounted(tree, store=store, options=LANE) as m:
        warm(m, "f")
        with Served(m) as served:
            assert pread_direct(m.path("f"), 0, 128 * KIB) == data[: 128 * KIB]
        assert served["lane.hits"] == 0
        assert served["reads.replied_bytes"] == 128 * KIB


@pytest.mark.mount
def test_files_that_are_mapped_with_io_direct(tree: Path, store: Path) -> None:
    """As far as the kernel offers it, MAP_SHARED works on what is read past the page cache."""
    data = ranges(tree, 200 * KIB, 200 * KIB)
    with Mounted(tree, store=store, options=(*LANE, "io=direct")) as m:
        warm(m, "f")
        with opened(m.path("f")) as fd:
            if not m.status()["backend"]["protocol"]["direct_mmap"]:
                with pytest.raises(OSError, match="No such device"):
                    mmap.mmap(fd, 0, prot=mmap.PROT_READ)
                return
            with Served(m) as served, mmap.mmap(fd, 0, prot=mmap.PROT_READ) as pages:
                assert pages[:] == data
            assert served["lane.hits"] > 0


# ---------------------------------------------------------------------- with and without


@pytest.mark.mount
def test_without_the_lane(tree: Path, store: Path) -> None:
    data = ranges(tree, 200 * KIB, 200 * KIB)
    with Mounted(tree, store=store, options=("settle=0", "lane=off")) as m:
        warm(m, "f")
        with Served(m) as served:
            assert m.read("f") == data
            assert served
        status = m.status()
        assert status["backend"]["lane"] == "off"
        assert status["lane"] is None
        assert served.after["reads"]["hit_bytes"] >= len(data)


@pytest.mark.mount
@pytest.mark.parametrize(
    ("way", "mapped", "passed"), [("lane", (6, 6), (6, 9)), ("6.8", (6, 6), None), ("6.1", None, None)]
)
def test_what_a_kernel_offers_is_taken_up(
    tree: Path,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    mapped: tuple[int, int] | None,
    passed: tuple[int, int] | None,
) -> None:
    """Larger requests always; mapping of unbuffered files and passthrough with a kernel that has them."""
    data = ranges(tree, 200 * KIB, 200 * KIB)
    for name in (MASKED_ENV, *WAYS[way]):
        monkeypatch.setenv(name, WAYS[way].get(name, "0"))
    with Mounted(tree, store=store, options=("settle=0", "lane=on", "passthrough=on")) as m:
        negotiated = m.status()["backend"]["protocol"]
        assert negotiated["direct_mmap"] is (mapped is not None and mapped <= KERNEL)
        assert negotiated["passthrough"] is (passed is not None and passed <= KERNEL)
        assert negotiated["max_pages"] > 32
        assert m.status()["backend"]["max_background"] > 12
        warm(m, "f")
        with Served(m) as served:
            assert m.read("f") == data
        assert served["lane.hits"] > 0


@pytest.mark.mount
def test_a_mount_without_a_store_has_a_lane_that_serves_no_hit(tree: Path) -> None:
    data = ranges(tree, 200 * KIB)
    with Mounted(tree, options=LANE) as m:
        for _ in range(2):
            m.drop_pages("f")
            assert m.read("f") == data
        assert lane(m)["hits"] == 0
        assert lane(m)["reads_running"] == 0
        assert lane(m)["reads_running_max"] > 0
        assert lane(m)["forwarded"] > 0


def a_user_has_the_lane(place: Path) -> None:
    source, mountpoint, _ = _turn_into_user(place)
    with Mounted(source, mountpoint=mountpoint, store=place / "store", options=LANE) as m:
        warm(m, "f")
        with Served(m) as served:
            assert m.read("f") == (source / "f").read_bytes()
        assert served["lane.hits"] > 0
        assert m.status()["backend"]["protocol"]["passthrough"] is False


def a_user_s_lane_is_refused(place: Path) -> None:
    """The first fusermount3 in PATH does not work; libfuse knows the right one by its place."""
    source, mountpoint, _ = _turn_into_user(place)
    (place / "bin").mkdir()
    fake = place / "bin/fusermount3"
    fake.write_text("#!/bin/sh\necho 'no, not today' >&2\nexit 1\n")
    fake.chmod(0o755)
    os.environ["PATH"] = f"{fake.parent}:{os.environ['PATH']}"
    done = run("mount", source, mountpoint, "-o", "lane=on", check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"mummufs: {mountpoint} cannot be mounted for the fast lane: no, not today"
    ), done.stderr
    with Mounted(source, mountpoint=mountpoint, options=("lane=auto",)) as m:
        assert m.read("f") == (source / "f").read_bytes()
        assert m.status()["backend"]["lane"] == "off"
        assert "no, not today; pyfuse3 alone serves" in m.log.read_text()
        os.environ["PATH"] = os.environ["PATH"].partition(":")[2]


@pytest.mark.mount
@pytest.mark.parametrize("function", [a_user_has_the_lane, a_user_s_lane_is_refused])
def test_a_normal_user(place: Path, function: Callable[[Path], None]) -> None:
    by_user(function, place)


# ---------------------------------------------------------------------- small limits


def may_grow_pipes(size: int) -> bool:
    """Whether this machine lets us have pipes of this size."""
    read, write = os.pipe()
    try:
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, size)
    except PermissionError:
        return False
    finally:
        os.close(read)
        os.close(write)
    return True


def getdents(fd: int, size: int) -> Iterator[bytes]:
    """The names in a directory, by getdents64 with a buffer of this size."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(size)
    while (got := libc.syscall(217, fd, buffer, size)) > 0:
        at, entries = 0, buffer.raw
        while at < got:
            length = int.from_bytes(entries[at + 16 : at + 18], sys.byteorder)
            yield entries[at + 19 : at + length].split(b"\0", 1)[0]
            at += length
    if got < 0:
        raise OSError(ctypes.get_errno(), "getdents64")


@pytest.mark.mount
@pytest.mark.parametrize("socket_bytes", [SOCKET_DEFAULT_BYTES, 4 * MIB])
def test_a_listing_larger_than_a_message(tree: Path, socket_bytes: int) -> None:
    """It comes in parts, whatever the buffer of who lists; 8,000 names of 200 bytes make 3 MB."""
    names = {f"{i:0200}".encode() for i in range(8000)}
    for name in names:
        os.close(os.open(os.fsencode(tree) + b"/" + name, os.O_CREAT | os.O_WRONLY))
    limits = {"mummufs.backends.fuse.relay:SOCKET_BYTES_WANTED": socket_bytes}
    with Limited(tree, limits=limits, options=LANE) as m, opened(m.mountpoint, os.O_RDONLY | os.O_DIRECTORY) as fd:
        negotiated = m.status()["backend"]["protocol"]
        assert (negotiated["max_write_bytes"] <= SOCKET_DEFAULT_BYTES) == (socket_bytes == SOCKET_DEFAULT_BYTES)
        assert sorted(getdents(fd, 4 * MIB)) == sorted((*names, b".", b".."))
        assert len(os.listdir(m.mountpoint)) == len(names)


@pytest.mark.mount
@pytest.mark.parametrize(
    ("wanted", "largest"), [(2 * MIB, 256), (MIB, 128), (64 * KIB, 8), (PAGE, 1)], ids=["2M", "1M", "64K", "4K"]
)
def test_pipes_of_every_size(tree: Path, store: Path, wanted: int, largest: int) -> None:
    """A request has to fit a pipe beside its header: so many pages are asked for, and the lane serves all the same."""
    if wanted > PIPE_MAX_BYTES and not may_grow_pipes(wanted):
        pytest.skip(f"pipes of more than {PIPE_MAX_BYTES} bytes need CAP_SYS_RESOURCE")
    data = ranges(tree, *(700 * KIB,) * 4)
    limits = {"mummufs.backends.fuse.pipes:PIPE_BYTES_WANTED": wanted}
    with Limited(tree, limits=limits, store=store, options=(*LANE, "io=direct")) as m:
        warm(m, "f")
        assert m.status()["backend"]["protocol"]["max_pages"] == largest
        with Served(m) as served:
            assert pread(m.path("f"), len(data), 0) == data
            assert pread(m.path("f"), 300 * KIB, 12_345) == data[12_345 : 12_345 + 300 * KIB]
        assert served["reads.misses"] == 0
        assert (served["lane.hits"] > 0) == (wanted > PAGE), "a pipe of one page has no room beside the header"


# ---------------------------------------------------------------------- many at once


@pytest.mark.mount
def test_touches_reach_the_policy(tree: Path, store: Path) -> None:
    """What only the lane has read is hot: an insert evicts the ranges that nobody has read since."""
    size, count = 256 * KIB, 6
    data = ranges(tree, *(size,) * count)
    with Mounted(tree, store=store, store_size=str(5 * (size + 2 * PAGE)), options=LANE) as m:

        def read(i: int) -> None:
            assert pread_direct(m.path("f"), i * size, size) == data[i * size : (i + 1) * size]

        for i in range(4):
            read(i)
            m.settle()
            read(i)
            m.settle()
        with Served(m) as served:
            for _ in range(20):
                read(0)
                m.settle()
        assert served["lane.hits"] == served["reads.hits"] > 0
        for i in (4, 5, 4, 5):
            read(i)
            m.settle()
        assert m.status()["evictions"]["ranges"] > 0
        with Served(m) as served:
            read(0)
        assert served["reads.misses"] == 0, "the hot one is still there"


@pytest.mark.mount
def test_many_readers_in_many_processes(tree: Path, store: Path) -> None:
    data = ranges(tree, *(200 * KIB,) * 20)
    code = """
import hashlib, mmap, os, random, sys
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
direct = mmap.mmap(-1, 1 << 17)
plain = open(sys.argv[2], "rb").read()
rng = random.Random(int(sys.argv[3]))
for _ in range(300):
    at = rng.randrange(len(plain) - (1 << 17)) // 4096 * 4096
    n = os.preadv(fd, [direct], at)
    assert n == 1 << 17 and direct[:] == plain[at : at + n], at
"""
    with Mounted(tree, store=store, options=LANE) as m:
        warm(m, "f")
        with Served(m) as served:
            readers = [
                subprocess.Popen([sys.executable, "-c", code, m.path("f"), tree / "f", str(i)]) for i in range(4)
            ]
            assert [reader.wait(120) for reader in readers] == [0] * 4
        assert served["lane.hit_bytes"] == served["reads.replied_bytes"] == 4 * 300 * 128 * KIB
        assert len(data) == (tree / "f").stat().st_size


@pytest.mark.mount
def test_requests_of_all_kinds_while_hits_are_served(tree: Path, store: Path) -> None:
    """Look-ups, listings and attributes go to libfuse beside the hits, and every one is answered."""
    data = ranges(tree, *(200 * KIB,) * 10)
    for i in range(50):
        (tree / f"small{i}").write_text(f"{i}")
    wrong: list[str] = []
    with Mounted(tree, store=store, options=(*LANE, "attr_timeout=0")) as m:
        warm(m, "f")

        def hits(number: int) -> None:
            rng = random.Random(number)
            for _ in range(150):
                at = rng.randrange(len(data) - 64 * KIB) // PAGE * PAGE
                if pread_direct(m.path("f"), at, 64 * KIB) != data[at : at + 64 * KIB]:
                    wrong.append(f"at {at}")

        def looks() -> None:
            for i in range(100):
                right = m.read(f"small{i % 50}") == str(i % 50).encode() and len(os.listdir(m.mountpoint)) > 50
                wrong.extend([] if right else [f"small{i}"])

        threads = [threading.Thread(target=hits, args=(i,)) for i in range(3)]
        threads += [threading.Thread(target=looks) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert lane(m)["lost_replies"] == lane(m)["faults"] == 0


def test_the_masks_take_out_what_the_lane_asks_for() -> None:
    """So the ways of older kernels are other ways."""
    assert {bit for bit, _ in SINCE.values()} == set(range(34, 43))
    assert 1 << SINCE["DIRECT_IO_ALLOW_MMAP"][0] == wire.DIRECT_IO_ALLOW_MMAP << 32
    assert 1 << SINCE["PASSTHROUGH"][0] == wire.PASSTHROUGH << 32
    masks = {way: int(WAYS[way][MASKED_ENV], 16) for way in ("6.1", "6.8")}
    assert masks["6.1"] & (wire.DIRECT_IO_ALLOW_MMAP | wire.PASSTHROUGH) << 32
    assert masks["6.8"] & wire.DIRECT_IO_ALLOW_MMAP << 32 == 0
    assert masks["6.8"] & wire.PASSTHROUGH << 32


def test_the_limits_that_tests_set_exist() -> None:
    """`Limited` refuses a name that there is not."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.mounts.lanes", '{"mummufs.backends.fuse.relay:NONE": 1}', "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "NONE" in done.stderr
