"""What a mount with a store has and one without has not."""

from __future__ import annotations

from dataclasses import dataclass

from mummufs.core.index import CacheIndex
from mummufs.engine.evictor import Evictor
from mummufs.engine.filler import Filler
from mummufs.engine.gate import Gate
from mummufs.engine.prefetch import Prefetcher
from mummufs.engine.resident import Resident
from mummufs.engine.tracing import Tracing
from mummufs.store.rangestore import RangeStore


@dataclass(frozen=True)
class Cache:
    """The index that decides, the store that holds, and who moves ranges in and out."""

    index: CacheIndex
    resident: Resident
    store: RangeStore
    filler: Filler
    evictor: Evictor
    gate: Gate
    tracing: Tracing
    prefetch: Prefetcher | None = None
