"""What must hold of a mount whose source changes and whose store fails: the model that `test_state_machine` drives.

It is the history of each source file: its contents now, and those that were replaced so lately that a look-up
may still be answered by the kernel. What a fresh open reads is one of them, whole. What an open handle reads is of the
version that it was opened on, or ESTALE, and that only where the file has changed since. A ctime that moved while
nothing else did counts as a change. A handle that the kernel reads by itself (passthrough, of a file without ranges)
reads what its inode has now, as it would in the source.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

from tests.mounts.harness import Mounted
from tests.support.models import write_gguf
from tests.support.waiting import wait_for

NAMES = ("a.gguf", "b.gguf", "dir/c.gguf")
PAGE = 4096
SEEN_S = 1.0
"""A look that is repeated must show the newest version within this."""
TICKS_S = 0.05
"""How coarse the kernel's own time-outs are."""
HANDLES_MAX = 4
DONE: Counter[str] = Counter()
"""What the mounts of a run have done, by counter: a run in which nothing happened has shown nothing."""


@dataclass
class Handle:
    """A file held open: what it may read."""

    fd: int
    name: str
    change: int
    """How often its name's file had changed when it was opened."""
    contents: bytes
    source_fd: int | None
    """The source's inode, where the kernel reads that by itself."""

    def close(self) -> None:
        """Close it, dead or alive."""
        with contextlib.suppress(OSError):
            os.close(self.fd)
        if self.source_fd is not None:
            os.close(self.source_fd)


@dataclass
class Past:
    """Contents that a name had until a moment (monotonic seconds); None: it was not there."""

    contents: bytes | None
    until: float


