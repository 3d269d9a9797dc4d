"""What a measurement found, and the process of a daemon as it is measured from outside."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.mounts.harness import COMMAND, REPOSITORY, Mounted
from tests.support.waiting import wait_for

STOCK_S = 120.0


@dataclass(frozen=True)
class Finding:
    """One figure and its limit; `limit` None: for information."""

    name: str
    value: float
    unit: str
    limit: float | None = None

    @property
    def passed(self) -> bool:
        """Whether it is within its limit."""
        return self.limit is None or self.value <= self.limit

    def row(self) -> str:
        """A row of a Markdown table."""
        limit = "" if self.limit is None else f"{self.limit:,.4g}" if self.limit < 1000 else f"{self.limit:,.0f}"
        shown = f"{self.value:,.0f}" if self.value >= 1000 else f"{self.value:,.3g}"
        return f"| {self.name} | {shown} {self.unit} | {limit} | {'' if self.passed else 'MISSED'} |"


class Timed(Mounted):
    """A mount of which it is known how long it took, perhaps with a limit of descriptors.

    Attributes:
        mounted_s: until the command returned.
        stock_s: until what the store holds was accounted for.
    """

    nofile: int | None = None
    first_path = ""
    mounted_s = 0.0
    first_stat_s = 0.0
    stock_s = 0.0

    def mount(self) -> None:
        limit = None if self.nofile is None else partial(_limit_descriptors, self.nofile)
        begun = time.monotonic()
        subprocess.run([*COMMAND, *self.arguments()], cwd=REPOSITORY, check=True, timeout=60, preexec_fn=limit)
        self.mounted_s = time.monotonic() - begun
        os.stat(self.path(self.first_path))
        self.first_stat_s = time.monotonic() - begun - self.mounted_s
        self.pid = self.status()["pid"]
        if self.store is not None:
            wait_for(self.status, lambda s: s["state"] == "normal", STOCK_S)
        self.stock_s = time.monotonic() - begun


def _limit_descriptors(count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def memory_bytes(pid: int, what: str) -> int:
    """A line of /proc/PID/status, in bytes: VmRSS, VmHWM (the most it has been)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) << 10
    raise ValueError(what)


def disk_bytes(directory: str) -> int:
    """What du(1) says of a directory. What goes away meanwhile is left out."""
    total = 0
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        total += disk_bytes(entry.path)
                except FileNotFoundError:
                    continue
    except FileNotFoundError:
        pass
    return total
