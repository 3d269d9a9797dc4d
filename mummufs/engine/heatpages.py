"""Heat for a client of the control socket, page by page: out to a profile, and in from one.

The client does what takes long: it finds the paths of files, and the files of paths. One walk is under way at a time; a
client that goes away leaves nothing but an iterator, which the next one replaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import NamedTuple

import trio

from mummufs.core.errors import MummufsError
from mummufs.core.ranges import FileId, RangeKey
from mummufs.core.ratings import HeatRecord
from mummufs.engine.cache import Cache
from mummufs.engine.heatkeeper import HeatKeeper
from mummufs.engine.nodes import NodeTable

PAGE_RANGES = 500
"""Ranges of one answer, and the most of one request: what fits a request of 64 KiB."""
STEP = 100
"""Ranges between two checkpoints."""
OFFSET_MAX = (1 << 63) - 1
NUMBER_MAX = (1 << 64) - 1
HEAT_MAX = 64.0
"""Heat from outside is taken for no more than this."""


class HeatPage(NamedTuple):
    """A page of a walk: its number, to go on with; the ranges; whether there are more."""

    walk: int
    ranges: list[HeatRecord]
    more: bool


class HeatPages:
    """Gives heat out and takes it in."""

    def __init__(self, cache: Cache, keeper: HeatKeeper) -> None:
        self._index = cache.index
        self._keeper = keeper
        self._walk: Iterator[list[HeatRecord]] = iter(())
        self._number = 0

    async def page(self, walk: int | None) -> HeatPage:
        """The next ranges that have heat.

        Args:
            walk: the number of the walk that is gone on with; None for a new one.

        Raises:
            MummufsError: another client has begun one since.
        """
        if walk is None:
            self._number += 1
            self._walk = self._index.hot_steps(STEP)
        elif walk != self._number:
            raise MummufsError("another profile of this mount is being saved: try again when it is done")
        number, steps = self._number, self._walk
        found: list[HeatRecord] = []
        for _ in range(PAGE_RANGES // STEP):
            step = next(steps, None)
            if step is None:
                return HeatPage(number, found, more=False)
            found += step
            await trio.lowlevel.checkpoint()
        return HeatPage(number, found, more=True)

    async def recall(self, rows: object) -> int:
        """Add heat to ranges. A row is file system, inode, offset, size, heat; the hottest come first.

        Returns:
            how many rows there were.

        Raises:
            MummufsError: one is no such row, or they are too many; then nothing was added.
        """
        if not isinstance(rows, list) or len(rows) > PAGE_RANGES:
            raise MummufsError(f"heat comes in lists of at most {PAGE_RANGES} ranges")
        records = [_record(row) for row in rows]
        for at in range(0, len(records), STEP):
            for record in records[at : at + STEP]:
                self._index.recall(record)
            await trio.lowlevel.checkpoint()
        self._keeper.changed()
        return len(records)


def known_paths(nodes: NodeTable, rows: object) -> list[bytes | None]:
    """The paths of files as they were last looked up; None where nobody has looked. A row is file system, inode.

    Raises:
        MummufsError: one is no such row, or they are too many.
    """
    if not isinstance(rows, list) or len(rows) > PAGE_RANGES:
        raise MummufsError(f"files come in lists of at most {PAGE_RANGES}")
    found: list[bytes | None] = []
    for row in rows:
        if not (isinstance(row, list) and len(row) == 2 and all(_is_number(n, NUMBER_MAX) for n in row)):
            raise MummufsError("a file is named by two numbers")
        node = nodes.current(FileId(*row))
        found.append(None if node is None or node.stale or node.lost else node.path)
    return found


def _record(row: object) -> HeatRecord:
    if isinstance(row, list) and len(row) == 5:
        *numbers, heat = row
        limits: Sequence[int] = (NUMBER_MAX, NUMBER_MAX, OFFSET_MAX, OFFSET_MAX)
        fits = all(_is_number(n, limit) for n, limit in zip(numbers, limits, strict=True))
        if fits and numbers[3] > 0 and isinstance(heat, int | float) and isfinite(heat):
            filesystem, inode, offset, size = numbers
            return HeatRecord(RangeKey(FileId(filesystem, inode), offset, size), min(HEAT_MAX, float(heat)), 0)
    raise MummufsError("a range is given by four numbers and its heat")


def _is_number(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit
