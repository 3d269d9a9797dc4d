"""Everything at once, in an order that hypothesis picks: a real mount, a source that changes, a store that fails.

What must hold is in `witness`; here is what may happen.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mummufs.store.layout import HEADER_BYTES
from tests.hostile.rules_of_writing import WrittenTo, firsts, names, shares, sizes
from tests.hostile.witness import DONE, HANDLES_MAX, NAMES, PAGE
from tests.mounts.harness import Mounted
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.mount, pytest.mark.slow]

STORE_BYTES = 2 << 20
DISK_BYTES = 4 << 20
"""The store's file system: room for the budget and no more than as much again."""
MAPPED = "import mmap,os,sys\nfd=os.open(sys.argv[1],os.O_RDONLY)\nos.write(1,mmap.mmap(fd,0,prot=mmap.PROT_READ)[:])"
"""Maps a file and prints it: in a process of its own, because SIGBUS would end the tests."""


class Mirror(WrittenTo):
    """What may happen to a mount, its source and its store."""

    # ------------------------------------------------------------------ the start and the end

    @initialize(
        attr_timeout_s=st.sampled_from((0.0, 0.05)),
        policy=st.sampled_from(("lru", "hotness")),
        lane=st.sampled_from(("auto", "off")),
    )
    def start(self, attr_timeout_s: float, policy: str, lane: str) -> None:
        """A source of three models, a store on a small file system of its own."""
        self.cleanup.callback(shutil.rmtree, self.root)
        self.source, disk = self.root / "source", self.root / "disk"
        (self.source / "dir").mkdir(parents=True)
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk], check=True)
        self.cleanup.callback(subprocess.run, ["umount", "-l", os.fspath(disk)], check=True)
        self.foreign = disk / "foreign"
        for name in NAMES:
            self._write_new(name)
        self.attr_timeout_s = attr_timeout_s
        options = (
            "settle=0",
            f"attr_timeout={attr_timeout_s}",
            f"policy={policy}",
            "store_reserve=64K",
            f"lane={lane}",
        )
        self.m = Mounted(
            self.source, store=disk / "store", store_size=str(STORE_BYTES), options=options, check_books=False
        )
        self.cleanup.enter_context(self.m)
        self.cleanup.callback(self._close_handles)

    # ------------------------------------------------------------------ reading

    @rule(name=names, share=shares, size=sizes, cold=st.booleans())
    def read(self, name: str, share: float, size: int, cold: bool) -> None:
        """A piece by read(2), from the page cache or past it."""
        self._read(name, self._offset(name, share), size, cold=cold)

    @rule(name=names)
    def read_whole(self, name: str) -> None:
        """A file from end to end: this is what fills."""
        self._read(name, 0, 1 << 30, cold=True)

    @rule(name=names, share=shares, size=sizes)
    def read_direct(self, name: str, share: float, size: int) -> None:
        """A piece by O_DIRECT."""
        offset, size = self._offset(name, share) // PAGE * PAGE, -(-size // PAGE) * PAGE
        candidates = self._candidates(name)
        with self._opened(name, os.O_DIRECT) as fd, mmap.mmap(-1, size) as buffer:
            found = None if fd is None else buffer[: os.preadv(fd, [buffer], offset)]
        self._compare(name, found, candidates, offset, size)

    @rule(name=names)
    def read_mapped(self, name: str) -> None:
        """All of a file by a mapping."""
        if not self.now[name]:
            return
        candidates = self._candidates(name)
        command = [sys.executable, "-S", "-c", MAPPED, os.fspath(self.m.path(name))]
        done = subprocess.run(command, capture_output=True, timeout=30, check=False)
        gone = b"FileNotFoundError" in done.stderr
        assert gone or done.returncode == 0, f"{name}: {done.returncode} {done.stderr!r}"
        self._compare(name, None if gone else done.stdout, candidates, 0, 1 << 30)

    @rule(name=names)
    def hold_open(self, name: str) -> None:
        """Keep a handle."""
        self._hold(name)

    @precondition(lambda self: self.handles)
    @rule(which=st.integers(0, HANDLES_MAX - 1), share=shares, size=sizes)
    def read_held(self, which: int, share: float, size: int) -> None:
        """A handle reads its own version, or ESTALE."""
        handle = self.handles[which % len(self.handles)]
        self._read_held(handle, int(share * len(handle.contents)), size)

    @precondition(lambda self: self.handles)
    @rule(which=st.integers(0, HANDLES_MAX - 1))
    def let_go(self, which: int) -> None:
        """Close a handle."""
        self.handles.pop(which % len(self.handles)).close()

    # ------------------------------------------------------------------ the source changes

    @rule(name=names, first=firsts)
    def rewrite(self, name: str, first: str) -> None:
        """In place, with as many bytes."""
        old = self.now[name]
        if not old:
            return
        self._first(name, first)
        other = self.root / "other"
        data = self._make(other)[: len(old)].ljust(len(old), b"r")
        with (self.source / name).open("r+b") as file:
            file.write(data)
        self._changed(name, data)

    @rule(name=names, first=firsts)
    def rewrite_with_the_mtime_set_back(self, name: str, first: str) -> None:
        """As `touch -r` does."""
        old = self.now[name]
        if not old:
            return
        self._first(name, first)
        path, before = self.source / name, (self.source / name).stat()
        wait_for(self._clock_ns, lambda now: now > before.st_ctime_ns)
        data = self._make(self.root / "other")[: len(old)].ljust(len(old), b"t")
        with path.open("r+b") as file:
            file.write(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        self._changed(name, data, stamp=False)

    @rule(name=names, count=st.integers(1, 30_000), first=firsts)
    def append(self, name: str, count: int, first: str) -> None:
        """Some bytes more."""
        old = self.now[name]
        if old is None:
            return
        self._first(name, first)
        more = random.Random(next(self.seeds)).randbytes(count)
        with (self.source / name).open("ab") as file:
            file.write(more)
        self._changed(name, old + more)

    @rule(name=names, share=shares, first=firsts)
    def truncate(self, name: str, share: float, first: str) -> None:
        """Some bytes less, none perhaps."""
        old = self.now[name]
        if not old:
            return
        self._first(name, first)
        size = int(share * len(old))
        os.truncate(self.source / name, size)
        self._changed(name, old[:size])

    @rule(name=names, first=firsts)
    def replace(self, name: str, first: str) -> None:
        """Another file is renamed over it, or takes its place."""
        self._first(name, first)
        other = self.source / "dir" / "next"
        data = self._make(other)
        when = next(self.stamps)
        os.utime(other, ns=(when, when))
        other.rename(self.source / name)
        self._changed(name, data, stamp=False)

    @rule(name=names, first=firsts)
    def delete(self, name: str, first: str) -> None:
        """Gone."""
        if self.now[name] is not None:
            self._first(name, first)
            (self.source / name).unlink()
            self._changed(name, None)

    @rule(name=names)
    def recreate(self, name: str) -> None:
        """A name that is gone is there again, with the inode number of the old file perhaps."""
        if self.now[name] is None:
            self._write_new(name)

    @rule(name=names, mode=st.sampled_from((0o600, 0o644, 0o640)), first=firsts)
    def chmod(self, name: str, mode: int, first: str) -> None:
        """The ctime moves, and the mode accounts for it or does not."""
        if self.now[name] is not None:
            self._first(name, first)
            path = self.source / name
            self.changes[name] += path.stat().st_mode & 0o777 == mode
            path.chmod(mode)

    @rule(name=names, first=firsts)
    def link(self, name: str, first: str) -> None:
        """It gets another name, outside the source."""
        if self.now[name] is not None:
            self._first(name, first)
            os.link(self.source / name, self.root / f"link{next(self.seeds)}")

    # ------------------------------------------------------------------ the store fails

    def _range_file(self, which: int) -> Path | None:
        found = self.m.range_files()
        return found[which % len(found)] if found else None

    @rule(which=st.integers(0, 50))
    def delete_entry(self, which: int) -> None:
        """A range file is removed."""
        path = self._range_file(which)
        if path is not None:
            path.unlink(missing_ok=True)
            self.removed.add(path)

    @rule(which=st.integers(0, 50), share=shares, cut=st.booleans())
    def corrupt_entry(self, which: int, share: float, cut: bool) -> None:
        """A bit of a range file flips, or its end is cut off."""
        path = self._range_file(which)
        if path is None:
            return
        with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
            if cut:
                file.truncate(int(share * os.fstat(file.fileno()).st_size))
                return
            place = HEADER_BYTES + int(share * (os.fstat(file.fileno()).st_size - HEADER_BYTES))
            if place >= HEADER_BYTES:
                byte = os.pread(file.fileno(), 1, place) or b"\0"
                os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), place)

    @rule(left=st.sampled_from((0, 100 << 10, 500 << 10)))
    def fill_the_disk(self, left: int) -> None:
        """Somebody else's file takes what the store's file system has, but for `left` bytes."""
        self.foreign.unlink(missing_ok=True)
        status = os.statvfs(self.foreign.parent)
        with self.foreign.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, status.f_bavail * status.f_frsize - left))

    @rule()
    def free_the_disk(self) -> None:
        """It goes away again."""
        self.foreign.unlink(missing_ok=True)

    # ------------------------------------------------------------------ the mount ends

    @rule()
    def remount(self) -> None:
        """In order."""
        self._close_handles()
        self.m.remount()
        self._remounted()

    @rule(busy=st.booleans())
    def kill(self, busy: bool) -> None:
        """kill -9, while ranges are being written perhaps."""
        if busy:
            for name in NAMES:
                self._read(name, 0, 1 << 30, cold=True)
        self.m.kill()
        self._close_handles()
        self.m.mount()
        assert self.m.store is not None
        assert not list((self.m.store / "tmp").iterdir()), "the mount removes temporaries"
        self._remounted()

    def _remounted(self) -> None:
        self.removed.clear()

    # ------------------------------------------------------------------ after every step

    @invariant()
    def holds(self) -> None:
        """Some bytes of every file and handle and all bytes of one file are right, and so are the books."""
        if not hasattr(self, "m"):
            return
        self.steps += 1
        for i, name in enumerate(NAMES):
            self._read(name, self._offset(name, 0.3 * i), 20_000, cold=False)
        self._read(NAMES[self.steps % len(NAMES)], 0, 1 << 30, cold=True)
        for handle in self.handles:
            os.posix_fadvise(handle.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            self._read_held(handle, self.steps * 37_777 % len(handle.contents or b"x"), 50_000)
        self._check_books()


PROFILE = settings(
    max_examples=10,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),  # to shrink takes a mount for each try
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


WANTED = (
    *("hits", "fills", "evictions", "stale", "corrupt", "store", "written", "stamped"),
    *("hits of the lane", "hits without a lane", "renamed", "renamed over", "read though gone"),
)
"""What a run must have done, or it has put nothing to the test."""


def test_whatever_happens_bytes_are_right() -> None:
    DONE.clear()
    run_state_machine_as_test(Mirror, settings=PROFILE)
    idle = [name for name in WANTED if not DONE[name]]
    assert not idle, f"this run has put nothing to the test: {dict(DONE)}"
