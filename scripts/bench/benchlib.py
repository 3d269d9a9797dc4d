"""What the stand-ins and benchmarks share: commands, undo lists, loop devices, cold caches. Linux, mostly for root."""

from __future__ import annotations

import functools
import hashlib
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from mummufs.core.errors import UsageError
from mummufs.mountinfo import mount_at, read_mountinfo
from mummufs.units import parse_size

STATE_DIRECTORY = Path("/run/mummufs-bench")
COMMAND_TIMEOUT_S = 120.0
GONE_TIMEOUT_S = 10.0
START_TIMEOUT_S = 20.0
POLL_S = 0.02


class SizeType(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A size on the command line: bytes, or K, M, G, T as powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes; a usage error otherwise."""
        if isinstance(value, int):
            return value
        try:
            return parse_size("size", value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


SIZE = SizeType()


def run(*command: str | os.PathLike[str], timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Run a command; its output. Raises ClickException (exit 1) with the command's own words if it fails."""
    words = [os.fspath(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False)
    except FileNotFoundError:
        raise click.ClickException(f"{words[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise click.ClickException(f"{' '.join(words)} did not end in {timeout_s:.0f} s") from None
    if done.returncode:
        told = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise click.ClickException(f"{' '.join(words)} failed: {told}")
    return done.stdout.strip()


def require_root(what: str) -> None:
    """Raise UsageError (exit 2) unless root runs this."""
    if os.geteuid() != 0:
        raise click.UsageError(f"{what} needs loop devices and mounts: run it as root")


SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_raise() -> Iterator[None]:
    """The first SIGINT or SIGTERM raises SystemExit(1), so that clean-up runs; later ones do not disturb it."""

    def end(_number: int, _frame: FrameType | None) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        sys.exit(1)

    before = [(number, signal.signal(number, end)) for number in SIGNALS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def signals_wait() -> Iterator[None]:
    """SIGINT and SIGTERM are held back until the end: for a step that cannot be undone when half done."""
    held: list[int] = []
    before = [(number, signal.signal(number, lambda number, _frame: held.append(number))) for number in SIGNALS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])


def is_mounted(path: Path) -> bool:
    """Whether something is mounted at exactly this absolute path. Asks no file system."""
    return mount_at(path, read_mountinfo()) is not None


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = GONE_TIMEOUT_S) -> None:
    """Poll until `condition` holds. Raises ClickException naming `what` after the time-out."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise click.ClickException(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(POLL_S)


class UndoList:
    """What a stand-in has set up, on disk, so that `stop` in another process can take it down in reverse.

    A step is a pair (kind, subject): ("umount", path), ("detach", image), ("rmdir", path), ("unlink", path),
    ("process", "pid start-ticks").
    """

    def __init__(self, kind: str, directory: Path) -> None:
        """The list of the stand-in of this kind that is mounted at `directory`. Raises UsageError unless root asks."""
        require_root("a stand-in")
        key = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
        self.name = f"{kind}-{key}"
        self.path = STATE_DIRECTORY / f"{self.name}.json"
        self.facts: dict[str, Any] = {"directory": str(directory)}
        self._steps: list[tuple[str, str]] = []

    def load(self) -> bool:
        """Read what an earlier process wrote; False if there is nothing."""
        try:
            saved = json.loads(self.path.read_text())
        except FileNotFoundError:
            return False
        self.facts = saved["facts"]
        self._steps = [(kind, subject) for kind, subject in saved["steps"]]
        return True

    def add(self, kind: str, subject: str | os.PathLike[str]) -> None:
        """Note a step before it is done: undoing one that never happened is harmless."""
        self._steps.append((kind, os.fspath(subject)))
        self.save()

    def save(self) -> None:
        """Write the list."""
        STATE_DIRECTORY.mkdir(mode=0o700, exist_ok=True)
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps({"facts": self.facts, "steps": self._steps}))
        temporary.replace(self.path)

    def undo(self) -> None:
        """Undo every step, the last first. Raises ClickException at one that cannot be undone; then call it again."""
        while self._steps:
            kind, subject = self._steps[-1]
            try:
                _UNDO[kind](subject)
            except OSError as error:
                raise click.ClickException(f"cannot undo {kind} {subject}: {error.strerror}") from None
            self._steps.pop()
            self.save()
        self.path.unlink(missing_ok=True)
        try:
            STATE_DIRECTORY.rmdir()
        except OSError:
            pass  # other stand-ins are running


def _umount(path: str) -> None:
    while is_mounted(Path(path)):
        run("umount", path)


def attach_loop(image: Path, undo: UndoList) -> str:
    """A loop device over `image` that bypasses its page cache. Raises ClickException where direct I/O is refused."""
    undo.add("detach", image)
    device = run("losetup", "--find", "--show", "--direct-io=on", image)
    if Path(f"/sys/block/{Path(device).name}/loop/dio").read_text().strip() != "1":
        raise click.ClickException(f"the file system of {image} does not allow direct I/O: use another directory")
    return device


def _detach(image: str) -> None:
    """Detach every loop device over an image and wait until it is gone."""
    for attached in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if attached.read_text().rstrip("\n") != image:
                continue
        except OSError:
            continue  # detached since it was listed
        device = attached.parent.parent.name
        run("losetup", "--detach", f"/dev/{device}")
        wait_until(functools.partial(_is_missing, attached), f"/dev/{device} to be free")


def _is_missing(path: Path) -> bool:
    return not path.exists()


def _rmdir(path: str) -> None:
    if Path(path).is_dir():
        Path(path).rmdir()


def _unlink(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def _start_ticks(pid: int) -> str | None:
    """When a process started, which with its pid names it for good; None once it is gone (or a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def process_subject(pid: int) -> str:
    """A process by its pid and when it started, which names it for good."""
    return f"{pid} {_start_ticks(pid)}"


def end_process(subject: str) -> None:
    """End the process of that name, by force if it does not go; nothing if it is gone."""
    pid, _, ticks = subject.partition(" ")

    def running() -> bool:
        return _start_ticks(int(pid)) == ticks

    if not running():
        return
    os.kill(int(pid), signal.SIGTERM)
    try:
        wait_until(lambda: not running(), f"process {pid} to end")
    except click.ClickException:
        os.kill(int(pid), signal.SIGKILL)
        wait_until(lambda: not running(), f"process {pid} to end")


_UNDO: dict[str, Callable[[str], None]] = {
    "umount": _umount,
    "detach": _detach,
    "rmdir": _rmdir,
    "unlink": _unlink,
    "process": end_process,
}


def empty_directory(path: Path, undo: UndoList) -> None:
    """Make `path` if it is not there. Raises UsageError if it is in use or not empty."""
    if is_mounted(path):
        raise click.UsageError(f"{path} is a mount point already; stop that first")
    if not path.exists():
        undo.add("rmdir", path)
        path.mkdir(parents=True)
    elif not path.is_dir() or any(path.iterdir()):
        raise click.UsageError(f"{path} is not an empty directory")


def mount_tmpfs(path: Path, size: int, undo: UndoList) -> None:
    """A tmpfs of its own at a new directory, so that one umount frees everything."""
    undo.add("rmdir", path)
    path.mkdir(mode=0o700, parents=True)
    undo.add("umount", path)
    run("mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "mummufs-bench", path)


def drop_caches() -> None:
    """Write everything back and empty the kernel's page cache. Root only."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def pretouch(size: int) -> None:
    """Touch and free `size` bytes. On a virtual machine freed memory goes back to the host; a timed run that has to
    fetch it again is bimodal, so fetch it right before the run."""
    mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


def spawn_mount(command: Sequence[str | os.PathLike[str]], mountpoint: Path, log: Path, undo: UndoList) -> None:
    """Start a background process that outlives this one and mounts at `mountpoint`; returns when the mount is there.

    Raises ClickException with its words.
    """
    undo.add("umount", mountpoint)  # what it leaves if it has to be killed
    with log.open("wb") as output, signals_wait():
        process = subprocess.Popen(
            [os.fspath(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        undo.add("process", process_subject(process.pid))
    undo.add("umount", mountpoint)
    wait_until(lambda: is_mounted(mountpoint) or process.poll() is not None, f"{mountpoint}", START_TIMEOUT_S)
    if process.poll() is not None:
        raise click.ClickException(f"{mountpoint} was not mounted: {log.read_text(errors='replace').strip()}")
    process.returncode = 0  # it is meant to outlive us: no warning about a child that still runs
