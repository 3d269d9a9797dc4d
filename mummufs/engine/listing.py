"""Directories as they are read: some entries at a time.

A directory may have half a million entries, and a disk that spins takes minutes to look at each. Nobody waits for all
of them: not who reads the first, and not who creates something there, whom the kernel holds back while it waits for us.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Awaitable, Callable, Generator, Iterator
from functools import partial

from mummufs.engine.nodes import Node
from mummufs.engine.threads import Pools
from mummufs.source.base import Entry, Source

ENTRIES_AT_ONCE = 1024
"""Entries that one call to a worker thread fetches."""
STREAMS_MAX = 8
"""Directories that are open in the source because they are read in pieces. Beyond that one is read whole at once."""

Some = tuple[list[Entry], Iterator[Entry] | None]
"""Some entries, and where the rest is to be had; None: there is no more."""
Look = Callable[[Node, Callable[[bytes], Some]], Awaitable[Some]]
"""A look at the path of a node."""


class Listings:
    """Reads directories of a source."""

    def __init__(self, source: Source, pools: Pools, look: Look) -> None:
        self.source = source
        self.pools = pools
        self.look = look
        self.streams = 0
        """Directories that are open in the source."""

    def begin(self, node: Node) -> Listing:
        """A listing of a directory, of which nothing has been read yet."""
        return Listing(self, node)


class Listing:
    """A directory that is being read. One call at a time.

    Attributes:
        entries: those that have been fetched, without "." and "..", in the source's order.
    """

    def __init__(self, listings: Listings, node: Node) -> None:
        self.entries: list[Entry] = []
        self._listings = listings
        self._node = node
        self._rest: Iterator[Entry] | None = None
        self._is_begun = self._is_broken = self._is_stream = False

    async def reach(self, number: int) -> bool:
        """Fetch entries up to this one, counted from 0; False where there are not so many.

        Raises:
            OSError: the source's own; EIO ever after, for what comes next is not known any more.
        """
        while number >= len(self.entries):
            if self._is_broken:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if self._is_begun and self._rest is None:
                return False
            await self._fetch()
        return True

    async def all(self) -> list[Entry]:
        """All entries."""
        while await self.reach(len(self.entries)):
            pass
        return self.entries

    def close(self) -> None:
        """Nothing more will be fetched. What a call that was given up still uses is closed when it has come back."""
        self._is_broken = True
        if isinstance(self._rest, Generator):
            with contextlib.suppress(ValueError):  # it is at work in a thread
                self._rest.close()
        self._ended(None)

    async def _fetch(self) -> None:
        listings = self._listings
        if self._is_begun:
            assert self._rest is not None
            some, rest = await self._unless_broken(listings.pools.metadata.run(_some, self._rest))
        elif self._node.unlinked:  # it is empty, and at its path there may be another by now
            some, rest = [], None
        else:
            self._is_stream = listings.streams < STREAMS_MAX
            listings.streams += self._is_stream
            call = partial(_first, listings.source, whole=not self._is_stream)
            some, rest = await self._unless_broken(listings.look(self._node, call))
        if not self._is_broken:  # nor closed
            self._is_begun = True
            self.entries += some
            self._ended(rest)

    async def _unless_broken(self, call: Awaitable[Some]) -> Some:
        try:
            return await call
        except BaseException:
            self.close()
            raise

    def _ended(self, rest: Iterator[Entry] | None) -> None:
        """A call has brought this rest."""
        self._rest = rest
        if rest is None and self._is_stream:
            self._is_stream = False
            self._listings.streams -= 1


def _first(source: Source, path: bytes, *, whole: bool) -> Some:
    entries = source.entries(path)
    return (list(entries), None) if whole else _some(entries)


def _some(entries: Iterator[Entry]) -> Some:
    some = list(itertools.islice(entries, ENTRIES_AT_ONCE))
    return some, entries if len(some) == ENTRIES_AT_ONCE else None
