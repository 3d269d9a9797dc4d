"""Eviction: the background task that makes room, coldest first, and removes what is not to be believed.

`evict_nowait` takes a range out of the index's order and out of sight of every reader at once; the task then removes
its file, in batches, and gives its bytes back when the last descriptor on it is closed, copies in children that are
being started included. Between the two its bytes stay counted (EVICTING). A file that cannot be removed stays counted
too and is tried again later. Where a system removes no file that is open (EBUSY, on Windows), a range that a reader
still has goes back to where it was, and is no victim for a while.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Iterable
from functools import partial
from math import inf
from weakref import ref

import trio

from mummufs.core.index import CacheIndex
from mummufs.core.manifest import RangeTable
from mummufs.core.plan import window_key
from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.core.states import State
from mummufs.core.stats import Counters
from mummufs.engine.children import is_starting, wait_started
from mummufs.engine.gate import Gate
from mummufs.engine.resident import Resident
from mummufs.store.rangestore import RangeStore
from mummufs.store.storedrange import StoredRange

BATCH_MAX = 64
"""Files removed in one call to a worker thread."""
RETRY_S = 10.0
"""Pause before a file that could not be removed is tried again."""
RETURN_PAUSE_S = 1.0
"""Pause before new victims are looked for after one could not be had: the coldest would be the same ones."""
FAULT_PAUSE_S = 1.0
"""Pause after a fault of ours, so that one that stays does not take the processor."""
START_WAIT_S = 5.0
"""How long a child that is being started, and has copies of descriptors, is waited for. It may hang: it closes files of
the source too."""
PURGE_STEP = 256
"""Windows of a changed file that are looked at between two checkpoints."""

log = logging.getLogger(__name__)


class _Leaving:
    """A range on its way out: how many things of it (its name, its open file) are still there."""

    __slots__ = ("left", "stored")

    def __init__(self, stored: StoredRange | None) -> None:
        self.left = 1 if stored is None else 2
        self.stored = None if stored is None else ref(stored)


class Evictor:
    """Makes room in the store."""

    def __init__(
        self, index: CacheIndex, resident: Resident, store: RangeStore, gate: Gate, counters: Counters
    ) -> None:
        self._index = index
        self._resident = resident
        self._store = store
        self._gate = gate
        self._counters = counters
        self._queue: deque[RangeKey] = deque()
        self._failed: list[RangeKey] = []
        self._copied: list[RangeKey] = []
        self._retry_at = 0.0
        self._wake = trio.Event()
        self._progress = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._outstanding: dict[RangeKey, _Leaving] = {}
        self._paused_until = 0.0

    @property
    def queued(self) -> int:
        """Range files that wait to be removed, or for a child that may have them open."""
        return len(self._queue) + len(self._failed) + len(self._copied)

    async def run(self) -> None:
        """Evict until cancelled."""
        self._token = trio.lowlevel.current_trio_token()
        while True:
            self._wake = trio.Event()
            try:
                await self._remove_queued()
                await self._finish_copied()
                if trio.current_time() >= self._paused_until:
                    self.evict_nowait(self._index.plan_eviction())
            except Exception:  # the task that makes room must not end, and less so the mount
                self._counters.errors.handler += 1
                log.exception("eviction failed on a fault of ours")
                await trio.sleep(FAULT_PAUSE_S)
                continue
            paused = self._paused_until if self._paused_until > trio.current_time() else inf
            with trio.move_on_at(min(paused, self._retry_at if self._failed else inf)):
                await self._wake.wait()
            if trio.current_time() >= self._retry_at:
                self._queue.extend(self._failed)
                self._failed.clear()

    def wake(self) -> None:
        """The store has grown: see whether it is above the high watermark."""
        self._wake.set()

    def evict_nowait(self, keys: Iterable[RangeKey]) -> None:
        """Take ranges out of use. Those that are not resident are passed over."""
        for key in keys:
            if self._index.state(key) is not State.RESIDENT:
                continue
            charge = self._index.begin_evict(key)
            self._counters.evictions.ranges += 1
            self._counters.evictions.bytes += charge
            stored = self._resident.remove(key)
            leaving = self._outstanding[key] = _Leaving(stored)
            if stored is not None:
                stored.when_closed(partial(self._closed_from_any_thread, key, leaving))
            del stored  # here, or with its last reader
            self._queue.append(key)
        if self._queue:
            self._wake.set()

    async def wait_progress(self) -> None:
        """Wait until a range has given its bytes back."""
        await self._progress.wait()

    async def purge(self, file: FileId, table: RangeTable, version: Version) -> None:
        """Drop every range of an old version of a file, those included that a chmod before that has suspended."""
        for i in range(len(table)):
            key = window_key(file, table, i)
            stored = self._index.version(key)
            if stored is not None and stored.ctime_ns <= version.ctime_ns and not stored.differs_in_contents(version):
                self._counters.errors.stale += 1
                self.evict_nowait((key,))
            if i % PURGE_STEP == PURGE_STEP - 1:
                await trio.lowlevel.checkpoint()

    async def _remove_queued(self) -> None:
        """Remove the files of the queue. Those that cannot be are set aside: no wake-up but the clock's is for them."""
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
            try:
                removed = await self._gate.write(_remove_all, self._store, batch)
            except BaseException:
                self._queue.extendleft(reversed(batch))
                raise
            for key, error in removed:
                if error is None:
                    self._one_less(key, self._outstanding[key])
                    continue
                if isinstance(error, OSError) and error.errno == errno.EBUSY and self._outstanding[key].left > 1:
                    self._put_back(key)
                    continue
                self._counters.errors.store += 1
                log.warning("the range file of %s cannot be removed: %s", _named(key), error)
                if not self._failed:
                    self._retry_at = trio.current_time() + RETRY_S
                self._failed.append(key)

    def _put_back(self, key: RangeKey) -> None:
        """A reader has it open, and so its name cannot go: it is as good as it was."""
        leaving = self._outstanding.pop(key)
        stored = None if leaving.stored is None else leaving.stored()
        self._resident.add(key, self._index.abort_evict(key), stored)
        self._counters.evictions.returned += 1
        self._paused_until = trio.current_time() + RETURN_PAUSE_S

    def _closed_from_any_thread(self, key: RangeKey, leaving: _Leaving) -> None:
        try:
            assert self._token is not None
            self._token.run_sync_soon(self._one_less, key, leaving)
        except trio.RunFinishedError:
            pass

    def _one_less(self, key: RangeKey, leaving: _Leaving) -> None:
        if self._outstanding.get(key) is not leaving:  # it has been put back meanwhile
            return
        leaving.left -= 1
        if leaving.left:
            return
        if is_starting():
            self._copied.append(key)
            self._wake.set()
        else:
            self._finish(key)

    async def _finish_copied(self) -> None:
        """Give back what was held for children that were being started."""
        if not self._copied:
            return
        count = len(self._copied)  # those that come while we wait may have been copied into a later child
        with trio.move_on_after(START_WAIT_S):
            await wait_started()
        copied, self._copied = self._copied[:count], self._copied[count:]
        for key in copied:
            self._finish(key)

    def _finish(self, key: RangeKey) -> None:
        del self._outstanding[key]
        self._index.finish_evict(key)
        progress, self._progress = self._progress, trio.Event()
        progress.set()


def _named(key: RangeKey) -> str:
    return f"inode {key.file.inode}, offset {key.offset}, {key.size} bytes"


def _remove_all(store: RangeStore, keys: list[RangeKey]) -> list[tuple[RangeKey, Exception | None]]:
    results: list[tuple[RangeKey, Exception | None]] = []
    for key in keys:
        try:
            store.remove_range(key)
            results.append((key, None))
        except Exception as error:  # whatever it is, it must not end the task that makes room
            results.append((key, error))
    return results
