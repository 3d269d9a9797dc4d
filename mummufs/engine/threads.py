"""Worker threads, in separate pools, so that one kind of work never waits for another.

A miss may hang for as long as the slow disk likes. Listings, hits, fills and evictions have pools of their own and go
on. A call may be abandoned: its thread goes on until the call returns, and keeps its place in the pool until then, so
a source that hangs holds at most as many threads as its pools have places.

What a call raises is brought back as a value and raised anew. Raised through the thread it would become part of a
cycle of references, with all that its frames hold: a file would stay open until the garbage is collected, and for ever
where the collector has been told to pass it over (`mummufs.collector`).
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Generic, NoReturn, TypeVar, TypeVarTuple

import trio

METADATA_THREADS = 16
SOURCE_WRITE_THREADS = 8
STORE_READ_THREADS = 32
STORE_WRITE_THREADS = 4
STORE_PROBE_THREADS = 2
"""One for a probe that hangs, one for whether that is still so."""
THREAD_TRIES = 200
THREAD_RETRY_S = 0.05
"""A call for which the system grants no thread is tried again, for ten seconds in all: others come free."""
EXTRA_THREADS_MAX = 64
"""Threads of a pool that may be stuck while others take their place."""

Result = TypeVar("Result")
Args = TypeVarTuple("Args")


class Pool:
    """A limited number of worker threads.

    Attributes:
        waiting: calls that wait for a thread or run in one.
        waiting_max: the most there have been.
        late: calls that were given up.
        no_thread: how often the system would not grant a thread.
        stuck: threads that such calls still hold, and that have a stand-in.
    """

    def __init__(self, threads: int, limit_s: float = inf) -> None:
        self._limiter = trio.CapacityLimiter(threads)
        self._limit_s = limit_s
        self.threads = threads
        self.waiting = 0
        self.waiting_max = 0
        self.late = 0
        self.no_thread = 0
        self.stuck = 0

    async def run(self, function: Callable[[*Args], Result], *args: *Args) -> Result:
        """Call `function` in a thread of this pool, in the order of arrival.

        After `limit_s` it is given up. A thread that is stuck then gets a stand-in, EXTRA_THREADS_MAX at most.

        Raises:
            OSError: EIO where the call has not come back in time, or its turn has not come; or the call's own.
        """
        call = _Call(function)
        self.waiting += 1
        self.waiting_max = max(self.waiting_max, self.waiting)
        try:
            with trio.move_on_after(self._limit_s):
                return await self._in_thread(call, *args)
        finally:
            self.waiting -= 1
        self._replace(call)
        raise OSError(errno.EIO, f"no answer within {self._limit_s:g} s")

    async def _in_thread(self, call: _Call[*Args, Result], *args: *Args) -> Result:
        """Run the call in a thread, a new one or one that has just come free where the system grants no more."""
        for _ in range(THREAD_TRIES):
            try:
                found = await trio.to_thread.run_sync(call.run, *args, abandon_on_cancel=True, limiter=self._limiter)
            except RuntimeError:  # what the call raises does not come here
                self.no_thread += 1
                await trio.sleep(THREAD_RETRY_S)
                continue
            if isinstance(found, _Raised):
                found.throw()
            return found
        raise OSError(errno.EAGAIN, "the system grants no thread: is there a limit of processes or of memory?")

    def _replace(self, call: _Call[*Args, Result]) -> None:
        """A call was given up: while its thread is stuck another takes its place."""
        self.late += 1
        if not call.started or self.stuck >= EXTRA_THREADS_MAX:
            return
        self.stuck += 1
        self._limiter.total_tokens += 1
        if not call.when_done(partial(_soon, trio.lowlevel.current_trio_token(), self._unstuck)):
            self._unstuck()

    def _unstuck(self) -> None:
        self.stuck -= 1
        self._limiter.total_tokens -= 1

    @property
    def busy(self) -> int:
        """Threads at work, abandoned ones included."""
        return self._limiter.borrowed_tokens


class _Raised:
    """What a call has raised."""

    def __init__(self, error: Exception) -> None:
        self._errors = [error]

    def throw(self) -> NoReturn:
        """Raise it, and keep nothing of it."""
        raise self._errors.pop()


class _Call(Generic[*Args, Result]):
    """A call in a thread: whether it has begun, and what to do when it has ended."""

    def __init__(self, function: Callable[[*Args], Result]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._then: Callable[[], None] | None = None
        self._done = False
        self.started = False

    def run(self, *args: *Args) -> Result | _Raised:
        self.started = True
        try:
            return self._function(*args)
        except Exception as error:
            return _Raised(error)
        finally:
            with self._lock:
                self._done = True
            if self._then is not None:
                self._then()

    def when_done(self, then: Callable[[], None]) -> bool:
        """Have this called from the thread when the call has ended; False if it has already."""
        with self._lock:
            if self._done:
                return False
            self._then = then
            return True


def _soon(token: trio.lowlevel.TrioToken, call: Callable[[], None]) -> None:
    with contextlib.suppress(trio.RunFinishedError):
        token.run_sync_soon(call)


class Pools:
    """The pools of one mount."""

    def __init__(self, source_reads: int, source_timeout_s: float = inf) -> None:
        self.source = Pool(source_reads, source_timeout_s)
        self.source_writes = Pool(SOURCE_WRITE_THREADS, source_timeout_s)
        self.metadata = Pool(METADATA_THREADS, source_timeout_s)
        self.store_reads = Pool(STORE_READ_THREADS)
        self.store_writes = Pool(STORE_WRITE_THREADS)
        self.store_probes = Pool(STORE_PROBE_THREADS)
