"""The garbage collector of a daemon, kept to pauses of a few milliseconds.

A full collection looks at every object there is. With a million ranges that is a second during which no thread of
Python runs. But what has outlived one is there to stay: it is frozen, so that the next one looks at what is new alone.
Whatever becomes a cycle of garbage after that is not found; there are few, because what this project lets go of it
lets go of by counts of references.
"""

from __future__ import annotations

import gc

FULL_AFTER = 5
"""A full collection comes after so many of the middle generation, of at most 7,000 objects each: some 3 ms."""


def tame() -> None:
    """Keep the collector's pauses short from now on. It may be called again."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_AFTER)
    if _freeze_survivors not in gc.callbacks:
        gc.callbacks.append(_freeze_survivors)
    gc.collect()


def _freeze_survivors(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
