"""The rules of `test_state_machine` that change files through the mount."""

from __future__ import annotations

import os
import random
import subprocess
import sys

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.hostile.witness import DONE, NAMES, PAGE, Witness
from tests.mounts.harness import opened

WRITES_MAPPED = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
with mmap.mmap(fd, 0) as memory:
    os.close(fd)
    for at in (int(sys.argv[2]), 0):
        memory[at] ^= 255
"""
"""Writes to a mapping, which outlives its descriptor, and never asks for it to be written back."""

names = st.sampled_from(NAMES)
firsts = st.sampled_from(("nothing", "read", "hold"))
shares = st.floats(0, 0.999)
sizes = st.sampled_from((1, 100, PAGE, 3 * PAGE + 5, 40_000, 1 << 20))


class WrittenTo(Witness):
    """What may be done to the files of a mount through it."""

    @rule(name=names, share=shares, size=sizes, sync=st.booleans(), first=firsts)
    def write(self, name: str, share: float, size: int, sync: bool, first: str) -> None:
        """Some bytes, beyond the end perhaps."""
        if not self.now[name]:
            return
        self._first(name, first)
        self._wait_seen(name)
        old, offset = self.now[name] or b"", self._offset(name, share)
        new = random.Random(next(self.seeds)).randbytes(size)
        with opened(self.m.path(name), os.O_WRONLY) as fd:
            assert os.pwrite(fd, new, offset) == size
            self._written(name, old[:offset] + new + old[offset + size :])
            if sync:
                os.fsync(fd)
                self._read(name, max(0, offset - PAGE), 2 * PAGE, cold=True)
        assert (self.source / name).read_bytes() == self.now[name]

    @rule(name=names, share=shares, first=firsts)
    def write_mapped(self, name: str, share: float, first: str) -> None:
        """A byte in the middle and one at the start, by a mapping."""
        if not self.now[name]:
            return
        self._first(name, first)
        self._wait_seen(name)
        data, offset = bytearray(self.now[name] or b""), self._offset(name, share)
        for at in (offset, 0):
            data[at] ^= 255
        command = [sys.executable, "-S", "-c", WRITES_MAPPED, os.fspath(self.m.path(name)), str(offset)]
        done = subprocess.run(command, capture_output=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        self._written(name, bytes(data))

    @rule(name=names, share=st.floats(0, 1.5), first=firsts)
    def truncate_through(self, name: str, share: float, first: str) -> None:
        """Cut, or made longer."""
        if not self.now[name]:
            return
        self._first(name, first)
        self._wait_seen(name)
        old = self.now[name] or b""
        size = int(share * len(old))
        os.truncate(self.m.path(name), size)
        self._written(name, old[:size].ljust(size, b"\0"))

    @rule(name=names, mode=st.sampled_from((0o600, 0o644)), first=firsts)
    def touch_through(self, name: str, mode: int, first: str) -> None:
        """Mode, times, a name away and back, and one more name: none of it changes a byte or costs a handle."""
        if self.now[name] is None:
            return
        self._first(name, first)
        self._wait_seen(name)
        path, away = self.m.path(name), self.m.path(f"away{next(self.seeds)}")
        path.chmod(mode)
        os.utime(path, ns=(next(self.stamps),) * 2)
        path.rename(away)
        away.rename(path)
        os.link(path, away)

    @rule(name=names)
    def unlink_while_open(self, name: str) -> None:
        """Who has it open goes on."""
        if not self.now[name]:
            return
        self._wait_seen(name)
        with opened(self.m.path(name), os.O_RDWR) as fd:
            self.m.path(name).unlink()
            contents = self.now[name] or b""
            assert os.pread(fd, len(contents), 0) == contents
            assert os.pwrite(fd, b"last words", 5) == 10
            assert os.pread(fd, 20, 0) == (contents[:5] + b"last words" + contents[15:])[:20]
            self._written(name, contents[:5] + b"last words" + contents[15:])
            self._replaced(name, None)

    @rule(name=names, first=firsts)
    def replace_through(self, name: str, first: str) -> None:
        """As a download is finished: written beside it, then renamed over it, or into its place."""
        self._first(name, first)
        self._wait_seen(name)
        data, part = self._make(self.root / "other"), self.m.path("dir/part")
        part.write_bytes(data)
        part.rename(self.m.path(name))
        self._replaced(name, data)
        DONE["renamed over"] += 1

    @rule(name=names, other=names, first=firsts)
    def rename(self, name: str, other: str, first: str) -> None:
        """It gets the name, and takes the place, of another one. Who has it open goes on."""
        if name == other or self.now[name] is None:
            return
        self._first(name, first)
        self._wait_seen(name)
        self._wait_seen(other)
        self.m.path(name).rename(self.m.path(other))
        self._replaced(other, self.now[name])
        self._move_handles(name, other)
        self._replaced(name, None)
        DONE["renamed"] += 1
