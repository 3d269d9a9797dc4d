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
        root.number = ROOT
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
        if not node.number:
            node.number = number = self._free_number(node)
            self._nodes[number] = node
        return node.number

    def known(self, node: Node) -> int | None:
        """The node's number, if the kernel knows it."""
        return node.number or None

    def looked_up(self, number: int) -> None:
        """The kernel has been given this number once more."""
        if number != ROOT:
            self._nodes[number].look_ups += 1

    def forget(self, number: int, look_ups: int) -> Node | None:
        """The kernel gives look-ups back; the node, if these were the last."""
        node = self._nodes.get(number)
        if number == ROOT or node is None:
            return None
        node.look_ups = max(0, node.look_ups - look_ups)
        return None if node.look_ups else self._drop(node)

    def drop_unused(self, number: int) -> None:
        """Take back a number that the kernel was not given after all."""
        node = self.node(number)
        if number != ROOT and not node.look_ups:
            self._drop(node)

    def _drop(self, node: Node) -> Node:
        del self._nodes[node.number]
        node.number = 0
        return node

    def _free_number(self, node: Node) -> int:
        number = node.inode
        same = node.filesystem == self._root.filesystem
        free = ROOT < number < _OWN_NUMBERS and number not in self._nodes
        if same and free and not self._is_written_to(number):
            return number
        self._next += 1
        return self._next
