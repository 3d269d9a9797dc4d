"""Landing: the bytes that a flight has brought become a range file, off every reply's path.

There are three ways. A range that is not in the store is written once there is room for it. One that is suspended (its
file's ctime has changed and nothing else) is held against what the source has now: if its range file states the same
checksum it is restamped, and none of its data is written again; if not, it is evicted and written anew.
"""

from __future__ import annotations

import errno
import logging

import trio

from mummufs.core.index import CacheIndex
from mummufs.core.ranges import RangeKey, Version
from mummufs.core.states import Decision
from mummufs.core.stats import Counters
from mummufs.engine.evictor import Evictor
from mummufs.engine.gate import Gate
from mummufs.engine.resident import Resident
from mummufs.store.layout import charge_of
from mummufs.store.rangestore import RangeStore
from mummufs.store.storedrange import StoredRange

ROOM_WAIT_S = 10.0
"""How long bytes wait for room in the store."""
NO_ROOM_S = 5.0
"""Found to be nearly full, the store's file system is asked again after this long; until then no flight begins."""

log = logging.getLogger(__name__)


class Landing:
    """Puts ranges into the store and tells the index."""

    def __init__(
        self,
        index: CacheIndex,
        resident: Resident,
        store: RangeStore,
        evictor: Evictor,
        gate: Gate,
        counters: Counters,
        *,
        reserve_bytes: int,
    ) -> None:
        """See Filler."""
        self._index = index
        self._resident = resident
        self._store = store
        self._evictor = evictor
        self._gate = gate
        self._counters = counters
        self._reserve_bytes = reserve_bytes
        self._no_room_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the store is in a state to take anything in."""
        return not (self._gate.writes.is_open or self._gate.reads.is_open or trio.current_time() < self._no_room_until)

    async def land(self, key: RangeKey, version: Version, data: memoryview, *, reserved: bool) -> None:
        """Make a range file of a window's bytes, which are certainly those of this version.

        Args:
            reserved: the index has promised the room already.
        """
        stored: StoredRange | None = None
        restamped = False
        try:
            restamped = not reserved and await self._restamp(key, version, data)
            if not restamped:
                reserved = reserved or await self._wait_room(key, version)
                if reserved:
                    stored = await self._write(key, version, data)
        finally:
            if not restamped:
                self._conclude(key, version, stored, reserved=reserved)

    def give_up(self, key: RangeKey, *, reserved: bool) -> None:
        """There will be no bytes."""
        if reserved:
            self._index.abort_fill(key)
        self._counters.fills.aborted += 1
        self._evictor.wake()

    async def _restamp(self, key: RangeKey, version: Version, data: memoryview) -> bool:
        """Whether the range file of a suspended range turns out to hold these very bytes; it is believed again then."""
        old = self._index.version(key)
        if old is None:
            return False
        same = False
        try:
            same = await self._gate.write(self._store.restamp_range, key, old, version, data)
        except FileNotFoundError:  # somebody has removed it, which says nothing of the disk
            pass
        except OSError as error:
            self._counters.errors.store += 1
            self._gate.failed(self._gate.writes, error, at_once=True)
            log.warning("inode %d, offset %d, %d bytes: dropped: %s", key.file.inode, key.offset, key.size, error)
        if self._index.version(key) != old:  # evicted meanwhile
            return False
        if not same:
            self._evictor.evict_nowait((key,))
            return False
        self._index.restamp(key, version)
        stored = self._resident.remove(key)
        if stored is not None:
            stored.restamped(version)
        self._resident.add(key, version, stored)
        self._counters.fills.restamped += 1
        return True

    async def _wait_room(self, key: RangeKey, version: Version) -> bool:
        """Take the bytes of the budget that a range needs, once its victims have gone."""
        charge = charge_of(key.size)
        with trio.move_on_after(ROOM_WAIT_S):
            while True:
                plan = self._index.plan_fill(key, charge, version)
                if plan.decision is Decision.READY:
                    self._index.begin_fill(key, charge, version)
                    return True
                if plan.decision is not Decision.ROOM:
                    break
                self._evictor.evict_nowait(plan.victims)
                await self._evictor.wait_progress()
        return False

    async def _write(self, key: RangeKey, version: Version, data: memoryview) -> StoredRange | None:
        """Write the range file; None if the store cannot."""
        if self._gate.writes.is_open:  # it has failed since the flight began
            return None
        try:
            free = await self._gate.write(self._store.free_bytes)
            if free - charge_of(key.size) >= self._reserve_bytes:
                return await self._gate.write(self._store.write_range, key, version, data)
            self._no_room_until = trio.current_time() + NO_ROOM_S
            reason = f"the store's file system has {free} bytes left, of which {self._reserve_bytes} are kept free"
        except OSError as error:
            self._counters.errors.store += 1
            # That name alone is taken, by a directory or by somebody who has it open: it says nothing of the store.
            if not isinstance(error, IsADirectoryError) and error.errno != errno.EBUSY:
                self._gate.failed(self._gate.writes, error, at_once=True)
            reason = str(error)
        log.warning("inode %d, offset %d, %d bytes: not stored: %s", key.file.inode, key.offset, key.size, reason)
        return None

    def _conclude(self, key: RangeKey, version: Version, stored: StoredRange | None, *, reserved: bool) -> None:
        """Tell the index how a fill has ended."""
        if stored is None:
            self.give_up(key, reserved=reserved)
            return
        self._index.commit_fill(key)
        self._resident.add(key, version, stored)
        self._counters.fills.completed += 1
        self._counters.fills.bytes += key.size
        self._evictor.wake()
