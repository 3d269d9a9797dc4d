"""Inode numbers: which number the kernel knows each node by, and how many look-ups it owes us.

A node gets its inode number in the source where that is free, so that `ls -i` shows the same as there; a second version
of a file, or a file of another subvolume with an equal number, gets one from the top half. So does a file whose number
is still written to: what was meant for a node that the kernel has forgotten must not end in the pages of another.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from mummufs.engine.nodes import Node

ROOT = 1
_OWN_NUMBERS = 1 << 63


class Inodes:
    """The nodes that the kernel knows."""

    def __init__(self, root: Node, is_written_to: Callable[[int], bool] = lambda _: False) -> None:
        """Know the root alone.

        Args:
            is_written_to: whether pages of a number may still be stored into the kernel's cache.
        """
        self._root = root
        self._is_written_to = is_written_to
        self._nodes: dict[int, Node] = {ROOT: root}
        self._numbers: dict[Node, int] = {root: ROOT}
        self._look_ups: dict[int, int] = {}
        self._next = _OWN_NUMBERS

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, number: int) -> Node:
        """The node with this number.

        Raises:
            OSError: ESTALE; the kernel never asks for a number that it has forgotten.
        """
        node = self._nodes.get(number)
        if node is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return node

    def number(self, node: Node) -> int:
        """The node's number, a new one if the kernel does not know it yet."""
        number = self._numbers.get(node)
        if number is None:
            number = self._free_number(node)
            self._nodes[number] = node
            self._numbers[node] = number
            node.known = True
        return number

    def known(self, node: Node) -> int | None:
        """The node's number, if the kernel knows it."""
        return self._numbers.get(node)

    def looked_up(self, number: int) -> None:
        """The kernel has been given this number once more."""
        if number != ROOT:
            self._look_ups[number] = self._look_ups.get(number, 0) + 1

    def forget(self, number: int, look_ups: int) -> Node | None:
        """The kernel gives look-ups back; the node, if these were the last."""
        if number == ROOT or number not in self._nodes:
            return None
        left = self._look_ups.get(number, 0) - look_ups
        if left > 0:
            self._look_ups[number] = left
            return None
        self._look_ups.pop(number, None)
        return self._drop(number)

    def drop_unused(self, number: int) -> None:
        """Take back a number that the kernel was not given after all."""
        if number != ROOT and number not in self._look_ups:
            self._drop(number)

    def _drop(self, number: int) -> Node:
        node = self._nodes.pop(number)
        del self._numbers[node]
        node.known = False
        return node

    def _free_number(self, node: Node) -> int:
        number = node.file.inode
        same = node.file.filesystem == self._root.file.filesystem
        free = ROOT < number < _OWN_NUMBERS and number not in self._nodes
        if same and free and not self._is_written_to(number):
            return number
        self._next += 1
        return self._next
