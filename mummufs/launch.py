"""Start the daemon in the background and wait until the mount answers.

The daemon is a new process from a new program (never a fork alone), with a session of its own, in "/". It writes one
JSON line to the descriptor that `--ready-fd` names: `{"ok": true}`, or `{"ok": false, "message": ..., "exit": ...}`.
If it ends before that, the pipe ends too. What it prints until then lands in memory and explains such an end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import mummufs
from mummufs.config import OWN_ENVIRONMENT, PASS_THROUGH_NOTE, MountConfig, daemon_arguments
from mummufs.core.errors import MummufsError, UsageError
from mummufs.mountinfo import FSTYPE, is_dead, mount_at, probe, read_mountinfo
from mummufs.paths import require_directory
from mummufs.unmount import detach

PATH_DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are looked for when the environment does not say: mount(8) and systemd may give none."""

READY_BYTES_MAX = 64 << 10
"""A longer line than this is no message of ours."""

STOP_S = 6.0
"""How long a daemon that did not become ready may take to end: first by itself, then after SIGTERM. On SIGTERM it
promises 5 s."""

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

DEAD_MOUNTS_MAX = 16
"""Dead mounts on one mountpoint that are cleared away; more mean that something else is wrong."""


def mount_in_background(config: MountConfig, environ: Mapping[str, str]) -> list[str]:
    """Mount, and return when the mount answers. Gives notes for the user, a line each.

    Raises:
        UsageError: as the daemon found.
        MummufsError: the daemon failed, ended, or was stopped because the mount did not answer in time.
    """
    notes = prepare(config)
    with _ending_in_order():
        start_daemon(daemon_command(config), config, environ)
    return notes


def prepare(config: MountConfig) -> list[str]:
    """What comes before the daemon: begin the log, clear the mountpoint. Gives notes for the user, a line each.

    Raises:
        UsageError, MummufsError: the log file cannot be opened; the mountpoint cannot be cleared.
    """
    notes = [*_begin_log(config), *clear_dead_mount(config.mountpoint), *config.warnings]
    if config.store_dir is None:
        notes.append(PASS_THROUGH_NOTE)
    return notes


def _begin_log(config: MountConfig) -> list[str]:
    """A log that cannot be written now (its disk is full) is told, and keeps nobody from the mount."""
    if config.log_file is None:
        return []
    from mummufs import logs

    try:
        error = logs.begin(config.log_file, f"mounting {config.source} at {config.mountpoint}")
    except OSError as refused:
        raise _no_log(config.log_file, refused) from refused
    if error is None:
        return []
    return [f"the log file '{config.log_file}' cannot be written now, so log lines are lost: {error.strerror}"]


def _no_log(log_file: Path, error: OSError) -> UsageError:
    return UsageError(f"the log file '{log_file}' cannot be opened: {error.strerror}")


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end this process as SIGINT does: by an exception, so that the daemon is stopped too."""

    def leave(number: int, frame: object) -> None:
        del frame
        raise SystemExit(128 + number)

    with _handled(dict.fromkeys((signal.SIGTERM, signal.SIGHUP), leave)):
        yield


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Have no signal end this process within; what came takes effect at the end, by the handler that was there."""
    came: list[int] = []
    try:
        with _handled({number: lambda n, _: came.append(n) for number in ENDING_SIGNALS}):
            yield
    finally:
        for number in came[:1]:
            signal.raise_signal(number)


