"""pyfuse3's operations over `Overlay`: translation, and nothing else.

pyfuse3 catches FUSEError only; any other exception would end the mount. So every handler goes through `guarded`:
an OSError becomes its errno, everything else becomes EIO for that one caller, is counted and logged.
"""

from __future__ import annotations

import errno
import functools
import itertools
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import pyfuse3

from mummufs.backends.fuse.inodes import Inodes
from mummufs.backends.fuse.modes import Mode, OpenModes
from mummufs.core.stats import Counters
from mummufs.engine.listing import Listing
from mummufs.engine.nodes import Node
from mummufs.engine.overlay import Handle, Overlay
from mummufs.source.base import Attributes, Entry

BLOCK_SIZE = 4096
"""st_blksize: with 1 MiB llama.cpp was seen to read four times the file by O_DIRECT."""

DOTS = 2
"""Entries of a listing before those of the source: "." and "..", without which `ls -a` shows neither."""

TOUCHED_MAX = 4096
"""Names of an open directory that are remembered as changed; beyond that every name is looked up."""

log = logging.getLogger(__name__)

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])


def guarded(handler: Handler) -> Handler:
    """Turn whatever a handler raises into an answer for its caller."""

    @functools.wraps(handler)
    async def wrapper(self: Operations, *args: Any) -> Any:
        try:
            return await handler(self, *args)
        except pyfuse3.FUSEError:
            raise
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from None
        except Exception:
            self.counters.errors.handler += 1
            log.exception("%s failed on a fault of ours; its caller got EIO", handler.__name__)
            raise pyfuse3.FUSEError(errno.EIO) from None

    return wrapper  # type: ignore[return-value]


