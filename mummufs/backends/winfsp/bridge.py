"""From WinFsp's threads into trio, and back within a time.

WinFsp calls from threads of its own, which nobody has told of trio, and waits for the answer. `Bridge.call` runs a
function of the engine as a task and blocks the calling thread until it has ended; after a time it gives up, cancels the
task, and the caller gets ETIMEDOUT, so that no thread of WinFsp is lost for ever whatever the engine does. When the
mount ends, whoever still waits gets ECANCELED.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, TypeVarTuple

import trio

Result = TypeVar("Result")
Args = TypeVarTuple("Args")


class _Job(Generic[Result]):
    """One call."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.done = threading.Lock()
        self.done.acquire()
        self.result: Result | None = None
        self.error: BaseException | None = None

    def end(self, error: BaseException | None) -> None:
        """Let the caller go on. The second end counts for nothing."""
        if self.done.locked():
            self.error = error
            self.done.release()


class Bridge:
    """Runs calls of other threads as tasks.

    Attributes:
        waiting: calls under way.
        waiting_max: the most there have been.
        late: calls that were given up.
    """

    def __init__(self, limit_s: float) -> None:
        """Make a bridge that answers ECANCELED until `run`.

        Args:
            limit_s: after which a call is given up.
        """
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._jobs: set[_Job[Any]] = set()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self.waiting_max = 0
        self.late = 0

    @property
    def waiting(self) -> int:
        return len(self._jobs)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._token = trio.lowlevel.current_trio_token()
                task_status.started()
                await trio.sleep_forever()
        finally:
            self.close()

    def close(self) -> None:
        """Take no more calls, and answer those that wait."""
        with self._lock:
            self._token = None
            jobs = list(self._jobs)
        for job in jobs:
            job.end(_cancelled())

    def call(self, function: Callable[[*Args], Awaitable[Result]], *args: *Args) -> Result:
        """Run a function as a task, from a thread that is not trio's.

        Raises:
            OSError: ETIMEDOUT after the limit, ECANCELED where the mount has ended; or the function's own.
        """
        job: _Job[Result] = _Job()
        with self._lock:
            token = self._token
            if token is None:
                raise _cancelled()
            self._jobs.add(job)
            self.waiting_max = max(self.waiting_max, len(self._jobs))
        try:
            token.run_sync_soon(self._start, job, function, args)
            if not job.done.acquire(timeout=self._limit_s):
                self.late += 1
                token.run_sync_soon(job.scope.cancel)
                raise OSError(errno.ETIMEDOUT, f"no answer within {self._limit_s:g} s")
        except trio.RunFinishedError:
            raise _cancelled() from None
        finally:
            with self._lock:
                self._jobs.discard(job)
        if job.error is not None:
            raise job.error
        return job.result  # type: ignore[return-value]

    def post(self, function: Callable[[*Args], None], *args: *Args) -> None:
        """Have a plain function called in trio's thread, without waiting for it. Nothing where the mount has ended."""
        token = self._token
        if token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(function, *args)

    def _start(self, job: _Job[Result], function: Callable[[*Args], Awaitable[Result]], args: tuple[*Args]) -> None:
        if self._nursery is None or self._token is None:
            job.end(_cancelled())
            return
        self._nursery.start_soon(self._run, job, function, args)

    async def _run(self, job: _Job[Result], function: Callable[[*Args], Awaitable[Result]], args: tuple[*Args]) -> None:
        error: BaseException | None = None
        try:
            with job.scope:
                job.result = await function(*args)
            if job.scope.cancelled_caught:
                error = _cancelled()
        except Exception as failure:  # it is its caller's, and must not end the others
            error = failure
        except BaseException:
            job.end(_cancelled())
            raise
        job.end(error)


def _cancelled() -> OSError:
    return OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
