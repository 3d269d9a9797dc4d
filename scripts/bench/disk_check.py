"""Whether a volume behaves like spinning disks: small random reads far below large ones, those below a stream."""

from __future__ import annotations

import mmap
import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from scripts.bench.benchlib import drop_caches

SMALL_BYTES = 128 << 10
LARGE_BYTES = 2 << 20
STREAM_BYTES = 8 << 20
RANDOM_READS = 100
LARGE_TO_SMALL_MIN = 5.0
STREAM_TO_LARGE_MIN = 2.0
FILL_BYTES = 8 << 20


@dataclass(frozen=True)
class Figures:
    """Measured rates in MB/s (10^6 bytes)."""

    random_128k_mb_s: float
    random_2m_mb_s: float
    sequential_mb_s: float

    @property
    def large_to_small(self) -> float:
        """Random 2 MiB over random 128 KiB."""
        return self.random_2m_mb_s / self.random_128k_mb_s

    @property
    def stream_to_large(self) -> float:
        """Sequential over random 2 MiB."""
        return self.sequential_mb_s / self.random_2m_mb_s

    def as_json(self) -> dict[str, float]:
        """All figures and ratios."""
        return {**asdict(self), "large_to_small": self.large_to_small, "stream_to_large": self.stream_to_large}


def faults(figures: Figures) -> list[str]:
    """What is wrong with the figures, one sentence each."""
    found = []
    if figures.large_to_small < LARGE_TO_SMALL_MIN:
        found.append(
            f"random 2 MiB is {figures.large_to_small:.1f} x random 128 KiB, and a spinning volume reaches"
            f" {LARGE_TO_SMALL_MIN:.0f} x"
        )
    if figures.stream_to_large < STREAM_TO_LARGE_MIN:
        found.append(
            f"sequential is {figures.stream_to_large:.1f} x random 2 MiB, and a spinning volume reaches"
            f" {STREAM_TO_LARGE_MIN:.0f} x"
        )
    return found


def rows(figures: Figures) -> list[tuple[str, str, str, str]]:
    """The table: what, MB/s, ratio to the row above, the ratio wanted."""
    large, stream = figures.large_to_small, figures.stream_to_large
    return [
        ("random 128 KiB", f"{figures.random_128k_mb_s:.1f}", "", ""),
        ("random 2 MiB", f"{figures.random_2m_mb_s:.1f}", f"{large:.1f} x", f">= {LARGE_TO_SMALL_MIN:.0f} x"),
        ("sequential 8 MiB", f"{figures.sequential_mb_s:.1f}", f"{stream:.1f} x", f">= {STREAM_TO_LARGE_MIN:.0f} x"),
    ]


def measure(directory: Path, size: int, set_mode: Callable[[str], None]) -> Figures:
    """Write a file of `size` bytes with the timing off, read it with the timing on, remove it."""
    if size < 2 * STREAM_BYTES:
        raise click.UsageError(f"the file has to be at least {2 * STREAM_BYTES >> 20} MiB")
    path = directory / ".deepmem-check"
    try:
        set_mode("fast")
        _fill(path, size)
        set_mode("slow")
        drop_caches()
        choose = random.Random(size)
        small = [choose.randrange(size // SMALL_BYTES) * SMALL_BYTES for _ in range(RANDOM_READS)]
        large = [choose.randrange(size // LARGE_BYTES) * LARGE_BYTES for _ in range(RANDOM_READS)]
        return Figures(
            random_128k_mb_s=_rate(path, SMALL_BYTES, small),
            random_2m_mb_s=_rate(path, LARGE_BYTES, large),
            sequential_mb_s=_rate(path, STREAM_BYTES, range(0, size - STREAM_BYTES + 1, STREAM_BYTES)),
        )
    finally:
        set_mode("fast")
        path.unlink(missing_ok=True)


def _fill(path: Path, size: int) -> None:
    block = random.Random(1).randbytes(FILL_BYTES)
    with path.open("wb") as file:
        for _ in range(-(-size // FILL_BYTES)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _rate(path: Path, block: int, offsets: Iterable[int]) -> float:
    """MB/s of O_DIRECT reads of `block` bytes, one after the other."""
    buffer = mmap.mmap(-1, block)  # page-aligned, as O_DIRECT wants it
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        done = 0
        start_s = time.monotonic()
        for offset in offsets:
            done += os.preadv(descriptor, [buffer], offset)
        return done / (time.monotonic() - start_s) / 1e6
    finally:
        os.close(descriptor)
        buffer.close()
