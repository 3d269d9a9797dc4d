"""Unbuffered reads: merged requests against one read per window, by O_DIRECT.

Windows of 544 KiB (an expert of a mixture-of-experts model) lie one behind the other in a file; a share of them, chosen
at random, is read in batches as long as a layer. Both ways read past the page cache and have a batch in flight at once:

    windows   each window by a read of its own
    merged    as core/unbuffered plans it: windows less than 1 MiB apart in requests of at most 32 MiB

Bytes per second are those that were wanted; those of gaps are read for nothing and do not count.
"""

from __future__ import annotations

import mmap
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from mummufs.core.ranges import ByteRange
from mummufs.core.unbuffered import plan_requests
from mummufs.source.base import Wanted
from mummufs.source.direct import DirectFile
from mummufs.source.unbuffered import Request, read_planned

WINDOW_BYTES = 544 << 10
LAYER_WINDOWS = 128
SHARES = (0.0625, 0.25, 0.5, 1.0)
ROUNDS = 5

Way = Callable[[DirectFile, Sequence[Wanted]], None]


def by_window(file: DirectFile, wanted: Sequence[Wanted]) -> None:
    """Each window by a read of its own, all of them at once."""
    file.read_at_once([Request(part.offset, part.place) for part in wanted])


def merged(file: DirectFile, wanted: Sequence[Wanted]) -> None:
    """As planned."""
    read_planned(file, wanted)


def measure(file: DirectFile, layers: int, share: float, way: Way, seed: int) -> float:
    """Bytes per second of windows chosen at random, a layer at a time."""
    rng = random.Random(seed)
    size, spent_s = 0, 0.0
    for layer in range(layers):
        chosen = sorted(rng.sample(range(LAYER_WINDOWS), max(1, int(share * LAYER_WINDOWS))))
        offsets = [(layer * LAYER_WINDOWS + i) * WINDOW_BYTES for i in chosen]
        wanted = [Wanted(offset, memoryview(mmap.mmap(-1, WINDOW_BYTES))) for offset in offsets]
        begun = time.perf_counter()
        way(file, wanted)
        spent_s += time.perf_counter() - begun
        size += len(wanted) * WINDOW_BYTES
    return size / spent_s


def requests_of(share: float) -> tuple[int, int]:
    """How many requests a layer takes each way."""
    chosen = sorted(random.Random(0).sample(range(LAYER_WINDOWS), max(1, int(share * LAYER_WINDOWS))))
    return len(chosen), len(plan_requests(ByteRange(i * WINDOW_BYTES, WINDOW_BYTES) for i in chosen))


@click.command(help=__doc__)
@click.argument("directory", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.option("--layers", default=8, show_default=True, help="Layers of 128 windows in the file.")
def main(directory: Path, layers: int) -> None:
    """Make a file in DIRECTORY, measure, remove it."""
    path = directory / "unbuffered-bench"
    try:
        with path.open("wb") as out:
            for layer in range(layers):
                out.write(random.Random(layer).randbytes(LAYER_WINDOWS * WINDOW_BYTES))
        with path.open("rb") as opened:
            file = DirectFile(opened.fileno())
        click.echo("share of windows  requests a layer (windows, merged)  MB/s: windows  merged  ratio")
        for share in SHARES:
            speeds: dict[Way, list[float]] = {by_window: [], merged: []}
            for number in range(ROUNDS):
                for way, found in speeds.items():
                    found.append(measure(file, layers, share, way, number))
            alone, together = (statistics.median(found) / 1e6 for found in speeds.values())
            counts = "{:>4} {:>4}".format(*requests_of(share))
            click.echo(f"{share:>16.1%}  {counts:>33}  {alone:>14.0f}  {together:>6.0f}  {together / alone:>5.2f}")
        file.close()
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
