"""One simulated disk: `python -m scripts.bench.fuse_disk IMAGE MOUNTPOINT` serves MOUNTPOINT/disk from IMAGE.

A loop device goes on top. Reads and writes take the time that `DiskModel` says, always, because the file is direct: no
page cache hides the model. MOUNTPOINT/control takes `slow` or `fast` (no waiting), and reads as JSON: mode, counters.
"""
# ruff: noqa: ARG002 - the arguments are pyfuse3's

from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import os
import signal
import stat
import time

import pyfuse3
import trio

from scripts.bench.disk_head import DiskHead
from scripts.bench.disk_model import DiskModel

DISK_INODE = 2
CONTROL_INODE = 3
NAMES = {b"disk": DISK_INODE, b"control": CONTROL_INODE}
CACHE_S = 3600.0
"""Nobody but us changes names or attributes."""

MODES = {b"slow": True, b"fast": False}


class DiskOperations(pyfuse3.Operations):
    """Two files in one directory."""

    def __init__(self, image: int) -> None:
        super().__init__()
        self.head = DiskHead(DiskModel(), timed=False)
        self._image = image
        self._size = os.fstat(image).st_size
        self._start_ns = time.time_ns()

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext | None = None) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.entry_timeout = entry.attr_timeout = CACHE_S
        entry.st_mode = stat.S_IFDIR | 0o700 if inode == pyfuse3.ROOT_INODE else stat.S_IFREG | 0o600
        entry.st_size = self._size if inode == DISK_INODE else 0
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = self._start_ns
        return entry

    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        return await self.getattr(inode)  # truncation of the control file, and times

    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        if name not in NAMES:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await self.getattr(NAMES[name])

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=inode, direct_io=True)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        if fh == CONTROL_INODE:
            return self._status()[off : off + size]
        await self.head.wait(off, size)
        return os.pread(self._image, size, off)

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        if fh == CONTROL_INODE:
            mode = bytes(buf).strip()
            if mode not in MODES:
                raise pyfuse3.FUSEError(errno.EINVAL)
            self.head.timed = MODES[mode]
            return len(buf)
        await self.head.wait(off, len(buf))
        try:
            return os.pwrite(self._image, buf, off)
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from None

    async def fsync(self, fh: int, datasync: bool) -> None:
        pass  # what is written is in the image

    async def flush(self, fh: int) -> None:
        pass

    async def release(self, fh: int) -> None:
        pass

    def _status(self) -> bytes:
        mode = "slow" if self.head.timed else "fast"
        status = {"mode": mode, **dataclasses.asdict(self.head.model.counters)}
        return json.dumps(status).encode() + b"\n"


async def serve(operations: DiskOperations) -> None:
    """Serve until unmounted or told to end."""

    async def end_on_signal(scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_on_signal, nursery.cancel_scope)
        nursery.start_soon(operations.head.run)
        await pyfuse3.main()
        nursery.cancel_scope.cancel()


def main() -> None:
    """Run one disk."""
    parser = argparse.ArgumentParser(prog="fuse_disk", description=__doc__)
    parser.add_argument("image")
    parser.add_argument("mountpoint")
    args = parser.parse_args()
    operations = DiskOperations(os.open(args.image, os.O_RDWR | os.O_CLOEXEC))
    pyfuse3.init(operations, args.mountpoint, {*pyfuse3.default_options, "fsname=mummufs-bench", "subtype=disk"})
    try:
        trio.run(serve, operations)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    main()
