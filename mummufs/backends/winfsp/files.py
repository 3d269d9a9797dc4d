"""WinFsp's operations over `Overlay`, with Python's values for arguments: translation, and nothing else. In trio.

`callbacks` brings WinFsp's calls here and takes the answers back; only `opened` and `close` are used by its threads.
Failures are `StatusError` where Windows has a word of its own for them, and `OSError` otherwise.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import stat
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mummufs.backends.winfsp import ntstatus, security
from mummufs.backends.winfsp.info import FileInfo, attributes, file_info, link_target, symlink_buffer
from mummufs.backends.winfsp.names import decoded, folded, matches
from mummufs.backends.winfsp.ntstatus import StatusError
from mummufs.backends.winfsp.paths import Paths
from mummufs.engine.nodes import Node
from mummufs.engine.overlay import Handle, Overlay
from mummufs.source.base import Attributes

DIRECTORY_FILE = 0x1
NON_DIRECTORY_FILE = 0x40
DELETE_ON_CLOSE = 0x1000
OPEN_TRIES = 3
"""How often a file is looked up again that has changed between its look-up and its open."""


class DirEntry(NamedTuple):
    """A line of a listing."""

    name: str
    info: FileInfo


class OpenedAs(NamedTuple):
    """The answer to an open: its number, what it is, and its path in the source's case."""

    number: int
    info: FileInfo
    path: str


@dataclass(eq=False)
class Opened:
    """What a handle of Windows stands for. `handle` is there for regular files only, `writer` once it has written."""

    node: Node
    handle: Handle | None = None
    writer: Handle | None = None
    listing: Sequence[DirEntry] = field(default=(), repr=False)
    keys: Sequence[tuple[int, str, str]] = field(default=(), repr=False)


