"""The directory as if on one spinning disk: the same bytes and names, later."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faultfs.client import REPOSITORY, is_mounted

pytestmark = pytest.mark.mount

CONTENTS = bytes(range(256)) * 4096
SEEK_MS = 50
START_TIMEOUT_S = 20.0


@pytest.fixture
def back(tmp_path: Path) -> Path:
    """Two files, one in a sub-directory, and a link."""
    back = tmp_path / "back, with a comma"
    (back / "sub dir").mkdir(parents=True)
    (back / "file").write_bytes(CONTENTS)
    (back / "sub dir" / "other").write_bytes(CONTENTS[::-1])
    os.symlink("../file", back / "sub dir" / "link")
    return back


@pytest.fixture
def slow(back: Path, tmp_path: Path) -> Iterator[Path]:
    """The mount of `back`; it ends with exit code 0 on SIGTERM and leaves nothing."""
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    script = str(REPOSITORY / "scripts/bench/slowfs")
    command = [sys.executable, script, str(back), str(mountpoint), "--seek-ms", str(SEEK_MS)]
    process = subprocess.Popen(command)
    try:
        end = time.monotonic() + START_TIMEOUT_S
        while not is_mounted(mountpoint):
            assert process.poll() is None and time.monotonic() < end, "slowfs did not come up"
            select.select([], [], [], 0.01)
        yield mountpoint
    finally:
        process.terminate()
        code = process.wait(10)
    assert code == 0
    assert not is_mounted(mountpoint)


def test_names_attributes_and_bytes_are_the_same(back: Path, slow: Path) -> None:
    assert sorted(os.listdir(slow)) == ["file", "sub dir"]
    assert (slow / "file").read_bytes() == CONTENTS
    assert (slow / "sub dir" / "link").read_bytes() == CONTENTS
    assert (slow / "sub dir" / "other").read_bytes() == CONTENTS[::-1]
    for name in ("file", "sub dir/other"):
        seen, real = (slow / name).stat(), (back / name).stat()
        assert (seen.st_mode, seen.st_size, seen.st_mtime_ns) == (real.st_mode, real.st_size, real.st_mtime_ns)
    with pytest.raises(OSError, match="Read-only file system"):
        (slow / "file").write_bytes(b"")


def test_a_read_elsewhere_takes_a_seek(slow: Path) -> None:
    descriptor = os.open(slow / "file", os.O_RDONLY | os.O_DIRECT)
    try:
        start_s = time.monotonic()
        for offset in (0, 512 << 10, 128 << 10, 768 << 10):
            os.pread(descriptor, 4096, offset)
        assert time.monotonic() - start_s >= 4 * SEEK_MS / 1e3
    finally:
        os.close(descriptor)
