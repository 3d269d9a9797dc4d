"""The interface that every backend translates: a tree of nodes over the source, its reads served by the cache.

Paths occur in look-ups only; nodes and handles after that. Every fault is a plain `OSError`. Nothing here waits on the
slow disk but the call that needs it: the attributes of an open file are answered from memory where the source does not
answer soon, so that hits and mapped pages go on while it hangs.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVarTuple

import trio

from mummufs.core.stats import Counters
from mummufs.engine.catalog import Catalog
from mummufs.engine.evictor import Evictor
from mummufs.engine.nodes import Node, NodeTable, refresh
from mummufs.engine.reader import Reader
from mummufs.engine.threads import Pools
from mummufs.source.base import Attributes, Entry, Source, SourceFile

ATTRIBUTES_WAIT_S = 0.05
"""How long a look at an open file's attributes waits for the source before it is answered from memory."""

log = logging.getLogger(__name__)

Args = TypeVarTuple("Args")

ABSENT_ERRNOS = frozenset(
    (
        *(errno.EIO, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNABORTED),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ETIMEDOUT),
    )
)
"""What a volume answers that is not there. ENOENT is not among them: that is a file that was deleted."""


class AbsentFile:
    """A file that could not be opened because its source is absent. It is opened once the source is back.

    Until then only what is in the store can be read of it.
    """

    def __init__(self, source: Source, path: bytes, attributes: Attributes) -> None:
        self._source = source
        self._path = path
        self._attributes = attributes
        self._file: SourceFile | None = None

    def read_into(self, buffer: memoryview, offset: int) -> int:
        return self._opened().read_into(buffer, offset)

    def attributes(self) -> Attributes:
        try:
            return self._opened().attributes()
        except OSError as error:
            if error.errno not in ABSENT_ERRNOS:
                raise
            return self._attributes

    def fileno(self) -> int:
        return self._opened().fileno()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _opened(self) -> SourceFile:
        if self._file is None:
            file = self._source.open(self._path)
            if file.attributes().file != self._attributes.file:
                raise _stale()
            self._file = file
        return self._file


@dataclass(eq=False)
class Handle:
    """An open file."""

    node: Node
    file: SourceFile
    keep_pages: bool
    """Whether the kernel may keep the pages that it has of this node."""


