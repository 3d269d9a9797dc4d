"""Other policies, and the optimum, by libcachesim: the judge that we did not write."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from scripts.bench.policy_traces import Trace

PAGE_BYTES = 4096
SKETCH_BYTES = 65536

RIVALS = {"LRU": PAGE_BYTES, "ARC": PAGE_BYTES, "S3FIFO": PAGE_BYTES, "Sieve": PAGE_BYTES, "WTinyLFU": SKETCH_BYTES}
"""By libcachesim's names, with the unit that sizes are given in: they are rounded to it.

In bytes the sketch of W-TinyLFU, which has a counter for each unit of the cache, would overflow to almost nothing.
"""
OPTIMUM = "Belady"
LABELS = {"S3FIFO": "S3-FIFO", "Sieve": "SIEVE", "WTinyLFU": "W-TinyLFU"}
"""Of those whose names are written otherwise."""

HASH_POWER = 16
"""Buckets of libcachesim's table, as a power of two. Its own default takes 128 MB for each cache."""
NEVER = -1

RECORD = np.dtype([("time", "<u4"), ("range", "<u8"), ("size", "<u4"), ("next_use", "<i8")])
"""An access in libcachesim's oracleGeneral format. Times, ranges and next uses count from 1."""


def library() -> Any:
    """Libcachesim. Raises ClickException where it is not installed, or not GLib, which it is linked with."""
    try:
        return importlib.import_module("libcachesim")
    except ModuleNotFoundError:
        raise click.ClickException("the judge is libcachesim: pip install '.[bench]'") from None
    except ImportError as error:
        raise click.ClickException(f"libcachesim does not load: {error}: apt-get install libglib2.0-0") from None


class Judge:
    """Judges one trace. A context manager: the trace is written to a temporary file."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._library = library()
        self._readers: dict[int, Any] = {}

    def __enter__(self) -> Judge:
        self._directory = tempfile.TemporaryDirectory(prefix="mummufs-policy-")
        return self

    def __exit__(self, *_: object) -> None:
        self._readers.clear()
        self._directory.cleanup()

    def miss_ratio(self, policy: str, budget_bytes: int) -> float:
        """Missed bytes over bytes read after the warm-up, in [0, 1]; `policy` is one of RIVALS or OPTIMUM."""
        unit = RIVALS.get(policy, PAGE_BYTES)
        reader, warmup = self._reader(unit), self._trace.warmup
        cache = getattr(self._library, policy)(budget_bytes // unit, hashpower=HASH_POWER)
        if warmup:
            cache.process_trace(reader, 0, warmup)
        _, of_bytes = cache.process_trace(reader, warmup)
        return float(of_bytes)

    def _reader(self, unit: int) -> Any:
        if unit not in self._readers:
            path = Path(self._directory.name) / f"{unit}.trace"
            records(self._trace, unit).tofile(path)
            kind = self._library.TraceType.ORACLE_GENERAL_TRACE
            self._readers[unit] = self._library.TraceReader(str(path), kind, self._library.ReaderInitParam())
        return self._readers[unit]


def records(trace: Trace, unit: int) -> NDArray[Any]:
    """The trace as libcachesim reads it, sizes in `unit` bytes."""
    count = len(trace.ranges)
    rows = np.zeros(count, RECORD)
    rows["time"] = np.arange(1, count + 1)
    rows["range"] = trace.ranges + 1
    rows["size"] = np.maximum(1, np.rint(trace.sizes / unit)).astype(np.uint32)[trace.ranges]
    order = np.argsort(trace.ranges, kind="stable")
    again = trace.ranges[order[:-1]] == trace.ranges[order[1:]]
    rows["next_use"] = NEVER
    rows["next_use"][order[:-1][again]] = order[1:][again] + 1
    return rows
