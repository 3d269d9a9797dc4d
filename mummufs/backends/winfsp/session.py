"""One WinFsp volume: mount, serve, unmount."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from mummufs.backends.winfsp import library as winfsp
from mummufs.backends.winfsp import ntstatus
from mummufs.backends.winfsp.bridge import Bridge
from mummufs.backends.winfsp.callbacks import Callbacks
from mummufs.backends.winfsp.changes import Changes
from mummufs.backends.winfsp.files import Files
from mummufs.backends.winfsp.hits import Hits
from mummufs.backends.winfsp.info import filetime
from mummufs.backends.winfsp.library import Library
from mummufs.backends.winfsp.names import COMPONENT_UNITS_MAX
from mummufs.backends.winfsp.paths import Paths
from mummufs.backends.winfsp.writing import WritingCallbacks
from mummufs.core.errors import MummufsError
from mummufs.core.stats import Counters
from mummufs.engine.gate import Gate
from mummufs.engine.mirror import Mirror
from mummufs.engine.overlay import Overlay
from mummufs.engine.views import HitReports
from mummufs.source.base import Creator

DEVICE = "WinFsp.Disk"
FILE_SYSTEM_NAME = "mummufs"
"""Programs look for the letters NTFS here before they use what only NTFS has."""
DISPATCHER_THREADS = 128
"""Calls of WinFsp at once. One that waits for the source has its thread for that long; this is well above the misses
that may be under way."""
IRP_TIMEOUT_MS_MIN, IRP_TIMEOUT_MS_MAX = 60_000, 600_000
"""What WinFsp takes for the time after which its driver gives up a call by itself."""
IRP_CAPACITY = 1000
BRIDGE_MARGIN_S = 10.0
"""The engine gives up a call to the source in its own time; the bridge waits for its answer so much longer."""
LABEL = "mummufs"
CREATOR = Creator(0, 0, 0)
"""A source on Windows does not ask: new files are whose the process's token says."""


@dataclass(frozen=True)
class VolumeOptions:
    r"""How to mount.

    Attributes:
        mountpoint: a drive like `M:`, or a directory that does not exist yet.
        source: what is mirrored, for a serial number that stays the same.
        info_timeout_s: how long the driver believes what it was told of a file, and a name of a look-up is believed.
        source_timeout_s: after which the engine gives up a call to the source.
        created_ns: when the volume was made.
    """

    mountpoint: str
    source: str
    info_timeout_s: float = 1.0
    source_timeout_s: float = 120.0
    created_ns: int = 0
    label: str = LABEL


