"""Which models are in use: those that were read in the last minutes.

The index has no clock; it numbers touches. What its number was some minutes ago is noted here, so that reads need not
be dated one by one: a model whose last touch has a larger number was read since.
"""

from __future__ import annotations

from collections import deque

import trio

from mummufs.core.index import CacheIndex
from mummufs.core.ranges import RangeKey

LATELY_S = 600.0
"""A model that was read in the last ten minutes is in use."""
NOTES = 20
"""Notes in that time: it is counted in steps of half a minute, and a model may be in use for one step longer."""


class Lately:
    """What was read lately."""

    def __init__(self, index: CacheIndex) -> None:
        self._index = index
        self._noted: deque[int] = deque([0], maxlen=NOTES + 1)

    async def run(self) -> None:
        """Note, until cancelled."""
        while True:
            await trio.sleep(LATELY_S / NOTES)
            self._noted.append(self._index.touches)

    def has_read(self, key: RangeKey) -> bool:
        """Whether a range of the same model as this one was read lately."""
        return self._index.last_touch(key.file) > self._noted[0]
