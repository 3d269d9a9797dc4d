"""Traffic for as long as one likes, and what is left of it: descriptors, threads, tasks, temporaries, memory."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from tests.hostile.crash_loop import write_source
from tests.mounts.harness import Mounted
from tests.soak.findings import Finding, memory_bytes
from tests.support import commands
from tests.support.waiting import wait_for

WARM_UP_ROUNDS = 5
REST_S = 60.0
"""Threads that have nothing to do end by themselves within this."""
KILLED_AFTER_S = (0.0, 0.05)
CATS = 6


class Left(NamedTuple):
    """What a daemon has at rest."""

    descriptors: int
    threads: int
    tasks: int
    temporaries: int
    rss_bytes: int


class Traffic:
    """Readers that are killed, files that are replaced and written, ranges that are evicted."""

    def __init__(self, m: Mounted, files: dict[str, bytes], seed: int) -> None:
        self._m = m
        self._files = files
        self._rng = random.Random(seed)
        self.rounds = 0

    def round(self) -> None:
        """One round of everything."""
        m, rng = self._m, self._rng
        paths = [os.fspath(m.path(name)) for name in self._files]
        for path in paths:
            m.drop_pages(path)
        cats = [_cat(rng.sample(paths, len(paths))) for _ in range(CATS)]
        for cat in cats[: CATS // 2]:
            time.sleep(rng.uniform(*KILLED_AFTER_S))
            cat.kill()
        self._replace()
        self._write()
        for cat in cats:
            cat.wait(60)
        if rng.random() < 0.3:
            self.evict_all()
        self.rounds += 1

    def _replace(self) -> None:
        """Another file in the place of one, behind the mount; its name leads to the new one from then on."""
        name = self._rng.choice(list(self._files))
        fresh = self._m.source / ".fresh"
        fresh.write_bytes(self._files[name])
        fresh.rename(self._m.source / name)
        assert self._m.read(name) == self._files[name]

    def _write(self) -> None:
        """A file that is made, renamed and removed through the mount, and one with ranges that is written to."""
        new, renamed = self._m.path("new"), self._m.path("renamed")
        new.write_bytes(b"x" * 100_000)
        new.rename(renamed)
        renamed.unlink()
        name = self._rng.choice(list(self._files))
        with self._m.path(name).open("r+b") as file, contextlib.suppress(OSError):  # ESTALE where it was replaced
            file.seek(1 << 12)
            file.write(self._files[name][1 << 12 : 1 << 13])

    def evict_all(self) -> None:
        """Empty the store."""
        self._m.settle()
        done = commands.call("evict", "--force", os.fspath(self._m.mountpoint))
        assert done.returncode == 0, done.stderr
        self._m.settle()

    def left(self) -> Left:
        """What there is now."""
        self.evict_all()
        m = self._m
        gauges = m.settle()["gauges"]
        proc = Path(f"/proc/{m.pid}")
        return Left(
            _descriptors(m.pid, gauges["open_range_files"]),
            len(os.listdir(proc / "task")),
            gauges["tasks"],
            len(os.listdir(m.store / "tmp")) if m.store else 0,
            memory_bytes(m.pid, "VmRSS"),
        )


def _cat(paths: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["cat", *paths], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _descriptors(pid: int, open_range_files: int) -> int:
    """The descriptors of a daemon, but for range files that are kept open, at most two of each.

    There may be some: a file that was replaced while nobody had it open leaves its ranges to the next eviction.
    """
    kept = others = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"/proc/{pid}/fd/{name}").endswith(".rng"):  # not "(deleted)"
                kept += 1
            else:
                others += 1
    return others + max(0, kept - 2 * open_range_files)


def check(root: Path, hours: float, seed: int) -> list[Finding]:
    """Traffic for so many hours; what is there afterwards and was not there before."""
    files = write_source(root / "source")
    budget = sum(map(len, files.values())) // 2
    options = ("settle=0", "store_reserve=0", "policy=lru")
    with Mounted(root / "source", store=root / "store", store_size=str(budget), options=options) as m:
        traffic = Traffic(m, files, seed)
        for _ in range(WARM_UP_ROUNDS):
            traffic.round()
        before = _at_rest(traffic, None)
        end = time.monotonic() + hours * 3600
        while time.monotonic() < end:
            traffic.round()
        after = _at_rest(traffic, before)
    rounds = traffic.rounds - WARM_UP_ROUNDS
    name = f"after {hours:g} h ({rounds} rounds of traffic), more than before"
    return [
        Finding(f"{name}: descriptors", after.descriptors - before.descriptors, "", 0),
        Finding(f"{name}: threads", after.threads - before.threads, "", 0),
        Finding(f"{name}: tasks", after.tasks - before.tasks, "", 0),
        Finding(f"{name}: temporary files", after.temporaries - before.temporaries, "", 0),
        Finding(f"{name}: RSS", (after.rss_bytes - before.rss_bytes) / 1e6, "MB"),
    ]


def _at_rest(traffic: Traffic, before: Left | None) -> Left:
    """What is left once idle threads have ended: until it is no more than before, or for as long as they may take."""

    def is_over(now: Left) -> bool:
        return before is not None and all(a <= b for a, b in zip(now[:4], before[:4], strict=True))

    if before is None:  # let what comes and goes go
        lowest = traffic.left()
        end = time.monotonic() + REST_S / 4
        while time.monotonic() < end:
            time.sleep(1)
            now = traffic.left()
            lowest = Left(*map(min, lowest, now))
        return lowest
    try:
        return wait_for(traffic.left, is_over, REST_S)
    except TimeoutError:
        return traffic.left()