class Overlay:
    """The mirrored tree."""

    def __init__(
        self,
        source: Source,
        pools: Pools,
        counters: Counters,
        reader: Reader,
        catalog: Catalog | None,
        evictor: Evictor | None,
        *,
        offline_reads: bool = False,
    ) -> None:
        """Make a tree that is empty until `run`.

        Args:
            offline_reads: while the source is absent, what has been looked up answers from memory, and ranges that
                are in the store go on being served.
        """
        self._offline_reads = offline_reads
        self._source = source
        self._pools = pools
        self._counters = counters
        self._reader = reader
        self._catalog = catalog
        self._evictor = evictor
        self._files: dict[Node, SourceFile] = {}
        self._nodes: NodeTable | None = None
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take up the root, and drop what turns out stale in the background, until cancelled.

        Raises:
            OSError: the root of the source cannot be looked at.
        """
        self._nodes = NodeTable(await self._pools.metadata.run(self._source.stat, b""))
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    @property
    def nodes(self) -> NodeTable:
        """Everything that has been looked at and not been forgotten."""
        assert self._nodes is not None, "run() comes first"
        return self._nodes

    @property
    def open_files(self) -> int:
        """Files that are open, however many handles they have."""
        return len(self._files)

    # ------------------------------------------------------------------ looking

    async def look_up(self, parent: Node, name: bytes) -> Node:
        """The node that a name in a directory stands for now."""
        path = _join(parent.path, name)
        try:
            attributes = await self._pools.metadata.run(self._source.stat, path)
        except OSError as error:
            known = self.nodes.child(parent, name)
            if known is None or not self._is_offline(error):
                raise
            return known
        return self.seen(parent, name, attributes)

    def seen(self, parent: Node, name: bytes, attributes: Attributes) -> Node:
        """The node of something that a listing has found."""
        node, replaced = self.nodes.seen(parent, name, attributes)
        if replaced is not None:
            self._gone_stale(replaced)
        return node

    async def attributes(self, node: Node) -> Attributes:
        """The attributes of a node; of one whose file has changed, those of the version that it stands for."""
        file = self._files.get(node)
        if node.stale or node.refreshing:
            return node.attributes
        if file is None:
            try:
                self._take_in(node, await self._pools.metadata.run(self._source.stat, node.path))
            except OSError as error:
                if not self._is_offline(error):
                    raise
            return node.attributes
        with trio.move_on_after(ATTRIBUTES_WAIT_S), contextlib.suppress(OSError):
            self._take_in(node, await self._pools.metadata.run(_attributes_of, file, node))
        return node.attributes

    async def entries(self, node: Node) -> list[Entry]:
        """A directory's entries, without "." and ".."."""
        return await self._pools.metadata.run(_entries, self._source, node.path)

    async def readlink(self, node: Node) -> bytes:
        """What a symlink says."""
        return await self._pools.metadata.run(self._source.readlink, node.path)

    async def getxattr(self, node: Node, name: bytes) -> bytes:
        """One extended attribute, ACLs included."""
        return await self._pools.metadata.run(self._source.getxattr, node.path, name)

    async def listxattr(self, node: Node) -> list[bytes]:
        """The names of the extended attributes."""
        return await self._pools.metadata.run(self._source.listxattr, node.path)

    async def statfs(self) -> os.statvfs_result:
        """Size and free space of the source's volume."""
        return await self._pools.metadata.run(self._source.statfs)

    def forget(self, node: Node) -> None:
        """The backend does not know this node any more."""
        self.nodes.forget(node)

    # ------------------------------------------------------------------ files

    async def open(self, node: Node) -> Handle:
        """Open a regular file for reading.

        Raises:
            OSError: ESTALE where the name stands for another file or version by now: look it up again.
        """
        if node.stale:
            raise _stale()
        known = self._files.get(node)
        file: SourceFile
        try:
            file, attributes = await self._pools.metadata.run(_open, self._source, node.path, known)
        except OSError as error:
            if not self._is_offline(error):
                raise
            file = known or AbsentFile(self._source, node.path, node.attributes)
            attributes = node.attributes
        self._take_in(node, attributes)
        if node.stale:
            raise _stale()
        current = self._files.get(node)
        if current is None or current is known:
            self._files[node] = file
        else:  # somebody was quicker
            file = current
        node.opens += 1
        handle = Handle(node, file, node.keep_pages)
        node.keep_pages = True
        if self._catalog is not None:
            try:
                await self._catalog.opened(node, file)
            except BaseException:  # cancelled: nobody will close a handle that nobody has got
                self.close(handle)
                raise
        return handle

    async def read(self, handle: Handle, offset: int, size: int) -> bytes | bytearray:
        """Bytes of the version that the handle was opened on; short only at its end of file.

        Raises:
            OSError: the source's own, or ESTALE where the file has changed.
        """
        if self._catalog is not None and handle.node.ranges is None:
            self._catalog.passed_through(handle.node, offset, size)
        was_stale = handle.node.stale
        try:
            return await self._reader.read(handle.node, handle.file, offset, size)
        finally:
            if handle.node.stale and not was_stale:
                self._gone_stale(handle.node)

    def close(self, handle: Handle) -> None:
        """Close a handle. The file is closed with its last reader, a fill perhaps."""
        node = handle.node
        node.opens -= 1
        if node.opens == 0:
            self._files.pop(node, None)

    # ------------------------------------------------------------------ versions

    def noticed(self, file: SourceFile, attributes: Attributes) -> None:
        """Somebody who read an open file has seen that its attributes have changed."""
        for node in [node for node, known in self._files.items() if known is file]:
            self._take_in(node, attributes)

    def _take_in(self, node: Node, attributes: Attributes) -> None:
        if attributes.file != node.file:
            if node is not self.nodes.root:
                raise _stale()
            self.nodes.move_root(attributes)
        if node.stale:
            return
        before, file = node.version, self._files.get(node)
        if not refresh(node, attributes):
            self._gone_stale(node)
        elif node.version != before and file is not None and self._catalog is not None and self._nursery is not None:
            # A chmod of a file that is open, for weeks perhaps: its handles need a table of this version too.
            self._nursery.start_soon(self._in_background, self._catalog.opened, node, file)

    def _is_offline(self, error: OSError) -> bool:
        """Whether this says that the source is not there, and that is to be made the best of."""
        return self._offline_reads and error.errno in ABSENT_ERRNOS

    def _gone_stale(self, node: Node) -> None:
        """The source has moved on from this version: drop what is stored of it."""
        log.info("%r has changed in the source", node.path.decode("utf-8", "backslashreplace"))
        if self._evictor is not None and self._nursery is not None and node.table is not None:
            self._nursery.start_soon(self._in_background, self._evictor.purge, node.file, node.table, node.version)

    async def _in_background(self, task: Callable[[*Args], Awaitable[None]], *args: *Args) -> None:
        """Run a task that nobody waits for. It must not end the mount."""
        try:
            await task(*args)
        except Exception:
            self._counters.errors.handler += 1
            log.exception("a task of the tree failed on a fault of ours")


def _join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name


def _stale() -> OSError:
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE))


def _open(source: Source, path: bytes, known: SourceFile | None) -> tuple[SourceFile, Attributes]:
    """The file that is open already, unless its source went away under it."""
    if known is not None:
        try:
            return known, known.attributes()
        except OSError as error:
            if error.errno not in ABSENT_ERRNOS:
                raise
    file = source.open(path)
    return file, file.attributes()


def _entries(source: Source, path: bytes) -> list[Entry]:
    return list(source.entries(path))


def _attributes_of(file: SourceFile, node: Node) -> Attributes:
    node.refreshing = True  # set and taken back in the thread: its caller may be long gone when the source answers
    try:
        return file.attributes()
    finally:
        node.refreshing = False
