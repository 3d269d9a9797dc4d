"""pyfuse3's operations that change something, over `engine.mirror`: translation, and nothing else.

What pyfuse3 has no handler for (fallocate, lseek, copy_file_range, ioctl, O_TMPFILE) libfuse answers with ENOSYS: the
kernel does without or says EOPNOTSUPP, and does not ask again. Locks are not asked for, so they are the kernel's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import replace

import pyfuse3

from mummufs.backends.fuse.operations import Operations, guarded
from mummufs.core.stats import Counters
from mummufs.engine.mirror import Mirror
from mummufs.engine.nodes import Node
from mummufs.engine.overlay import Handle, Overlay
from mummufs.source.base import Creator, NewAttributes

_ROOT_UID = 0
_PRIVILEGES = stat.S_ISUID | stat.S_ISGID


class MirrorOperations(Operations):
    """The handlers of a mount that may be written to. The kernel keeps a read-only mount from all of these."""

    def __init__(self, overlay: Overlay, mirror: Mirror, counters: Counters, attr_timeout_s: float) -> None:
        super().__init__(overlay, counters, attr_timeout_s)
        self._mirror = mirror

    @property
    def mirror(self) -> Mirror:
        """What carries the changes out."""
        return self._mirror

    # ------------------------------------------------------------------ files

    @guarded
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        node = self.inodes.node(inode)
        if flags & os.O_ACCMODE == os.O_RDONLY and not flags & os.O_TRUNC:
            return self._opened(await self._overlay.open(node))
        # The rest of the caller's flags is the kernel's business: with O_APPEND the source would move our offsets.
        handle = await self._mirror.open(node, truncate=bool(flags & os.O_TRUNC), drop_privileges=ctx.uid != _ROOT_UID)
        return self._opened(handle)

    @guarded
    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        to_write = flags & os.O_ACCMODE != os.O_RDONLY
        directory = self.inodes.node(parent)
        try:
            node, handle = await self._mirror.create(directory, name, mode, _creator(ctx), to_write=to_write)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            # It has come into being behind us. May the caller open it? The kernel looks again, and finds out.
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from None
        info = self._opened(handle)
        return info, self._made(node)

    @guarded
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        handle = self._handles[fh]
        # Past the page cache the kernel leaves setuid and setgid to us. It says of whom, but pyfuse3 does not.
        drop, mode = self.modes.is_direct(handle.node), handle.node.attributes.mode
        written = await self._mirror.write(handle, off, buf, drop_privileges=drop)
        number = self.inodes.known(handle.node)
        if drop and handle.node.attributes.mode != mode and number is not None:
            pyfuse3.invalidate_inode(number, attr_only=True)  # or it would run the file with them for a while
        return written

    @guarded
    async def flush(self, fh: int) -> None:
        await self._mirror.flush(self._handles[fh])

    @guarded
    async def fsync(self, fh: int, datasync: bool) -> None:
        await self._mirror.sync(self._handles[fh], data_only=datasync)

    @guarded
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        await self._mirror.sync_directory(self._directories[fh].node, data_only=datasync)

    @guarded
    async def release(self, fh: int) -> None:
        handle = self._handles[fh]
        if handle.writer is not None and self.modes.is_passed_through(handle.node):
            with contextlib.suppress(OSError):
                await self._overlay.attributes(handle.node)  # what the kernel has written by itself is ours too
        await super().release(fh)

    def _close(self, handle: Handle) -> None:
        self._mirror.close(handle)

    # ------------------------------------------------------------------ attributes

    @guarded
    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        node, handle = self.inodes.node(inode), None if fh is None else self._handles.get(fh)
        new = NewAttributes(
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            size=attr.st_size if fields.update_size else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
        )
        drop = new.size is not None and ctx.uid != _ROOT_UID
        if _only_drops(new.mode, node, ctx.uid):
            new, drop = replace(new, mode=None), True
        if new == NewAttributes():  # the kernel has us take setuid and setgid away before a write
            return self._entry(inode, await self._mirror.drop_privileges(node, handle))
        return self._entry(inode, await self._mirror.set_attributes(node, new, handle, drop_privileges=drop))

    @guarded
    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        await self._mirror.setxattr(self.inodes.node(inode), name, value)

    @guarded
    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        await self._mirror.removexattr(self.inodes.node(inode), name)

    # ------------------------------------------------------------------ names

    @guarded
    async def mkdir(self, parent: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return self._made(await self._mirror.mkdir(self.inodes.node(parent), name, mode, _creator(ctx)))

    @guarded
    async def mknod(
        self, parent: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return self._made(await self._mirror.mknod(self.inodes.node(parent), name, mode, rdev, _creator(ctx)))

    @guarded
    async def symlink(
        self, parent: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return self._made(await self._mirror.symlink(self.inodes.node(parent), name, target, _creator(ctx)))

    @guarded
    async def link(
        self, inode: int, new_parent: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        node = await self._mirror.link(self.inodes.node(inode), self.inodes.node(new_parent), new_name)
        return self._made(node)

    @guarded
    async def unlink(self, parent: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        directory = self.inodes.node(parent)
        self.touch(directory, name)
        await self._mirror.unlink(directory, name)

    @guarded
    async def rmdir(self, parent: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        directory = self.inodes.node(parent)
        self.touch(directory, name)
        await self._mirror.rmdir(directory, name)

    @guarded
    async def rename(
        self,
        parent: int,
        name: bytes,
        new_parent: int,
        new_name: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        old, new = self.inodes.node(parent), self.inodes.node(new_parent)
        self.touch(old, name)
        self.touch(new, new_name)
        await self._mirror.rename(old, name, new, new_name, flags)

    def _made(self, node: Node) -> pyfuse3.EntryAttributes:
        """The kernel knows this node from now on."""
        number = self.inodes.number(node)
        self.inodes.looked_up(number)
        return self._entry(number, node.attributes)


def _only_drops(mode: int | None, node: Node, uid: int) -> bool:
    """Whether a mode is the kernel's way to have setuid and setgid taken away, for somebody who writes or cuts.

    He may do that without the right to set modes, which a normal user's daemon may not have either.
    """
    if mode is None or uid in (_ROOT_UID, node.attributes.uid):
        return False
    lost = stat.S_IMODE(node.attributes.mode) ^ stat.S_IMODE(mode)
    return lost != 0 and not lost & (stat.S_IMODE(mode) | ~_PRIVILEGES)


def _creator(ctx: pyfuse3.RequestContext) -> Creator:
    return Creator(ctx.uid, ctx.gid, ctx.umask)
