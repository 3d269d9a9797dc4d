"""Directories that are renamed through the mount, and looks that go by paths below them.

Between the source's rename and ours of the nodes, a path that is made of nodes leads nowhere, or to what has its name
by now. Whoever works in a directory must not notice that one above it is renamed. So a look that falls into a rename
is taken again when that is through.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import trio

from mummufs.engine.nodes import Node

LOOKS_MAX = 16
"""How often a look is taken while directories are renamed."""

Result = TypeVar("Result")


class Moves:
    """The renames of directories that are under way, and how many have been."""

    def __init__(self) -> None:
        self._count = 0
        self._moving: dict[Node, trio.Event] = {}

    @contextlib.contextmanager
    def moving(self, *nodes: Node | None) -> Iterator[None]:
        """In the block these nodes change their names; of those that are directories it matters."""
        ended = trio.Event()
        directories = [node for node in nodes if node is not None and node.attributes.is_directory]
        self._moving.update(dict.fromkeys(directories, ended))
        try:
            yield
        finally:
            self._count += bool(directories)
            for node in directories:
                if self._moving.get(node) is ended:
                    del self._moving[node]
            ended.set()

    async def look(self, node: Node, look: Callable[[], Awaitable[Result]]) -> Result:
        """What a look by the path of a node finds, when no directory above it was renamed meanwhile.

        Raises:
            OSError: the look's own.
        """
        for _ in range(LOOKS_MAX):
            count = self._count
            try:
                found = await look()
            except OSError:
                if not await self._was_moved(node, count):
                    raise
            else:
                if not await self._was_moved(node, count):
                    return found
        return await look()

    async def _was_moved(self, node: Node, count: int) -> bool:
        above: Node | None = node
        while above is not None:
            ended = self._moving.get(above)
            if ended is not None:
                await ended.wait()
                return True
            above = above.parent
        return self._count != count