class Witness(RuleBasedStateMachine):
    """What is known of one mount, its source and its store. `m` and `source` are made by the first rule."""

    m: Mounted
    source: Path

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="machine-"))
        self.cleanup = contextlib.ExitStack()
        self.now: dict[str, bytes | None] = dict.fromkeys(NAMES)
        self.past: dict[str, list[Past]] = {name: [] for name in NAMES}
        self.changes: Counter[str] = Counter()
        self.handles: list[Handle] = []
        self.removed: set[Path] = set()
        self.stamps = itertools.count(1_600_000_000 * 10**9, 1_000_003)
        self.seeds = itertools.count(1)
        self.attr_timeout_s = 0.0
        self.steps = 0
        self.noted_pid = 0
        self.noted: Counter[str] = Counter()

    def teardown(self) -> None:
        """Look at every byte a last time, then take everything down."""
        try:
            if hasattr(self, "m") and self.m.is_mounted:
                for name in NAMES:
                    self._wait_seen(name)
                self._check_books()
        finally:
            self.cleanup.close()

    def _close_handles(self) -> None:
        for handle in self.handles:
            handle.close()
        self.handles.clear()

    def _candidates(self, name: str) -> list[bytes | None]:
        """What a fresh open of a name may find."""
        limit = time.monotonic() - self.attr_timeout_s - TICKS_S
        old = [past.contents for past in self.past[name] if self.attr_timeout_s and past.until > limit]
        return [self.now[name], *old]

    @contextlib.contextmanager
    def _opened(self, name: str, flags: int = 0) -> Iterator[int | None]:
        try:
            fd = os.open(self.m.path(name), os.O_RDONLY | flags)
        except FileNotFoundError:
            yield None
            return
        try:
            yield fd
        finally:
            os.close(fd)

    def _whole(self, name: str) -> bytes | None:
        with self._opened(name) as fd:
            return None if fd is None else os.pread(fd, 1 << 30, 0)

    def _wait_seen(self, name: str) -> None:
        """Wait until a fresh open shows the newest version."""
        wait_for(lambda: self._whole(name), lambda found: found == self.now[name], SEEN_S)

    def _compare(self, name: str, found: bytes | None, candidates: list[bytes | None], offset: int, size: int) -> None:
        expected = [None if data is None else data[offset : offset + size] for data in candidates]
        if found in expected:
            return
        got = "nothing" if found is None else f"{len(found)} bytes"
        raise AssertionError(f"{name} at {offset}, {size} bytes: {got}, of none of {len(candidates)} versions")

    def _offset(self, name: str, share: float) -> int:
        return int(share * len(self.now[name] or b"x"))

    def _read(self, name: str, offset: int, size: int, *, cold: bool) -> None:
        candidates = self._candidates(name)
        with self._opened(name) as fd:
            if fd is not None and cold:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            found = None if fd is None else os.pread(fd, size, offset)
        self._compare(name, found, candidates, offset, size)

    def _hold(self, name: str) -> None:
        if self.now[name] is None or len(self.handles) == HANDLES_MAX:
            return
        self._wait_seen(name)
        before = self._passed_through()
        fd = os.open(self.m.path(name), os.O_RDONLY)
        passes = self._passed_through() > before
        source_fd = os.open(self.source / name, os.O_RDONLY) if passes else None
        self.handles.append(Handle(fd, name, self.changes[name], self.now[name] or b"", source_fd))

    def _passed_through(self) -> int:
        """How many opens the kernel was told to read by itself."""
        lane = self.m.status()["lane"]
        return 0 if lane is None else int(lane["passed_through"])

    def _read_held(self, handle: Handle, offset: int, size: int) -> None:
        try:
            found = os.pread(handle.fd, size, offset)
        except OSError as error:
            assert error.errno == errno.ESTALE, error
            assert self.changes[handle.name] != handle.change, "ESTALE, and the file has not changed"
            return
        DONE["read though gone"] += handle.name not in NAMES
        contents = handle.contents if handle.source_fd is None else os.pread(handle.source_fd, 1 << 30, 0)
        self._compare(f"a handle of {handle.name}", found, [contents], offset, size)

    def _changed(self, name: str, data: bytes | None, *, stamp: bool = True) -> None:
        """Note what a file is now. Its mtime is made one of its own: no clock is fine enough for us."""
        if stamp and data is not None:
            when = next(self.stamps)
            os.utime(self.source / name, ns=(when, when))
        self.changes[name] += 1
        self.past[name].append(Past(self.now[name], time.monotonic()))
        self.now[name] = data

    def _written(self, name: str, data: bytes) -> None:
        """Note what a file is now that it was written through the mount: who had this version open sees the new bytes.

        It was looked at right before, so whoever has an older version open is known to.
        """
        for handle in self.handles:
            if handle.name == name and handle.change == self.changes[name]:
                handle.contents = data
        self.now[name] = data

    def _replaced(self, name: str, data: bytes | None) -> None:
        """Note that a name has got another file, or none, through the mount: who has the old one open goes on with it.

        The kernel has done it, so it is seen at once.
        """
        self._move_handles(name, f"gone {next(self.seeds)}")
        self.changes[name] += 1
        self.now[name] = data

    def _move_handles(self, name: str, to: str) -> None:
        """The handles of what a name is now are of another name from now on."""
        for handle in self.handles:
            if handle.name == name and handle.change == self.changes[name]:
                handle.name, handle.change = to, self.changes[to]

    def _make(self, path: Path) -> bytes:
        write_gguf(path, seed=next(self.seeds), layers=(0,), experts=3, dense_bytes=90 << 10, expert_bytes=48 << 10)
        return path.read_bytes()

    def _write_new(self, name: str) -> None:
        data = self._make(self.source / name)
        self._changed(name, data)

    def _first(self, name: str, first: str) -> None:
        """What happens right before a change: nothing, fills are put in the air, or a handle is kept."""
        if first == "read":
            self._read(name, 0, 1 << 30, cold=True)
        elif first == "hold":
            self._hold(name)

    def _clock_ns(self) -> int:
        """The time as the source's file system stamps it."""
        probe = self.root / "probe"
        probe.write_bytes(b"x")
        return probe.stat().st_ctime_ns

    def _check_books(self) -> None:
        """As `Mounted.check_books`, but for range files that we removed and that nobody has asked for since."""
        self.removed = {path for path in self.removed if not path.exists()}
        status = self.m.settle()
        gauges, store, reads = status["gauges"], status["store"], status["reads"]
        assert reads["hit_bytes"] + reads["miss_bytes"] + reads["bypass_bytes"] == reads["replied_bytes"]
        assert gauges["reads_in_flight_bytes"] == gauges["fill_bytes_in_flight"] == 0
        assert status["errors"]["handler"] == 0, self.m.log.read_text()
        assert status["state"] != "scanning"
        assert store["used_bytes"] <= store["budget_bytes"]
        assert store["filling_bytes"] == 0
        files = self.m.range_files()
        assert len(files) <= store["ranges"] <= len(files) + len(self.removed)
        assert sum(path.stat().st_size for path in files) <= store["budget_bytes"]
        wait_for(lambda: self.m.status()["gauges"]["open_handles"], lambda count: count == len(self.handles))
        self._note(status)

    def _note(self, status: dict[str, Any]) -> None:
        """Add what this mount has done since we last looked."""
        if status["pid"] != self.noted_pid:
            self.noted_pid, self.noted = status["pid"], Counter()
        found = Counter(
            hits=status["reads"]["hits"],
            fills=status["fills"]["completed"],
            evictions=status["evictions"]["ranges"],
            stale=status["errors"]["stale"],
            corrupt=status["errors"]["corrupt"],
            store=status["errors"]["store"],
            written=status["source_writes"]["count"],
            stamped=status["fills"]["stamped"],
            **self._by_lane(status),
        )
        DONE.update(found - self.noted)
        self.noted = found

    @staticmethod
    def _by_lane(status: dict[str, Any]) -> dict[str, int]:
        if status["lane"] is None:
            return {"hits without a lane": status["reads"]["hits"]}
        return {"hits of the lane": status["lane"]["hits"]}
