"""What a power cut would take: the contents that each file had when it was last synced.

ext4, xfs and btrfs were all seen to keep a name (created or renamed) whose bytes were never synced; the file was then
empty, cut short or full of zeros. So names survive here, and `lose_power` puts the bytes back to the last sync.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

LOSSES = ("empty", "short", "zeros", "holes")
PAGE = 4096


@dataclass
class _Dirty:
    descriptor: int
    """Pins the inode: its number is not given to another file meanwhile."""
    synced: bytes


def _empty(synced: bytes, written: bytes) -> bytes:
    return synced


def _short(synced: bytes, written: bytes) -> bytes:
    return synced + written[len(synced) : (len(synced) + len(written)) // 2]


def _zeros(synced: bytes, written: bytes) -> bytes:
    return synced.ljust(len(written), b"\0")


def _holes(synced: bytes, written: bytes) -> bytes:
    left = bytearray(_zeros(synced, written))
    for start in range(0, len(written), 2 * PAGE):
        left[start : start + PAGE] = written[start : start + PAGE]
    return bytes(left)


_LEFT = dict(zip(LOSSES, (_empty, _short, _zeros, _holes), strict=True))
"""By loss: what is left of a file's synced and of its written contents."""


class Unsynced:
    """The files that have been written to since they were last synced."""

    def __init__(self) -> None:
        self._files: dict[tuple[int, int], _Dirty] = {}

    def changing(self, path: str) -> None:
        """Call before each change of a regular file's bytes: the first one after a sync keeps what is there."""
        status = os.stat(path)
        key = (status.st_dev, status.st_ino)
        if key in self._files or not stat.S_ISREG(status.st_mode):
            return
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._files[key] = _Dirty(descriptor, os.pread(descriptor, status.st_size, 0))

    def synced(self, descriptor: int) -> None:
        """A file's bytes have reached the disk."""
        status = os.fstat(descriptor)
        dirty = self._files.pop((status.st_dev, status.st_ino), None)
        if dirty is not None:
            os.close(dirty.descriptor)

    def lose_power(self, loss: str) -> int:
        """Take away what was not synced; how many files that have a name lost bytes.

        Args:
            loss: of the bytes written since, "empty" leaves none, "short" the first half, "zeros" as many zeros,
                "holes" every second page (the first one stays), with zeros between.
        """
        if loss not in LOSSES:
            raise ValueError(f"there is no loss {loss!r}; there are {', '.join(LOSSES)}")
        lost = 0
        for dirty in self._files.values():
            status = os.fstat(dirty.descriptor)
            written = os.pread(dirty.descriptor, status.st_size, 0)
            kept = _LEFT[loss](dirty.synced, written)
            lost += status.st_nlink > 0 and written != kept
            os.ftruncate(dirty.descriptor, 0)
            os.pwrite(dirty.descriptor, kept, 0)
            os.close(dirty.descriptor)
        self._files.clear()
        return lost
