"""Nodes: what the engine knows of the files and directories that somebody has looked at.

A `Node` is one version of one inode of the source, wherever it is linked. When a file's contents have changed, a new
node takes the old one's place in the table; the old one is *stale*: it keeps its attributes and its readers get ESTALE.
A backend gives each node an inode number of its own, so the kernel never mixes the pages of two versions.

What has changed, only the attributes tell. Another size or mtime: the contents. The ctime alone: something visible must
account for it (mode, owner, count of links, or the name), and then the node stays and its version moves on: what was
stored under the old version is not believed any more. If nothing does, somebody has set the mtime back after a rewrite,
or has set an extended attribute; it is taken for the worse of the two, so the contents have changed. Whether the name
accounts for it takes a look at the source, which is not taken here: whoever has attributes that are `UNCLEAR` brings
the answer with them (`renamed`). One rename accounts for one change: a node whose new name nobody has looked up is
*lost*, and while it is, its name accounts for nothing.

While a file may be changed through the mount (`engine/writes.py`) whatever changes of it is its writers' doing: the
node moves on, and is not replaced.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from mummufs.core.manifest import RangeTable
from mummufs.core.ranges import FileId, Version
from mummufs.engine.views import FileView
from mummufs.source.base import Attributes

if TYPE_CHECKING:
    from mummufs.engine.writes import Writing

Place: TypeAlias = "tuple[Node, bytes]"
"""A directory and a name in it."""
_ATTRIBUTES = struct.Struct("<IIIIIqqqqq")
"""What `Attributes` have beside the file, in their order. No kernel counts more links, or has larger device numbers."""
NAMES_MAX = 64
"""Names of a file that are remembered beside the one that it was last seen under."""


class Change(Enum):
    """What has happened to a file between two looks at its attributes."""

    NONE = "nothing that matters here"
    METADATA = "mode, owner or links"
    CONTENTS = "its contents, or it is something else"
    UNCLEAR = "a rename, or its contents with the mtime set back"


def change(known: Attributes, found: Attributes) -> Change:
    """What these attributes say, as far as they do, of what has happened to a file."""
    if known.is_file != found.is_file or known.is_directory != found.is_directory:
        return Change.CONTENTS
    if not known.is_file or known.version == found.version:
        return Change.NONE
    if known.version.differs_in_contents(found.version):
        return Change.CONTENTS
    if (known.mode, known.uid, known.gid, known.nlink) != (found.mode, found.uid, found.gid, found.nlink):
        return Change.METADATA
    return Change.UNCLEAR


@dataclass(eq=False, slots=True)
class Node:
    """One version of one inode.

    There is one for each file that somebody has looked at and the kernel has not forgotten, half a million perhaps. So
    it is small: it has no dict that it does not need, and its attributes are packed while nobody has it open.

    Attributes:
        parent: the directory it was last seen in; None for the root.
        name: its name there.
        filesystem, inode: which file it is.
        table: its windows; None until a parse has found some.
        parsed: the version that the table is of; None while no parse has ended.
        stale: the source has moved on; reads answer ESTALE.
        keep_pages: whether pages that the kernel has of it are those of the version.
        lost: it was renamed, and has not been found under its new name yet.
        opens: handles open on it.
        number, look_ups: a backend's number for it, and how often the kernel was given that; 0 where it has none.
        children: of a directory, what its names stood for when they were last looked up; None where none was.
        refreshing: a look at its attributes is under way.
        view: what may be read of it without asking the engine; None where nothing may.
        writing: it is being changed through the mount, or its ranges are not believed again yet.
        changes: goes up with every change of a file through the mount. If there was one, a look that finds other
            contents may be from before that.
        unlinked: its last name was removed through the mount: by no path will it be found again.
        others: more names of it, as they were seen; the last seen is last. None where there are none.
    """

    parent: Node | None
    name: bytes
    _attributes: Attributes | bytes = field(repr=False)
    filesystem: int = 0
    inode: int = 0
    table: RangeTable | None = None
    parsed: Version | None = None
    stale: bool = False
    keep_pages: bool = True
    lost: bool = False
    opens: int = 0
    number: int = 0
    look_ups: int = 0
    refreshing: bool = field(default=False, repr=False)
    view: FileView | None = field(default=None, repr=False)
    writing: Writing | None = field(default=None, repr=False)
    changes: int = 0
    unlinked: bool = False
    others: dict[Place, None] | None = field(default=None, repr=False)
    children: dict[bytes, Node] | None = field(default=None, repr=False)

    @property
    def attributes(self) -> Attributes:
        """As last seen."""
        known = self._attributes
        return Attributes(self.file, *_ATTRIBUTES.unpack(known)) if isinstance(known, bytes) else known

    @attributes.setter
    def attributes(self, attributes: Attributes) -> None:
        self.filesystem, self.inode = attributes.file
        self._attributes = attributes
        if not self.opens:
            self._pack()

    @property
    def known(self) -> bool:
        """Whether a backend has a number for it."""
        return self.number != 0

    def opened(self) -> None:
        """There is one handle more on it."""
        self._attributes = self.attributes
        self.opens += 1

    def closed(self) -> None:
        """There is one handle less."""
        self.opens -= 1
        if not self.opens:
            self._pack()

    def _pack(self) -> None:
        known = self._attributes
        if isinstance(known, Attributes):
            times = (known.atime_ns, known.mtime_ns, known.ctime_ns)
            owner = (known.mode, known.nlink, known.uid, known.gid, known.rdev)
            self._attributes = _ATTRIBUTES.pack(*owner, known.size, known.blocks, *times)

    @property
    def is_written(self) -> bool:
        """Whether somebody may change it through the mount just now."""
        return self.writing is not None and self.writing.writers > 0

    def mark_stale(self) -> None:
        """The source has moved on from this version: nothing more is read of it."""
        self.stale = True
        self.view = None

    def mark_unlinked(self) -> None:
        """It has lost its last name. Who has it open goes on; its number may be another's once nobody has."""
        self.unlinked = True
        self.attributes = replace(self.attributes, nlink=0)

    @property
    def file(self) -> FileId:
        known = self._attributes
        return FileId(self.filesystem, self.inode) if isinstance(known, bytes) else known.file

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
        return self.table if self.parsed == self.version and self.writing is None else None


