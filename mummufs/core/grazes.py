"""How many distinct bytes of each absent window have been read: what the half of `plan.is_wanted` is counted with."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import OrderedDict

from mummufs.core.ranges import RangeKey

WINDOWS_MAX = 8192
"""Windows remembered at once; the one grazed longest ago is forgotten first, and has to be read anew."""

RUNS_MAX = 64
"""Separate runs remembered in one window; past that the window counts as it stands until it is filled or forgotten."""


class Grazes:
    """The distinct bytes read of windows that are not resident. The same bytes grazed twice count once."""

    def __init__(self) -> None:
        self._runs: OrderedDict[RangeKey, list[tuple[int, int]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, key: RangeKey, start: int, end: int) -> int:
        """Count `[start, end)` of the file as read and return the distinct bytes of the window read so far."""
        runs = self._runs.setdefault(key, [])
        self._runs.move_to_end(key)
        if len(self._runs) > WINDOWS_MAX:
            self._runs.popitem(last=False)
        first = bisect_left(runs, start, key=lambda run: run[1])
        last = bisect_right(runs, end, key=lambda run: run[0])
        if first < last:
            start, end = min(start, runs[first][0]), max(end, runs[last - 1][1])
        if first < last or len(runs) < RUNS_MAX:
            runs[first:last] = [(start, end)]
        return sum(stop - begin for begin, stop in runs)

    def runs(self, key: RangeKey) -> list[tuple[int, int]]:
        """The runs `[start, end)` read so far, in order and apart."""
        return list(self._runs.get(key, ()))

    def forget(self, key: RangeKey) -> None:
        """Drop what is known of a window: it is resident now, or its file has changed."""
        self._runs.pop(key, None)

    def _check(self) -> None:
        assert len(self._runs) <= WINDOWS_MAX, "the number of windows is bounded"
        for runs in self._runs.values():
            assert 0 < len(runs) <= RUNS_MAX, "the number of runs is bounded"
            assert all(a < b for a, b in runs), "a run has bytes"
            assert all(x[1] < y[0] for x, y in itertools.pairwise(runs)), "runs are in order and apart"
