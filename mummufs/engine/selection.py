"""Ranges by name: a pattern as fnmatch has it, for the names that `mummufs ranges` shows."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from fnmatch import translate

import trio

from mummufs.core.errors import MummufsError
from mummufs.core.manifest import RangeTable
from mummufs.core.plan import window_key
from mummufs.core.ranges import RangeKey
from mummufs.engine.nodes import Node
from mummufs.store.pins import PATTERN_CHARS_MAX

ALL = "*"
"""The pattern that every name matches."""
STEP = 256
"""Windows looked at between two checkpoints."""


class Selection:
    """A pattern for the names of ranges."""

    def __init__(self, pattern: str) -> None:
        """Compile a pattern.

        Raises:
            MummufsError: it is too long.
        """
        if len(pattern) > PATTERN_CHARS_MAX:
            raise MummufsError(f"a pattern for ranges has at most {PATTERN_CHARS_MAX} characters")
        self._compiled = None if pattern == ALL else re.compile(translate(pattern))

    @property
    def is_all(self) -> bool:
        """Whether it takes every range."""
        return self._compiled is None

    def takes(self, table: RangeTable, i: int) -> bool:
        """Whether the name of the i-th window of a table matches."""
        return self._compiled is None or self._compiled.match(table.window(i).name) is not None

    async def keys(self, node: Node) -> AsyncIterator[RangeKey]:
        """The ranges of a file that match, in order of offset, in steps."""
        table = node.ranges
        for i in range(0 if table is None else len(table)):
            assert table is not None
            if self.takes(table, i):
                yield window_key(node.file, table, i)
            if i % STEP == STEP - 1:
                await trio.lowlevel.checkpoint()
