"""The daemon: source, store, engine, FUSE session and control socket of one mount, from its first call to its last.

What is taken is given back in the opposite order, whatever ends the mount: a signal, `umount`, a failure. A signal
drains the fills that are being written, unmounts, and ends the process within LEAVE_S; what still holds the mount then
is cut off, and the log says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import trio

from mummufs import collector, logs, storecontrol
from mummufs.backends.fuse import tuning
from mummufs.backends.fuse.changes import MirrorOperations
from mummufs.backends.fuse.front import LaneOptions
from mummufs.backends.fuse.session import Session, SessionOptions
from mummufs.config import MountConfig
from mummufs.control import Answer, ControlServer
from mummufs.control_profile import profile_handlers
from mummufs.control_trace import trace_handlers
from mummufs.control_verify import verify_handlers
from mummufs.core.errors import MummufsError, UsageError
from mummufs.engine.heatkeeper import SAVE_S
from mummufs.engine.reaper import Reaper
from mummufs.engine.resident import OPEN_MAX
from mummufs.engine.service import Service, ServiceOptions
from mummufs.mountinfo import Holder, MountEntry, holders, mount_at, read_mountinfo
from mummufs.mounting import common_options, tables_bytes_max
from mummufs.source.devices import spins, suggested_reads
from mummufs.source.local import ignore_broken_leases
from mummufs.source.tree import TreeSource
from mummufs.status import status
from mummufs.store.layout import DIR_MODE
from mummufs.store.lock import StoreLock
from mummufs.store.osfs import RealOs
from mummufs.store.rangestore import RangeStore

LEAVE_S = 4.0
"""After a signal: how long who holds the mount may go on before the connection is cut."""
DESCRIPTORS_RESERVED = 56
"""Descriptors of the process that are for neither range files nor files of the source: the lane, its pipes, and what is
open for one call."""
OPEN_SHARE = 4
"""One in so many of the others may be a range file that is kept open, and has two."""
OPEN_MIN, FILES_MIN = 8, 8
MASKED_ENV = "MUMMUFS_TEST_INIT_MASK"
"""For tests: bits to take out of what the kernel offers, in hexadecimal, so that it looks like an older one."""
HEAT_SAVE_ENV = "MUMMUFS_TEST_HEAT_SAVE_S"
"""For tests: how often heat is saved at most, in seconds."""
SWITCH_INTERVAL_S = 0.0001
"""How long a thread may keep the interpreter while others want it, a fiftieth of Python's default: a server of the lane
that comes back from the disk while the event loop works waits 0.2 ms at most. At a millisecond it was 1.1, in a read of
0.1."""

log = logging.getLogger(__name__)
Ready = Callable[[dict[str, object]], None]


def run(config: MountConfig, ready: Ready, *, background: bool = False) -> int:
    """Be the daemon until the mount ends.

    Args:
        ready: called once with `{"ok": True}` when the mount answers.
        background: nobody reads standard error; log to syslog unless a file is named.

    Returns:
        the exit code.

    Raises:
        MummufsError: the mount failed before it was ready.
    """
    os.umask(0o077)
    try:
        logs.set_up(config.log_level, config.log_file, foreground=not background)
    except OSError as error:
        raise UsageError(f"the log file {config.log_file} cannot be opened: {error.strerror}") from None
    _raise_open_files()
    with contextlib.ExitStack() as stack:
        try:
            source = TreeSource(config.source, Reaper("source closer").submit)
            reads = config.source_reads or suggested_reads(os.fspath(config.source))
        except OSError as error:
            raise MummufsError(f"the source {config.source} cannot be opened: {error.strerror}") from None
        stack.callback(source.close)
        store = None
        if config.store_dir is not None:
            store = stack.enter_context(_opened_store(config, config.store_dir))
        service = Service(source, _service_options(config, reads), store, store_dir=config.store_dir)
        operations = MirrorOperations(service.overlay, service.mirror, service.counters, config.attr_timeout_s)
        session = Session(
            operations,
            config.mountpoint,
            _session_options(config),
            service.cache.gate if service.cache is not None else None,
            service.reports,
            service.has_no_ranges,
        )
        daemon = _Daemon(config, service, operations, session, ready)
        with _claimed(config.mountpoint):
            session.mount()
        stack.callback(session.close)
        collector.tame()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        ignore_broken_leases()
        # After a vfork every thread waits for the child's exec; and before that the child closes files of the store and
        # of the source, which may hang. After a fork only who starts the child does.
        subprocess._USE_VFORK = False  # type: ignore[misc]
        failure: OSError | None = None
        try:
            trio.run(daemon.main)
        except* OSError as errors:
            failure = _first(errors)  # raised below: what is raised here would be wrapped in a group
        if failure is not None:
            raise MummufsError(f"the mount of {config.mountpoint} failed: {failure.strerror or failure}")
    # Threads that a hung source still holds must not keep the process: they are daemons, and nothing is left to write.
    logging.shutdown()
    return 0


class _Daemon:
    """The tasks of a mount."""

    def __init__(
        self, config: MountConfig, service: Service, operations: MirrorOperations, session: Session, ready: Ready
    ) -> None:
        self._config = config
        self._service = service
        self._operations = operations
        self._session = session
        self._ready = ready
        self._started = time.monotonic()
        self._tuned = tuning.Tuned(None, None)
        self._entry: MountEntry | None = None

    async def main(self) -> None:
        """Serve until the mount is gone."""
        handlers = {
            "status": self._status,
            **verify_handlers(self._service.background_scrub),
            **trace_handlers(self._config, self._service, self._session),
            **storecontrol.handlers(self._service.placement),
            **profile_handlers(self._service),
        }
        control = ControlServer(self._config.mountpoint, handlers)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._service.run)
                nursery.start_soon(self._watch_signals)
                nursery.start_soon(control.serve)
                nursery.start_soon(self._become_ready)
                await self._session.serve()
                await self._service.drain()
                nursery.cancel_scope.cancel()
        finally:
            control.close()
        log.info("unmounted %s", self._config.mountpoint)

    async def _become_ready(self) -> None:
        """Tune the mount once it has answered: the kernel's handshake, before that, would set everything back."""
        await trio.to_thread.run_sync(os.statvfs, self._config.mountpoint, abandon_on_cancel=True)
        self._tune()
        log.info("mounted %s at %s", self._config.source, self._config.mountpoint)
        self._ready({"ok": True})

    def _tune(self) -> None:
        self._entry = entry = mount_at(self._config.mountpoint, read_mountinfo())
        if entry is None:  # someone unmounted it already
            return
        device = "{}:{}".format(*entry.device)
        read_ahead = self._config.read_ahead_bytes
        if read_ahead is None:
            read_ahead = tuning.READ_AHEAD_BYTES_DEFAULT
        self._tuned = tuning.tune(device, read_ahead, self._config.max_background)

    async def _watch_signals(self) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                log.info("%s: leaving %s", signal.Signals(number).name, self._config.mountpoint)
                begun = trio.current_time()
                await self._service.drain()
                entry, now = self._entry, mount_at(self._config.mountpoint, read_mountinfo())
                is_there = entry is not None and now is not None and now.device == entry.device
                left_s = max(0.5, LEAVE_S - (trio.current_time() - begun))
                if await self._session.leave(left_s, is_there=is_there):
                    return
                held = [] if entry is None else await trio.to_thread.run_sync(_holders, entry)
                log.warning(
                    "%s was still in use and has been cut off%s",
                    self._config.mountpoint,
                    ": " + "; ".join(map(str, held)) if held else "",
                )
                return

    async def _status(self, asked: Mapping[str, object]) -> Answer:
        del asked
        uptime_s = time.monotonic() - self._started
        return status(self._config, self._service, self._operations, self._session.front, self._tuned, uptime_s)