class _Opened:
    """An open directory.

    Attributes:
        listing: its entries, as far as they have been fetched; None before anybody reads it.
        touched: names that have been removed or replaced since; None: too many.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.listing: Listing | None = None
        self.touched: set[bytes] | None = set()

    def touch(self, name: bytes) -> None:
        """What was fetched of this name may not be so any more."""
        if self.touched is not None and self.listing is not None:
            self.touched.add(name)
            if len(self.touched) > TOUCHED_MAX:
                self.touched = None

    def begin(self, listing: Listing | None) -> None:
        """Read it from its start."""
        if self.listing is not None:
            self.listing.close()
        self.listing, self.touched = listing, set()


class Operations(pyfuse3.Operations):
    """The handlers. One instance per mount."""

    enable_acl = True
    """Without it `default_permissions` lets a reader in whom the source's ACL refuses."""
    supports_dot_lookup = False

    def __init__(self, overlay: Overlay, counters: Counters, attr_timeout_s: float) -> None:
        super().__init__()
        self.counters = counters
        self._overlay = overlay
        self._attr_timeout_s = attr_timeout_s
        self._inodes: Inodes | None = None
        self._handles: dict[int, Handle] = {}
        self._directories: dict[int, _Opened] = {}
        self._opened_of: dict[Node, list[_Opened]] = {}
        self._numbers = itertools.count(1)
        self.modes = OpenModes(direct=False)
        """How files are opened; the session sets it, for it knows what the kernel can do."""
        self.backing: dict[int, int] | None = None
        """Where to leave the backing id for a file handle whose reads are passed through."""
        self.pushes_to: Callable[[int], bool] = lambda _: False
        """Whether pages may still be pushed to an inode number; the session sets it."""

    @property
    def handles(self) -> Mapping[int, Handle]:
        """File handle -> open file."""
        return self._handles

    @property
    def inodes(self) -> Inodes:
        """The numbers that the kernel knows nodes by."""
        if self._inodes is None:
            self._inodes = Inodes(self._overlay.nodes.root, self.pushes_to)
        return self._inodes

    @property
    def open_handles(self) -> int:
        """Files and directories that the kernel has open."""
        return len(self._handles) + len(self._directories)

    # ------------------------------------------------------------------ looking

    @guarded
    async def lookup(self, parent: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        node = await self._overlay.look_up(self.inodes.node(parent), name)
        number = self.inodes.number(node)
        self.inodes.looked_up(number)
        return self._entry(number, node.attributes)

    @guarded
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return self._entry(inode, await self._overlay.attributes(self.inodes.node(inode)))

    async def forget(self, inodes: Sequence[tuple[int, int]]) -> None:
        for number, look_ups in inodes:
            try:
                node = self.inodes.forget(number, look_ups)
                if node is not None:
                    self._overlay.forget(node)
            except Exception:  # nobody waits for an answer, so there is no errno to turn it into
                self.counters.errors.handler += 1
                log.exception("forget failed on a fault of ours")

    @guarded
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        return await self._overlay.readlink(self.inodes.node(inode))

    @guarded
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        return await self._overlay.getxattr(self.inodes.node(inode), name)

    @guarded
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        return await self._overlay.listxattr(self.inodes.node(inode))

    @guarded
    async def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        return True  # default_permissions: the kernel has checked

    @guarded
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        found = await self._overlay.statfs()
        answer = pyfuse3.StatvfsData()
        for name in ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail"):
            setattr(answer, name, getattr(found, name))
        answer.f_namemax = found.f_namemax
        return answer

    # ------------------------------------------------------------------ directories

    @guarded
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        number, node = next(self._numbers), self.inodes.node(inode)
        opened = self._directories[number] = _Opened(node)
        self._opened_of.setdefault(node, []).append(opened)
        return number

    @guarded
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        opened = self._directories[fh]
        if opened.listing is None or start_id == 0:
            opened.begin(self._overlay.listings.begin(opened.node))
        assert opened.listing is not None
        dots = _dots(opened.node)
        for i in itertools.count(start_id):
            if i < DOTS:
                name, _ = dots[i]
                node = opened.node if name == b"." else opened.node.parent or opened.node
            elif await opened.listing.reach(i - DOTS):
                name, attributes = opened.listing.entries[i - DOTS]
                try:
                    node = await self._listed(opened, name, attributes)
                except FileNotFoundError:
                    continue
            else:
                return
            number = self.inodes.number(node)
            fits = pyfuse3.readdir_reply(token, name, self._entry(number, node.attributes), i + 1)
            if fits and i >= DOTS:  # for "." and ".." the kernel takes no look-up, so it gives none back
                self.inodes.looked_up(number)
            else:
                self.inodes.drop_unused(number)
            if not fits:
                return

    async def _listed(self, opened: _Opened, name: bytes, attributes: Attributes) -> Node:
        if opened.touched is not None and name not in opened.touched:
            return await self._overlay.found(opened.node, name, attributes)
        # It may have gone since, and the kernel would believe that it is there; or it is something else by now.
        return await self._overlay.look_up(opened.node, name)

    def touch(self, directory: Node, name: bytes) -> None:
        """This name is about to be removed, or replaced: who reads a listing on is to hear of it."""
        for opened in self._opened_of.get(directory, ()):
            opened.touch(name)

    @guarded
    async def releasedir(self, fh: int) -> None:
        opened = self._directories.pop(fh)
        opened.begin(None)
        others = self._opened_of[opened.node]
        others.remove(opened)
        if not others:
            del self._opened_of[opened.node]

    # ------------------------------------------------------------------ files

    @guarded
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return self._opened(await self._overlay.open(self.inodes.node(inode)))

    def _opened(self, handle: Handle) -> pyfuse3.FileInfo:
        """A new file handle."""
        number = next(self._numbers)
        try:
            opened = self.modes.open(handle)
        except BaseException:  # nobody will release a handle that nobody has got
            self._close(handle)
            raise
        if opened.backing_id is not None and self.backing is not None:
            self.backing[number] = opened.backing_id
        self._handles[number] = handle
        return pyfuse3.FileInfo(fh=number, keep_cache=handle.keep_pages, direct_io=opened.mode is Mode.DIRECT)

    @guarded
    async def read(self, fh: int, off: int, size: int) -> bytes:
        # Any buffer does; its annotation is narrower than what pyfuse3 takes.
        return cast(bytes, await self.read_plainly(fh, off, size))

    async def read_plainly(
        self, fh: int, offset: int, size: int, avoid_store: bool = False
    ) -> bytes | bytearray | memoryview:
        """The bytes of an open file, for who answers the kernel himself.

        Args:
            avoid_store: have the source answer, whatever the store has.

        Raises:
            OSError: as `Overlay.read`.
        """
        return await self._overlay.read(self._handles[fh], offset, size, avoid_store=avoid_store)

    @guarded
    async def flush(self, fh: int) -> None:
        pass  # nothing was written

    @guarded
    async def release(self, fh: int) -> None:
        handle = self._handles.pop(fh)
        self.modes.close(handle.node)
        self._close(handle)

    def _close(self, handle: Handle) -> None:
        self._overlay.close(handle)

    def _entry(self, number: int, attributes: Attributes) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = number
        entry.generation = 0
        entry.entry_timeout = entry.attr_timeout = self._attr_timeout_s
        entry.st_mode = attributes.mode
        entry.st_nlink = attributes.nlink
        entry.st_uid = attributes.uid
        entry.st_gid = attributes.gid
        entry.st_rdev = attributes.rdev
        entry.st_size = attributes.size
        entry.st_blksize = BLOCK_SIZE
        entry.st_blocks = attributes.blocks
        entry.st_atime_ns = attributes.atime_ns
        entry.st_mtime_ns = attributes.mtime_ns
        entry.st_ctime_ns = attributes.ctime_ns
        return entry


def _dots(node: Node) -> list[Entry]:
    return [Entry(b".", node.attributes), Entry(b"..", (node.parent or node).attributes)]
