"""What the kernel lets a mount be told after mounting: read-ahead and the number of background requests.

Both are attempts. A user who is not root can often raise neither, and the mount works all the same; `status` shows what
holds.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import NamedTuple

READ_AHEAD_BYTES_DEFAULT = 1 << 20
"""One buffered stream went from 0.3 to 2.1 GB/s when read-ahead was raised from 128 KiB to 1 MiB."""
_CONNECTIONS = Path("/sys/fs/fuse/connections")
_CONGESTION_SHARE = 0.75
"""As the kernel has it: above this share of background requests it counts the device as congested."""


class Tuned(NamedTuple):
    """What holds now; None where it cannot be known."""

    read_ahead_bytes: int | None
    max_background: int | None


def tune(device: str, read_ahead_bytes: int, max_background: int) -> Tuned:
    """Set read-ahead and background requests of a mount, as far as this user may.

    Args:
        device: the mount's device number as in mountinfo, "major:minor".
    """
    read_ahead = Path("/sys/class/bdi") / device / "read_ahead_kb"
    _write(read_ahead, read_ahead_bytes >> 10)
    connection = _connection(device)
    if connection is not None:
        _write(connection / "max_background", max_background)
        _write(connection / "congestion_threshold", int(max_background * _CONGESTION_SHARE))
    kib = _read(read_ahead)
    return Tuned(
        None if kib is None else kib << 10,
        None if connection is None else _read(connection / "max_background"),
    )


def abort(device: str) -> bool:
    """End a connection from the kernel's side: every request that is under way fails."""
    connection = _connection(device)
    return connection is not None and _write(connection / "abort", 1)


def _connection(device: str) -> Path | None:
    path = _CONNECTIONS / device.split(":")[1]
    if not path.is_dir() and os.geteuid() == 0:
        # Where nothing has mounted the control file system (a container, a rescue system), do what systemd does.
        ctypes.CDLL(None).mount(b"fusectl", os.fsencode(_CONNECTIONS), b"fusectl", 0, None)
    return path if path.is_dir() else None


def _write(path: Path, value: int) -> bool:
    try:
        path.write_text(f"{value}\n")
    except OSError:
        return False
    return True


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
