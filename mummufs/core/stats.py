"""Counters, as plain values. Everything that has a limit counts here; `control` turns them into `status`."""

from __future__ import annotations

from dataclasses import dataclass, field

from mummufs.core.plan import SegmentKind


@dataclass
class ReadCounters:
    """Requests by their worst segment, and bytes by segment. hit + miss + bypass bytes = bytes replied."""

    hits: int = 0
    misses: int = 0
    bypasses: int = 0
    hit_bytes: int = 0
    miss_bytes: int = 0
    bypass_bytes: int = 0
    replied_bytes: int = 0

    def request(self, worst: SegmentKind) -> None:
        """Count one request."""
        if worst is SegmentKind.HIT:
            self.hits += 1
        elif worst is SegmentKind.MISS:
            self.misses += 1
        else:
            self.bypasses += 1

    def segment(self, kind: SegmentKind, size: int) -> None:
        """Count the bytes of one segment."""
        if kind is SegmentKind.HIT:
            self.hit_bytes += size
        elif kind is SegmentKind.MISS:
            self.miss_bytes += size
        else:
            self.bypass_bytes += size


@dataclass
class FillCounters:
    """Fills by how they ended; `bytes` are window bytes written to range files that were completed.

    `declined` fills were refused by the index, `budget_declined` ones by the budget of writes, `dropped` ones were
    wanted while the filler was at one of its limits, `unsettled` ones of a file that had only just changed or that
    somebody had open for writing. `aborted` ones had begun. `restamped` ranges were those of a file of which only the
    ctime had changed: the source was read and nothing but a header was written. `stamped` ones were those of a file
    that was written through the mount, elsewhere.
    """

    completed: int = 0
    aborted: int = 0
    declined: int = 0
    budget_declined: int = 0
    dropped: int = 0
    unsettled: int = 0
    restamped: int = 0
    stamped: int = 0
    bytes: int = 0


@dataclass
class EvictionCounters:
    """Ranges that gave up their place; `bytes` are bytes of the budget. `returned` ones kept it after all."""

    ranges: int = 0
    bytes: int = 0
    returned: int = 0


@dataclass
class SourceCounters:
    """Reads that reached the source, and the bytes they returned.

    `background` of them were such that nobody waited for. `merged` windows were read in one pass with another. Disks
    were asked for `along_bytes` beside what was wanted, since they were there.
    """

    count: int = 0
    bytes: int = 0
    background: int = 0
    merged: int = 0
    along_bytes: int = 0


@dataclass
class SourceWriteCounters:
    """Writes that reached the source, and their bytes."""

    count: int = 0
    bytes: int = 0


@dataclass
class ErrorCounters:
    """Faults by where they arose. None of them but `source` was seen by a reader.

    `store` counts every fault of the store, `corrupt` those of them where a range file was not what it said.
    """

    store: int = 0
    source: int = 0
    handler: int = 0
    corrupt: int = 0
    stale: int = 0


@dataclass
class Counters:
    """All counters of one mount."""

    reads: ReadCounters = field(default_factory=ReadCounters)
    fills: FillCounters = field(default_factory=FillCounters)
    evictions: EvictionCounters = field(default_factory=EvictionCounters)
    source_reads: SourceCounters = field(default_factory=SourceCounters)
    source_writes: SourceWriteCounters = field(default_factory=SourceWriteCounters)
    errors: ErrorCounters = field(default_factory=ErrorCounters)
