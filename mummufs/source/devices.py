"""How many reads a source's disks take well at once: from what the kernel says of them.

A spinning disk serves one request at a time, and more of them at once only move its head about. A btrfs has an
anonymous device number, so its member devices are found through its mount and /sys/fs/btrfs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

READS_ROTATIONAL = 4
"""Concurrent source reads where any member device spins or is not known."""
READS_SOLID = 16
"""Concurrent source reads otherwise."""
_DEPTH_MAX = 8
"""Layers of device mapper, md or loop that are looked through."""
_OCTAL = re.compile(r"\\([0-7]{3})")
"""How mountinfo writes a space, a tab, a newline or a backslash; other characters stand as they are."""


def suggested_reads(path: str, *, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> int:
    """The default limit of concurrent reads for the volume that `path` is on."""
    devices = member_devices(path, sys=sys, proc=proc)
    if devices and all(_is_solid(device, sys) for device in devices):
        return READS_SOLID
    return READS_ROTATIONAL


def spins(path: str, *, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> bool:
    """Whether the volume that `path` is on has a device that says that it spins. One that is not known does not."""
    return any("1" in _rotational(device, sys) for device in member_devices(path, sys=sys, proc=proc))


def member_devices(path: str, *, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> list[Path]:
    """The block devices below the volume that `path` is on, as resolved /sys directories; none if not known."""
    device = os.stat(path).st_dev
    block = sys / "dev/block" / f"{os.major(device)}:{os.minor(device)}"
    if block.exists():
        return [block.resolve()]
    mounted = _mounted_device(os.path.realpath(path), proc)
    if mounted is None:
        return []
    name = os.path.basename(os.path.realpath(mounted))
    for filesystem in sorted((sys / "fs/btrfs").glob("*-*")):
        members = sorted((filesystem / "devices").glob("*"))
        if any(member.name == name for member in members):
            return [member.resolve() for member in members]
    return []


def _mounted_device(path: str, proc: Path) -> str | None:
    """The device that the mount which holds `path` was made from."""
    best, device = "", None
    for line in (proc / "self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        fields = line.split(" ")
        dash = fields.index("-")
        mountpoint = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
        inside = mountpoint == "/" or path == mountpoint or path.startswith(mountpoint + "/")
        if inside and len(mountpoint) >= len(best):
            best, device = mountpoint, fields[dash + 2] if fields[dash + 1] == "btrfs" else None
    return device


def _is_solid(device: Path, sys: Path) -> bool:
    """Whether a block device, and every one below it, says that it does not spin."""
    return _rotational(device, sys) == {"0"}


def _rotational(device: Path, sys: Path, depth: int = 0) -> set[str]:
    """What a block device, or those below it, say of whether they spin: "0", "1", or "" where they do not."""
    whole = device.parent if (device / "partition").exists() else device
    lower = sorted((whole / "slaves").glob("*"))
    if lower and depth < _DEPTH_MAX:
        return {said for slave in lower for said in _rotational(slave.resolve(), sys, depth + 1)}
    try:
        return {(whole / "queue/rotational").read_text().strip()}
    except OSError:
        return {""}
