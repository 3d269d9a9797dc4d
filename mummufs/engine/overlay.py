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
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, TypeVarTuple

import trio

from mummufs.core.stats import Counters
from mummufs.engine.absent import ABSENT_ERRNOS, AbsentFile
from mummufs.engine.catalog import Catalog
from mummufs.engine.evictor import Evictor
from mummufs.engine.flight import MovedOnError
from mummufs.engine.listing import Listings
from mummufs.engine.looks import attributes_of, look_again, may_be_late, on_object, open_again, place_of
from mummufs.engine.moves import Moves
from mummufs.engine.nodes import Node, NodeTable, refresh
from mummufs.engine.reader import Reader
from mummufs.engine.threads import Pools
from mummufs.source.base import Attributes, Entry, Source, SourceFile, SourceObject, StatVfs, WritableFile

ATTRIBUTES_WAIT_S = 0.05
"""How long a look at an open file's attributes waits for the source before it is answered from memory."""
READS_MAX = 16
"""How often a read is tried while the file's ctime moves on under it."""

log = logging.getLogger(__name__)

Args = TypeVarTuple("Args")
Result = TypeVar("Result")


@dataclass(eq=False)
class Handle:
    """An open file."""

    node: Node
    file: SourceFile
    keep_pages: bool
    """Whether the kernel may keep the pages that it has of this node."""
    writer: WritableFile | None = None
    """The file, open for writing; None where it is open for reading only."""


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
        files_max: int = sys.maxsize,
    ) -> None:
        """Make a tree that is empty until `run`.

        Args:
            files_max: files that may be open in the source, for reading and for writing.
            offline_reads: while the source is absent, what has been looked up answers from memory, and ranges that
                are in the store go on being served.
        """
        self._offline_reads = offline_reads
        self._files_max = files_max
        self._source = source
        self._pools = pools
        self._counters = counters
        self._reader = reader
        self._catalog = catalog
        self._evictor = evictor
        self._files: dict[Node, SourceFile] = {}
        self._nodes: NodeTable | None = None
        self.moves = Moves()
        """Renames of directories through the mount."""
        self.listings = Listings(source, pools, self._look)
        self._nursery: trio.Nursery | None = None
        self.writers = 0
        """Descriptors that are open for writing."""

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
        if parent.unlinked:  # at its path there may be another one by now
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        try:
            found = await self._look(parent, lambda path: self._source.stat(_join(path, name)))
            return await self.found(parent, name, found)
        except OSError as error:
            known = self.nodes.child(parent, name)
            if known is None or not self._is_offline(error):
                raise
            return known

    async def found(self, parent: Node, name: bytes, attributes: Attributes) -> Node:
        """The node of something that a look-up or a listing has found.

        Raises:
            OSError: ENOENT where it has gone since; its number may be another file's by now.
        """
        look = partial(self._source.stat, _join(parent.path, name))
        attributes, renamed = await self._cleared_up(attributes, look)
        known = self.nodes.current(attributes.file)
        before = known.version if known is not None else None
        node, replaced = self.nodes.seen(parent, name, attributes, renamed=renamed)
        if replaced is not None:
            self._gone_stale(replaced)
        elif node.version != before:
            self._find_table(node)
        return node

    async def attributes(self, node: Node) -> Attributes:
        """The attributes of a node; of one whose file has changed, those of the version that it stands for."""
        file = self._files.get(node)
        if node.stale or node.refreshing or (node.unlinked and file is None):
            return node.attributes
        if file is None:
            try:
                await self._look_at_path(node)
            except OSError as error:
                if not self._is_offline(error):
                    raise
            return node.attributes
        changes = node.changes
        with trio.move_on_after(ATTRIBUTES_WAIT_S), contextlib.suppress(OSError):
            found = await self._pools.metadata.run(attributes_of, file, node)
            if not node.is_written or node.changes == changes:  # else a change of ours has brought newer ones
                await self.take_in(node, found, file.attributes)
        return node.attributes

    async def _look_at_path(self, node: Node) -> None:
        """Take in the attributes of what is not open, under another of its names where the first is gone."""
        while True:
            try:
                found = await self._look(node, self._source.stat)
            except FileNotFoundError:
                if not self.nodes.other_name(node):
                    raise
                continue
            if found.file != node.file and self.nodes.other_name(node):
                continue
            await self.take_in(node, found, lambda: self._source.stat(node.path))
            return

    async def _look(self, node: Node, look: Callable[[bytes], Result]) -> Result:
        """What a look at the path of a node finds."""
        return await self.moves.look(node, lambda: self._pools.metadata.run(look, node.path))

    async def entries(self, node: Node) -> list[Entry]:
        """A directory's entries, without "." and ".."; none of one that was removed."""
        return await self.listings.begin(node).all()

    async def readlink(self, node: Node) -> bytes:
        """What a symlink says."""
        return await self._look(node, self._source.readlink)

    async def getxattr(self, node: Node, name: bytes) -> bytes:
        """One extended attribute, ACLs included."""
        return await self._on_object(node, lambda found: found.getxattr(name))

    async def listxattr(self, node: Node) -> list[bytes]:
        """The names of the extended attributes."""
        return await self._on_object(node, lambda found: found.listxattr())

    async def _on_object(self, node: Node, call: Callable[[SourceObject], Result]) -> Result:
        return await self._pools.metadata.run(on_object, self._source, self._files.get(node), place_of(node), call)

    async def statfs(self) -> StatVfs:
        """Size and free space of the source's volume."""
        return await self._pools.metadata.run(self._source.statfs)

    def forget(self, node: Node) -> None:
        """The backend does not know this node any more."""
        self.nodes.forget(node)

    def let_go(self, node: Node) -> None:
        """The engine has looked a node up and is done with it: it is forgotten, unless a backend knows it."""
        if not node.known:
            self.nodes.forget(node)

    # ------------------------------------------------------------------ files

    async def open(self, node: Node, *, by_backend: bool = True, to_write: bool = False) -> Handle:
        """Open a regular file for reading.

        Args:
            by_backend: the kernel learns of it, and may be told to drop the pages that it has.
            to_write: it is about to be written, so its header is not looked at: that may set its atime.

        Raises:
            OSError: ESTALE where the name stands for another file or version by now: look it up again; EMFILE where
                too many are open.
        """
        if node.stale:
            raise _stale()
        self.check_files(node)
        known = self._files.get(node)
        file: SourceFile
        try:
            look = partial(open_again, self._source, known=known)
            file, attributes, written = await self._look(node, look)
        except OSError as error:
            if not self._is_offline(error):
                raise
            file = known or AbsentFile(self._source, node.path, node.attributes)
            attributes, written = node.attributes, False
        await self.take_in(node, attributes, file.attributes)
        if node.stale:
            raise _stale()
        current = self._files.get(node)
        if current is not None and current is not known:  # somebody was quicker
            file = current
        handle = self._opened(node, file)
        node.keep_pages = not written and (by_backend or node.keep_pages)
        if self._catalog is not None and not to_write:
            try:
                await self._catalog.opened(node, file)
            except BaseException:  # cancelled: nobody will close a handle that nobody has got
                self.close(handle)
                raise
        return handle

    def check_files(self, node: Node | None = None) -> None:
        """Raise EMFILE where there is no place for another file, unless this one is open already."""
        if node not in self._files and len(self._files) + self.writers >= self._files_max:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def _opened(self, node: Node, file: SourceFile) -> Handle:
        self.check_files(node)
        self._files[node] = file
        node.opened()
        return Handle(node, file, node.keep_pages)

    def adopt(self, node: Node, file: SourceFile) -> Handle:
        """A handle of a file that somebody else has opened, or created just now."""
        return self._opened(node, self._files.get(node, file))

    def open_file(self, node: Node) -> SourceFile | None:
        """The file of a node that is open."""
        return self._files.get(node)

    async def read(self, handle: Handle, offset: int, size: int, *, avoid_store: bool = False) -> bytes | bytearray:
        """Bytes of the version that the handle was opened on; short only at its end of file.

        Args:
            avoid_store: have the source answer, whatever the store has.

        Raises:
            OSError: the source's own, or ESTALE where the file has changed.
        """
        node, look, changes = handle.node, handle.file.attributes, handle.node.changes
        for _ in range(READS_MAX):
            if not node.stale and (node.is_written or node.changes != changes):  # what moves it on is ours
                return await self._reader.read_written(handle.file, offset, size)
            with contextlib.suppress(MovedOnError):
                return await self._read(handle, offset, size, avoid_store=avoid_store)
            await self.take_in(node, await self._pools.metadata.run(look), look)
            if node.stale:
                break
        self._counters.errors.stale += 1
        raise _stale()

    async def _read(self, handle: Handle, offset: int, size: int, *, avoid_store: bool) -> bytes | bytearray:
        node = handle.node
        if self._catalog is not None and node.ranges is None:
            self._catalog.passed_through(node, offset, size)
        was_stale = node.stale
        try:
            return await self._reader.read(node, handle.file, offset, size, avoid_store=avoid_store)
        finally:
            if node.stale and not was_stale:
                self._gone_stale(node)

    def close(self, handle: Handle) -> None:
        """Close a handle. The file is closed with its last reader, a fill perhaps."""
        node = handle.node
        node.closed()
        if node.opens == 0:
            self._files.pop(node, None)

    # ------------------------------------------------------------------ versions

    def noticed(self, file: SourceFile, attributes: Attributes) -> None:
        """Somebody who read an open file has seen that its attributes have changed."""
        for node in [node for node, known in self._files.items() if known is file]:
            # Where it is unclear, or somebody knows better by now, the next read finds out.
            if not may_be_late(node, attributes):
                self._move_on(node, attributes)

    async def take_in(self, node: Node, attributes: Attributes, look: Callable[[], Attributes]) -> None:
        """Take in what a look at a node has found."""
        attributes, renamed = await self._cleared_up(attributes, look)
        self._move_on(node, attributes, renamed=renamed)

    async def _cleared_up(self, attributes: Attributes, look: Callable[[], Attributes]) -> tuple[Attributes, bool]:
        """What a look has found, and whether its file was renamed, if that is what it takes to know what has changed.

        The first look may have been older than what is known by now: a listing's is as old as its reader is slow. So
        its attributes are not judged where they are unclear or may be late: `look` is taken again, and as often
        as somebody else has taken in a change meanwhile.

        Raises:
            OSError: the look's own, or the source is absent.
        """
        while True:
            node = self.nodes.current(attributes.file)
            if node is None or node.stale or node.is_written:
                return attributes, False
            if not may_be_late(node, attributes):
                return attributes, False
            known = node.version
            attributes, elsewhere = await self._pools.metadata.run(look_again, self._source, look, node.path)
            if (node.file, node.version) == (attributes.file, known):
                return attributes, elsewhere and not node.lost

    def _move_on(self, node: Node, attributes: Attributes, *, renamed: bool = False) -> None:
        if attributes.file != node.file:
            if node is not self.nodes.root:
                raise _stale()
            self.nodes.move_root(attributes)
        if node.stale:
            return
        before = node.version
        if not refresh(node, attributes, renamed=renamed):
            self._gone_stale(node)
        elif node.version != before:
            self._find_table(node)

    def _find_table(self, node: Node) -> None:
        """Its ctime alone has changed. It may be open, for weeks perhaps: its handles need a table of this version."""
        file = self._files.get(node)
        if file is not None and self._catalog is not None and self._nursery is not None:
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
