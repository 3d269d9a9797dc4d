"""The garbage collector of a daemon, kept to pauses of a few milliseconds.

A full collection looks at every object there is. With a million ranges that is a second during which no thread of
Python runs. But what has outlived one is there to stay: once a collection has taken longer than PAUSE_S, it is frozen,
so that the next one looks at what is new alone. Whatever becomes a cycle of garbage after that is not found. There are
few, because what this project lets go of it lets go of by counts of references: an error that is kept, or that has
come through a worker thread, is stripped of its frames (`engine.threads`). A daemon of few ranges freezes nothing.
"""

from __future__ import annotations

import gc
from time import perf_counter

FULL_AFTER = 5
"""A full collection comes after so many of the middle generation, of at most 7,000 objects each: some 3 ms."""
PAUSE_S = 0.005
"""What a full collection may take; at the first one that takes longer, what it has passed over is frozen."""


class _Freezer:
    """Told when a collection begins and ends."""

    def __init__(self) -> None:
        self._began_s = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began_s = perf_counter()
        elif perf_counter() - self._began_s > PAUSE_S:
            gc.freeze()


_freeze_survivors = _Freezer()


def tame() -> None:
    """Keep the collector's pauses short from now on. It may be called again."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_AFTER)
    if _freeze_survivors not in gc.callbacks:
        gc.callbacks.append(_freeze_survivors)
    gc.collect()
