"""A mount that is written to while its source or its store fails, or the daemon is killed."""

from __future__ import annotations

import errno
import os
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from tests.faultfs.client import FaultFs
from tests.hostile.support import KIB, PAGE, ROUND_UP_S, errno_of, fill, model, read_all
from tests.mounts.harness import Mounted, opened
from tests.support.waiting import wait_for

OPTIONS = ("settle=0", "attr_timeout=0")
AT = 300 * KIB
"""In the second range of ten."""


def check_the_rest_is_stored(m: Mounted, data: bytes, written: int = 1) -> None:
    """Only the ranges that were written to are filled anew; all are served by the store then."""
    wait_for(lambda: m.status()["gauges"], lambda gauges: not gauges["files_written"] and not gauges["files_settling"])
    fills = m.settle()["fills"]["completed"]
    fill(m, {"f": data})
    before = m.status()["reads"]
    read_all(m, {"f": data})
    after = m.settle()
    assert after["reads"]["hits"] > before["hits"] and after["reads"]["misses"] == before["misses"]
    assert after["fills"]["completed"] == fills + written


@pytest.mark.mount
def test_a_source_without_room_is_written_to(tree: Path, store: Path) -> None:
    """A write is short, then ENOSPC, as in the source; readers see what the source has, and the rest stays stored."""
    data = bytearray(model(tree, "f")["f"])
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store, options=OPTIONS) as m:
        fill(m, {"f": bytes(data)})
        under.limit_writes(6 * KIB)
        with opened(m.path("f"), os.O_RDWR) as fd:
            assert os.pwrite(fd, b"n" * 10 * KIB, AT) == 6 * KIB
            assert errno_of(lambda: os.pwrite(fd, b"m" * KIB, AT + PAGE)) == errno.ENOSPC
            data[AT : AT + 6 * KIB] = b"n" * 6 * KIB
            assert os.pread(fd, len(data), 0) == data
        under.reset()
        check_the_rest_is_stored(m, bytes(data))
        assert (tree / "f").read_bytes() == data


@pytest.mark.mount
def test_a_source_that_refuses_writes(tree: Path, store: Path) -> None:
    """The writer hears of it, nobody else; and it can be written to again."""
    data = bytearray(model(tree, "f")["f"])
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store, options=OPTIONS) as m:
        fill(m, {"f": bytes(data)})
        for op in ("write", "fsync", "rename", "unlink", "setattr", "create"):
            under.fail_op(op, errno.EIO)
        with opened(m.path("f"), os.O_RDWR) as fd:
            for call in (
                lambda: os.pwrite(fd, b"n" * KIB, AT),
                lambda: os.fsync(fd),
                lambda: os.ftruncate(fd, len(data) - 300),
                lambda: os.rename(m.path("f"), m.path("g")),
                lambda: os.unlink(m.path("f")),
                lambda: os.open(m.path("h"), os.O_CREAT | os.O_WRONLY),
            ):
                assert errno_of(call) == errno.EIO
            assert os.pread(fd, len(data), 0) == data
            under.reset()
            os.pwrite(fd, b"n" * KIB, AT)
            os.fsync(fd)
        data[AT : AT + KIB] = b"n" * KIB
        assert sorted(os.listdir(m.mountpoint)) == sorted(os.listdir(tree))
        check_the_rest_is_stored(m, bytes(data), written=2)  # the cut has dropped the last one before it failed


@pytest.mark.mount
@pytest.mark.parametrize("op", ["unlink", "write", "fsync"])
def test_a_store_that_keeps_what_a_write_has_dropped(tree: Path, under: FaultFs, op: str) -> None:
    """Range files can be neither removed nor stamped: not in this mount, nor in the next is one of them believed."""
    data = bytearray(model(tree, "f")["f"])
    with Mounted(tree, store=under.mountpoint / "store", options=OPTIONS) as m:
        stored = fill(m, {"f": bytes(data)})
        under.fail_op(op, errno.EIO)
        with opened(m.path("f"), os.O_RDWR) as fd:
            os.pwrite(fd, b"new", AT)
            data[AT : AT + 3] = b"new"
            read_all(m, {"f": bytes(data)})
        read_all(m, {"f": bytes(data)})
        m.kill()
        under.reset()
        m.mount()
        read_all(m, {"f": bytes(data)})
        wait_for(lambda: fill(m, {"f": bytes(data)}), lambda count: count == stored)


@pytest.mark.mount
def test_a_store_that_hangs_holds_up_no_write(tree: Path, under: FaultFs) -> None:
    data = bytearray(model(tree, "f")["f"])
    with Mounted(tree, store=under.mountpoint / "store", options=OPTIONS) as m:
        stored = fill(m, {"f": bytes(data)})
        under.hang()
        try:
            with opened(m.path("f"), os.O_RDWR) as fd:
                begun = time.monotonic()
                for i in range(10):
                    at = AT + i * 100 * KIB
                    assert os.pwrite(fd, b"new", at) == 3
                    data[at : at + 3] = b"new"
                assert os.pread(fd, len(data), 0) == data
                assert time.monotonic() - begun < 2 * (1 + ROUND_UP_S)
        finally:
            under.resume()
        read_all(m, {"f": bytes(data)})
        wait_for(lambda: fill(m, {"f": bytes(data)}), lambda count: count == stored)


def stamped_page(number: int) -> bytes:
    """A page that holds a number all over."""
    return number.to_bytes(8, "little") * (PAGE // 8)


@pytest.mark.mount
def test_kill_9_while_it_is_written(tree: Path, store: Path) -> None:
    """What was written is in the source, and the next mount believes nothing that is older."""
    data = model(tree, "f")["f"]
    pages = len(data) // PAGE
    with Mounted(tree, store=store, options=OPTIONS) as m:
        latest: dict[int, int] = {}
        number = 0
        for _ in range(2):
            fill(m, {"f": (tree / "f").read_bytes()})

            def write() -> None:
                nonlocal number
                while True:
                    try:
                        with opened(m.path("f"), os.O_RDWR) as fd:
                            for _ in range(3):
                                number += 1
                                at = number * 7 % pages
                                os.pwrite(fd, stamped_page(number), at * PAGE)
                                latest[at] = number
                            os.pread(fd, 1 << 20, 0)
                    except OSError:  # it was killed
                        return

            writer = threading.Thread(target=write)
            target = number + 25
            writer.start()
            wait_for(partial(lambda target: number > target, target), bool)
            m.kill()
            writer.join()
            m.mount()
            found = (tree / "f").read_bytes()
            for at, newest in latest.items():
                page = found[at * PAGE : (at + 1) * PAGE]
                assert page in (stamped_page(newest), stamped_page(number)), "what was answered for is there"
            for _ in range(2):
                read_all(m, {"f": found})
                m.settle()
