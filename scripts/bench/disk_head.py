"""`DiskModel` under trio: callers wait as long as the disk would take."""

from __future__ import annotations

import time

import trio

from scripts.bench.disk_model import DiskModel


class DiskHead:
    """The head of one disk. `run` serves it; `wait` takes a request's time, or none while `timed` is off."""

    def __init__(self, model: DiskModel, *, timed: bool = True) -> None:
        self.model = model
        self.timed = timed
        self._arrived = trio.Event()
        self._done: dict[int, trio.Event] = {}

    async def wait(self, offset: int, size: int) -> None:
        """Return when the disk has served the request."""
        if not self.timed:
            return
        number = self.model.submit(offset, size, time.monotonic())
        done = self._done[number] = trio.Event()
        self._arrived.set()
        try:
            await done.wait()
        finally:
            self.model.cancel(number)
            self._done.pop(number, None)

    async def run(self) -> None:
        """Serve for ever."""
        while True:
            job = self.model.begin(time.monotonic())
            if job is None:
                self._arrived = trio.Event()
                await self._arrived.wait()
                continue
            await trio.sleep(max(0.0, job.finish_s - time.monotonic()))
            done = self._done.get(job.number)
            if done is not None:
                done.set()
