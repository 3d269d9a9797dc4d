"""The gate to the store: every call to it passes here, within a time, and is left out while the store is at fault.

A hit that the store has not answered within STALL_S is answered by the source; its thread goes on by itself. Writes and
removals are waited for, because what they leave on the disk has to be known; but while one is late, no new one begins.
`run` probes a store that was left alone and takes it up again when it answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import trio

from mummufs.core.breaker import STALL_S, Breaker, StoreState, store_state
from mummufs.core.stats import Counters
from mummufs.engine.threads import Pools
from mummufs.store.rangestore import RangeStore

WRITE_LATE_S = 10.0
"""A range file of 32 MiB is written and synced within this, or something is wrong."""
SLOW_S = 30.0
"""A call that nobody waits for is given up after this."""
PROBE_WAIT_S = 5.0
"""A probe that takes longer has failed."""

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Args = TypeVarTuple("Args")


class StoreLateError(Exception):
    """The store has not answered in time, or is left alone: the source answers."""


class Gate:
    """Calls to the store, with a breaker for reads and one for writes."""

    def __init__(self, store: RangeStore, pools: Pools, counters: Counters) -> None:
        self._store = store
        self._pools = pools
        self._counters = counters
        self.reads = Breaker()
        self.writes = Breaker()
        self._opened = trio.Event()

    @property
    def state(self) -> StoreState:
        """Normal, degraded or off."""
        return store_state(self.reads, self.writes, trio.current_time())

    async def read(self, call: Callable[[*Args], Result], *args: *Args) -> Result:
        """Run a call that reads the store. It may go on in its thread after it was given up.

        Raises:
            StoreLateError: it was not answered in time, or not asked.
            OSError: as the call. One that the call returns is left to the caller to count (`failed`): many readers
                may meet one range file's fault.
        """
        if self.reads.is_open:
            raise StoreLateError
        with trio.move_on_after(STALL_S):
            try:
                answer = await self._pools.store_reads.run(call, *args)
            except FileNotFoundError:
                self.reads.succeeded(trio.current_time())
                raise
            except OSError as error:
                self.failed(self.reads, error, at_once=False)
                raise
            if isinstance(answer, OSError) and not isinstance(answer, FileNotFoundError):
                self.reads.came_back(trio.current_time())
            else:
                self.reads.succeeded(trio.current_time())
            return answer
        self._counters.errors.store += 1
        self.reads.late(trio.current_time())
        self._announce(self.reads, "it does not answer")
        raise StoreLateError

    async def read_slowly(self, call: Callable[[*Args], Result], *args: *Args) -> Result:
        """Run a call that reads much of the store and that nobody waits for; it counts for no breaker.

        Raises:
            StoreLateError: not now: the store is left alone, or it has not answered for SLOW_S.
        """
        if not self.reads.is_open:
            with trio.move_on_after(SLOW_S):
                return await self._pools.store_reads.run(call, *args)
        raise StoreLateError

    async def write(self, call: Callable[[*Args], Result], *args: *Args) -> Result:
        """Run a call that changes the store, to its end.

        Raises:
            Exception: as the call.
        """
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_write)
            try:
                answer = await self._pools.store_writes.run(call, *args)
            except Exception as error:
                failure = error  # raised below: what is raised here would be wrapped in a group
            else:
                self.writes.succeeded(trio.current_time())
            nursery.cancel_scope.cancel()
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # with its traceback it is a cycle, in whose frames a file may be open
        return answer

    def answered(self) -> None:
        """A backend that reads the store by itself was answered."""
        self.reads.succeeded(trio.current_time())

    def stalled(self) -> None:
        """A read of the store by a backend has not come back in its time."""
        self._counters.errors.store += 1
        self.reads.late(trio.current_time())
        self._announce(self.reads, "it does not answer")

    def failed(self, breaker: Breaker, error: OSError, *, at_once: bool) -> None:
        """A call has failed."""
        breaker.failed(trio.current_time(), at_once=at_once)
        self._announce(breaker, str(error))

    async def run(self) -> None:
        """Probe while a breaker is open, until cancelled."""
        while True:
            due = [t for t in (self.reads.next_probe(), self.writes.next_probe()) if t is not None]
            if not due:
                self._opened = trio.Event()
                await self._opened.wait()
                continue
            await trio.sleep_until(min(due))
            await self._probe(self.reads, self._store.probe_read)
            await self._probe(self.writes, self._store.probe_write)

    async def _probe(self, breaker: Breaker, call: Callable[[], None]) -> None:
        at = breaker.next_probe()
        if at is None or at > trio.current_time():
            return
        well = False
        with trio.move_on_after(PROBE_WAIT_S):
            try:
                await self._pools.store_probes.run(call)
                well = True
            except Exception as error:  # whatever it is, it must not end the task that probes
                log.debug("the store is still at fault: %s", error)
        breaker.probed(trio.current_time(), well=well)
        if well:
            log.warning(
                "the store answers again: %s", "ranges are served" if breaker is self.reads else "ranges are stored"
            )

    async def _watch_write(self) -> None:
        await trio.sleep(WRITE_LATE_S)
        self._counters.errors.store += 1
        self.writes.late(trio.current_time())
        self._announce(self.writes, f"a write takes longer than {WRITE_LATE_S:.0f} s")

    def _announce(self, breaker: Breaker, reason: str) -> None:
        if breaker.is_open and not self._opened.is_set():
            what = "the source answers" if breaker is self.reads else "nothing is stored"
            log.warning("the store is left alone for now, %s: %s", what, reason)
        if breaker.is_open:
            self._opened.set()
