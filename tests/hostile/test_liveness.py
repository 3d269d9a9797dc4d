"""No handler and no task may end the mount: exceptions are planted in every one of them. And one pass a range."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faultfs.client import FaultFs
from tests.hostile.planted import KINDS, PLACES
from tests.hostile.support import LOG_LINES_A_MINUTE, MIB, PAGE, errno_of, fill, model, read_all, write_plan
from tests.mounts.harness import REPOSITORY, Mounted, opened, run
from tests.mounts.test_filling import one_range, pread_direct
from tests.support.waiting import wait_for


class Planted(Mounted):
    """A mount whose daemon raises what its plan says."""

    process: subprocess.Popen[bytes]

    @property
    def plan(self) -> Path:
        return self.log.with_suffix(".plan")

    @property
    def raised(self) -> list[str]:
        """The places that have raised."""
        path = self.plan.with_suffix(".raised")
        return path.read_text().splitlines() if path.exists() else []

    def mount(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.hostile.planted",
                    os.fspath(self.plan),
                    *self.arguments(),
                    "--foreground",
                ],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        self.pid = self.process.pid
        wait_for(self.log.read_text, lambda text: self._has_ended() or f"mounted {self.source} at" in text)
        assert not self._has_ended(), self.log.read_text()
        wait_for(self.status, lambda s: s["state"] == "normal")

    def _has_ended(self) -> bool:
        return self.process.poll() is not None

    def take_down(self) -> None:
        self.plan.unlink(missing_ok=True)
        super().take_down()
        try:
            assert self.process.wait(20) == 0
        finally:
            self.process.kill()
            self.plan.with_suffix(".raised").unlink(missing_ok=True)

    def plant(self, *places: str, kind: str) -> None:
        """Have these places raise."""
        assert set(places) <= {f"{owner.__name__}.{name}" for owner, names in PLACES.items() for name in names}
        self.plan.with_suffix(".raised").unlink(missing_ok=True)
        write_plan(self.plan, dict.fromkeys(places, kind))


@pytest.mark.mount
@pytest.mark.alone
@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_in_each_handler(tree: Path, store: Path, kind: str) -> None:
    """EIO for that caller, a count, and the next call is answered as ever."""
    expected = model(tree, "f")
    model(tree, "cold")
    (tree / "link").symlink_to("f")
    os.setxattr(tree / "f", b"user.note", b"yes")
    options = ("settle=0", "attr_timeout=0")
    with Planted(tree, store=store, options=options, check_books=False) as m:
        fill(m, expected)
        path, cold = m.path("f"), m.path("cold")  # what is in the store the lane reads, and asks nobody
        with opened(path) as fd, opened(m.mountpoint) as directory:
            calls: dict[str, Callable[[], object]] = {
                "Overlay.look_up": path.stat,
                "Overlay.attributes": lambda: os.fstat(fd),
                "Listing.reach": lambda: os.listdir(directory),
                "Overlay.readlink": lambda: os.readlink(m.path("link")),
                "Overlay.getxattr": lambda: os.getxattr(path, b"user.note"),
                "Overlay.listxattr": lambda: os.listxattr(path),
                "Overlay.statfs": lambda: os.statvfs(m.mountpoint),
                "Overlay.open": lambda: os.open(path, os.O_RDONLY),
                "Overlay.read": lambda: pread_direct(cold, 0, PAGE),
                "CacheIndex.plan_read": lambda: pread_direct(cold, MIB, PAGE),
            }
            for place, call in calls.items():
                before = m.status()["errors"]["handler"]
                m.plant(place, kind=kind)
                assert errno_of(call) == errno.EIO, place
                assert set(m.raised) == {place}
                assert m.status()["errors"]["handler"] > before
                m.plan.unlink()
                if place != "Overlay.open":
                    call()
                read_all(m, expected)
        m.plant("Overlay.close", "Overlay.forget", kind=kind)
        fresh = tree / "fresh"
        fresh.write_bytes(expected["f"])
        fresh.rename(tree / "f")
        read_all(m, expected)
        Path("/proc/sys/vm/drop_caches").write_text("2")
        wait_for(lambda: set(m.raised), lambda places: places == {"Overlay.close", "Overlay.forget"})
        m.plan.unlink()
        read_all(m, expected)
        assert m.process.poll() is None
        assert len([line for line in m.log.read_text().splitlines() if line[:2] == "20"]) <= LOG_LINES_A_MINUTE


@pytest.mark.mount
def test_an_exception_in_each_handler_that_changes(tree: Path, store: Path) -> None:
    """As above; and what was not done was not done."""
    expected = model(tree, "f")
    with Planted(tree, store=store, options=("settle=0", "attr_timeout=0"), check_books=False) as m:
        fill(m, expected)
        new, made, one, two = (m.path(name) for name in ("new", "made", "one", "two"))
        with opened(new, os.O_RDWR | os.O_CREAT) as fd, opened(m.mountpoint) as directory:
            calls: dict[str, Callable[[], object]] = {
                "Mirror.write": lambda: os.pwrite(fd, b"x", 0),
                "Mirror.sync": lambda: os.fsync(fd),
                "Mirror.flush": lambda: os.close(os.dup(fd)),
                "Mirror.set_attributes": lambda: os.chmod(new, 0o600),
                "Mirror.setxattr": lambda: os.setxattr(new, b"user.note", b"yes"),
                "Mirror.removexattr": lambda: os.removexattr(new, b"user.note"),
                "Mirror.mkdir": made.mkdir,
                "Mirror.rmdir": made.rmdir,
                "Mirror.mknod": lambda: os.mkfifo(made),
                "Mirror.unlink": made.unlink,
                "Mirror.symlink": lambda: made.symlink_to("f"),
                "Mirror.link": lambda: os.link(new, one),
                "Mirror.rename": lambda: one.rename(two),
                "Mirror.sync_directory": lambda: os.fsync(directory),
                "Mirror.open": lambda: os.close(os.open(new, os.O_WRONLY)),
                "Mirror.create": lambda: os.close(os.open(one, os.O_WRONLY | os.O_CREAT)),
            }
            for place, call in calls.items():
                before = m.status()["errors"]["handler"]
                m.plant(place, kind="RuntimeError")
                assert errno_of(call) == errno.EIO, place
                assert m.status()["errors"]["handler"] > before and set(m.raised) == {place}
                m.plan.unlink()
                call()
        m.plant("Writes._conclude", kind="RuntimeError")
        m.path("f").chmod(0o600)
        wait_for(lambda: set(m.raised), lambda places: places == {"Writes._conclude"})
        m.plan.unlink()
        read_all(m, expected)
        m.path("f").chmod(0o640)
        read_all(m, expected)
        assert m.process.poll() is None


def provoke(m: Planted, name: str) -> list[str]:
    """Read a file past its pages, whether it can be read or not; the places that have raised."""
    for call in (lambda: m.drop_pages(name), lambda: m.read(name)):
        assert errno_of(call) in (None, errno.EIO)
    return m.raised


def _provoked(m: Planted, place: str, names: Iterator[str]) -> tuple[str, list[str]]:
    """The place that was to raise, and those that have."""
    return place, provoke(m, next(names))


BACKGROUND = [
    *("Filler.offer_nowait", "Filler._bring", "Landing._wait_room", "Landing._write", "Evictor._remove_queued"),
    *("Evictor.purge", "CacheIndex.plan_eviction", "Catalog._load", "Catalog._save", "Catalog._fill_early"),
    *("ChildParser.parse", "Resident.acquire", "Scrub._look_at", "RangeStore.write_range", "RangeStore.load_table"),
    "RangeStore.save_table",
]
REMOVAL = "RangeStore.remove_range"
"""Tried again after some ten seconds only, so it has a test of its own."""


@pytest.mark.mount
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "places"),
    [*((kind, BACKGROUND) for kind in KINDS), ("RuntimeError", [REMOVAL])],
    ids=[*KINDS, "removal"],
)
def test_an_exception_in_each_task(tree: Path, store: Path, kind: str, places: list[str]) -> None:
    """A read may get EIO while the fault is there; afterwards everything works as before: it fills, it evicts."""
    names = [f"f{i}" for i in range(5)]
    fresh = [f"fresh{i}" for i in range(len(places))]
    expected = model(tree, *names, *fresh, ranges=3)
    options = ("settle=0", "attr_timeout=0", "policy=lru")  # which lets everybody in
    with Planted(tree, store=store, store_size="2M", options=options, check_books=False) as m:
        read_all(m, {names[-1]: expected[names[-1]]})
        for name, place in zip(fresh, places, strict=True):
            m.settle()
            m.plant(place, kind=kind)
            provoke(m, name)
            others = itertools.cycle((name, name, *names))  # twice: a hit, of a range that has not been proved yet
            if place == "Scrub._look_at":
                run("verify", m.mountpoint, check=False)
            if place == "Evictor.purge":  # once a file that is stored has changed
                m.plan.unlink()
                fill(m, {name: expected[name]})
                m.plant(place, kind=kind)
                os.utime(tree / name, ns=(10**18, 10**18))
                m.read(name)
            wait_for(partial(_provoked, m, place, others), lambda seen: bool(seen[1]))
            assert set(m.raised) == {place}
            m.plan.unlink()
            read_all(m, {name: expected[name]})
            assert m.process.poll() is None, place
        before = m.settle()
        read_all(m, expected)
        after = m.settle()
        assert after["fills"]["completed"] > before["fills"]["completed"] + 10
        assert after["evictions"]["ranges"] > before["evictions"]["ranges"] + 10
        assert after["errors"]["handler"] > 0 or places == [REMOVAL]

        def hits() -> int:
            read_all(m, {names[-1]: expected[names[-1]]})
            return int(m.settle()["reads"]["hits"])

        wait_for(hits, lambda n: n > after["reads"]["hits"])
        used, files = after["store"]["used_bytes"], m.range_files()
        assert used <= after["store"]["budget_bytes"]
        assert sum(path.stat().st_size for path in files) <= after["store"]["budget_bytes"]


@pytest.mark.mount
@pytest.mark.parametrize("order", ["forward", "random"])
def test_page_by_page_costs_one_pass(tree: Path, store: Path, order: str) -> None:
    """A mapping with MADV_RANDOM faults in one page at a time: the source reads the range once all the same."""
    data, start, end = one_range(tree, 4 * MIB + 1000)
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store) as m:
        pread_direct(m.path("f"), 0, PAGE)
        m.settle()
        under.clear()
        offsets = list(range(start, end, PAGE))
        if order == "random":
            random.Random(1).shuffle(offsets)
        with opened(m.path("f")) as fd, mmap.mmap(fd, 0, prot=mmap.PROT_READ) as pages:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            pages.madvise(mmap.MADV_RANDOM)
            for at in offsets:
                assert pages[at : at + PAGE] == data[at : at + PAGE]
        status = m.settle()
        assert status["fills"]["completed"] == 1
        cost = sum(read.returned or 0 for read in under.reads())
        assert cost / (end - start) <= 1.01
