"""A mummufs mount for a benchmark: started, warmed and ended through its command line, as its users do."""

from __future__ import annotations

import mmap
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click

from mummufs import control
from mummufs.core.errors import MummufsError
from mummufs.options import OWN_FLAGS, OWN_OPTIONS
from scripts.bench.benchlib import (
    COMMAND_TIMEOUT_S,
    drop_caches,
    end_process,
    is_mounted,
    process_subject,
    run,
    signals_wait,
)
from scripts.bench.launch import REPOSITORY
from scripts.bench.loads import read_through

WARM_PASSES_MAX = 8
NOT_COUNTED = frozenset({"gauges", "store", "options", "backend", "uptime_s", "pid", "schema"})
"""What in a status says how things are, not what has been done."""

SETTLED_TIMEOUT_S = 300.0
KNOWN_TIMEOUT_S = 60.0
POLL_S = 0.05
PAGE_BYTES = 4096
STORE_MARGIN_BYTES = 256 << 20


def is_known(option: str) -> bool:
    """Whether this version of mummufs has a `-o` option. Only its name is looked at."""
    name = option.partition("=")[0]
    return name in OWN_OPTIONS or name in OWN_FLAGS


@dataclass(frozen=True)
class Use:
    """What a mount's daemon has done so far.

    Attributes:
        cpu_s: user and system time of the daemon.
        counters: every number in its status that counts, by "section.name"; not the gauges.
    """

    cpu_s: float
    counters: dict[str, float]

    def since(self, before: Use) -> Use:
        """What was added."""
        changes = {key: value - before.counters.get(key, 0) for key, value in self.counters.items()}
        return Use(self.cpu_s - before.cpu_s, {key: value for key, value in changes.items() if value})

    @property
    def lane_hit_bytes(self) -> int:
        """Bytes that the fast lane has answered."""
        return int(self.counters.get("lane.hit_bytes", 0))

    @property
    def pushed_bytes(self) -> int:
        """Bytes put into the kernel's page cache before they were asked for."""
        return int(sum(value for key, value in self.counters.items() if key.endswith("pushed_bytes")))

    @property
    def slow_bytes(self) -> int:
        """Bytes that did not come from the store."""
        return int(sum(self.counters.get(f"reads.{kind}_bytes", 0) for kind in ("miss", "bypass")))

    @property
    def reached(self) -> bool:
        """Whether any read reached mummufs."""
        return any(key.startswith(("reads.", "lane.", "push.")) for key in self.counters)


class BenchMount:
    """`source` mounted at `mountpoint` with a store; ended on leaving the context."""

    def __init__(
        self, source: Path, mountpoint: Path, store: Path, store_bytes: int, options: Iterable[str] = ()
    ) -> None:
        """Mount it. Raises ClickException in mummufs' own words if it cannot."""
        self.mountpoint = mountpoint
        self._process = ""
        mountpoint.mkdir(exist_ok=True)
        store.mkdir(exist_ok=True)
        wanted = [word for option in ("settle=0", *options) for word in ("-o", option)]
        self.command = ["mummufs", "mount", str(source), str(mountpoint), "--store", str(store)]
        self.command += ["--store-size", str(store_bytes), *wanted]
        try:
            with signals_wait():  # a mount command that is killed may leave a daemon that mounts later
                _mummufs(*self.command[1:])
            self.pid = int(self._settled(lambda status: status["state"] != "scanning")["pid"])
            self._process = process_subject(self.pid)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmount; by force if it is in use or does not end, so that what lies below it can be taken down."""
        if is_mounted(self.mountpoint):
            try:
                _mummufs("umount", str(self.mountpoint))
            except click.ClickException as error:
                click.echo(f"{error.message}; ending it by force", err=True)
                if is_mounted(self.mountpoint):
                    run("umount", "-l", self.mountpoint)
                if self._process:
                    end_process(self._process)
        self.mountpoint.rmdir()

    def status(self) -> dict[str, Any]:
        """What `mummufs status --json` prints."""
        try:
            return dict(control.request(self.mountpoint, "status"))
        except MummufsError as error:
            raise click.ClickException(f"the mount does not give its status: {error}") from None

    def use(self) -> Use:
        """What the daemon has done so far."""
        return Use(
            cpu_seconds(self.pid), dict(_numbers({k: v for k, v in self.status().items() if k not in NOT_COUNTED}))
        )

    def wait_filled(self) -> None:
        """Wait until nothing is being filled. Raises ClickException if that takes too long."""
        self._settled(lambda status: not status["store"]["filling"])

    def _settled(self, is_met: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        end = time.monotonic() + SETTLED_TIMEOUT_S
        while not is_met(status := self.status()):
            if time.monotonic() > end:
                raise click.ClickException(f"mummufs has not settled after {SETTLED_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)
        return status

    def wait_known(self, name: str) -> None:
        """Read the file's first page until its ranges are known: a read then is a miss or a hit, not a bypass."""
        end = time.monotonic() + KNOWN_TIMEOUT_S
        buffer = mmap.mmap(-1, PAGE_BYTES)
        descriptor = os.open(self.mountpoint / name, os.O_RDONLY | os.O_DIRECT)
        try:
            while True:
                os.preadv(descriptor, [buffer], 0)
                counters = self.use().counters
                if any(counters.get(key) for key in ("reads.misses", "reads.hits", "lane.hits")):
                    break
                if time.monotonic() > end:
                    raise click.ClickException(f"mummufs did not recognise the ranges of {name}")
                time.sleep(POLL_S)
        finally:
            os.close(descriptor)
            buffer.close()
        self.wait_filled()

    def wait_parsed(self, name: str) -> None:
        """Open the file once, and wait until its ranges, or that it has none, are known."""
        (self.mountpoint / name).open("rb").close()
        end = time.monotonic() + KNOWN_TIMEOUT_S
        while True:
            gauges = self.status()["gauges"]
            if gauges["parsed"] and not gauges["parsing"]:
                return
            if time.monotonic() > end:
                raise click.ClickException(f"mummufs did not look for the ranges of {name}")
            time.sleep(POLL_S)

    def warm(self, name: str) -> None:
        """Read the whole file until all of it comes from the store."""
        for _ in range(WARM_PASSES_MAX):
            before = self.use()
            drop_caches()
            try:
                read_through(self.mountpoint / name)
            except OSError as error:
                raise click.ClickException(f"{name} could not be read through the mount: {error.strerror}") from None
            self.wait_filled()
            if not self.use().since(before).slow_bytes:
                return
        raise click.ClickException(f"after {WARM_PASSES_MAX} passes {name} still does not come from the store whole")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and all its threads, those that have ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _numbers(status: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, float]]:
    for key, value in status.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", value


def _mummufs(*arguments: str) -> str:
    """Run a mummufs command from this repository."""
    command = ["env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-m", "mummufs", *arguments]
    return run(*command, timeout_s=COMMAND_TIMEOUT_S)