@contextlib.contextmanager
def _handled(handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
    """Have these signals handled so within, but for those that are ignored, as under nohup."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may take signals
        yield
        return
    before = {number: signal.getsignal(number) for number in handlers}
    taken = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    try:
        for number in taken:
            signal.signal(number, handlers[number])
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


def clear_dead_mount(mountpoint: Path) -> list[str]:
    """Take away what killed daemons have left mounted there. Gives a line where there was something.

    Raises:
        MummufsError: it cannot be taken away.
        UsageError: what lies under it is no directory.
    """
    cleared = 0
    while cleared < DEAD_MOUNTS_MAX:
        there = mount_at(mountpoint, read_mountinfo())
        if there is None or there.fstype != FSTYPE or not is_dead(mountpoint):
            break
        detach(mountpoint, lazy=True)
        cleared += 1
    if cleared == 0:
        return []
    require_directory(mountpoint)
    return [f"replaced the mount that a killed daemon left at '{mountpoint}'"]


def daemon_command(config: MountConfig) -> list[str]:
    """The daemon's command line, without `--ready-fd`."""
    return [sys.executable, "-P", "-m", "mummufs", *daemon_arguments(config)]


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child that runs this very package, whatever its directory."""
    package_parent = str(Path(mummufs.__file__).resolve().parent.parent)
    earlier = environ.get("PYTHONPATH")
    child = {name: value for name, value in environ.items() if name not in OWN_ENVIRONMENT}
    child["PYTHONPATH"] = os.pathsep.join([package_parent, earlier] if earlier else [package_parent])
    child["PATH"] = environ.get("PATH") or PATH_DEFAULT
    return child


def start_daemon(command: Sequence[str], config: MountConfig, environ: Mapping[str, str]) -> None:
    """Run a daemon and wait for its message, then for the mountpoint, for `config.mount_timeout_s` in all.

    Args:
        command: as `daemon_command`; `--foreground --ready-fd N` is put in front of its options.

    Raises:
        UsageError, MummufsError: as `mount_in_background`. Then no daemon is left running.
    """
    deadline = time.monotonic() + config.mount_timeout_s
    output = _open_output(config.log_file)
    ready_fd, daemon_fd = os.pipe()
    process: subprocess.Popen[bytes] | None = None
    try:
        at = command.index("mount") + 1
        with _held_back():  # ended inside Popen, this process would leave a daemon that it does not know of
            process = subprocess.Popen(
                [*command[:at], "--foreground", "--ready-fd", str(daemon_fd), *command[at:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env=child_environment(environ),
                start_new_session=True,
                pass_fds=(daemon_fd,),
            )
            os.close(daemon_fd)
            daemon_fd = -1
        _wait_ready(process, ready_fd, output if config.log_file is None else None, deadline, config)
        _wait_answer(config.mountpoint, deadline)
    except BaseException as error:
        if process is not None:
            _stop(process, config.mountpoint)
        elif isinstance(error, OSError):
            raise MummufsError(f"the daemon cannot be started: {error.strerror}") from error
        raise
    finally:
        os.close(ready_fd)
        os.close(output)
        if daemon_fd >= 0:
            os.close(daemon_fd)
    process.returncode = 0  # it lives on by design: subprocess shall not warn that nobody waits for it


def _open_output(log_file: Path | None) -> int:
    """Where the daemon's stdout and stderr go: its log file, or memory until it is ready."""
    if log_file is None:
        return os.memfd_create("mummufs-output")
    try:
        return os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _no_log(log_file, error) from error


def _wait_ready(
    process: subprocess.Popen[bytes], ready_fd: int, output: int | None, deadline: float, config: MountConfig
) -> None:
    line = _read_line(ready_fd, deadline)
    if line is None:
        raise MummufsError(
            f"'{config.mountpoint}' did not answer within {config.mount_timeout_s:g} s, so the daemon was stopped;"
            " a slow source may need a longer --mount-timeout"
        )
    if not line:
        raise MummufsError(_why_ended(process, output, config.log_file))
    try:
        message = json.loads(line)
        ok, text, code = message["ok"], str(message.get("message", "")), message.get("exit", 1)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MummufsError("the daemon sent a message that is not understood, so it was stopped") from error
    if ok is not True:
        sentence = text or "the daemon failed without a reason"
        _ended(process)  # it is cleaning up: a signal now would only disturb it
        raise UsageError(sentence) if code == 2 else MummufsError(sentence)


def _read_line(fd: int, deadline: float) -> bytes | None:
    """One line; what there was at the end of the pipe; or None when the time is over."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    data = b""
    while b"\n" not in data and len(data) < READY_BYTES_MAX:
        left_ms = max(0.0, deadline - time.monotonic()) * 1000
        if not poller.poll(left_ms):
            return None
        chunk = os.read(fd, READY_BYTES_MAX)
        if not chunk:
            break
        data += chunk
    return data.partition(b"\n")[0]


def _why_ended(process: subprocess.Popen[bytes], output: int | None, log_file: Path | None) -> str:
    if not _ended(process):
        return "the daemon closed its pipe without a message, so it was stopped"
    code = process.returncode
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    sentence = f"the daemon ended {how} before the mount was ready"
    if output is None:
        return f"{sentence}; see '{log_file}'"
    printed = os.pread(output, READY_BYTES_MAX, max(0, os.fstat(output).st_size - READY_BYTES_MAX))
    lines = os.fsdecode(printed).strip().splitlines()
    return f"{sentence}: {lines[-1].strip()}" if lines else sentence


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _wait_answer(mountpoint: Path, deadline: float) -> None:
    there = mount_at(mountpoint, read_mountinfo())
    if there is None or there.fstype != FSTYPE:
        raise MummufsError(f"the daemon says that it is ready, but nothing of it is mounted at '{mountpoint}'")
    error = probe(mountpoint, max(0.1, deadline - time.monotonic()))
    if error is not None:
        raise MummufsError(f"'{mountpoint}' is mounted but does not answer ({error.strerror}), so it was taken away")


def _stop(process: subprocess.Popen[bytes], mountpoint: Path) -> None:
    """End the daemon and its children, and take away what it left mounted."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)  # it is not waited for yet, so the number is still its own
            _ended(process)
    try:
        clear_dead_mount(mountpoint)
    except MummufsError:
        pass  # the failure that brought us here is the one to tell
