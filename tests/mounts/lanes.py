"""What the tests of the lane share: a mount that has one, its status, and a daemon with other limits than ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.mounts.harness import REPOSITORY, Mounted, opened
from tests.support.models import write_native
from tests.support.waiting import wait_for

KIB, MIB = 1 << 10, 1 << 20
PAGE = 4096
LANE = ("settle=0", "lane=on", "passthrough=off")


def lane(m: Mounted) -> dict[str, Any]:
    """The lane's part of the status."""
    found = m.status()["lane"]
    assert isinstance(found, dict)
    return found


def warm(m: Mounted, *names: str) -> None:
    """Read these files until the store has their ranges and has proved them, so that the lane may serve them."""
    for _ in range(2):
        m.drop_pages(*names)
        for name in names:
            m.read(name)
        m.settle()
    m.drop_pages(*names)


class Served:
    """What was served in a block, by whom: the lane, and all who serve from the store or the source."""

    def __init__(self, m: Mounted) -> None:
        self._m = m
        self._before: dict[str, Any] = {}
        self.after: dict[str, Any] = {}

    def __enter__(self) -> Served:
        self._before = self._m.settle()
        return self

    def __exit__(self, *_: object) -> None:
        self.after = self._m.settle()

    def __getitem__(self, name: str) -> int:
        """By how much a count of `lane` or `reads` has risen: "lane.hits"."""
        part, _, key = name.partition(".")
        return int(self.after[part][key]) - int(self._before[part][key])


def ranges(tree: Path, *sizes: int, name: str = "f", gap: int = 0) -> bytes:
    """A file of ranges of these sizes; its bytes."""
    write_native(tree / name, sizes=sizes, gap=gap)
    return (tree / name).read_bytes()


def pread(path: Path, size: int, offset: int) -> bytes:
    """One read of one open of its own."""
    with opened(path) as fd:
        return os.pread(fd, size, offset)


class Limited(Mounted):
    """A mount whose daemon has other limits: `{"module:NAME": number}`."""

    process: subprocess.Popen[bytes]

    def __init__(self, *args: Any, limits: dict[str, int], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits

    def mount(self) -> None:
        command = [sys.executable, "-m", "tests.mounts.lanes", json.dumps(self._limits), *self.arguments()]
        self.process = subprocess.Popen(
            [*command, "--foreground"], cwd=REPOSITORY, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for(self.log.read_text, lambda text: f"mounted {self.source} at" in text)
        self.take_in()

    def take_down(self) -> None:
        try:
            super().take_down()
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()


def _main() -> None:
    for place, value in json.loads(sys.argv.pop(1)).items():
        module, _, name = place.partition(":")
        assert isinstance(getattr(import_module(module), name), int), place
        setattr(import_module(module), name, value)
    import_module("mummufs.cli").main()


if __name__ == "__main__":
    _main()