@contextlib.contextmanager
def _claimed(mountpoint: Path) -> Iterator[None]:
    """Hold the mountpoint while it is mounted on: of two mounts at once, the second is refused.

    Raises:
        UsageError: somebody else is mounting there, or has mounted.
    """
    fd = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another mummufs is just being mounted at {mountpoint}: name another place") from None
        except OSError:
            pass  # a file system without locks: the check that follows has to do
        if mount_at(mountpoint, read_mountinfo()) is not None:
            raise UsageError(f"something is mounted at {mountpoint} by now: unmount it, or name another place")
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def _opened_store(config: MountConfig, directory: Path) -> Iterator[RangeStore]:
    """The store, locked. What is wrong with it is told in a sentence."""
    try:
        directory.mkdir(mode=DIR_MODE, parents=True, exist_ok=True)
        owner = directory.stat().st_uid
        if owner != os.geteuid():
            raise UsageError(f"the store {directory} belongs to user {owner}: name one of your own")
        directory.chmod(DIR_MODE)
        with contextlib.ExitStack() as stack:
            lock = StoreLock(directory)
            stack.callback(lock.release)
            store = RangeStore(
                RealOs(directory),
                lock.renew,
                closer=Reaper("store closer").submit,
                tables_bytes_max=tables_bytes_max(config),
            )
            held = stack.pop_all()
    except OSError as error:
        raise UsageError(f"the store {directory} cannot be used: {error.strerror}") from None
    with held:
        yield store


def _holders(entry: MountEntry) -> list[Holder]:
    """Who holds a mount that has just been detached: only its id still leads to them."""
    return holders(entry.device, source=entry.source, mount_ids={entry.mount_id})


def _service_options(config: MountConfig, source_reads: int) -> ServiceOptions:
    left = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - DESCRIPTORS_RESERVED
    open_max = max(OPEN_MIN, min(OPEN_MAX, left // OPEN_SHARE))
    return replace(
        common_options(config, source_reads, lambda: RealOs(config.store_dir or Path()).total_bytes()),
        open_max=open_max,
        files_max=max(FILES_MIN, left - 2 * open_max),
        read_around=spins(os.fspath(config.source)),
        heat_save_s=float(os.environ.get(HEAT_SAVE_ENV, SAVE_S)),
        prefetch=config.prefetch == "order" and not config.direct,
    )


def _session_options(config: MountConfig) -> SessionOptions:
    return SessionOptions(
        config.fsname,
        config.allow_other,
        config.read_only,
        config.mount_flags,
        lane=config.lane,
        lane_options=LaneOptions(
            config.max_background,
            push=config.push and not config.direct,
            passthrough=config.passthrough,
            masked=int(os.environ.get(MASKED_ENV, "0"), 16),
        ),
        direct=config.direct,
    )


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _first(group: BaseExceptionGroup[OSError]) -> OSError:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, OSError)
    return found
