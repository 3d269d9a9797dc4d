"""The tree below the mount: inodes as O_PATH descriptors, so that a rename or an unlink in BACK confuses nobody.

A descriptor pins its inode, so an inode number is never used for two files while the kernel knows it. Numbers are
BACK's own, so hard links share one; the root is FUSE's 1. File systems mounted inside BACK get numbers of their own.
"""

from __future__ import annotations

import errno
import os
import resource
from dataclasses import dataclass

import pyfuse3

DEVICE_SHIFT = 48
"""Inode numbers of another device inside BACK carry its index in the bits from here on."""


@dataclass
class Node:
    """One inode that the kernel knows. `path` is the name it was last looked up by, relative to BACK."""

    number: int
    descriptor: int
    path: str
    lookups: int = 0

    @property
    def proc_path(self) -> str:
        """A path that names this very inode, for calls that take no O_PATH descriptor."""
        return f"/proc/self/fd/{self.descriptor}"


class Tree:
    """Inode numbers to nodes. Raises plain `OSError`s."""

    def __init__(self, back: str) -> None:
        """Open BACK as the root. Every inode in use costs a descriptor, so their limit is raised."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        descriptor = os.open(back, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._devices = [os.fstat(descriptor).st_dev]
        self._nodes = {pyfuse3.ROOT_INODE: Node(pyfuse3.ROOT_INODE, descriptor, "", lookups=1)}

    def node(self, number: int) -> Node:
        """The node of an inode number; ESTALE if the kernel was never told of it."""
        try:
            return self._nodes[number]
        except KeyError:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from None

    def look_up(self, parent: Node, name: bytes) -> Node:
        """The node of a name, with one more look-up counted."""
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent.descriptor)
        number = self._number(os.fstat(descriptor))
        node = self._nodes.get(number)
        if node is None:
            node = self._nodes[number] = Node(number, descriptor, child_path(parent, name))
        else:
            os.close(descriptor)
            node.path = "" if number == pyfuse3.ROOT_INODE else child_path(parent, name)
        node.lookups += 1
        return node

    def forget(self, number: int, lookups: int) -> None:
        """Take back `lookups` look-ups; the last one closes the node."""
        node = self._nodes.get(number)
        if node is None or number == pyfuse3.ROOT_INODE:
            return
        node.lookups -= lookups
        if node.lookups <= 0:
            del self._nodes[number]
            os.close(node.descriptor)

    def attributes(self, node: Node) -> pyfuse3.EntryAttributes:
        """BACK's attributes of a node. Nothing is cached by the kernel, so changes in BACK show at once."""
        status = os.fstat(node.descriptor)
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = node.number
        entry.entry_timeout = entry.attr_timeout = 0
        for name in ("mode", "nlink", "uid", "gid", "rdev", "size", "blksize", "blocks"):
            setattr(entry, f"st_{name}", getattr(status, f"st_{name}"))
        entry.st_atime_ns = status.st_atime_ns
        entry.st_mtime_ns = status.st_mtime_ns
        entry.st_ctime_ns = status.st_ctime_ns
        return entry

    def _number(self, status: os.stat_result) -> int:
        if status.st_dev not in self._devices:
            self._devices.append(status.st_dev)
        index = self._devices.index(status.st_dev)
        root = os.fstat(self._nodes[pyfuse3.ROOT_INODE].descriptor)
        if index == 0 and status.st_ino == root.st_ino:
            return pyfuse3.ROOT_INODE
        return status.st_ino | index << DEVICE_SHIFT


def child_path(parent: Node, name: bytes) -> str:
    """The path, relative to BACK, of a name in a directory. Odd bytes become surrogates."""
    return f"{parent.path}/{os.fsdecode(name)}" if parent.path else os.fsdecode(name)