class Files:
    """The operations. One instance per mount."""

    def __init__(self, overlay: Overlay, paths: Paths) -> None:
        self._overlay = overlay
        self._paths = paths
        self._opened: dict[int, Opened] = {}
        self._numbers = itertools.count(1)
        self.closing: Callable[[Opened], None] = self._closed
        """What closes the open file of a handle; who changes files sets it."""
        self.read_only = True

    @property
    def open_handles(self) -> int:
        """Files and directories that Windows has open."""
        return len(self._opened)

    def opened(self, number: int) -> Opened:
        """What a handle stands for.

        Raises:
            StatusError: INVALID_HANDLE.
        """
        found = self._opened.get(number)
        if found is None:
            raise StatusError(ntstatus.INVALID_HANDLE)
        return found

    # ------------------------------------------------------------------ by path

    async def security_by_name(self, path: str) -> tuple[int, bytes]:
        """The attribute bits and the security descriptor of what a path names."""
        node = await self._paths.find(path)
        bits = attributes(node.attributes.mode, to_directory=await self._to_directory(node))
        return bits, await self._descriptor(node)

    async def open(self, path: str, options: int) -> OpenedAs:
        """Open a file, a directory or, since others are resolved before, a symlink itself.

        Args:
            options: the CreateOptions of NtCreateFile.
        """
        if options & DELETE_ON_CLOSE and self.read_only:
            raise StatusError(ntstatus.CANNOT_DELETE)
        for _ in range(OPEN_TRIES):
            node = await self._paths.find(path)
            try:
                return await self._open(node, options)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
            self._paths.forget(node)
        raise StatusError(ntstatus.FILE_INVALID)

    async def _open(self, node: Node, options: int) -> OpenedAs:
        is_directory = node.attributes.is_directory or await self._to_directory(node)
        if options & DIRECTORY_FILE and not is_directory:
            raise StatusError(ntstatus.NOT_A_DIRECTORY)
        if options & NON_DIRECTORY_FILE and is_directory:
            raise StatusError(ntstatus.FILE_IS_A_DIRECTORY)
        handle = await self._overlay.open(node) if node.attributes.is_file else None
        number = self.add(Opened(node, handle))
        info = file_info(node.attributes, to_directory=is_directory and not node.attributes.is_directory)
        return OpenedAs(number, info, self._paths.path(node))

    async def resolve(self, path: str, *, last: bool) -> bytes:
        """A path without the symlinks in it, as the reparse buffer of a symlink to it.

        Args:
            last: whether a symlink at the end is followed too.
        """
        return symlink_buffer(await self._paths.resolved(path, last=last))

    async def volume(self) -> tuple[int, int]:
        """The size of the source's volume and what is free of it, in bytes."""
        found = await self._overlay.statfs()
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    # ------------------------------------------------------------------ by handle

    async def read(self, number: int, offset: int, size: int) -> bytes | bytearray:
        """Bytes of a file, fewer only at its end."""
        handle = self.opened(number).handle
        if handle is None:
            raise StatusError(ntstatus.INVALID_DEVICE_REQUEST)
        if offset >= handle.node.attributes.size:
            raise StatusError(ntstatus.END_OF_FILE)
        return await self._overlay.read(handle, offset, size)

    async def info(self, number: int) -> FileInfo:
        """What a handle is now."""
        node = self.opened(number).node
        return file_info(await self._overlay.attributes(node), to_directory=await self._to_directory(node))

    async def descriptor(self, number: int) -> bytes:
        """The security descriptor of a handle."""
        return await self._descriptor(self.opened(number).node)

    async def link(self, number: int) -> bytes:
        """What a symlink says, as a reparse buffer."""
        node = self.opened(number).node
        if not stat.S_ISLNK(node.attributes.mode):
            raise StatusError(ntstatus.NOT_A_REPARSE_POINT)
        return symlink_buffer(link_target(await self._overlay.readlink(node)))

    async def entries(self, number: int, pattern: str | None, marker: str | None) -> list[DirEntry]:
        """The entries of a directory behind a name, in the order of a listing.

        Args:
            pattern: what their names are to match; None for all.
            marker: the last name that Windows has got; None to begin, and then the directory is read anew.
        """
        opened = self.opened(number)
        if marker is None or not opened.listing:
            await self._list(opened)
        start = 0 if marker is None else bisect_right(opened.keys, _order(marker))
        found = opened.listing[start:]
        return [entry for entry in found if pattern is None or matches(pattern, entry.name)]

    async def entry(self, number: int, name: str) -> DirEntry:
        """One entry of a directory, whatever the case of its name."""
        node = await self._paths.child(self.opened(number).node, name)
        if node is None:
            raise StatusError(ntstatus.OBJECT_NAME_NOT_FOUND)
        return DirEntry(
            decoded(node.name) or name, file_info(node.attributes, to_directory=await self._to_directory(node))
        )

    def close(self, number: int) -> None:
        """Close a handle, once Windows will not come back to it."""
        opened = self._opened.pop(number, None)
        if opened is not None:
            self.closing(opened)

    def add(self, opened: Opened) -> int:
        """A new handle; its number."""
        number = next(self._numbers)
        self._opened[number] = opened
        return number

    def _closed(self, opened: Opened) -> None:
        if opened.handle is not None:
            self._overlay.close(opened.handle)

    async def _list(self, opened: Opened) -> None:
        node = opened.node
        if not node.attributes.is_directory:
            raise StatusError(ntstatus.NOT_A_DIRECTORY)
        listing = []
        if node.parent is not None:  # the root has none on Windows
            listing = [DirEntry(".", file_info(node.attributes)), DirEntry("..", file_info(node.parent.attributes))]
        for entry in await self._overlay.entries(node):
            name = decoded(entry.name)
            if name is not None:
                to_directory = stat.S_ISLNK(entry.attributes.mode) and await self._entry_leads(node, name)
                listing.append(DirEntry(name, file_info(entry.attributes, to_directory=to_directory)))
        listing.sort(key=lambda entry: _order(entry.name))
        opened.listing, opened.keys = listing, [_order(entry.name) for entry in listing]

    async def _entry_leads(self, parent: Node, name: str) -> bool:
        with contextlib.suppress(OSError):
            node = await self._paths.child(parent, name)
            return node is not None and await self._to_directory(node)
        return False

    async def _to_directory(self, node: Node) -> bool:
        return _is_link(node.attributes) and await self._paths.leads_to_directory(node)

    async def _descriptor(self, node: Node) -> bytes:
        """The descriptor that the source has, else one made of mode and owner."""
        with contextlib.suppress(OSError):
            return await self._overlay.getxattr(node, security.SOURCE_ATTRIBUTE)
        found = node.attributes
        return security.from_mode(found.mode, found.uid, found.gid)


def _is_link(found: Attributes) -> bool:
    return stat.S_ISLNK(found.mode)


def _order(name: str) -> tuple[int, str, str]:
    """The order of a listing: "." and ".." first, then without regard to case."""
    return (0 if name == "." else 1 if name == ".." else 2), folded(name), name
