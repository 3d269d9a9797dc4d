"""What was written to the store, by what it was for: the wear of the NVMe, as far as it is ours."""

from __future__ import annotations

import threading
from enum import Enum


class Purpose(Enum):
    """What bytes are written for."""

    RANGES = "ranges"
    """Range files: windows and headers, those of fills that came to nothing included."""
    TABLES = "tables"
    HEAT = "heat"
    OTHER = "other"
    """Probes, marks, and headers that are written anew."""


class Written:
    """Counts bytes since the mount. Any thread may add to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = dict.fromkeys(Purpose, 0)

    def add(self, purpose: Purpose, size: int) -> None:
        """So many bytes have been handed to the file system, or are about to be."""
        with self._lock:
            self._bytes[purpose] += size

    def of(self, purpose: Purpose) -> int:
        """The bytes of one purpose."""
        return self._bytes[purpose]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self._bytes.values())
