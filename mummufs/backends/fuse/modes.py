"""How the kernel reads an open file: one mode for an inode, from its first open to its last release.

- CACHED: through the kernel's page cache. What every engine works with.
- DIRECT: past it; mapping works where the kernel offers it (6.6) and the lane asks for it.
- PASSTHROUGH: the kernel reads the source's file by itself (6.9, root). Only for files of which it is known that they
  have no ranges: nothing of them could come from the store. A handle then behaves like one of the source itself: a file
  that is rewritten in place shows its new bytes. A handle that may write is never the first of this mode.

While one mode is in use the kernel refuses another for the same inode, so what was chosen first holds for all.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass

from mummufs.engine.nodes import Node
from mummufs.engine.overlay import Handle

BACKINGS_MAX = 1024
"""Inodes that are passed through at once: each holds a file open in the kernel."""

log = logging.getLogger(__name__)


class Mode(enum.Enum):
    """See above."""

    CACHED = "cached"
    DIRECT = "direct"
    PASSTHROUGH = "passthrough"


@dataclass
class Opened:
    """The mode of an inode that is open.

    Attributes:
        backing_id: the kernel's number of the file that reads are passed to; None but with PASSTHROUGH.
    """

    mode: Mode
    backing_id: int | None = None
    opens: int = 0


class OpenModes:
    """The modes of the inodes that are open."""

    def __init__(
        self,
        *,
        direct: bool,
        passes_through: Callable[[Node], bool] = lambda _: False,
        open_backing: Callable[[int], int] | None = None,
        close_backing: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Decide modes.

        Args:
            direct: files that have ranges, or may have, are DIRECT and not CACHED.
            passes_through: whether reads of a node can never come from the store.
            open_backing: descriptor -> backing id, or OSError; None where nothing is passed through.
            close_backing: takes a backing id back.
        """
        self._plain = Mode.DIRECT if direct else Mode.CACHED
        self._passes_through = passes_through
        self._open_backing = open_backing
        self._close_backing = close_backing
        self._opened: dict[Node, Opened] = {}
        self.refused = 0

    @property
    def passed_through(self) -> int:
        """Inodes that are passed through now."""
        return sum(opened.backing_id is not None for opened in self._opened.values())

    def is_passed_through(self, node: Node) -> bool:
        """Whether the kernel reads and writes this file by itself, as far as it is open."""
        return self._is(node, Mode.PASSTHROUGH)

    def is_direct(self, node: Node) -> bool:
        """Whether this file is open past the page cache."""
        return self._is(node, Mode.DIRECT)

    def _is(self, node: Node, mode: Mode) -> bool:
        opened = self._opened.get(node)
        return opened is not None and opened.mode is mode

    def open(self, handle: Handle) -> Opened:
        """A file has been opened: its mode."""
        opened = self._opened.get(handle.node)
        if opened is None:
            opened = self._opened[handle.node] = self._first(handle)
        opened.opens += 1
        return opened

    def close(self, node: Node) -> None:
        """A handle of it has been released."""
        opened = self._opened[node]
        opened.opens -= 1
        if opened.opens == 0:
            del self._opened[node]
            if opened.backing_id is not None:
                self._close_backing(opened.backing_id)

    def _first(self, handle: Handle) -> Opened:
        if self._open_backing is None or handle.writer is not None or not self._passes_through(handle.node):
            return Opened(self._plain)
        if self.passed_through >= BACKINGS_MAX:
            return Opened(self._plain)
        try:
            return Opened(Mode.PASSTHROUGH, self._open_backing(handle.file.fileno()))
        except OSError as error:
            self.refused += 1
            log.debug("%r is not passed through: %s", handle.node.path.decode("utf-8", "backslashreplace"), error)
            return Opened(self._plain)
