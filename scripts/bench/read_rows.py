"""The rows of the read benchmark: what is read how, through which mount, and how close to native it has to come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from scripts.bench.loads import FioLoad, Load, PageLoad

DEFAULT = "default"
NO_LANE = "no-lane"
DIRECT = "direct"
PASSTHROUGH = "passthrough"
COLD = "cold"
BUSY = "busy"
NO_LANE_PREFIX = "no_lane_"

VARIANTS = {
    DEFAULT: ("passthrough=off",),
    NO_LANE: ("passthrough=off", "lane=off"),
    DIRECT: ("passthrough=off", "io=direct"),
    PASSTHROUGH: ("passthrough=on",),
    BUSY: ("passthrough=off",),
    COLD: ("passthrough=off",),
}
"""The mounts that rows are run through, and the options of each. One whose last option this version lacks is left
out; `passthrough=off` is merely not said then."""


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        name: its key in the JSON.
        title: its name in the tables.
        load: how the file is read.
        variant: which mount it is read through.
        hot: read once before, so that the kernel's page cache has all of it.
        wanted: the least ratio to native; None where none is promised.
    """

    name: str
    title: str
    load: Load
    variant: str = DEFAULT
    hot: bool = False
    wanted: float | None = None


MIB = 1 << 20
KIB = 1 << 10


def _random(block_bytes: int, readers: int, *, direct: bool, wanted: float | None = None) -> Row:
    size = f"{block_bytes // MIB} MiB" if block_bytes >= MIB else f"{block_bytes // KIB} KiB"
    how = "O_DIRECT" if direct else "buffered"
    name = f"random_{size.replace(' ', '').removesuffix('iB').lower()}_x{readers}_{'direct' if direct else 'buffered'}"
    title = f"{how} random {size} x {readers}"
    return Row(name, title, FioLoad("randread", block_bytes, readers, direct), wanted=wanted)


SEQUENTIAL = FioLoad("read", 8 * MIB)
MMAP_SEQUENTIAL = PageLoad("mmap")
MMAP_EXPERTS = PageLoad("mmap", random=True)
MMAP_ROUTED = PageLoad("mmap", routed=True)

HEADLINE = (
    Row("hot_read", "RAM-hot read, sequential 8 MiB", SEQUENTIAL, hot=True, wanted=0.95),
    Row("hot_mmap", "RAM-hot mmap, every byte", PageLoad("mmap", passes=5, whole=True), hot=True, wanted=0.95),
    Row("hot_mmap_touch", "RAM-hot mmap, a word of each page", PageLoad("mmap", passes=9), hot=True, wanted=0.95),
    _random(8 * MIB, 4, direct=True, wanted=0.9),
    Row("sequential_8m_buffered", "buffered sequential 8 MiB", SEQUENTIAL, wanted=0.5),
    Row("mmap_sequential", "mmap sequential", MMAP_SEQUENTIAL, wanted=0.55),
    Row("mmap_random_experts", "mmap MADV_RANDOM, experts", PageLoad("mmap-random", random=True), wanted=5.0),
    Row("mmap_experts", "mmap, experts in random order", MMAP_EXPERTS, wanted=0.7),
    _random(4 * KIB, 8, direct=True, wanted=0.5),
)
"""The rows that have a target, through the default mount."""

DIRECT_ROWS = (
    Row("io_direct_random_1m_x4", "io=direct, random 1 MiB x 4", FioLoad("randread", MIB, 4), DIRECT, wanted=0.8),
    Row(
        "io_direct_random_1m_x4_direct",
        "io=direct, O_DIRECT random 1 MiB x 4",
        FioLoad("randread", MIB, 4, direct=True),
        DIRECT,
        wanted=0.8,
    ),
    Row("io_direct_random_8m_x4", "io=direct, random 8 MiB x 4", FioLoad("randread", 8 * MIB, 4), DIRECT),
    Row("io_direct_mmap_sequential", "io=direct, mmap sequential", MMAP_SEQUENTIAL, DIRECT),
)
PASSTHROUGH_ROWS = (
    Row("passthrough_sequential_8m", "no ranges, passthrough: sequential 8 MiB", SEQUENTIAL, PASSTHROUGH, wanted=0.95),
    Row("passthrough_mmap", "no ranges, passthrough: mmap sequential", MMAP_SEQUENTIAL, PASSTHROUGH, wanted=0.95),
    Row(
        "passthrough_random_8m_x4_direct",
        "no ranges, passthrough: O_DIRECT random 8 MiB x 4",
        FioLoad("randread", 8 * MIB, 4, direct=True),
        PASSTHROUGH,
        wanted=0.95,
    ),
)
COLD_ROWS = (
    Row("cold_sequential_8m", "cold miss: sequential 8 MiB", SEQUENTIAL, COLD, wanted=0.95),
    Row("cold_mmap_experts", "cold miss: mmap, experts in routing order", MMAP_ROUTED, COLD, wanted=1.5),
    Row("cold_mmap_random", "cold miss: mmap, ranges in random order", MMAP_EXPERTS, COLD),
)
OTHERS = (
    Row("sequential_8m_direct", "O_DIRECT sequential 8 MiB", FioLoad("read", 8 * MIB, direct=True)),
    *(
        _random(size, readers, direct=direct)
        for direct in (True, False)
        for size in (MIB, 8 * MIB)
        for readers in (1, 4, 16)
        if (size, readers, direct) != (8 * MIB, 4, True)  # a headline row
    ),
    _random(4 * KIB, 1, direct=True),
    _random(4 * KIB, 1, direct=False),
    _random(4 * KIB, 8, direct=False),
)
PEER_EXTRAS = frozenset(
    {"random_1m_x4_direct", "random_1m_x4_buffered", "random_4k_x1_direct", "random_4k_x8_buffered"}
)
NO_LANE_ROWS = tuple(
    replace(row, name=f"{NO_LANE_PREFIX}{row.name}", title=f"lane=off: {row.title}", variant=NO_LANE, wanted=None)
    for row in HEADLINE
    if not row.hot
)
BUSY_ROWS = tuple(
    replace(row, name=f"busy_{row.name}", title=f"while headers are parsed: {row.title}", variant=BUSY, wanted=0.8)
    for row in HEADLINE
)
"""Compared with themselves, on the same mount when it has nothing else to do."""

QUICK_ROWS = (*HEADLINE, *NO_LANE_ROWS, *DIRECT_ROWS[:2], *PASSTHROUGH_ROWS[:1], *COLD_ROWS[:2])
ROWS = (*HEADLINE, *OTHERS, *NO_LANE_ROWS, *DIRECT_ROWS, *PASSTHROUGH_ROWS, *BUSY_ROWS, *COLD_ROWS)
PEER_ROWS = (*HEADLINE, *(row for row in OTHERS if row.name in PEER_EXTRAS), *DIRECT_ROWS[:2])


def chosen(rows: Sequence[Row], patterns: Sequence[str]) -> list[Row]:
    """The rows that a command line asks for: those of the names given, or with the text given in their name; all for
    none. Raises UsageError if nothing is left."""
    names = {row.name for row in rows}
    wanted = [
        row
        for row in rows
        if not patterns or any(pattern == row.name if pattern in names else pattern in row.name for pattern in patterns)
    ]
    if not wanted:
        raise click.UsageError(f"no row has {' or '.join(patterns)} in its name")
    return wanted
