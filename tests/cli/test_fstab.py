"""An fstab line of mummufs makes a mount unit that systemd accepts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mummufs.options import parse_options

GENERATOR = Path("/usr/lib/systemd/system-generators/systemd-fstab-generator")
ANALYZE = shutil.which("systemd-analyze")

pytestmark = pytest.mark.skipif(
    not GENERATOR.exists() or ANALYZE is None,
    reason="systemd-fstab-generator or systemd-analyze is not installed",
)

OPTIONS = "ro,nofail,_netdev,allow_other,store=/var/cache/my\\040store,store_gb=4,x-systemd.mount-timeout=90"


def unit_of(tmp_path: Path) -> Path:
    """The mount unit made of an fstab with one line."""
    fstab = tmp_path / "fstab"
    fstab.write_text(f"/slow/my\\040models /srv/the\\040models fuse.mummufs {OPTIONS} 0 0\n")
    folders = [tmp_path / name for name in ("normal", "early", "late")]
    for folder in folders:
        folder.mkdir()
    subprocess.run([GENERATOR, *folders], env={**os.environ, "SYSTEMD_FSTAB": str(fstab)}, check=True)
    (unit,) = folders[0].glob("*.mount")
    return unit


def verify(unit: Path) -> tuple[int, str]:
    assert ANALYZE is not None
    done = subprocess.run([ANALYZE, "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_unit_is_accepted(tmp_path: Path) -> None:
    unit = unit_of(tmp_path)
    assert unit.name == r"srv-the\x20models.mount"
    assert verify(unit) == (0, "")


def test_a_wrong_unit_is_not(tmp_path: Path) -> None:
    unit = unit_of(tmp_path)
    unit.write_text(unit.read_text().replace("Where=/srv", "Where=/elsewhere"))
    assert verify(unit) != (0, "")


def test_the_unit_s_options_are_understood(tmp_path: Path) -> None:
    lines = dict(line.split("=", 1) for line in unit_of(tmp_path).read_text().splitlines() if "=" in line)
    assert (lines["What"], lines["Where"], lines["Type"]) == (
        "/slow/my models",
        "/srv/the models",
        "fuse.mummufs",
    )
    parsed = parse_options([lines["Options"]])
    assert parsed.values == {"store": "/var/cache/my store", "store_gb": "4"}
    assert parsed.warnings == ()
