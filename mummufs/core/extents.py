"""Which bytes of a file have been written: a bounded list of runs that never leaves one out."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right

FILE_END = 1 << 63
"""Beyond every file."""
EXTENTS_MAX = 1024
"""Runs kept apart; beyond that the two that lie closest count as one, with what is between them."""


class Extents:
    """Runs of bytes `[start, end)`, in order and apart. O(log n) to ask, O(n) to add."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, start: int, end: int) -> None:
        """These bytes belong to it from now on."""
        if start >= end:
            return
        runs = self._runs
        first = bisect_left(runs, start, key=lambda run: run[1])
        last = bisect_right(runs, end, key=lambda run: run[0])
        if first < last:
            start, end = min(start, runs[first][0]), max(end, runs[last - 1][1])
        runs[first:last] = [(start, end)]
        if len(runs) > EXTENTS_MAX:
            i = min(range(1, len(runs)), key=lambda i: runs[i][0] - runs[i - 1][1])
            runs[i - 1 : i + 1] = [(runs[i - 1][0], runs[i][1])]

    def overlap(self, start: int, end: int) -> bool:
        """Whether one of these bytes belongs to it."""
        i = bisect_right(self._runs, start, key=lambda run: run[1])
        return i < len(self._runs) and self._runs[i][0] < end

    def _check(self) -> None:
        assert len(self._runs) <= EXTENTS_MAX, "the number of runs is bounded"
        assert all(a < b for a, b in self._runs), "a run has bytes"
        assert all(x[1] < y[0] for x, y in itertools.pairwise(self._runs)), "runs are in order and apart"
