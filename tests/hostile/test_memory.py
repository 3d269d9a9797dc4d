"""What the page cache holds: each byte once, not for the mount and for the store."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.hostile.support import MIB, PAGE
from tests.mounts.harness import Mounted, opened
from tests.mounts.lanes import LANE, lane, ranges, warm

RANGES = 4


def cached_bytes(*paths: Path) -> int:
    """How much of some files the page cache holds."""
    done = subprocess.run(["fincore", "-nbo", "RES", *paths], capture_output=True, text=True, check=True, timeout=30)
    return sum(map(int, done.stdout.split()))


def forget(*paths: Path) -> None:
    """Have the page cache let go of some files."""
    for path in paths:
        with opened(path) as fd:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.mount
def test_nothing_is_kept_in_memory_for_the_mount_and_for_the_store(tree: Path, store: Path) -> None:
    data = ranges(tree, *(4 * MIB,) * RANGES)
    forget(tree / "f")
    if cached_bytes(tree / "f"):
        pytest.skip("the files of these tests lie in memory anyway")
    with Mounted(tree, store=store, options=LANE) as m:
        assert m.read("f") == data
        m.settle()
        assert len(m.range_files()) == RANGES
        assert cached_bytes(m.path("f")) == len(data)
        assert cached_bytes(*m.range_files()) <= RANGES * PAGE, "their headers, when they have been written"
        warm(m, "f")  # who comes before a range is proved reads it by the engine, and that keeps pages
        forget(*m.range_files())
        before = lane(m)["hits"]
        assert m.read("f") == data
        assert lane(m)["hits"] > before
        assert cached_bytes(m.path("f")) == len(data)
        assert cached_bytes(*m.range_files()) <= len(data) // 10
