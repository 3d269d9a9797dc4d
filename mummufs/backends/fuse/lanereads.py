"""READs that the lane does not answer itself: each is a task of the engine, and its reply goes straight to the kernel.

A lane thread hands a READ over and goes on. The bytes never pass through libfuse: the task writes them to the clone of
the device that the READ came from.

An INTERRUPT says that the caller has got a signal. Disk files are not interrupted by signals, and engines do not expect
it, so it frees the caller only if it is being killed; as long as it is not, that is looked at again.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from mummufs.backends.fuse import relay, wire
from mummufs.core.stats import Counters

READS_MAX = 4096
"""READs in the engine at once; the kernel has hardly ever more under way, and what it has waits here."""
KILLED_LOOK_S = 0.2
"""How often a caller that has got a signal is looked at again."""

log = logging.getLogger(__name__)

Read = Callable[[int, int, int, bool], Awaitable[bytes | bytearray | memoryview]]


@dataclass(eq=False, slots=True)
class LaneRead:
    """One READ, as the lane took it from the device."""

    unique: int
    fh: int
    offset: int
    size: int
    pid: int
    fd: int
    avoid_store: bool = False
    """The store did not answer it in time."""
    scope: trio.CancelScope | None = None
    """While the engine has it."""


class LaneReads:
    """The READs that the engine has. `submit` and `interrupt` are called by any thread, the rest by trio's."""

    def __init__(self, read: Read, counters: Counters) -> None:
        """Take READs from `run` on.

        Args:
            read: gives the bytes for (fh, offset, size, avoid_store), or raises OSError.
        """
        self._read = read
        self._counters = counters
        self._queue: deque[LaneRead] = deque()
        self._woken = False
        self._pending: dict[int, LaneRead] = {}
        self._nursery: trio.Nursery | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self.running = 0
        self.running_max = 0
        self.interrupted = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    @property
    def waiting(self) -> int:
        """READs that wait for their turn."""
        return len(self._queue)

    def submit(self, request: LaneRead) -> None:
        """Have the engine answer this READ."""
        self._pending[request.unique] = request
        self._queue.append(request)
        if not self._woken:
            self._woken = True
            self._soon(self._start_all)

    def take_back(self, request: LaneRead) -> bool:
        """The lane can answer it after all. Whether it may: else the engine has answered."""
        if not self._is_ours_to_answer(request):
            return False
        self._soon(self._withdraw, request)
        return True

    def interrupt(self, unique: int) -> bool:
        """The caller of this READ has got a signal. False if the engine does not have it."""
        request = self._pending.get(unique)
        if request is None:
            return False
        self._soon(self._interrupted, request)
        return True

    def _soon(self, call: Callable[..., None], *args: LaneRead) -> None:
        assert self._token is not None, "the lane starts after run()"
        try:
            self._token.run_sync_soon(call, *args)
        except trio.RunFinishedError:
            pass  # the mount has ended, and the kernel answers whoever still waits

    def _start_all(self) -> None:
        self._woken = False
        assert self._nursery is not None
        while self._queue and self.running < READS_MAX:
            self.running += 1
            self._nursery.start_soon(self._answer, self._queue.popleft())
        self.running_max = max(self.running_max, self.running)

    def _is_ours_to_answer(self, request: LaneRead) -> bool:
        """Take the right to answer: only one thread gets it."""
        return self._pending.pop(request.unique, None) is request

    async def _answer(self, request: LaneRead) -> None:
        try:
            if self._pending.get(request.unique) is not request:  # the lane has taken it back already
                return
            code, data = errno.EIO, None
            request.scope = trio.CancelScope()
            with request.scope:
                code, data = await self._outcome(request)
            if request.scope.cancelled_caught:
                code = errno.EINTR
            if self._is_ours_to_answer(request):
                self._reply(request, code, data)
        except Exception:
            self._counters.errors.handler += 1
            log.exception("a read could not be answered, on a fault of ours; its caller got EIO")
            relay.reply(request.fd, request.unique, errno.EIO)
        finally:
            self.running -= 1
            if self._queue:
                self._start_all()

    async def _outcome(self, request: LaneRead) -> tuple[int, bytes | bytearray | memoryview | None]:
        try:
            return 0, await self._read(request.fh, request.offset, request.size, request.avoid_store)
        except OSError as error:
            return error.errno or errno.EIO, None
        except Exception:
            self._counters.errors.handler += 1
            log.exception("a read failed on a fault of ours; its caller got EIO")
            return errno.EIO, None

    def _reply(self, request: LaneRead, code: int, data: bytes | bytearray | memoryview | None) -> None:
        if data is None:
            relay.reply(request.fd, request.unique, code)
            return
        header = wire.OUT_HEADER.pack(wire.OUT_HEADER.size + len(data), 0, request.unique)
        try:
            os.writev(request.fd, [header, data])
        except OSError as error:
            if error.errno != errno.ENOENT:  # that is a caller who does not wait any more
                relay.reply(request.fd, request.unique, errno.EIO)

    def _withdraw(self, request: LaneRead) -> None:
        if request.scope is not None:
            request.scope.cancel()

    def _interrupted(self, request: LaneRead) -> None:
        if self._nursery is not None and request.unique in self._pending:
            self._nursery.start_soon(self._free_if_killed, request)

    async def _free_if_killed(self, request: LaneRead) -> None:
        while self._pending.get(request.unique) is request:
            if request.scope is not None and is_being_killed(request.pid):  # without one its turn has not come yet
                self.interrupted += 1
                request.scope.cancel()
                return
            await trio.sleep(KILLED_LOOK_S)


def is_being_killed(thread_id: int) -> bool:
    """Whether SIGKILL is pending for a thread, as it is for each thread of a process that a signal ends. Also if it is
    gone, or cannot be looked at for any other reason but that it lives in another namespace (0)."""
    if thread_id == 0:
        return False
    try:
        lines = Path(f"/proc/{thread_id}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return True
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    pending = int(fields.get("SigPnd", "0"), 16) | int(fields.get("ShdPnd", "0"), 16)
    return bool(pending & 1 << 8)
