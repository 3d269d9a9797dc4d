"""The helper waits for a source that fstab has not mounted yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from mummufs.core.errors import MummufsError
from mummufs.mount_helper import await_source


def _fstab(tmp_path: Path, line: str) -> Path:
    path = tmp_path / "fstab"
    path.write_text(f"# a comment\n/dev/none none swap sw 0 0\n{line}\n")
    return path


@pytest.mark.parametrize("at", ["/no/such volume", "/no/such volume/below/it"])
def test_a_source_that_is_not_mounted_is_waited_for_and_named(tmp_path: Path, at: str) -> None:
    fstab = _fstab(tmp_path, "/dev/sdz1 /no/such\\040volume btrfs defaults 0 0")
    with pytest.raises(MummufsError, match=r"'/no/such volume' is in .* but was not mounted within 0 s"):
        await_source(at, fstab, wait_s=0)


@pytest.mark.parametrize(
    "line",
    [
        "/dev/sdz1 /no/such btrfs noauto 0 0",
        "/dev/sdz1 /no/such-not btrfs defaults 0 0",
        "/dev/vda / ext4 defaults 0 1",
        "proc /proc proc defaults 0 0",
        "broken",
    ],
)
def test_nothing_to_wait_for(tmp_path: Path, line: str) -> None:
    await_source("/no/such/volume" if "such" in line else "/proc/sys", _fstab(tmp_path, line), wait_s=0)


def test_no_fstab(tmp_path: Path) -> None:
    await_source("/anywhere", tmp_path / "none", wait_s=0)
