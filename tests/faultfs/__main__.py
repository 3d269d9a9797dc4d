"""`python -m tests.faultfs BACK MNT --control SOCK`: mount, serve until SIGTERM or SIGINT, unmount.

Prints `ready` once the kernel has been answered. Ends with its parent: at the end of standard input if that is a pipe.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import stat
from collections.abc import Iterable
from pathlib import Path

import pyfuse3
import trio

from tests.faultfs.control import Control, serve
from tests.faultfs.operations import FaultOperations, Record

MAX_TASKS = 1000
"""Calls that may wait at once, beyond what any test hangs."""

MAX_BACKGROUND = 1000
"""The kernel's limit of read-ahead requests in flight; its default of 12 would hold back hanging cached reads."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="faultfs", description=__doc__)
    parser.add_argument("back", help="the directory that is passed through")
    parser.add_argument("mountpoint")
    parser.add_argument("--control", required=True, metavar="SOCK", help="where the control socket is made")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write the reads there at exit, one JSON line each")
    parser.add_argument("--allow-other", action="store_true", help="let other users in")
    parser.add_argument("--volatile", action="store_true", help="what is written can be lost until it is synced")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--direct", action="store_true", help="no page cache: reads arrive as asked, 1 MiB each (default)"
    )
    mode.add_argument("--cached", action="store_true", help="through the page cache, which allows shared mappings")
    return parser.parse_args()


def write_log(path: Path, records: Iterable[Record]) -> None:
    """The log of reads as JSON lines."""
    with path.open("w") as file:
        file.writelines(json.dumps(record.as_json()) + "\n" for record in records)


def raise_max_background(mountpoint: str) -> None:
    """Best effort: only root may, and only where fusectl is mounted."""
    number = os.minor(os.lstat(mountpoint).st_dev)
    try:
        Path(f"/sys/fs/fuse/connections/{number}/max_background").write_text(str(MAX_BACKGROUND))
    except OSError:
        pass


async def run(operations: FaultOperations, listener: socket.socket) -> None:
    """Serve the mount and the socket until told to end or unmounted."""

    async def end_on_signal(scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                scope.cancel()

    async def end_with_parent(scope: trio.CancelScope) -> None:
        async with trio.lowlevel.FdStream(os.dup(0)) as stdin:
            while await stdin.receive_some():
                pass
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_on_signal, nursery.cancel_scope)
        if stat.S_ISFIFO(os.fstat(0).st_mode):
            nursery.start_soon(end_with_parent, nursery.cancel_scope)
        nursery.start_soon(serve, Control(operations), listener)
        await pyfuse3.main(max_tasks=MAX_TASKS)
        nursery.cancel_scope.cancel()


def main() -> None:
    """Run one layer."""
    args = arguments()
    os.umask(0)
    operations = FaultOperations(
        args.back,
        direct=not args.cached,
        volatile=args.volatile,
        on_ready=lambda: print("ready", flush=True),
    )
    options = {*pyfuse3.default_options, "fsname=faultfs", "subtype=faultfs"}
    if args.allow_other:
        options.add("allow_other")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(args.control)
    listener.listen()
    pyfuse3.init(operations, args.mountpoint, options)
    try:
        trio.run(run, operations, listener)
    finally:
        pyfuse3.close(unmount=True)
        Path(args.control).unlink(missing_ok=True)
        if args.log is not None:
            write_log(args.log, operations.records)


if __name__ == "__main__":
    main()
