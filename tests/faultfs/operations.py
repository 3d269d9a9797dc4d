"""The FUSE operations: pass-through, each call first asking `Faults` what is to go wrong with it.

Everything runs on the trio thread. Calls on BACK are made inline (BACK is local and fast); waiting is `trio.sleep` or
an event, so any number of delayed or hanging reads overlap.
"""

from __future__ import annotations

import errno
import functools
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import pyfuse3
import trio

from tests.faultfs.faults import Faults
from tests.faultfs.tree import Node, Tree, child_path
from tests.faultfs.unsynced import Unsynced

MAX_RECORDS = 2_000_000
"""Reads kept in memory. Later ones are only counted as dropped, which a client is told."""

DROPPED_OPEN_FLAGS = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_DIRECT | os.O_APPEND
"""O_APPEND: the kernel gives the offset, and pwrite on an appending descriptor ignores it. O_DIRECT: our buffers are
not aligned."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Record:
    """One read. `returned` is the bytes replied, minus an errno, or None while it waits."""

    t: float
    path: str
    offset: int
    size: int
    returned: int | None = None

    def as_json(self) -> dict[str, object]:
        """The line of the log."""
        return {
            "t": self.t,
            "op": "read",
            "path": self.path,
            "offset": self.offset,
            "size": self.size,
            "returned": self.returned,
        }


@dataclass
class Handle:
    """An open file, or the names of an open directory."""

    path: str
    descriptor: int = -1
    inode: int = 0
    names: Sequence[bytes] = ()


def translated(handler: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Turn `OSError` into its errno and a bug into EIO and a traceback: pyfuse3 would end the mount."""

    @functools.wraps(handler)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await handler(*args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from None
        except Exception:
            traceback.print_exc()
            raise pyfuse3.FUSEError(errno.EIO) from None

    return run


class FaultOperations(pyfuse3.Operations):
    """Pass-through with faults. `direct`: reads bypass the page cache, so each reaches us as it was asked. `volatile`:
    what is written can be lost until it is synced."""

    enable_acl = True

    def __init__(self, back: str, *, direct: bool, volatile: bool, on_ready: Callable[[], None]) -> None:
        super().__init__()
        self.faults = Faults()
        self.unsynced = Unsynced() if volatile else None
        self.records: list[Record] = []
        self.dropped_records = 0
        self.op_counts: Counter[str] = Counter()
        self._tree = Tree(back)
        self._direct = direct
        self._on_ready = on_ready
        self._handles: dict[int, Handle] = {}
        self._next_handle = 1
        self._released = trio.Event()

    def init(self) -> None:
        """The kernel has been answered: the mount works from here on."""
        self._on_ready()

    def release_hung(self) -> None:
        """Wake every hanging read, to look again whether it still hangs."""
        self._released.set()
        self._released = trio.Event()

    async def _enter(self, op: str, path: str) -> None:
        """Count one call and let it wait or fail as told."""
        self.op_counts[op] += 1
        if self.faults.power_is_off:
            raise pyfuse3.FUSEError(errno.EIO)
        if op in ("lookup", "getattr", "readdir") and self.faults.attr_delay_s > 0:
            await trio.sleep(self.faults.attr_delay_s)
        if op == "read":
            delay_s = self.faults.read_delay_s(path)
            if delay_s > 0:
                await trio.sleep(delay_s)
            while self.faults.hangs(path):
                await self._released.wait()
        failure = self.faults.failure(op, path)
        if failure is not None:
            raise pyfuse3.FUSEError(failure)

    def _add_handle(self, handle: Handle) -> int:
        number = self._next_handle
        self._next_handle += 1
        self._handles[number] = handle
        return number

    # Names and attributes

    @translated
    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext | None = None
    ) -> pyfuse3.EntryAttributes:
        parent = self._tree.node(parent_inode)
        await self._enter("lookup", child_path(parent, name))
        return self._tree.attributes(self._tree.look_up(parent, name))

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        for number, lookups in inode_list:
            self._tree.forget(number, lookups)

    @translated
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext | None = None) -> pyfuse3.EntryAttributes:
        node = self._tree.node(inode)
        await self._enter("getattr", node.path)
        return self._tree.attributes(node)

    @translated
    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        node = self._tree.node(inode)
        await self._enter("setattr", node.path)
        if fields.update_uid or fields.update_gid:
            os.chown(node.proc_path, attr.st_uid if fields.update_uid else -1, attr.st_gid if fields.update_gid else -1)
        if fields.update_mode:
            os.chmod(node.proc_path, attr.st_mode & 0o7777)
        if fields.update_size:
            self._changing(node.proc_path)
            os.truncate(node.proc_path if fh is None else self._handles[fh].descriptor, attr.st_size)
        if fields.update_atime or fields.update_mtime:
            now = os.fstat(node.descriptor)
            atime_ns = attr.st_atime_ns if fields.update_atime else now.st_atime_ns
            mtime_ns = attr.st_mtime_ns if fields.update_mtime else now.st_mtime_ns
            os.utime(node.proc_path, ns=(atime_ns, mtime_ns))
        return self._tree.attributes(node)

    @translated
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        node = self._tree.node(inode)
        await self._enter("readlink", node.path)
        return os.readlink(b"", dir_fd=node.descriptor)

    @translated
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        node = self._tree.node(inode)
        await self._enter("opendir", node.path)
        names = sorted(map(os.fsencode, os.listdir(node.proc_path)))
        return self._add_handle(Handle(node.path, inode=inode, names=names))

    @translated
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        handle = self._handles[fh]
        await self._enter("readdir", handle.path)
        parent = self._tree.node(handle.inode)
        for next_id, name in enumerate(handle.names[start_id:], start_id + 1):
            try:
                node = self._tree.look_up(parent, name)
            except FileNotFoundError:
                continue  # gone since the directory was opened
            if not pyfuse3.readdir_reply(token, name, self._tree.attributes(node), next_id):
                self._tree.forget(node.number, 1)
                return

    async def releasedir(self, fh: int) -> None:
        del self._handles[fh]

    @translated
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        await self._enter("statfs", "")
        status = os.statvfs(self._tree.node(pyfuse3.ROOT_INODE).proc_path)
        reply = pyfuse3.StatvfsData()
        for name in ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail", "namemax"):
            setattr(reply, f"f_{name}", getattr(status, f"f_{name}"))
        return reply

    @translated
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        node = self._tree.node(inode)
        await self._enter("getxattr", node.path)
        return os.getxattr(node.proc_path, name)

    @translated
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        node = self._tree.node(inode)
        await self._enter("listxattr", node.path)
        return [os.fsencode(name) for name in os.listxattr(node.proc_path)]

    @translated
    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        node = self._tree.node(inode)
        await self._enter("setxattr", node.path)
        os.setxattr(node.proc_path, name, value)

    @translated
    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        node = self._tree.node(inode)
        await self._enter("removexattr", node.path)
        os.removexattr(node.proc_path, name)

    # Contents

    @translated
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        node = self._tree.node(inode)
        await self._enter("open", node.path)
        if flags & os.O_TRUNC:
            self._changing(node.proc_path)
        descriptor = os.open(node.proc_path, flags & ~DROPPED_OPEN_FLAGS | os.O_CLOEXEC)
        return self._file_info(node, descriptor)

    def _file_info(self, node: Node, descriptor: int) -> pyfuse3.FileInfo:
        handle = self._add_handle(Handle(node.path, descriptor))
        return pyfuse3.FileInfo(fh=handle, direct_io=self._direct, keep_cache=not self._direct)

    @translated
    async def read(self, fh: int, off: int, size: int) -> bytes:
        handle = self._handles[fh]
        record = Record(time.monotonic(), handle.path, off, size)
        if len(self.records) < MAX_RECORDS:
            self.records.append(record)
        else:
            self.dropped_records += 1
        try:
            await self._enter("read", handle.path)
            data = os.pread(handle.descriptor, self.faults.read_size(size), off)
        except pyfuse3.FUSEError as error:
            record.returned = -error.errno
            raise
        except OSError as error:
            record.returned = -(error.errno or errno.EIO)
            raise
        record.returned = len(data)
        return self.faults.corrupt(handle.path, off, data)

    @translated
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        handle = self._handles[fh]
        await self._enter("write", handle.path)
        room = self.faults.take_space(len(buf))
        if room == 0 and buf:
            raise pyfuse3.FUSEError(errno.ENOSPC)
        self._changing(f"/proc/self/fd/{handle.descriptor}")
        return os.pwrite(handle.descriptor, buf[:room], off)

    def _changing(self, path: str) -> None:
        if self.unsynced is not None:
            self.unsynced.changing(path)

    @translated
    async def flush(self, fh: int) -> None:
        await self._enter("flush", self._handles[fh].path)

    @translated
    async def fsync(self, fh: int, datasync: bool) -> None:
        handle = self._handles[fh]
        await self._enter("fsync", handle.path)
        if self.faults.syncs_lie:
            return
        with trio.move_on_after(self.faults.sync_delay_s):
            await self._released.wait()
            raise pyfuse3.FUSEError(errno.EIO)
        await trio.to_thread.run_sync(os.fdatasync if datasync else os.fsync, handle.descriptor)
        if self.unsynced is not None:
            self.unsynced.synced(handle.descriptor)

    @translated
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        await self._enter("fsyncdir", self._handles[fh].path)

    async def release(self, fh: int) -> None:
        self.op_counts["release"] += 1
        os.close(self._handles.pop(fh).descriptor)

    # Changes of the tree

    @translated
    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        parent = self._tree.node(parent_inode)
        await self._enter("create", child_path(parent, name))
        create_flags = os.O_CREAT | flags & os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags & ~DROPPED_OPEN_FLAGS | create_flags, mode, dir_fd=parent.descriptor)
        if os.geteuid() == 0:
            os.fchown(descriptor, ctx.uid, ctx.gid)
        node = self._tree.look_up(parent, name)
        return self._file_info(node, descriptor), self._tree.attributes(node)

    @translated
    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        parent = self._tree.node(parent_inode)
        await self._enter("mkdir", child_path(parent, name))
        os.mkdir(name, mode, dir_fd=parent.descriptor)
        return self._made(parent, name, ctx)

    @translated
    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        parent = self._tree.node(parent_inode)
        await self._enter("symlink", child_path(parent, name))
        os.symlink(target, name, dir_fd=parent.descriptor)
        return self._made(parent, name, ctx)

    def _made(self, parent: Node, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        if os.geteuid() == 0:
            os.chown(name, ctx.uid, ctx.gid, dir_fd=parent.descriptor, follow_symlinks=False)
        return self._tree.attributes(self._tree.look_up(parent, name))

    @translated
    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        node, parent = self._tree.node(inode), self._tree.node(new_parent_inode)
        await self._enter("link", child_path(parent, new_name))
        os.link(node.proc_path, new_name, dst_dir_fd=parent.descriptor, follow_symlinks=True)
        return self._tree.attributes(self._tree.look_up(parent, new_name))

    @translated
    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        parent = self._tree.node(parent_inode)
        await self._enter("unlink", child_path(parent, name))
        os.unlink(name, dir_fd=parent.descriptor)

    @translated
    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        parent = self._tree.node(parent_inode)
        await self._enter("rmdir", child_path(parent, name))
        os.rmdir(name, dir_fd=parent.descriptor)

    @translated
    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        old, new = self._tree.node(parent_inode_old), self._tree.node(parent_inode_new)
        await self._enter("rename", child_path(old, name_old))
        if flags:
            raise pyfuse3.FUSEError(errno.EINVAL)
        os.rename(name_old, name_new, src_dir_fd=old.descriptor, dst_dir_fd=new.descriptor)
