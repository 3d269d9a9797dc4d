"""Changes through the mount: passed on to the source, by places and open files; `writes` keeps the store right.

The kernel has checked that the caller may. What goes by a path names the object that it is to find there, and is
refused with ESTALE where another one is; the kernel looks the name up again then, and comes back.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TypeVar

from mummufs.core.extents import FILE_END
from mummufs.core.ranges import page_floor
from mummufs.core.stats import Counters
from mummufs.engine import calls
from mummufs.engine.brackets import Bracketed, ForeignChangeError, Look
from mummufs.engine.looks import on_object, place_of
from mummufs.engine.nodes import Node
from mummufs.engine.overlay import READS_MAX, Handle, Overlay
from mummufs.engine.threads import Pool, Pools
from mummufs.engine.writes import Writes
from mummufs.source.base import (
    RENAME_EXCHANGE,
    Attributes,
    Creator,
    NewAttributes,
    Source,
    SourceFile,
    SourceObject,
    WritableFile,
)

Result = TypeVar("Result")


class Mirror:
    """Everything that changes the source."""

    def __init__(self, overlay: Overlay, source: Source, pools: Pools, counters: Counters, writes: Writes) -> None:
        self._overlay = overlay
        self._source = source
        self._pools = pools
        self._counters = counters
        self.writes = writes
        self.bytes_in_flight = 0
        """Bytes of writes that the source has not taken yet: a request, 1 MiB at most, for each thread that writes."""
        self.bytes_in_flight_max = 0

    # ------------------------------------------------------------------ open files

    async def open(self, node: Node, *, truncate: bool, drop_privileges: bool) -> Handle:
        """Open a regular file for writing, and for reading.

        Args:
            truncate: empty it.
            drop_privileges: take setuid and setgid away if it is emptied: a normal user does it.

        Raises:
            OSError: ESTALE where the name stands for another file or version by now: look it up again.
        """
        try:
            handle = await self._overlay.open(node, to_write=True)
        except PermissionError:  # a file that may be written and not be read
            writer = await self._pools.metadata.run(self._source.open_to_write, place_of(node))
            handle = self._overlay.adopt(node, writer)
        try:
            await self._may_write(handle, partial(calls.reopen, self._source, handle.file, place_of(node)))
            if truncate:
                await self.set_attributes(node, NewAttributes(size=0), handle, drop_privileges=drop_privileges)
        except BaseException:
            self.close(handle)
            raise
        return handle

    async def create(
        self, parent: Node, name: bytes, mode: int, creator: Creator, *, to_write: bool
    ) -> tuple[Node, Handle]:
        """Create a regular file and open it.

        Raises:
            OSError: EEXIST where the name is taken.
        """
        self._overlay.check_files()
        create = partial(calls.create, self._source, place_of(parent), name, mode, creator)
        file, writer, attributes = await self._pools.metadata.run(create)
        node = await self._overlay.found(parent, name, attributes)
        handle = self._overlay.adopt(node, file)
        if to_write:
            try:
                await self._may_write(handle, lambda: writer)
            except BaseException:
                self.close(handle)
                raise
        return node, handle

    async def _may_write(self, handle: Handle, open_to_write: Callable[[], WritableFile]) -> None:
        self._overlay.check_files()
        await self.writes.begin(handle.node)
        try:
            handle.writer = await self._pools.metadata.run(open_to_write)
            self._overlay.writers += 1
        except BaseException:
            self.writes.end(handle.node, handle.file)
            raise

    async def write(self, handle: Handle, offset: int, data: bytes, *, drop_privileges: bool = False) -> int:
        """Write to an open file; the bytes written, fewer than all only where an error comes next.

        Args:
            drop_privileges: take setuid and setgid away: the kernel has not.

        Raises:
            OSError: EBADF where it is not open for writing, or the source's own.
        """
        node, writer = handle.node, handle.writer
        if writer is None or node.writing is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        self.bytes_in_flight += len(data)
        self.bytes_in_flight_max = max(self.bytes_in_flight_max, self.bytes_in_flight)
        try:
            async with node.writing.lock:
                await self.writes.overlapped(node, offset, offset + len(data))
                look, call = (
                    (writer.attributes,),
                    partial(calls.write, writer, data, offset, drop_privileges=drop_privileges),
                )
                written = (await self.writes.bracketed(self._pools.source_writes, (node,), look, look, call)).value()
        finally:
            self.bytes_in_flight -= len(data)
        self._counters.source_writes.count += 1
        self._counters.source_writes.bytes += written
        return written

    async def sync(self, handle: Handle, *, data_only: bool) -> None:
        """fsync(2), or fdatasync(2)."""
        file = handle.writer or handle.file
        await self._pools.source_writes.run(partial(file.sync, data_only=data_only))

    async def flush(self, handle: Handle) -> None:
        """A descriptor of this handle is being closed: tell what a close would."""
        if handle.writer is not None:
            await self._pools.source_writes.run(handle.writer.flush)

    def close(self, handle: Handle) -> None:
        """Close a handle, of whatever kind."""
        may_write = handle.writer is not None
        # It is closed with its last reference, which may be that of a thread: a call that was given up must not find
        # somebody else's file behind the number.
        handle.writer = None
        self._overlay.close(handle)
        if may_write:
            self._overlay.writers -= 1
            self.writes.end(handle.node, handle.file)

    # ------------------------------------------------------------------ attributes

    async def set_attributes(
        self, node: Node, new: NewAttributes, handle: Handle | None = None, *, drop_privileges: bool = False
    ) -> Attributes:
        """Set attributes; those that it has then.

        Args:
            handle: the open file that it is done by.
            drop_privileges: take setuid and setgid away: a normal user cuts the file.
        """

        def call(target: SourceObject) -> None:
            target.set_attributes(new)
            if drop_privileges:
                target.drop_privileges()

        await self._change(node, call, handle, size=new.size)
        return node.attributes

    async def drop_privileges(self, node: Node, handle: Handle | None = None) -> Attributes:
        """Take setuid and setgid away: a normal user is about to write."""
        await self._change(node, lambda target: target.drop_privileges(), handle)
        return node.attributes

    async def setxattr(self, node: Node, name: bytes, value: bytes) -> None:
        """Set an extended attribute."""
        await self._change(node, lambda target: target.setxattr(name, value))

    async def removexattr(self, node: Node, name: bytes) -> None:
        """Remove an extended attribute."""
        await self._change(node, lambda target: target.removexattr(name))

    async def _change(
        self, node: Node, call: Callable[[SourceObject], None], handle: Handle | None = None, *, size: int | None = None
    ) -> None:
        """Change an object, but no version that we do not know of."""
        file: SourceFile | None = self._overlay.open_file(node)
        if handle is not None:
            file = handle.writer or handle.file
        act = partial(on_object, self._source, file, place_of(node), call)
        look: Look = file.attributes if file is not None else lambda: self._source.stat(node.path)
        pool = self._pools.metadata if size is None else self._pools.source_writes
        if not node.attributes.is_file:
            await pool.run(act)
            await self._overlay.attributes(node)
            return
        for _ in range(READS_MAX):
            if node.stale:
                break
            try:
                await self._bracketed(pool, node, look, act, size)
                return
            except ForeignChangeError as foreign:
                attributes = foreign.attributes
            await self._overlay.take_in(node, attributes, look)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    async def _bracketed(self, pool: Pool, node: Node, look: Look, act: Callable[[], None], size: int | None) -> None:
        expected = () if node.is_written else (node.version,)
        writing = await self.writes.begin(node)
        try:
            async with writing.lock:
                if size is not None:
                    await self.writes.overlapped(node, page_floor(min(node.version.size, size)), FILE_END)
                done = await self.writes.bracketed(pool, (node,), (look,), (look,), act, expected=expected)
        finally:
            self.writes.end(node, self._overlay.open_file(node), look=look)
        done.value()

    # ------------------------------------------------------------------ names

    async def make(self, parent: Node, name: bytes, make: calls.InDirectory) -> Node:
        """Have `make` create something under this name in the directory; its node."""
        path = _join(parent, name)
        attributes = await self._pools.metadata.run(calls.made, self._source, place_of(parent), path, make)
        return await self._overlay.found(parent, name, attributes)

    async def mkdir(self, parent: Node, name: bytes, mode: int, creator: Creator) -> Node:
        """Create a directory."""
        return await self.make(parent, name, lambda directory: directory.mkdir(name, mode, creator))

    async def mknod(self, parent: Node, name: bytes, mode: int, device: int, creator: Creator) -> Node:
        """Create a file, a fifo, a socket or a device node."""
        return await self.make(parent, name, lambda directory: directory.mknod(name, mode, device, creator))

    async def symlink(self, parent: Node, name: bytes, target: bytes, creator: Creator) -> Node:
        """Create a symlink."""
        return await self.make(parent, name, lambda directory: directory.symlink(name, target, creator))

    async def link(self, node: Node, parent: Node, name: bytes) -> Node:
        """Give an object one more name."""
        call = partial(calls.link, self._source, place_of(node), place_of(parent), name)
        path = _join(parent, name)
        await self._names(((node, node.path, path),), call)
        attributes = await self._pools.metadata.run(self._source.stat, path)
        return await self._overlay.found(parent, name, attributes)

    async def unlink(self, parent: Node, name: bytes) -> None:
        """Remove the name of anything but a directory."""
        node = self._overlay.nodes.child(parent, name)
        call = partial(calls.in_directory, self._source, place_of(parent), lambda directory: directory.unlink(name))
        await self._names(((node, _join(parent, name), _left_of(node, parent, name)),), call)
        self._overlay.nodes.unlinked(parent, name)

    async def rmdir(self, parent: Node, name: bytes) -> None:
        """Remove an empty directory."""
        call = partial(calls.in_directory, self._source, place_of(parent), lambda directory: directory.rmdir(name))
        await self._pools.metadata.run(call)
        self._overlay.nodes.unlinked(parent, name)

    async def rename(self, parent: Node, name: bytes, to: Node, new_name: bytes, flags: int) -> None:
        """Move a name. The flags are renameat2(2)'s."""
        nodes = self._overlay.nodes
        moved, other = nodes.child(parent, name), nodes.child(to, new_name)
        old, new = _join(parent, name), _join(to, new_name)
        exchange = bool(flags & RENAME_EXCHANGE)
        about: list[tuple[Node | None, bytes, bytes | None]] = [(moved, old, new)]
        if other is not moved:
            about.append((other, new, old if exchange else _left_of(other, to, new_name)))
        call = partial(calls.rename, self._source, place_of(parent), name, place_of(to), new_name, flags)
        with self._overlay.moves.moving(moved, other):
            await self._names(about, call)
            nodes.renamed(parent, name, to, new_name, exchange=exchange)

    async def sync_directory(self, node: Node, *, data_only: bool) -> None:
        """fsync(2) of a directory."""
        if node.unlinked:  # nothing of it is to come through a crash
            return
        call = partial(
            calls.in_directory, self._source, place_of(node), lambda directory: directory.sync(data_only=data_only)
        )
        await self._pools.source_writes.run(call)

    async def _names(self, about: Sequence[tuple[Node | None, bytes, bytes | None]], call: Callable[[], None]) -> None:
        """Change names.

        Args:
            about: what has them, the path where each is now, and where it is then (None: nowhere that is known of).
        """
        known = {node: (old, new) for node, old, new in about if node is not None and node.attributes.is_file}
        for _ in range(READS_MAX):
            nodes = sorted((node for node in known if not node.stale), key=lambda node: node.file)
            expected = [None if node.is_written else node.version for node in nodes]
            before = [self._look(node, known[node][0]) for node in nodes]
            after = [self._look(node, known[node][1]) for node in nodes]
            try:
                async with contextlib.AsyncExitStack() as stack:
                    for node in nodes:
                        await stack.enter_async_context(self._changing(node))
                    pool = self._pools.metadata
                    done = await self.writes.bracketed(pool, nodes, before, after, call, expected=expected)
                done.value()
                _tell_unlinked(nodes, done)
                return
            except ForeignChangeError as error:
                foreign = error.with_traceback(None)
            with contextlib.suppress(OSError):  # it may be stale by now, and the names are changed all the same
                await self._overlay.take_in(nodes[foreign.number], foreign.attributes, before[foreign.number])
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    @contextlib.asynccontextmanager
    async def _changing(self, node: Node) -> AsyncIterator[None]:
        writing = await self.writes.begin(node)
        try:
            async with writing.lock:
                yield
        finally:
            file = self._overlay.open_file(node)
            self.writes.end(node, file, look=lambda: self._source.stat(node.path))

    def _look(self, node: Node, path: bytes | None) -> Look:
        file = self._overlay.open_file(node)
        if file is not None:
            return file.attributes
        return _gone if path is None else partial(self._source.stat, path)


def _tell_unlinked(nodes: Sequence[Node], done: Bracketed[None]) -> None:
    for node, was, now in zip(nodes, done.before, done.after, strict=False):
        is_gone = was is not None and was.nlink == 1 if now is None else now.nlink == 0
        if is_gone:
            node.mark_unlinked()


def _join(directory: Node, name: bytes) -> bytes:
    path = directory.path
    return path + b"/" + name if path else name


def _left_of(node: Node | None, parent: Node, name: bytes) -> bytes | None:
    """Where a node is found when this name of it is gone."""
    if node is None:
        return None
    for directory, other in ((node.parent, node.name), *reversed(node.others or {})):
        if directory is not None and (directory, other) != (parent, name):
            return _join(directory, other)
    return None


def _gone() -> Attributes:
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
