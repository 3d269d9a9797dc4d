"""One timed run, always from the same state: caches dropped, memory pre-touched, and read once before if it is to be
hot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scripts.bench.benchlib import drop_caches, pretouch
from scripts.bench.loads import Run, Sample, read_through
from scripts.bench.places import memory_available_bytes
from scripts.bench.read_rows import COLD, Row

LIMIT_S = 1.0
COLD_LIMIT_S = 5.0
PRETOUCH_MARGIN_BYTES = 256 << 20


def prepare(data_bytes: int) -> None:
    """Drop the caches, and have memory at hand for `data_bytes` in the page cache, once and a quarter."""
    drop_caches()
    pretouch(min(PRETOUCH_MARGIN_BYTES + data_bytes * 5 // 4, memory_available_bytes() // 2))


def timed(row: Row, path: Path, number: int, work: Path) -> Sample:
    """Run a row's load over a file, in round `number`."""
    prepare(path.stat().st_size if row.load.cached else 0)
    if row.hot:
        read_through(path)
    limit_s = COLD_LIMIT_S if row.variant == COLD else LIMIT_S
    return row.load.measure(Run(path, limit_s, seed=number + 1, work=work))


def total(samples: Sequence[Sample]) -> Sample:
    """Runs of one load as one run."""
    seconds = sum(sample.seconds for sample in samples)
    return Sample(sum(sample.bytes for sample in samples), seconds, samples[0].command)
