"""Every test here makes real mounts, in surroundings that are out to break them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faultfs.client import FaultFs
from tests.support.fixtures import mounts, store, tree

__all__ = ["mounts", "store", "tmpfs", "tree", "under"]


@pytest.fixture
def under(tmp_path: Path) -> Iterator[FaultFs]:
    """A layer under the store."""
    back = tmp_path / "disk"
    back.mkdir()
    with FaultFs(back) as layer:
        yield layer


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes a tmpfs with the options given: its directory."""
    made: list[Path] = []

    def make(options: str) -> Path:
        path = tmp_path / f"tmpfs{len(made)}"
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True)
        made.append(path)
        return path

    yield make
    for path in reversed(made):
        subprocess.run(["umount", "-l", os.fspath(path)], check=True)
