"""BACK, read-only at MNT, as if it lay on one spinning disk. Runs until MNT is unmounted or it gets SIGINT or SIGTERM.

Each file lies in one piece at a place of its own, so going from one file to another is a seek. Names and attributes are
free. Reads go through the page cache, as on a real disk. Needs no loop devices, and no root where fusermount3 is.
"""
# ruff: noqa: ARG002 - the arguments are pyfuse3's

from __future__ import annotations

import errno
import functools
import os
import resource
import signal
import stat
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click
import pyfuse3
import trio

from scripts.bench.disk_head import DiskHead
from scripts.bench.disk_model import RATE_BYTES_PER_S, SEEK_S, DiskModel

FILE_STRIDE_BYTES = 1 << 44
"""Files lie this far apart on the disk, so that none follows another."""

ATTRIBUTE_CACHE_S = 1.0
MAX_TASKS = 200

P = ParamSpec("P")
R = TypeVar("R")


def translated(handler: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Turn `OSError` into its errno."""

    @functools.wraps(handler)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await handler(*args, **kwargs)
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from None

    return run


@dataclass
class Node:
    """An inode that the kernel knows, as an O_PATH descriptor."""

    number: int
    descriptor: int
    place: int
    lookups: int = 0


@dataclass
class Listing:
    """An open directory."""

    node: Node
    names: list[bytes] = field(default_factory=list)


class SlowOperations(pyfuse3.Operations):
    """Pass-through of look-ups, attributes, listings and reads; reads take the disk's time."""

    def __init__(self, back: Path, head: DiskHead) -> None:
        super().__init__()
        self._head = head
        descriptor = os.open(back, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        root = Node(pyfuse3.ROOT_INODE, descriptor, 0, 1)
        self._nodes = {root.number: root}
        self._numbers = {_identity(os.fstat(descriptor)): root.number}
        self._next_number = root.number + 1
        self._files: dict[int, Node] = {}
        self._listings: dict[int, Listing] = {}
        self._next_listing = 1

    def _look_up(self, parent: Node, name: bytes) -> Node:
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent.descriptor)
        identity = _identity(os.fstat(descriptor))
        number = self._numbers.setdefault(identity, self._next_number)
        if number in self._nodes:
            os.close(descriptor)
        else:
            self._next_number += 1
            self._nodes[number] = Node(number, descriptor, number * FILE_STRIDE_BYTES)
        node = self._nodes[number]
        node.lookups += 1
        return node

    def _forget(self, number: int, lookups: int) -> None:
        node = self._nodes[number]
        node.lookups -= lookups
        if node.lookups <= 0 and number != pyfuse3.ROOT_INODE:
            del self._nodes[number]
            del self._numbers[_identity(os.fstat(node.descriptor))]
            os.close(node.descriptor)

    def _attributes(self, node: Node) -> pyfuse3.EntryAttributes:
        status = os.fstat(node.descriptor)
        entry = pyfuse3.EntryAttributes()
        for name in ("mode", "nlink", "uid", "gid", "rdev", "size", "blocks", "atime_ns", "mtime_ns", "ctime_ns"):
            setattr(entry, f"st_{name}", getattr(status, f"st_{name}"))
        entry.st_ino = node.number
        entry.st_blksize = 4096
        entry.attr_timeout = entry.entry_timeout = ATTRIBUTE_CACHE_S
        return entry

    @translated
    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return self._attributes(self._look_up(self._nodes[parent_inode], name))

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        for number, lookups in inode_list:
            self._forget(number, lookups)

    @translated
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return self._attributes(self._nodes[inode])

    @translated
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        return os.readlink(b"", dir_fd=self._nodes[inode].descriptor)

    @translated
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        node = self._nodes[inode]
        names = sorted(map(os.fsencode, os.listdir(f"/proc/self/fd/{node.descriptor}")))
        self._next_listing += 1
        self._listings[self._next_listing] = Listing(node, names)
        return self._next_listing

    @translated
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        listing = self._listings[fh]
        for next_id, name in enumerate(listing.names[start_id:], start_id + 1):
            try:
                node = self._look_up(listing.node, name)
            except FileNotFoundError:
                continue
            if not pyfuse3.readdir_reply(token, name, self._attributes(node), next_id):
                self._forget(node.number, 1)
                return

    async def releasedir(self, fh: int) -> None:
        del self._listings[fh]

    @translated
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise pyfuse3.FUSEError(errno.EROFS)
        node = self._nodes[inode]
        descriptor = os.open(f"/proc/self/fd/{node.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        self._files[descriptor] = node
        return pyfuse3.FileInfo(fh=descriptor, keep_cache=True)

    @translated
    async def read(self, fh: int, off: int, size: int) -> bytes:
        data = os.pread(fh, size, off)
        await self._head.wait(self._files[fh].place + off, len(data))
        return data

    async def release(self, fh: int) -> None:
        del self._files[fh]
        os.close(fh)

    @translated
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        status = os.statvfs(f"/proc/self/fd/{self._nodes[pyfuse3.ROOT_INODE].descriptor}")
        reply = pyfuse3.StatvfsData()
        for name in ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail", "namemax"):
            setattr(reply, f"f_{name}", getattr(status, f"f_{name}"))
        return reply


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


async def serve(head: DiskHead) -> None:
    """Serve until unmounted or told to end."""

    async def end_on_signal(scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_on_signal, nursery.cancel_scope)
        nursery.start_soon(head.run)
        await pyfuse3.main(max_tasks=MAX_TASKS)
        nursery.cancel_scope.cancel()


@click.command(help=__doc__)
@click.argument("back", type=click.Path(path_type=Path, resolve_path=True, exists=True, file_okay=False))
@click.argument("mnt", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--seek-ms", type=click.FloatRange(min=0), default=SEEK_S * 1e3, show_default=True)
@click.option(
    "--rate-mb",
    type=click.FloatRange(min=0, min_open=True),
    default=RATE_BYTES_PER_S / 1e6,
    show_default=True,
    help="MB (10^6 bytes) a second.",
)
@click.option("--allow-other", is_flag=True, help="Let other users in.")
def main(back: Path, mnt: Path, seek_ms: float, rate_mb: float, allow_other: bool) -> None:
    """The command line."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # every inode in use costs a descriptor
    if not stat.S_ISDIR(os.stat(mnt).st_mode) or any(mnt.iterdir()):
        raise click.UsageError(f"{mnt} is not an empty directory")
    head = DiskHead(DiskModel(seek_ms / 1e3, rate_mb * 1e6))
    options = {*pyfuse3.default_options, "ro", f"fsname={_escaped(back)}", "subtype=slowfs"}
    if allow_other:
        options.add("allow_other")
    try:
        pyfuse3.init(SlowOperations(back, head), str(mnt), options)
    except RuntimeError as error:
        raise click.ClickException(f"cannot mount {mnt}: {error}") from None
    try:
        trio.run(serve, head)
    finally:
        pyfuse3.close(unmount=True)


def _escaped(path: Path) -> str:
    """A path as a mount option's value: its commas and backslashes escaped."""
    return str(path).replace("\\", "\\\\").replace(",", "\\,")
