"""Nodes: what the engine knows of the files and directories that somebody has looked at.

A `Node` is one version of one inode of the source, wherever it is linked. When a look-up finds that a file's size or
mtime have changed, a new node takes the old one's place in the table; the old one is *stale*: it keeps its attributes
and its readers get ESTALE. A backend gives each node an inode number of its own, so the kernel never mixes the pages
of two versions. A change of the ctime alone (chmod, link, rename) keeps the node and moves its version on: what was
stored under the old version is not believed any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mummufs.core.manifest import RangeTable
from mummufs.core.ranges import FileId, Version
from mummufs.source.base import Attributes


@dataclass(eq=False)
class Node:
    """One version of one inode.

    Attributes:
        parent: the directory it was last seen in; None for the root.
        name: its name there.
        attributes: as last seen.
        table: its windows; None until a parse has found some.
        parsed: the version that the table is of; None while no parse has ended.
        stale: the source has moved on; reads answer ESTALE.
        keep_pages: whether pages that the kernel has of it are those of the version.
        opens: handles open on it.
        refreshing: a look at its attributes is under way.
        view: what may be read of it without asking the engine; None where nothing may.
    """

    parent: Node | None
    name: bytes
    attributes: Attributes
    table: RangeTable | None = None
    parsed: Version | None = None
    stale: bool = False
    keep_pages: bool = True
    opens: int = 0
    refreshing: bool = field(default=False, repr=False)
    view: object | None = field(default=None, repr=False)

    def mark_stale(self) -> None:
        """The source has moved on from this version: nothing more is read of it."""
        self.stale = True
        self.view = None

    @property
    def file(self) -> FileId:
        return self.attributes.file

    @property
    def version(self) -> Version:
        return self.attributes.version

    @property
    def path(self) -> bytes:
        """Its path in the source, as far as known: somebody may have renamed it."""
        names: list[bytes] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            names.append(node.name)
            node = node.parent
        return b"/".join(reversed(names))

    @property
    def ranges(self) -> RangeTable | None:
        """The windows to plan reads with: none until the parse of this version has ended."""
        return self.table if self.parsed == self.version else None


class NodeTable:
    """The current node of each inode."""

    def __init__(self, root: Attributes) -> None:
        self.root = Node(None, b"", root)
        self._nodes: dict[FileId, Node] = {root.file: self.root}
        self._children: dict[tuple[Node, bytes], Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def seen(self, parent: Node, name: bytes, attributes: Attributes) -> tuple[Node, Node | None]:
        """A name was looked up and found to be this.

        Returns:
            its node, and the node whose place it took if the file's contents have changed.
        """
        node, replaced = self._nodes.get(attributes.file), None
        if node is None or _is_another(node, attributes):
            replaced = node
            node = Node(parent, name, attributes)
            self._nodes[attributes.file] = node
            if replaced is not None:
                self._disown(replaced)
                replaced.mark_stale()
        elif node.parent is not None:
            self._disown(node)
            node.parent, node.name = parent, name
            refresh(node, attributes)
        self._children[parent, name] = node
        return node, replaced

    def child(self, parent: Node, name: bytes) -> Node | None:
        """What this name in a directory stood for when it was last looked up."""
        return self._children.get((parent, name))

    def move_root(self, attributes: Attributes) -> None:
        """Another file system has been mounted where the source is."""
        del self._nodes[self.root.file]
        self.root.attributes = attributes
        self._nodes[attributes.file] = self.root

    def is_current(self, node: Node) -> bool:
        """Whether the table still has this node for its inode."""
        return self._nodes.get(node.file) is node

    def forget(self, node: Node) -> None:
        """The backend has forgotten it."""
        if node is self.root or node.opens:
            return
        self._disown(node)
        if self._nodes.get(node.file) is node:
            del self._nodes[node.file]

    def _disown(self, node: Node) -> None:
        if node.parent is not None and self._children.get((node.parent, node.name)) is node:
            del self._children[node.parent, node.name]


def refresh(node: Node, attributes: Attributes) -> bool:
    """Take in new attributes of a node; False if its contents have changed, which leaves it stale and as it was."""
    if _is_another(node, attributes):
        node.mark_stale()
        return False
    if node.attributes.is_file and attributes.version != node.version:
        node.view = None
        node.keep_pages = False  # the ctime alone: perhaps a chmod, perhaps a rewrite with the mtime set back
    node.attributes = attributes
    return True


def _is_another(node: Node, attributes: Attributes) -> bool:
    known = node.attributes
    if node.stale or known.is_file != attributes.is_file or known.is_directory != attributes.is_directory:
        return True
    return known.is_file and known.version.differs_in_contents(attributes.version)
