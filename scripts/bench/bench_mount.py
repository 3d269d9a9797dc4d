"""A mummufs mount for a benchmark: started, warmed and ended through its command line, as its users do."""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click

from scripts.bench.benchlib import COMMAND_TIMEOUT_S, drop_caches, is_mounted, run, signals_wait
from scripts.bench.launch import REPOSITORY

WARM_PASSES_MAX = 8
FILL_TIMEOUT_S = 300.0
KNOWN_TIMEOUT_S = 60.0
POLL_S = 0.05
COPY_BYTES = 8 << 20
PAGE_BYTES = 4096


class BenchMount:
    """`source` mounted at `mountpoint` with a store; ended on leaving the context."""

    def __init__(self, source: Path, mountpoint: Path, store: Path, store_bytes: int) -> None:
        """Mount it. Raises ClickException in mummufs' own words if it cannot."""
        self.mountpoint = mountpoint
        mountpoint.mkdir(exist_ok=True)
        store.mkdir(exist_ok=True)
        try:
            options = ["--store", str(store), "--store-size", str(store_bytes), "-o", "settle=0"]
            with signals_wait():  # a mount command that is killed may leave a daemon that mounts later
                _mummufs("mount", str(source), str(mountpoint), *options)
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
        """Unmount, lazily if it is in use."""
        if is_mounted(self.mountpoint):
            try:
                _mummufs("umount", str(self.mountpoint))
            except click.ClickException as error:
                click.echo(f"{error.message}; detaching it", err=True)
                run("umount", "-l", self.mountpoint)
        self.mountpoint.rmdir()

    def status(self) -> dict[str, Any]:
        """`mummufs status --json`."""
        status: dict[str, Any] = json.loads(_mummufs("status", str(self.mountpoint), "--json"))
        return status

    def reads(self) -> dict[str, int]:
        """The read counters."""
        counters: dict[str, int] = self.status()["reads"]
        return counters

    def wait_filled(self) -> None:
        """Wait until nothing is being filled. Raises ClickException if that takes too long."""
        end = time.monotonic() + FILL_TIMEOUT_S
        while self.status()["store"]["filling"]:
            if time.monotonic() > end:
                raise click.ClickException(f"mummufs was still filling after {FILL_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)

    def wait_known(self, name: str) -> None:
        """Read the file's first page until its ranges are known: a read then is a miss or a hit, not a bypass."""
        end = time.monotonic() + KNOWN_TIMEOUT_S
        buffer = mmap.mmap(-1, PAGE_BYTES)
        descriptor = os.open(self.mountpoint / name, os.O_RDONLY | os.O_DIRECT)
        try:
            while True:
                os.preadv(descriptor, [buffer], 0)
                reads = self.reads()
                if reads["misses"] or reads["hits"]:
                    break
                if time.monotonic() > end:
                    raise click.ClickException(f"mummufs did not recognise the ranges of {name}")
                time.sleep(POLL_S)
        finally:
            os.close(descriptor)
            buffer.close()
        self.wait_filled()

    def warm(self, name: str) -> None:
        """Read the whole file until all of it comes from the store."""
        for _ in range(WARM_PASSES_MAX):
            before = self.reads()
            drop_caches()
            with (self.mountpoint / name).open("rb", buffering=0) as file:
                while file.read(COPY_BYTES):
                    pass
            self.wait_filled()
            after = self.reads()
            if all(after[key] == before[key] for key in ("miss_bytes", "bypass_bytes")):
                return
        raise click.ClickException(f"after {WARM_PASSES_MAX} passes {name} still does not come from the store whole")


def _mummufs(*arguments: str) -> str:
    """Run a mummufs command from this repository."""
    command = ["env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-m", "mummufs", *arguments]
    return run(*command, timeout_s=COMMAND_TIMEOUT_S)