class NodeTable:
    """The current node of each inode."""

    def __init__(self, root: Attributes) -> None:
        self.root = _new_node(None, b"", root)
        # By file system and inode: a FileId for each would take 80 bytes.
        self._nodes: dict[int, dict[int, Node]] = {}
        self._enter(self.root)

    def __len__(self) -> int:
        return sum(map(len, self._nodes.values()))

    def __iter__(self) -> Iterator[Node]:
        return chain.from_iterable(nodes.values() for nodes in self._nodes.values())

    def current(self, file: FileId) -> Node | None:
        """The node of an inode, as it was last seen; None where nobody has looked at it."""
        nodes = self._nodes.get(file.filesystem)
        return None if nodes is None else nodes.get(file.inode)

    def seen(
        self, parent: Node, name: bytes, attributes: Attributes, *, renamed: bool = False
    ) -> tuple[Node, Node | None]:
        """A name was looked up and found to be this.

        Args:
            renamed: the name that the node had does not lead to it any more, which accounts for its ctime.

        Returns:
            its node, and the node whose place it took if the file's contents have changed.
        """
        node, replaced = self.current(attributes.file), None
        is_gone = node is not None and node.unlinked and not node.opens
        if node is None or is_gone or _is_another(node, attributes, renamed=renamed):
            replaced = node
            node = _new_node(parent, name, attributes)
            self._enter(node)
            if replaced is not None:
                self._disown(replaced)
                replaced.mark_stale()
        elif node.parent is not None:
            refresh(node, attributes, renamed=renamed)
            self._name(node, parent, name)
        _put((parent, name), node)
        return node, replaced

    def child(self, parent: Node, name: bytes) -> Node | None:
        """What this name in a directory stood for when it was last looked up."""
        return _at((parent, name))

    def unlinked(self, parent: Node, name: bytes) -> None:
        """This name was removed."""
        node = _take((parent, name))
        if node is not None:
            self._lose(node, (parent, name))

    def other_name(self, node: Node) -> bool:
        """Take its name to be the one it was seen under before, if there is one. The one that it has is forgotten."""
        if not node.others:
            return False
        (node.parent, node.name), _ = node.others.popitem()
        return True

    def renamed(self, parent: Node, name: bytes, to: Node, new_name: bytes, *, exchange: bool = False) -> None:
        """A name was moved, in the place of what had the new one, or in exchange with it."""
        old, new = (parent, name), (to, new_name)
        moved, other = _at(old), _at(new)
        if moved is other:  # two names of one file, which stay
            return
        _take(old)
        _take(new)
        if moved is not None:
            self._lose(moved, old, new)
        if other is not None:
            self._lose(other, new, old if exchange else None)

    def move_root(self, attributes: Attributes) -> None:
        """Another file system has been mounted where the source is."""
        self._leave(self.root)
        self.root.attributes = attributes
        self._enter(self.root)

    def is_current(self, node: Node) -> bool:
        """Whether the table still has this node for its inode."""
        return self.current(node.file) is node

    def forget(self, node: Node) -> None:
        """The backend has forgotten it."""
        if node is self.root or node.opens:
            return
        self._disown(node)
        if self.is_current(node):
            self._leave(node)

    def _enter(self, node: Node) -> None:
        self._nodes.setdefault(node.filesystem, {})[node.inode] = node

    def _leave(self, node: Node) -> None:
        nodes = self._nodes[node.filesystem]
        del nodes[node.inode]
        if not nodes:
            del self._nodes[node.filesystem]

    def _name(self, node: Node, parent: Node, name: bytes) -> None:
        """It was seen under this name: the one that it had is another of its names, unless somebody has that."""
        if node.parent is not None and (node.parent, node.name) != (parent, name):
            if node.attributes.nlink <= 1 or node.attributes.is_directory:
                self._disown(node)
            elif _at((node.parent, node.name)) is node:
                others = _add_name(node, (node.parent, node.name))
                if len(others) > NAMES_MAX:
                    oldest = next(iter(others))
                    del others[oldest]
                    _take(oldest)
            _drop_name(node, (parent, name))
        node.parent, node.name, node.lost, node.unlinked = parent, name, False, False

    def _lose(self, node: Node, name: Place, then: Place | None = None) -> None:
        """It does not have this name any more, but another one perhaps."""
        if then is not None:
            _put(then, node)
        if (node.parent, node.name) != name:
            _drop_name(node, name)
            if then is not None:
                _add_name(node, then)
        elif then is not None:
            node.parent, node.name = then
        elif not self.other_name(node) and node.attributes.is_directory:
            node.mark_unlinked()

    def _disown(self, node: Node) -> None:
        for parent, name in ((node.parent, node.name), *(node.others or ())):
            if parent is not None and _at((parent, name)) is node:
                _take((parent, name))
        node.others = None


