"""One FUSE session: mount, serve, unmount."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyfuse3
import trio

from mummufs.backends.fuse import device
from mummufs.backends.fuse.changes import MirrorOperations
from mummufs.backends.fuse.front import Front, LaneOptions
from mummufs.backends.fuse.modes import OpenModes
from mummufs.core.errors import MummufsError
from mummufs.engine.gate import Gate
from mummufs.engine.nodes import Node
from mummufs.engine.views import HitReports

SUBTYPE = "mummufs"
MAX_TASKS = 4096
"""Requests that pyfuse3 takes up at once. Its default of 99 would let 99 hung misses stop everything."""
_MNT_DETACH = 2
_UNMOUNT_WAIT_S = 3.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionOptions:
    """How to mount.

    Attributes:
        fsname: what the mount table shows as its source.
        flags: mount flags to hand on (nosuid, noexec, ...).
        lane: whether the lane serves: "on" (or the mount fails), "off", or "auto".
        lane_options: what the lane is to do.
        direct: files are read past the page cache.
    """

    fsname: str
    allow_other: bool = False
    read_only: bool = False
    flags: Sequence[str] = ()
    lane: str = "off"
    lane_options: LaneOptions | None = None
    direct: bool = False


class Session:
    """A mounted file system. The mount exists from `mount` on; requests wait until `serve`."""

    def __init__(
        self,
        operations: MirrorOperations,
        mountpoint: Path,
        options: SessionOptions,
        gate: Gate | None = None,
        reports: HitReports | None = None,
        passes_through: Callable[[Node], bool] = lambda _: False,
    ) -> None:
        """Make a session that is not mounted.

        Args:
            gate, reports: the store's side of the lane; None without a store.
            passes_through: whether reads of a node can never come from the store.
        """
        self._operations = operations
        self._mountpoint = mountpoint
        self._options = options
        self._gate = gate
        self._reports = reports
        self._passes_through = passes_through
        self._ended = trio.Event()
        self._gone = trio.Event()
        self._serving = trio.CancelScope()
        self._mounted = False
        self.front: Front | None = None
        """The lane, if there is one."""

    def mount(self) -> None:
        """Mount it, with the lane if that is wanted and can be.

        Raises:
            MummufsError: it cannot be mounted.
        """
        if self._options.lane != "off":
            try:
                self._mount_lane(self._options.lane_options or LaneOptions(MAX_TASKS))
            except device.LaneUnavailableError as error:
                if self._options.lane == "on":
                    raise
                log.warning("%s; pyfuse3 alone serves", error)
        if self.front is None:
            self._mount_plainly()
        self._operations.modes = OpenModes(
            direct=self._options.direct,
            passes_through=self._passes_through,
            open_backing=self.front.open_backing if self.front is not None and self._passes() else None,
            close_backing=self.front.close_backing if self.front is not None else lambda _: None,
        )
        self._mounted = True

    def _mount_lane(self, options: LaneOptions) -> None:
        flags = [*self._options.flags, *(["ro"] if self._options.read_only else [])]
        request = device.MountRequest(self._mountpoint, self._options.fsname, SUBTYPE, self._options.allow_other, flags)
        try:
            front = Front(request, options, self._operations, self._gate, self._reports)
        except OSError as error:
            unmount(self._mountpoint, True)
            raise device.LaneUnavailableError(f"the lane has not what it needs: {error.strerror or error}") from None
        try:
            pyfuse3.init(self._operations, front.libfuse_mountpoint, {"default_permissions"})
        except RuntimeError as error:
            front.close()
            unmount(self._mountpoint, True)
            raise device.LaneUnavailableError(f"libfuse does not take the lane's socket: {error}") from None
        self._operations.backing = front.relay.backing
        if front.pusher is not None:
            self._operations.pushes_to = front.pusher.pushes_to
            self._operations.mirror.writes.quiet = front.wait_sent
        self.front = front

    def _mount_plainly(self) -> None:
        options = {"default_permissions", _Option(f"fsname={_escaped(self._options.fsname)}"), f"subtype={SUBTYPE}"}
        options |= set(self._options.flags)
        if self._options.read_only:
            options.add("ro")
        if self._options.allow_other:
            options.add("allow_other")
        try:
            pyfuse3.init(self._operations, os.fspath(self._mountpoint), options)
        except RuntimeError as error:
            raise MummufsError(
                f"{self._mountpoint} cannot be mounted ({error}): is /dev/fuse there, is fusermount3 installed,"
                " and may this user mount here?"
            ) from None

    def _passes(self) -> bool:
        options = self._options.lane_options
        return options is not None and options.passthrough

    async def serve(self) -> None:
        """Answer requests until the mount is gone."""
        try:
            with self._serving:
                async with trio.open_nursery() as nursery:
                    if self.front is not None:
                        await nursery.start(self.front.run, self._gone)
                        nursery.start_soon(self._end_with_the_kernel)
                    await pyfuse3.main(min_tasks=1, max_tasks=MAX_TASKS)
                    nursery.cancel_scope.cancel()
        finally:
            self._ended.set()

    async def _end_with_the_kernel(self) -> None:
        """The kernel has ended the connection: libfuse sees an end of its socket, which is no error to it."""
        await self._gone.wait()
        pyfuse3.terminate()

    async def leave(self, give_up_s: float, *, is_there: bool = True) -> bool:
        """Unmount; False where something still held the mount and it had to be detached and cut off.

        Args:
            give_up_s: how long a detached mount may go on serving who holds it.
            is_there: whether the mountpoint still shows this mount: what others mounted there is left alone.
        """
        if self.front is not None:
            self.front.disarm()
        if is_there and not await trio.to_thread.run_sync(unmount, self._mountpoint, False, abandon_on_cancel=True):
            await trio.to_thread.run_sync(unmount, self._mountpoint, True, abandon_on_cancel=True)
        with trio.move_on_after(give_up_s):
            await self._ended.wait()
            return True
        pyfuse3.terminate()
        self._serving.cancel()  # requests that a hung source holds are not waited for
        return False

    def close(self) -> None:
        """Close the device: whatever the kernel still waits for ends with an error."""
        if self._mounted:
            self._mounted = False
            if self.front is None:
                pyfuse3.close(unmount=not self._ended.is_set())
                return
            if not self._ended.is_set():  # it never came to serving
                unmount(self._mountpoint, True)
            self.front.close()
            pyfuse3.close(unmount=False)


def unmount(mountpoint: Path, detach: bool) -> bool:
    """Unmount, as root by the system call and else by fusermount3; False if it is busy or not there.

    Args:
        detach: take it out of the tree even if it is busy (a lazy unmount).
    """
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.umount2(os.fsencode(mountpoint), _MNT_DETACH if detach else 0) == 0:
            return True
        code = ctypes.get_errno()
        if code != errno.EBUSY:
            log.warning("%s cannot be unmounted: %s", mountpoint, os.strerror(code))
        return False
    command = [shutil.which("fusermount3") or "/usr/bin/fusermount3", "-u", "-q", *(["-z"] if detach else [])]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([*command, "--", os.fspath(mountpoint)], timeout=_UNMOUNT_WAIT_S, check=False)
        return done.returncode == 0
    return False


class _Option(str):
    """An option in whatever bytes the system's names are in: the binding would take ASCII only."""

    __slots__ = ()

    def encode(self, encoding: str = "", errors: str = "") -> bytes:
        del encoding, errors
        return super().encode(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(",", "\\,")
