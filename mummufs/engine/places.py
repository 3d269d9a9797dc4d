"""Files by path: from what somebody names in the mount to the files of the source, and to handles of them.

A path is relative to the root of the mount, as the source's are; no path leads outside of it, and symlinks are followed
only as far as they stay inside. A pattern is a path with `*`, `?` or `[...]` in its parts, or `**` for any folders.
The tree is looked through in worker threads, one folder at a time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from fnmatch import translate

import trio

from mummufs.core.errors import MummufsError
from mummufs.engine.catalog import Catalog
from mummufs.engine.overlay import Handle, Overlay
from mummufs.engine.threads import Pools
from mummufs.source.base import Attributes, Entry, Source

FILES_MAX = 20_000
"""Files that one request may mean."""
ENTRIES_MAX = 500_000
"""Entries of folders that are looked at for one request."""
DEPTH_MAX = 64
"""Folders below one another that are gone into."""
LINKS_MAX = 8
"""Symlinks that follow one another."""
STEP = 256
"""Names looked at between two checkpoints."""
SETTLE_WAIT_S = 30.0
"""How long a file is waited for that was written through the mount a moment ago."""


class NotThereError(MummufsError):
    """A path or a pattern means no file of the mount."""


class BeingWrittenError(OSError):
    """Somebody has the file open for writing, or it does not settle: which ranges it has is not known now."""

    def __init__(self) -> None:
        super().__init__(errno.EBUSY, os.strerror(errno.EBUSY))


@dataclass
class Unreadable:
    """Files that were meant and could not be opened: how many, and what was said of the last one."""

    files: int = 0
    error: str = ""

    def add(self, path: bytes, error: OSError) -> None:
        """One more."""
        self.files += 1
        self.error = why_not(path, error)

    def check(self, paths: Sequence[bytes]) -> None:
        """Raise a MummufsError if these were all that were meant."""
        if paths and self.files == len(paths):
            raise MummufsError(self.error)


class Places:
    """Finds and opens files of the source."""

    def __init__(self, source: Source, pools: Pools, overlay: Overlay, catalog: Catalog) -> None:
        self._source = source
        self._pools = pools
        self._overlay = overlay
        self._catalog = catalog

    async def find(self, wanted: Sequence[bytes]) -> list[bytes]:
        """The paths of the files that these paths and patterns mean, sorted; of a folder all that are below it.

        Raises:
            NotThereError: one of them means nothing.
            MummufsError: they mean too many.
            OSError: the source cannot be looked at.
        """
        search = _Search(self._source, self._pools)
        for path in wanted:
            before = len(search.files)
            await search.add(path)
            if len(search.files) == before and not await search.is_there(path):
                what = "no file matches" if has_magic(path) else "there is no file or folder"
                raise NotThereError(f"{what} '{shown(path)}' in the mount")
        return sorted(search.files)

    @contextlib.asynccontextmanager
    async def opened(self, path: bytes) -> AsyncIterator[Handle]:
        """A file, open as long as this lasts; what ranges it has is known.

        Raises:
            BeingWrittenError: it cannot be known.
            OSError: it is not there, no regular file, or the source's own.
        """
        node = self._overlay.nodes.root
        trail = []
        try:
            for name in path.split(b"/"):
                node = await self._overlay.look_up(node, name)
                trail.append(node)
            if not node.attributes.is_file:
                raise OSError(errno.EINVAL, "it is no regular file")
            handle = await self._overlay.open(node, by_backend=False)
            try:
                await self._settled(handle)
                await self._catalog.wait_parsed(handle.node)
                yield handle
            finally:
                self._overlay.close(handle)
        finally:
            for node in reversed(trail):
                self._overlay.let_go(node)

    async def _settled(self, handle: Handle) -> None:
        """Wait for a file that was written through the mount, unless somebody goes on writing it."""
        node, writing = handle.node, handle.node.writing
        if writing is None:
            return
        if not node.is_written:
            with trio.move_on_after(SETTLE_WAIT_S):
                await writing.over.wait()
        if node.writing is not None:
            raise BeingWrittenError
        await self._catalog.opened(node, handle.file)  # its windows may be others now

    @contextlib.asynccontextmanager
    async def tried(self, path: bytes, unreadable: Unreadable) -> AsyncIterator[Handle | None]:
        """The same, but a file that cannot be opened is counted, and there is no handle of it."""
        async with contextlib.AsyncExitStack() as stack:
            handle = None
            try:
                handle = await stack.enter_async_context(self.opened(path))
            except OSError as error:
                unreadable.add(path, error)
            yield handle


class _Search:
    """One search. `files` are those found so far, in no order."""

    def __init__(self, source: Source, pools: Pools) -> None:
        self._source = source
        self._pools = pools
        self._looked_at = 0
        self.files: dict[bytes, None] = {}

    async def is_there(self, path: bytes) -> bool:
        return await self._look(path) is not None

    async def add(self, path: bytes) -> None:
        """What a path means; where nothing has that very name, what it means as a pattern."""
        attributes = await self._look(path)
        if attributes is not None:
            await self._take(path, attributes)
        elif has_magic(path):
            pattern = Pattern(path)
            await self._match(b"", pattern, pattern.start)

    async def _take(self, path: bytes, attributes: Attributes, depth: int = 0) -> None:
        """A file, or everything below a folder."""
        if attributes.is_directory:
            if depth < DEPTH_MAX:
                for name, found in await self._entries(path):
                    await self._take(join(path, name), found, depth + 1)
            return
        if not attributes.is_file:
            target = await self._followed(path)
            if target is None:
                return
            path = target
        self.files[path] = None
        if len(self.files) % STEP == 0:
            await trio.lowlevel.checkpoint()
        if len(self.files) > FILES_MAX:
            raise MummufsError(f"more than {FILES_MAX} files are meant: name fewer at a time")

    async def _match(self, folder: bytes, pattern: Pattern, states: frozenset[int], depth: int = 0) -> None:
        """What a pattern matches below a folder, which has brought it to these states."""
        for i, (name, found) in enumerate(await self._entries(folder), 1):
            if i % STEP == 0:
                await trio.lowlevel.checkpoint()
            path, after = join(folder, name), pattern.after(states, name)
            if pattern.is_met(after):
                await self._take(path, found, depth + 1)
            elif after and found.is_directory and depth < DEPTH_MAX:
                await self._match(path, pattern, after, depth + 1)

    async def _entries(self, folder: bytes) -> list[Entry]:
        entries = await self._pools.metadata.run(_listed, self._source, folder)
        self._looked_at += len(entries)
        if self._looked_at > ENTRIES_MAX:
            raise MummufsError(f"more than {ENTRIES_MAX} names would have to be looked at: name a smaller folder")
        return entries

    async def _look(self, path: bytes) -> Attributes | None:
        try:
            return await self._pools.metadata.run(self._source.stat, path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
                return None
            raise

    async def _followed(self, path: bytes) -> bytes | None:
        """The regular file that a symlink leads to, if it is in the source."""
        for _ in range(LINKS_MAX):
            try:
                said = await self._pools.metadata.run(self._source.readlink, path)
            except OSError:  # a fifo, a device
                return None
            target = _joined_inside(path, said)
            attributes = None if target is None else await self._look(target)
            if target is None or attributes is None or attributes.is_directory:
                return None
            if attributes.is_file:
                return target
            path = target
        return None


def has_magic(path: bytes) -> bool:
    """Whether a path may be a pattern."""
    return any(sign in path for sign in (b"*", b"?", b"["))


class Pattern:
    """A pattern for paths, taken in one name at a time. The states are the numbers of the parts that may come next."""

    def __init__(self, pattern: bytes) -> None:
        self._parts = [None if part == b"**" else re.compile(_regex(part)) for part in pattern.split(b"/")]
        self.start = self._closed({0})

    def after(self, states: frozenset[int], name: bytes) -> frozenset[int]:
        """The states after a name; none where no path that begins so can match."""
        text = os.fsdecode(name)
        following = set()
        for i in states - {len(self._parts)}:
            part = self._parts[i]
            if part is None:
                following.add(i)
            elif part.match(text):
                following.add(i + 1)
        return self._closed(following)

    def is_met(self, states: frozenset[int]) -> bool:
        """Whether the whole pattern has matched."""
        return len(self._parts) in states

    def _closed(self, states: set[int]) -> frozenset[int]:
        """With what follows a `**`, which may stand for no folder at all."""
        for i, part in enumerate(self._parts):
            if part is None and i in states:
                states.add(i + 1)
        return frozenset(states)


def matches(wanted: bytes, path: bytes) -> bool:
    """Whether a path or a pattern means this file by its name alone: itself, or a folder that it is in."""
    if not wanted or path == wanted or path.startswith(wanted + b"/"):
        return True
    pattern = Pattern(wanted)
    states = pattern.start
    for name in path.split(b"/"):
        states = pattern.after(states, name)
        if pattern.is_met(states):
            return True
    return False


def join(folder: bytes, name: bytes) -> bytes:
    """The path of a name in a folder."""
    return folder + b"/" + name if folder else name


def why_not(path: bytes, error: OSError) -> str:
    """A sentence on a file that could not be opened."""
    if isinstance(error, BeingWrittenError):
        return f"'{shown(path)}' is being written, or was a moment ago: ask again when that is over"
    return f"'{shown(path)}' cannot be read: {error.strerror or error}"


def shown(path: bytes) -> str:
    """A path for a sentence."""
    return path.decode("utf-8", "backslashreplace")


def _regex(part: bytes) -> str:
    return translate(os.fsdecode(part))


def _joined_inside(link: bytes, said: bytes) -> bytes | None:
    """Where a symlink of the source leads; None where that is outside, or is not told by its text alone."""
    if said.startswith(b"/"):
        return None
    parts = link.split(b"/")[:-1]
    for part in said.split(b"/"):
        if part == b"..":
            if not parts:
                return None
            parts.pop()
        elif part not in (b"", b"."):
            parts.append(part)
    return b"/".join(parts) if parts else None


def _listed(source: Source, folder: bytes) -> list[Entry]:
    return sorted(source.entries(folder), key=lambda entry: entry.name)