def _new_node(parent: Node | None, name: bytes, attributes: Attributes) -> Node:
    node = Node(parent, name, attributes)
    node.attributes = attributes
    return node


def _at(place: Place) -> Node | None:
    """What a name in a directory stands for, as far as it is known."""
    parent, name = place
    return None if parent.children is None else parent.children.get(name)


def _put(place: Place, node: Node) -> None:
    parent, name = place
    if parent.children is None:
        parent.children = {}
    parent.children[name] = node


def _take(place: Place) -> Node | None:
    parent, name = place
    if parent.children is None:
        return None
    node = parent.children.pop(name, None)
    if not parent.children:
        parent.children = None
    return node


def _add_name(node: Node, place: Place) -> dict[Place, None]:
    if node.others is None:
        node.others = {}
    node.others[place] = None
    return node.others


def _drop_name(node: Node, place: Place) -> None:
    if node.others is not None:
        node.others.pop(place, None)


def refresh(node: Node, attributes: Attributes, *, renamed: bool = False) -> bool:
    """Take in new attributes of a node; False if its contents have changed, which leaves it stale and as it was.

    Args:
        renamed: its name does not lead to it any more, which accounts for its ctime.
    """
    if _is_another(node, attributes, renamed=renamed):
        node.mark_stale()
        return False
    if node.is_written:
        if attributes.ctime_ns >= node.version.ctime_ns:  # else it comes from a look before the last change of ours
            node.attributes = attributes
        return True
    if node.attributes.is_file and attributes.version != node.version:
        node.view = None
        node.keep_pages = False  # a chmod hides a rewrite whose mtime was set back, if both came between two looks
        node.lost |= renamed
    node.attributes = attributes
    return True


def _is_another(node: Node, attributes: Attributes, *, renamed: bool) -> bool:
    if node.is_written:
        return node.stale
    what = change(node.attributes, attributes)
    return node.stale or what is Change.CONTENTS or (what is Change.UNCLEAR and not renamed)
