"""The file of pins as the engine has it: read when a mount begins, written when pins change.

It is never written before it was read: the pins of earlier mounts would be gone. One that cannot be believed is set
aside. Its JSON is made and taken apart in worker threads, because thousands of pins are some milliseconds of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import trio

from mummufs.core.errors import MummufsError
from mummufs.core.ranges import FileId
from mummufs.core.stats import Counters
from mummufs.engine.cache import Cache
from mummufs.engine.gate import StoreLateError
from mummufs.store.pins import PINS_BYTES_MAX, PINS_MAX, Pin, pack_pins, unpack_pins
from mummufs.store.rangestore import RangeStore

KEEP_S = 10.0
"""How long the store may take to write the file."""

PatternsByPath = dict[bytes, list[str]]
"""The pins of one source: patterns for the names of ranges, by path."""

log = logging.getLogger(__name__)


class PinFile:
    """The pins of one store.

    Attributes:
        loaded: the file was read; it may be written.
        set_aside: files that could not be believed.
    """

    def __init__(self, cache: Cache, counters: Counters) -> None:
        self._cache = cache
        self._counters = counters
        self._others: list[Pin] = []
        """Pins of other sources that this store has served."""
        self.loaded = False
        self.set_aside = 0

    async def load(self, root: FileId) -> PatternsByPath:
        """The pins of the source with this root; none, and not `loaded`, if the store does not let us read them now."""
        try:
            pins = await self._cache.gate.read_slowly(_load, self._cache.store)
        except (OSError, StoreLateError) as error:
            log.warning("the pins cannot be read from the store yet: %s", error)
            return {}
        except MummufsError as error:
            pins = []
            await self._set_aside(str(error))
        self.loaded = True
        self._cache.index.set_overhead(self._cache.store.overhead_bytes)
        self._others = [pin for pin in pins if pin.source != root]
        found: PatternsByPath = {}
        for pin in pins:
            if pin.source == root:
                found.setdefault(pin.path, []).append(pin.ranges)
        return found

    async def keep(self, root: FileId, pins: PatternsByPath) -> None:
        """Write down the pins of the source with this root.

        Raises:
            MummufsError: they are too many, or the store does not take them.
        """
        assert self.loaded, "what was there would be lost"
        entries = [*self._others, *(Pin(root, path, ranges) for path, patterns in pins.items() for ranges in patterns)]
        if len(entries) > PINS_MAX:
            raise MummufsError(f"these would be {len(entries)} pins, more than the limit of {PINS_MAX}")
        try:
            with trio.move_on_after(KEEP_S) as scope:
                await self._cache.gate.write(_save, self._cache.store, entries)
        except OSError as error:
            self._counters.errors.store += 1
            raise MummufsError(f"the pins cannot be written to the store: {error.strerror or error}") from None
        if scope.cancelled_caught:
            raise MummufsError(f"the store has not written the pins within {KEEP_S:g} s")
        self._cache.index.set_overhead(self._cache.store.overhead_bytes)

    async def _set_aside(self, reason: str) -> None:
        self.set_aside += 1
        log.warning("the file of pins is set aside as 'pins.bad', nothing is pinned: %s", reason)
        try:
            await self._cache.gate.write(self._cache.store.set_pins_aside)
        except OSError as error:
            log.warning("the file of pins cannot be set aside: %s", error)


def _load(store: RangeStore) -> list[Pin]:
    data = store.load_pins()
    return [] if data is None else unpack_pins(data)


def _save(store: RangeStore, pins: Iterable[Pin]) -> None:
    data = pack_pins(pins)
    if len(data) > PINS_BYTES_MAX:
        raise MummufsError(f"the paths of these pins take {len(data)} bytes, more than the limit of {PINS_BYTES_MAX}")
    store.save_pins(data)
