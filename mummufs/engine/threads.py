"""Worker threads, in separate pools, so that one kind of work never waits for another.

A miss may hang for as long as the slow disk likes. Listings, hits, fills and evictions have pools of their own and go
on. A call may be abandoned: its thread goes on until the call returns, and keeps its place in the pool until then, so
a source that hangs holds at most as many threads as its pools have places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import trio

METADATA_THREADS = 16
STORE_READ_THREADS = 32
STORE_WRITE_THREADS = 4

Result = TypeVar("Result")
Args = TypeVarTuple("Args")


class Pool:
    """A limited number of worker threads.

    Attributes:
        waiting: calls that wait for a thread or run in one.
        waiting_max: the most there have been.
    """

    def __init__(self, threads: int) -> None:
        self._limiter = trio.CapacityLimiter(threads)
        self.threads = threads
        self.waiting = 0
        self.waiting_max = 0

    async def run(self, function: Callable[[*Args], Result], *args: *Args) -> Result:
        """Call `function` in a thread of this pool, in the order of arrival."""
        self.waiting += 1
        self.waiting_max = max(self.waiting_max, self.waiting)
        try:
            return await trio.to_thread.run_sync(function, *args, abandon_on_cancel=True, limiter=self._limiter)
        finally:
            self.waiting -= 1

    @property
    def busy(self) -> int:
        """Threads at work, abandoned ones included."""
        return self._limiter.borrowed_tokens


class Pools:
    """The pools of one mount."""

    def __init__(self, source_reads: int) -> None:
        self.source = Pool(source_reads)
        self.metadata = Pool(METADATA_THREADS)
        self.store_reads = Pool(STORE_READ_THREADS)
        self.store_writes = Pool(STORE_WRITE_THREADS)
