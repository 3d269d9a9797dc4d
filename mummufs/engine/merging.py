"""Which windows are read together: those that lie close together by one pass, and passes by one batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mummufs.core.ranges import RangeKey
from mummufs.engine.flight import Flight

MERGE_GAP_BYTES = 1 << 20
"""Windows closer than this are read together, and what lies between as well: it costs less than a seek."""
MERGE_MAX_BYTES = 32 << 20
"""The most that is read together."""
BATCH_FLIGHTS_MAX = 64
"""Flights that are read in one batch, each of which is a request at least, where the source reads several at once."""
BATCH_BYTES_MAX = MERGE_MAX_BYTES
"""What they bring, unless a single one brings more."""


def merged(keys: Sequence[RangeKey]) -> list[list[RangeKey]]:
    """Windows of one file, in the order of their offsets, in groups that are read together."""
    groups: list[list[RangeKey]] = []
    end = 0
    for key in keys:
        near = groups and key.offset - end < MERGE_GAP_BYTES
        end = key.offset + key.size
        if near and end - groups[-1][0].offset <= MERGE_MAX_BYTES:
            groups[-1].append(key)
        else:
            groups.append([key])
    return groups


def batches(flights: Iterable[Flight]) -> list[list[Flight]]:
    """Flights in batches, each of which is read at once."""
    found: list[list[Flight]] = []
    size = 0
    for flight in flights:
        if not found or len(found[-1]) == BATCH_FLIGHTS_MAX or size + flight.window.size > BATCH_BYTES_MAX:
            found.append([])
            size = 0
        found[-1].append(flight)
        size += flight.window.size
    return found
