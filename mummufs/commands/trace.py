"""`mummufs trace`: write down which ranges of a mount are read, block by block, until told to stop."""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from mummufs.commands.output import print_json, printable
from mummufs.core.errors import MummufsError, UsageError
from mummufs.mountinfo import MountEntry
from mummufs.tracefile import TraceHeader, TraceWriter
from mummufs.units import format_duration, format_size, parse_duration
from mummufs.unmount import mummufs_mount, resolved

POLL_S = 0.5
"""Pause between two looks at what has been recorded."""
ANSWER_S = 20.0
"""How long the daemon may take to answer: it may be busy, and its recording lasts longer than this."""


@dataclass
class _Progress:
    """What has been written so far, by the daemon's counts."""

    reads: int = 0
    read_bytes: int = 0
    hit_bytes: int = 0
    dropped: int = 0
    file_bytes: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        share = f"{100 * self.hit_bytes / self.read_bytes:.0f} %" if self.read_bytes else "-"
        parts = [
            format_duration(self.seconds),
            f"{self.reads:,} reads",
            f"{format_size(self.read_bytes)} read",
            f"hits {share}",
            f"file {format_size(self.file_bytes)}",
        ]
        return ", ".join([*parts, f"{self.dropped:,} dropped"] if self.dropped else parts)


@click.command()
@click.argument("mountpoint")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where the trace is written.")
@click.option("--for", "seconds", metavar="TIME", help="Stop after so long, such as 10m. Default: at Ctrl-C.")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON at the end, and nothing before it.")
def trace(mountpoint: str, output: str, seconds: str | None, force: bool, as_json: bool) -> None:
    """Record which ranges of the mount at MOUNTPOINT are read. `mummufs simulate` shows what other budgets had made.

    The trace names the files that were read, and nothing of what is in them.
    """
    from mummufs import control

    limit_s = None if seconds is None else parse_duration("--for", seconds)
    path = resolved(mountpoint)
    entry = mummufs_mount(path)
    file = _output_file(output, path, entry, force=force)
    started = control.request(path, "trace_start")
    number = started["trace"]
    try:
        writer = _created(file, TraceHeader(started["started_ms"], started["budget_bytes"]), force=force)
    except BaseException:
        _stop(lambda: control.request(path, "trace_stop", trace=number))
        raise
    progress, ended = _Progress(), None
    try:
        with _until_signalled() as stop, _shown(progress, quiet=as_json) as show:
            ended = _record(
                lambda: control.request(path, "trace_read", ANSWER_S, trace=number),
                writer,
                progress,
                stop,
                limit_s,
                show,
            )
    except OSError as error:
        raise MummufsError(
            f"'{file}' cannot be written: {error.strerror}; what it holds up to here can be simulated"
        ) from error
    finally:
        writer.close()
        if ended is None:
            _stop(lambda: control.request(path, "trace_stop", trace=number))
    if as_json:
        print_json({"schema": 1, "file": os.fspath(file), **vars(progress), "ended": ended})
    else:
        click.echo(f"'{printable(os.fspath(file))}': {progress}")
    if ended is not None:
        click.echo(f"mummufs: the trace ends here: {printable(ended)}", err=True)


def _record(
    ask: Callable[[], dict[str, Any]],
    writer: TraceWriter,
    progress: _Progress,
    stop: threading.Event,
    limit_s: float | None,
    show: Callable[[], None],
) -> str | None:
    """Write blocks until told to stop, and then what is left. Gives the daemon's reason where that ended it."""
    begun = time.monotonic()
    while True:
        left_s = POLL_S if limit_s is None else min(POLL_S, begun + limit_s - time.monotonic())
        is_last = left_s <= 0 or stop.wait(left_s)
        while True:
            try:
                answer = ask()
            except (MummufsError, OSError) as error:
                return str(error)
            block = b64decode(answer["block"])
            if block:
                writer.append(block)
            for name in ("reads", "read_bytes", "hit_bytes", "dropped"):
                setattr(progress, name, answer[name])
            progress.file_bytes, progress.seconds = writer.size, round(time.monotonic() - begun, 3)
            show()
            if not block or not answer["blocks"]:
                break
        if is_last:
            return None


def _output_file(text: str, mountpoint: Path, entry: MountEntry, *, force: bool) -> Path:
    """Where to write, refused while nothing has been done yet.

    Raises:
        UsageError: it is there, it is no place for a file, or it lies in the mount.
    """
    try:
        parent = Path(os.path.realpath(os.path.dirname(text) or ".", strict=True))
        found = parent.stat()
    except (OSError, ValueError) as error:
        raise UsageError(f"'{text}' cannot be written: {getattr(error, 'strerror', None) or error}") from error
    path = parent / os.path.basename(text)
    if not os.path.basename(text) or not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"'{text}' is no name for a file")
    device = (os.major(found.st_dev), os.minor(found.st_dev))
    if device == entry.device or parent.is_relative_to(mountpoint):
        raise UsageError(f"'{text}' lies in the mount '{mountpoint}': write the trace elsewhere")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return path
    if not stat.S_ISREG(mode):
        raise UsageError(f"'{text}' is there and is not a regular file: name another one")
    if not force:
        raise UsageError(f"'{text}' is there already: name another file, or replace it with --force")
    return path


def _created(path: Path, header: TraceHeader, *, force: bool) -> TraceWriter:
    """The file, new.

    Raises:
        MummufsError: it cannot be made.
    """
    try:
        if force:
            path.unlink(missing_ok=True)
        return TraceWriter(path, header)
    except FileExistsError:
        raise UsageError(f"'{path}' is there already: name another file, or replace it with --force") from None
    except OSError as error:
        raise MummufsError(f"'{path}' cannot be written: {error.strerror}") from error


def _stop(ask: Callable[[], object]) -> None:
    try:
        ask()
    except (MummufsError, OSError):
        pass  # the mount has ended meanwhile, and the recording with it


@contextmanager
def _until_signalled() -> Iterator[threading.Event]:
    """An event that signals of an end set, so that none comes in the middle of a block; what is ignored stays so."""
    stop = threading.Event()
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [number for number in ends if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _shown(progress: _Progress, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """A line on standard error that follows the progress, where that is a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda: None
        return
    with Live(Text("tracing; Ctrl-C ends it"), console=console, transient=True, auto_refresh=False) as live:
        yield lambda: live.update(Text(f"tracing: {progress}; Ctrl-C ends it"), refresh=True)
