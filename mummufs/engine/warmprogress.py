"""What a warm is asked for, how far it is, and why ranges are left out."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Reason(Enum):
    """Why a range that was asked for is not in the store."""

    BUDGET = "budget"
    """The budget is too small: what could make room is of a model in use and hot, pinned, or asked for too."""
    WRITE_BUDGET = "write_budget"
    """The day's allowance of writes is used up, or kept for what is hotter."""
    SETTLING = "settling"
    """Its file has only just changed, or somebody has it open for writing."""
    SOURCE = "source"
    """The source failed, or the file changed meanwhile."""
    STORE = "store"
    """The store is at fault, or its file system is full."""
    UNKNOWN = "unknown"
    """Its file has no such range: the profile is of another version."""


class Target(NamedTuple):
    """A file to warm.

    Attributes:
        path: below the source.
        windows: offset and size of each window that is meant, one after the other; None for all.
    """

    path: bytes
    windows: array[int] | None = None


@dataclass
class Tally:
    """Some ranges, and the bytes of their windows."""

    ranges: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        """One more."""
        self.ranges += 1
        self.bytes += size


@dataclass
class WarmProgress:
    """How far a warm is.

    Attributes:
        counted: whether `asked` is all that was asked for.
        files, files_done: to be gone through, and gone through.
        without_ranges: files that no format recognises, or that have no range of the names asked for.
        failed_files: files that could not be opened.
        asked: ranges asked for.
        resident: of these, found or brought into the store.
        filled: of these, brought.
        declined: the others, by reason.
    """

    counted: bool = False
    files: int = 0
    files_done: int = 0
    without_ranges: int = 0
    failed_files: int = 0
    error: str = ""
    asked: Tally = field(default_factory=Tally)
    resident: Tally = field(default_factory=Tally)
    filled: Tally = field(default_factory=Tally)
    declined: dict[Reason, Tally] = field(default_factory=dict)

    def decline(self, size: int, reason: Reason) -> None:
        """A range could not be brought."""
        self.declined.setdefault(reason, Tally()).add(size)

    @property
    def looked_at_bytes(self) -> int:
        """Bytes of what is settled, one way or the other."""
        return self.resident.bytes + sum(tally.bytes for tally in self.declined.values())
