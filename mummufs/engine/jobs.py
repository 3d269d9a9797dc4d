"""Jobs: what somebody has asked for and does not wait for on the line. They are numbered, watched, and can be stopped.

A `Jobs` runs so many at a time and lets a few wait; more are refused with a sentence. The last ones that have ended are
remembered, so that who asked learns how they ended.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Generic, TypeVar

import trio

from mummufs.core.errors import MummufsError
from mummufs.core.stats import Counters

WAITING_MAX = 8
"""Jobs of one kind that wait for their turn."""
KEPT_MAX = 16
"""Jobs that are remembered after they have ended."""

Progress = TypeVar("Progress")

log = logging.getLogger(__name__)


class JobState(Enum):
    """The life of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class Job(Generic[Progress]):
    """One thing to do.

    Attributes:
        number: it is asked for by this.
        progress: how far it is; what it has found.
        failure: why it came to nothing: a MummufsError, or an OSError of the source.
        stopped: somebody has stopped it.
    """

    def __init__(self, number: int, progress: Progress, run: Callable[[Progress], Awaitable[None]]) -> None:
        self.number = number
        self.progress = progress
        self.state = JobState.WAITING
        self.failure: MummufsError | OSError | None = None
        self.stopped = False
        self.ended = trio.Event()
        self._run = run
        self._scope = trio.CancelScope()

    def stop(self) -> None:
        """Have it end soon; what it has done stays done."""
        if self.state is not JobState.ENDED:
            self.stopped = True
            self._scope.cancel()

    async def run(self) -> None:
        """Do it."""
        self.state = JobState.RUNNING
        with self._scope:
            try:
                await self._run(self.progress)
            except (MummufsError, OSError) as error:
                self.failure = error


class Jobs(Generic[Progress]):
    """Jobs of one kind."""

    def __init__(self, name: str, at_once: int, counters: Counters) -> None:
        """Have no jobs yet.

        Args:
            name: what they are, for sentences.
            at_once: how many run at a time.
        """
        self._name = name
        self._at_once = at_once
        self._counters = counters
        self._send, self._receive = trio.open_memory_channel[Job[Progress]](WAITING_MAX)
        self._jobs: OrderedDict[int, Job[Progress]] = OrderedDict()
        self.started = 0
        self.refused = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do jobs until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._at_once):
                nursery.start_soon(self._work)
            task_status.started()

    def start_nowait(self, progress: Progress, run: Callable[[Progress], Awaitable[None]]) -> Job[Progress]:
        """Have something done when its turn comes.

        Raises:
            MummufsError: too many wait already.
        """
        job = Job(self.started + 1, progress, run)
        try:
            self._send.send_nowait(job)
        except trio.WouldBlock:
            self.refused += 1
            raise MummufsError(
                f"{WAITING_MAX} {self._name} wait for their turn already: try again when one has ended"
            ) from None
        self.started += 1
        self._jobs[job.number] = job
        while len(self._jobs) > WAITING_MAX + self._at_once + KEPT_MAX:
            self._jobs.popitem(last=False)
        return job

    def get(self, number: object) -> Job[Progress]:
        """The job with this number.

        Raises:
            MummufsError: there is none, or it has ended long ago.
        """
        job = self._jobs.get(number) if isinstance(number, int) else None
        if job is None:
            raise MummufsError(f"there is no such job among the {self._name} of this mount, or it ended long ago")
        return job

    def stop_all(self) -> None:
        """Have all of them end soon, those included that wait."""
        for job in self._jobs.values():
            job.stop()

    @property
    def current(self) -> Job[Progress] | None:
        """The one that runs, else the one that has ended last."""
        for job in self._jobs.values():
            if job.state is JobState.RUNNING:
                return job
        return next((job for job in reversed(self._jobs.values()) if job.state is JobState.ENDED), None)

    @property
    def waiting(self) -> int:
        """Jobs that wait for their turn."""
        return sum(job.state is JobState.WAITING for job in self._jobs.values())

    async def _work(self) -> None:
        async for job in self._receive:
            try:
                await job.run()
            except Exception:  # whatever it is, it must not end the mount
                self._counters.errors.handler += 1
                log.exception("one of the %s failed on a fault of ours", self._name)
                job.failure = MummufsError("it failed on a fault of mummufs: the mount's log has more")
            finally:
                job.state = JobState.ENDED
                job.ended.set()
