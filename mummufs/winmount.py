"""The daemon on Windows: source, store, engine, WinFsp's volume and the control pipe, from first call to last.

As `mount` on other systems. What ends it: Ctrl-C, `mummufs umount` by the pipe, WinFsp's Launcher (by Ctrl-Break), or
WinFsp itself. Then fills that have their bytes are written, the volume is taken away, and the store is given up.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import trio

from mummufs import logs
from mummufs.backends.winfsp.library import Library, find_dll
from mummufs.backends.winfsp.session import DISPATCHER_THREADS, Session, VolumeOptions
from mummufs.config import UNBUFFERED_ENV, MountConfig
from mummufs.control_verify import verify_handlers
from mummufs.core.errors import MummufsError, UsageError
from mummufs.engine.reaper import Reaper
from mummufs.engine.service import Service, ServiceOptions
from mummufs.mounting import common_options, tables_bytes_max
from mummufs.pipes import Answer, PipeServer, pipe_of
from mummufs.source.windows import WindowsSource
from mummufs.status import common
from mummufs.store.rangestore import RangeStore
from mummufs.store.windowslock import WindowsStoreLock
from mummufs.store.windowsos import WindowsOs, make_store_directory
from mummufs.win32.api import Win32
from mummufs.win32.calls import real_win32

LEAVE_S = 4.0
"""How long calls that are under way may go on once the mount is to end."""
OPEN_MAX = 4096
"""Range files that are kept open: one that is open cannot be evicted, and is closed for that first."""
SOURCE_READS = 16
"""Reads of the source at once, where no option says else: what its disks are is not asked."""
SWITCH_INTERVAL_S = 0.001

log = logging.getLogger(__name__)
Ready = Callable[[dict[str, object]], None]


def run(config: MountConfig, ready: Ready, *, background: bool = False) -> int:
    """Be the daemon until the mount ends.

    Args:
        ready: called once with `{"ok": True}` when the volume is there.
        background: nobody reads standard error.

    Returns:
        the exit code.

    Raises:
        MummufsError: the mount failed before it was ready.
    """
    try:
        logs.set_up(config.log_level, config.log_file, foreground=not background)
    except OSError as error:
        raise UsageError(f"the log file {config.log_file} cannot be opened: {error.strerror}") from None
    library = Library(find_dll())
    with opened(config, real_win32(), library) as (service, session):
        session.mount()
        gc.collect()
        gc.freeze()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        daemon = Daemon(config, service, session, ready)
        failure: BaseException | None = None
        try:
            trio.run(daemon.main)
        except* (OSError, MummufsError) as errors:
            failure = errors  # raised below: what is raised here would be wrapped in a group
            while isinstance(failure, BaseExceptionGroup):
                failure = failure.exceptions[0]
        if failure is not None:
            raise MummufsError(f"the mount of {config.mountpoint} failed: {failure}")
    logging.shutdown()
    return 0


@contextlib.contextmanager
def opened(config: MountConfig, win32: Win32, library: Library) -> Iterator[tuple[Service, Session]]:
    """The engine and the volume of a mount, not yet mounted, and given back at the end.

    Raises:
        MummufsError: the source or the store cannot be used.
    """
    with contextlib.ExitStack() as stack:
        try:
            source = WindowsSource(
                os.fspath(config.source),
                win32,
                unbuffered=_unbuffered(config),
                ram_budget_bytes=config.ram_budget_bytes,
            )
        except OSError as error:
            raise MummufsError(f"the source {config.source} cannot be opened: {error.strerror}") from None
        store = None
        if config.store_dir is not None:
            store = stack.enter_context(_store(config, win32))
        service = Service(source, _options(config, win32), store, store_dir=config.store_dir)
        session = Session(
            service.overlay,
            service.counters,
            VolumeOptions(
                os.fspath(config.mountpoint),
                os.fspath(config.source),
                info_timeout_s=config.attr_timeout_s,
                source_timeout_s=config.source_timeout_s,
                created_ns=time.time_ns(),
            ),
            None if service.cache is None else service.cache.gate,
            service.reports,
            mirror=None if config.read_only else service.mirror,
            library=library,
        )
        stack.callback(session.close)
        yield service, session


def _unbuffered(config: MountConfig) -> bool | None:
    """Whether the source is read past the file cache by force; None where it is to be found out."""
    forced = os.environ.get(UNBUFFERED_ENV)
    return forced == "1" if forced in ("0", "1") else (True if config.direct else None)


@contextlib.contextmanager
def _store(config: MountConfig, win32: Win32) -> Iterator[RangeStore]:
    """The store, locked. What is wrong with it is told in a sentence."""
    directory = os.fspath(config.store_dir or Path())
    with contextlib.ExitStack() as stack:
        try:
            make_store_directory(directory, win32)
            lock = WindowsStoreLock(directory, win32)
            stack.callback(lock.release)
            fs = WindowsOs(directory, win32)
            stack.callback(fs.dispose)
            store = RangeStore(
                fs,
                lock.renew,
                closer=Reaper("store closer").submit,
                tables_bytes_max=tables_bytes_max(config),
            )
        except OSError as error:
            raise UsageError(f"the store {directory} cannot be used: {error.strerror}") from None
        yield store


def _options(config: MountConfig, win32: Win32) -> ServiceOptions:
    reads = config.source_reads or SOURCE_READS
    common = common_options(config, reads, lambda: win32.space(os.fspath(config.store_dir or Path())).total)
    return replace(common, open_max=OPEN_MAX, pipes=True)


class Daemon:
    """The tasks of a mount."""

    def __init__(
        self, config: MountConfig, service: Service, session: Session, ready: Ready, pipe: str | None = None
    ) -> None:
        """Make one.

        Args:
            pipe: where to be asked; None for the mountpoint's own.
        """
        self._config = config
        self._service = service
        self._session = session
        self._ready = ready
        self._pipe = pipe or pipe_of(os.fspath(config.mountpoint))
        self._started = time.monotonic()
        self._leaving = trio.Event()

    async def main(self) -> None:
        """Serve until the mount is to end, and end it."""
        handlers = {
            "status": self._status,
            "leave": self._leave,
            **verify_handlers(self._service.background_scrub),
        }
        control = PipeServer(self._pipe, handlers)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._service.run)
                await nursery.start(control.serve)
                nursery.start_soon(self._watch_signals)
                await nursery.start(self._serve, nursery.cancel_scope)
                log.info("mounted %s at %s", self._config.source, self._config.mountpoint)
                self._ready({"ok": True})
                await self._leaving.wait()
                await self._service.drain()
                if not await self._session.leave(LEAVE_S):
                    log.warning("%s was still in use and has been cut off", self._config.mountpoint)
                nursery.cancel_scope.cancel()
        finally:
            control.close()
        log.info("unmounted %s", self._config.mountpoint)

    async def _serve(
        self, everything: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve the volume; when it ends by itself so does the rest."""
        await self._session.serve(task_status=task_status)
        if not self._leaving.is_set():
            log.warning("WinFsp has ended the volume %s", self._config.mountpoint)
            everything.cancel()

    async def _watch_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():  # only that one may take signals
            return
        numbers = [signal.SIGINT, signal.SIGTERM, *([signal.Signals(21)] if hasattr(signal, "SIGBREAK") else [])]
        with trio.open_signal_receiver(*numbers) as signals:
            async for number in signals:
                log.info("%s: leaving %s", signal.Signals(number).name, self._config.mountpoint)
                self._leaving.set()

    async def _leave(self, asked: Mapping[str, object]) -> Answer:
        del asked
        self._leaving.set()
        return {"pid": os.getpid()}

    async def _status(self, asked: Mapping[str, object]) -> Answer:
        del asked
        session, service = self._session, self._service
        session.hits.report()  # what was served without the engine up to now is in the counters
        files, nodes = session.files.open_handles, len(service.overlay.nodes)
        return {
            **common(self._config, service, time.monotonic() - self._started, files, nodes),
            "backend": {
                "winfsp": ".".join(map(str, session.library.version)),
                "source_io": "unbuffered" if getattr(service.source, "unbuffered", False) else "buffered",
                "threads": DISPATCHER_THREADS,
                "hits": session.hits.hits,
                "hit_bytes": session.hits.hit_bytes,
                "threads_in_store": session.hits.inside,
                "calls_waiting": session.bridge.waiting,
                "calls_waiting_max": session.bridge.waiting_max,
                "calls_given_up": session.bridge.late,
                "faults": session.hits.faults,
            },
            "lane": None,
        }
