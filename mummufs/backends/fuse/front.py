"""The lane as a session has it: device, relay, reads, servers and pusher, put together, started and ended in order."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from mummufs.backends.fuse import device, wire
from mummufs.backends.fuse.lane import SERVERS, Lane
from mummufs.backends.fuse.lanereads import LaneReads
from mummufs.backends.fuse.operations import Operations
from mummufs.backends.fuse.pipes import Pipe
from mummufs.backends.fuse.push import Pusher
from mummufs.backends.fuse.relay import MAX_WRITE_BYTES, Relay
from mummufs.engine.gate import Gate
from mummufs.engine.nodes import Node
from mummufs.engine.views import HitReports

REPORT_S = 0.05
"""How long touches are collected before the policy hears of them."""
SENT_LOOK_S = 0.001
"""How often who is about to write looks whether a push has ended."""
PAGES_MAX_DEFAULT = 256
"""Pages of a request where the kernel does not say what it allows."""
_PAGES_LIMIT = Path("/proc/sys/fs/fuse/max_pages_limit")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LaneOptions:
    """What the lane is to do.

    Attributes:
        max_background: background requests that the kernel sends before it holds more back.
        push: store the rest of a window into the page cache when a mapping walks through it.
        passthrough: ask for opens that the kernel reads by itself.
        masked: bits to take out of the kernel's offer at INIT, as an older kernel would.
    """

    max_background: int
    push: bool = True
    passthrough: bool = False
    masked: int = 0


class Front:
    """A mounted lane."""

    def __init__(
        self,
        request: device.MountRequest,
        options: LaneOptions,
        operations: Operations,
        gate: Gate | None,
        reports: HitReports | None,
    ) -> None:
        """Mount. Requests wait until `run`.

        Args:
            gate: knows whether the store is read at present; None where there is none.
            reports: takes in what was served; None where there is no store.

        Raises:
            LaneUnavailableError: it cannot be mounted for a lane; nothing is.
            OSError: there are no descriptors for the rest; the mount is there, and dead.
        """
        self._operations = operations
        self._gate = gate
        self._reports = reports
        self.fd = device.mount(request)
        self._clones = [self.fd]
        for _ in range(SERVERS - 1):
            with contextlib.suppress(OSError):  # fewer do as well
                self._clones.append(device.clone(self.fd))
        self.reads = LaneReads(operations.read_plainly, operations.counters)
        try:
            self.relay = Relay(self.fd, _wishes(options))
            self.pusher = Pusher(self.fd, self.reads.submit) if options.push and reports is not None else None
        except OSError:
            self._close_clones()
            raise
        self._touched = trio.Event()
        self.lane: Lane | None = None

    @property
    def libfuse_mountpoint(self) -> str:
        """What libfuse is to be given as the mountpoint: it takes its end of the relay for the device."""
        return f"/dev/fd/{self.relay.libfuse_fd}"

    async def run(self, gone: trio.Event, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled.

        Args:
            gone: set when the kernel has ended the connection.
        """
        token = trio.lowlevel.current_trio_token()

        def soon(call: Callable[[], None]) -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(call)

        self.lane = Lane(
            self._clones,
            self._operations.handles,
            self.reads,
            self.relay,
            self.pusher,
            may_read_store=lambda: self._gate is not None and not self._gate.reads.is_open,
            stalled=lambda: soon(self._stalled),
            gone=lambda: soon(gone.set),
            touched=lambda: soon(self._touched_set),
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(self.reads.run)
            nursery.start_soon(self._report)
            self.relay.start()
            if self.pusher is not None:
                self.pusher.start()
            self.lane.start()
            task_status.started()

    def report(self) -> None:
        """Take in what the lane has served so far."""
        if self.lane is not None and self._reports is not None:
            requests, touched = self.lane.take_touched()
            if requests and self._gate is not None:
                self._gate.answered()
            self._reports.take(requests, touched)
            self._reports.take_pushed(self.lane.take_pushed())

    async def wait_sent(self, node: Node) -> None:
        """Wait until no page of this node, which has no view any more, is being pushed. The pages that a message waits
        for belong to READs, which are answered by others."""
        number = self._operations.inodes.known(node)
        while self.pusher is not None and number is not None and self.pusher.is_sending(number):  # noqa: ASYNC110
            # Its thread cannot set an event of ours each time: that would cost every push more than this costs a few.
            await trio.sleep(SENT_LOOK_S)

    def open_backing(self, fd: int) -> int:
        """Register a file for passthrough; its backing id.

        Raises:
            OSError: the kernel refuses, or was not asked to begin with.
        """
        negotiated = self.relay.negotiated
        if negotiated is None or not negotiated.passthrough:
            raise OSError("passthrough was not negotiated")
        return device.open_backing(self.fd, fd)

    def close_backing(self, backing_id: int) -> None:
        """Take it back."""
        device.close_backing(self.fd, backing_id)

    def disarm(self) -> None:
        """Send no more notifications: one that blocks while the mount goes down would never come back."""
        if self.pusher is not None:
            self.pusher.end()

    def close(self) -> None:
        """Close the connection; what still waits ends with an error."""
        self.disarm()
        self.relay.shut()
        self._close_clones()

    def _close_clones(self) -> None:
        for fd in self._clones:
            with contextlib.suppress(OSError):
                os.close(fd)

    async def _report(self) -> None:
        while True:
            await self._touched.wait()
            await trio.sleep(REPORT_S)
            self._touched = trio.Event()
            try:
                self.report()
            except Exception:  # what was read is served, noted or not
                self._operations.counters.errors.handler += 1
                log.exception("what the lane has served could not be taken in, on a fault of ours")

    def _touched_set(self) -> None:
        self._touched.set()

    def _stalled(self) -> None:
        if self._gate is not None:
            self._gate.stalled()


def _wishes(options: LaneOptions) -> wire.Wishes:
    return wire.Wishes(
        max_pages=_max_pages(),
        max_write_bytes=MAX_WRITE_BYTES,
        max_background=options.max_background,
        passthrough=options.passthrough,
        masked=options.masked,
    )


def _max_pages() -> int:
    """Pages of the largest request: as many as the kernel allows and a pipe has room for beside a header.

    A power of two: a read that is cut leaves no crumb of a page, which would look like a read of its own.
    """
    pipe = Pipe()
    pipe.close()
    try:
        allowed = int(_PAGES_LIMIT.read_text())
    except (OSError, ValueError):
        allowed = PAGES_MAX_DEFAULT
    most = min(allowed, pipe.pages - 1)
    return 1 << most.bit_length() - 1 if most > 0 else 1