class Session:
    """A volume. It exists from `mount` on; calls wait until `serve`."""

    def __init__(
        self,
        overlay: Overlay,
        counters: Counters,
        options: VolumeOptions,
        gate: Gate | None = None,
        reports: HitReports | None = None,
        *,
        mirror: Mirror | None = None,
        library: Library | None = None,
    ) -> None:
        """Make a session that is not mounted.

        Args:
            gate, reports: the store's side of hits; None without a store.
            mirror: carries changes out; None for a volume that nobody may write to.
            library: WinFsp; None to load the one that is installed.

        Raises:
            WinFspMissingError: there is none.
        """
        self._options = options
        self.library = library or Library(winfsp.find_dll())
        self.bridge = Bridge(options.source_timeout_s + BRIDGE_MARGIN_S)
        self.hits = Hits(gate, reports, counters)
        paths = Paths(overlay, options.info_timeout_s)
        self.files = Files(overlay, paths)
        self.files.read_only = self._read_only = mirror is None
        make: Callable[..., Callbacks] = Callbacks
        if mirror is not None:
            make = partial(WritingCallbacks, Changes(self.files, overlay, paths, mirror, CREATOR))
        self.callbacks = make(
            self.library, self.files, self.bridge, self.hits, counters, label=options.label, stopped=self._tell_ended
        )
        self._ended = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._fs: object | None = None
        self._dispatching = False

    def mount(self) -> None:
        """Make the volume and give it its place.

        Raises:
            MummufsError: it cannot be mounted.
        """
        ffi, lib = self.library.ffi, self.library.lib
        made = ffi.new("FSP_FILE_SYSTEM **")
        params = self._params()
        device = self.library.new_text(DEVICE)
        self._check(lib.FspFileSystemCreate(device, params, self.callbacks.interface, made), "the volume is refused")
        self._fs = made[0]
        place = self.library.new_text(self._options.mountpoint)
        try:
            self._check(
                lib.FspFileSystemSetMountPoint(self._fs, place),
                "it is in use, or is no drive letter and no new directory",
            )
        except MummufsError:
            self.close()
            raise

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer calls until the volume is gone, or until cancelled.

        Raises:
            MummufsError: WinFsp cannot be started.
        """
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.bridge.run)
            await nursery.start(self.hits.run)
            result = self.library.lib.FspFileSystemStartDispatcher(self._fs, DISPATCHER_THREADS)
            if result == ntstatus.SUCCESS:
                self._dispatching = True
                task_status.started()
                await self._ended.wait()
            nursery.cancel_scope.cancel()
        self._check(result, "WinFsp does not start")  # not before: what is raised there would be wrapped in a group

    async def leave(self, give_up_s: float) -> bool:
        """Unmount; False where calls were still under way and had to be cut off.

        Args:
            give_up_s: how long they may go on.
        """
        cut_off = False

        async def cut() -> None:
            nonlocal cut_off
            await trio.sleep(give_up_s)
            cut_off = self.bridge.waiting > 0
            self.bridge.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut)
            await trio.to_thread.run_sync(self._stop)
            nursery.cancel_scope.cancel()
        self._ended.set()
        return not cut_off

    def close(self) -> None:
        """Give the volume up. Closing twice does nothing."""
        self.bridge.close()
        self._stop()
        fs, self._fs = self._fs, None
        if fs is not None:
            self.library.lib.FspFileSystemDelete(fs)

    def _stop(self) -> None:
        """Take the mountpoint away and wait until WinFsp's threads have ended. Blocks."""
        if self._fs is None:
            return
        self.library.lib.FspFileSystemRemoveMountPoint(self._fs)
        if self._dispatching:
            self._dispatching = False
            self.library.lib.FspFileSystemStopDispatcher(self._fs)

    def _tell_ended(self) -> None:
        if self._token is not None:
            try:
                self._token.run_sync_soon(self._ended.set)
            except trio.RunFinishedError:
                pass

    def _params(self) -> object:
        options = self._options
        timeout_ms = int(options.info_timeout_s * 1000)
        params = self.library.ffi.new("FSP_FSCTL_VOLUME_PARAMS *")
        params.Version = winfsp.PARAMS_BYTES
        params.SectorSize = winfsp.SECTOR_BYTES
        params.SectorsPerAllocationUnit = winfsp.SECTORS_PER_UNIT
        params.MaxComponentLength = COMPONENT_UNITS_MAX
        params.VolumeCreationTime = filetime(options.created_ns)
        params.VolumeSerialNumber = zlib.crc32(options.source.encode("utf-8", "surrogatepass"))
        limit_ms = int((options.source_timeout_s + 2 * BRIDGE_MARGIN_S) * 1000)
        params.IrpTimeout = min(IRP_TIMEOUT_MS_MAX, max(IRP_TIMEOUT_MS_MIN, limit_ms))
        params.IrpCapacity = IRP_CAPACITY
        params.FileInfoTimeout = timeout_ms
        params.Flags = (
            winfsp.CASE_PRESERVED_NAMES
            | winfsp.UNICODE_ON_DISK
            | winfsp.PERSISTENT_ACLS
            | winfsp.REPARSE_POINTS
            | (winfsp.READ_ONLY_VOLUME if self._read_only else 0)
            | winfsp.POST_CLEANUP_WHEN_MODIFIED_ONLY
            | winfsp.PASS_QUERY_DIRECTORY_PATTERN
            | winfsp.PASS_QUERY_DIRECTORY_FILE_NAME
            | winfsp.FLUSH_AND_PURGE_ON_CLEANUP
            | winfsp.CONTEXT_IS_USER_CONTEXT2
            | winfsp.ALLOW_OPEN_IN_KERNEL_MODE
        )
        params.AdditionalFlags = (
            winfsp.VOLUME_INFO_TIMEOUT_VALID | winfsp.DIR_INFO_TIMEOUT_VALID | winfsp.SECURITY_TIMEOUT_VALID
        )
        params.VolumeInfoTimeout = params.DirInfoTimeout = params.SecurityTimeout = timeout_ms
        params.FileSystemName = FILE_SYSTEM_NAME
        return params

    def _check(self, status: int, why: str) -> None:
        if status != ntstatus.SUCCESS:
            code = status & 0xFFFFFFFF
            raise MummufsError(f"{self._options.mountpoint} cannot be mounted: {why} (status {code:#010x})")
