"""Paths of Windows, looked up in the tree: without regard to case, the source's case kept. Everything in trio.

Windows gives whole paths, for every open two of them at least, and its driver remembers none. So what a name stood for
is believed for a while (`attr_timeout`), and so is what a directory has listed when a name was not found as it was
spelt. Nodes that nobody has open are forgotten when there are too many.
"""

from __future__ import annotations

import errno
import stat
from collections import OrderedDict

import trio

from mummufs.backends.winfsp import ntstatus
from mummufs.backends.winfsp.info import is_absolute, link_target
from mummufs.backends.winfsp.names import components, decoded, encoded, folded, units
from mummufs.backends.winfsp.ntstatus import StatusError
from mummufs.engine.nodes import Node
from mummufs.engine.overlay import Overlay
from mummufs.source.base import Entry

NAMES_MAX = 16 << 10
"""Names that are believed at once."""
LISTINGS_MAX = 64
"""Directories whose names are kept for those that are spelt otherwise."""
NODES_MAX = 64 << 10
"""Nodes that are remembered while nobody has them open."""
LINKS_MAX = 32
"""Symlinks on the way to one file; more go round in circles."""


class Paths:
    """Finds nodes by their paths."""

    def __init__(self, overlay: Overlay, believed_s: float) -> None:
        """Make one.

        Args:
            believed_s: how long a name is taken for what it was.
        """
        self._overlay = overlay
        self._believed_s = believed_s
        self._names: OrderedDict[tuple[Node, str], tuple[Node, float]] = OrderedDict()
        self._listings: OrderedDict[Node, tuple[dict[str, bytes], float]] = OrderedDict()
        self._nodes: OrderedDict[Node, None] = OrderedDict()

    @property
    def root(self) -> Node:
        return self._overlay.nodes.root

    async def find(self, path: str) -> Node:
        r"""The node of a path like `\models\a.gguf`.

        Raises:
            StatusError: OBJECT_NAME_NOT_FOUND or OBJECT_PATH_NOT_FOUND, as NTFS tells them apart; REPARSE where a
                symlink is on the way.
            OSError: the source's own.
        """
        node = self.root
        parts = list(components(path))
        for i, part in enumerate(parts):
            if stat.S_ISLNK(node.attributes.mode):
                raise StatusError(ntstatus.REPARSE, units(path[: parts[i - 1].at]))
            if not node.attributes.is_directory:
                raise StatusError(ntstatus.OBJECT_PATH_NOT_FOUND)
            child = await self.child(node, part.name)
            if child is None:
                last = i == len(parts) - 1
                raise StatusError(ntstatus.OBJECT_NAME_NOT_FOUND if last else ntstatus.OBJECT_PATH_NOT_FOUND)
            node = child
        return node

    async def resolved(self, path: str, *, last: bool) -> str:
        """A path without symlinks, or one that leads to another volume.

        Args:
            last: whether a symlink at its end is followed too.

        Raises:
            StatusError: REPARSE_POINT_NOT_RESOLVED where they go round in circles; OBJECT_PATH_NOT_FOUND.
            OSError: the source's own.
        """
        done: list[str] = []
        rest = [name for name, _ in components(path)][::-1]
        node = self.root
        links = 0
        while rest:
            name = rest.pop()
            if name == ".":
                continue
            if name == "..":
                node = node.parent or self.root
                done = done[:-1]
                continue
            child = await self.child(node, name)
            if child is None:
                if rest:
                    raise StatusError(ntstatus.OBJECT_PATH_NOT_FOUND)
                return _joined([*done, name])
            if not stat.S_ISLNK(child.attributes.mode) or not (rest or last):
                node = child
                done.append(name)
                continue
            links += 1
            if links > LINKS_MAX:
                raise StatusError(ntstatus.REPARSE_POINT_NOT_RESOLVED)
            target = link_target(await self._overlay.readlink(child))
            if is_absolute(target):
                return "\\".join([target.rstrip("\\"), *rest[::-1]])
            if target.startswith("\\"):
                node, done = self.root, []
            rest += [part for part in target.split("\\") if part][::-1]
        return _joined(done)

    async def leads_to_directory(self, node: Node) -> bool:
        """Whether what a symlink says is a directory of this tree."""
        if node.parent is None:
            return False
        try:
            name = decoded(node.name)
            path = "\\".join([self.path(node.parent).rstrip("\\"), name or ""])
            return (await self.find(await self.resolved(path, last=True))).attributes.is_directory
        except (StatusError, OSError):
            return False

    def path(self, node: Node) -> str:
        r"""A node's own path, in the source's case: `\` for the root."""
        names = [decoded(name) or "" for name in node.path.split(b"/") if name]
        return _joined(names)

    async def child(self, parent: Node, name: str) -> Node | None:
        """What a name in a directory stands for; None where it stands for nothing."""
        now = trio.current_time()
        known = self._names.get((parent, name))
        if known is not None and known[1] > now and not known[0].stale:
            return known[0]
        try:
            spelt = encoded(name)
            node = await self._look_up(parent, spelt) or await self._look_up_folded(parent, name, spelt)
        except UnicodeEncodeError:
            return None
        if node is None:
            self._names.pop((parent, name), None)
            return None
        self._remember(parent, name, node, now)
        return node

    def forget_name(self, parent: Node | None, name: str) -> None:
        """A name may stand for something else by now."""
        if parent is None:
            return
        for known in [key for key in self._names if key[0] is parent and folded(key[1]) == folded(name)]:
            del self._names[known]
        self._listings.pop(parent, None)

    def forget(self, node: Node) -> None:
        """A node is not what it was: whoever comes by its names looks again."""
        if node.parent is not None:
            self.forget_name(node.parent, decoded(node.name) or "")

    async def _look_up(self, parent: Node, name: bytes) -> Node | None:
        try:
            return await self._overlay.look_up(parent, name)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):
                return None
            raise

    async def _look_up_folded(self, parent: Node, name: str, spelt: bytes) -> Node | None:
        """Something whose name differs by its case alone: the first of these, where there are several."""
        now = trio.current_time()
        names, until = self._listings.get(parent, ({}, 0.0))
        if until <= now:
            names = {}
            for entry in sorted(await self._overlay.entries(parent), key=_name_of):
                text = decoded(entry.name)
                if text is not None:
                    names.setdefault(folded(text), entry.name)
            self._listings[parent] = names, now + self._believed_s
            self._listings.move_to_end(parent)
            if len(self._listings) > LISTINGS_MAX:
                self._listings.popitem(last=False)
        found = names.get(folded(name))
        return None if found is None or found == spelt else await self._look_up(parent, found)

    def _remember(self, parent: Node, name: str, node: Node, now: float) -> None:
        self._names[parent, name] = node, now + self._believed_s
        self._names.move_to_end((parent, name))
        if len(self._names) > NAMES_MAX:
            self._names.popitem(last=False)
        self._nodes[node] = None
        self._nodes.move_to_end(node)
        for _ in range(len(self._nodes) - NODES_MAX):
            old, _ = self._nodes.popitem(last=False)
            if old.opens:
                self._nodes[old] = None
            else:
                self._overlay.forget(old)


def _joined(names: list[str]) -> str:
    return "\\" + "\\".join(names)


def _name_of(entry: Entry) -> bytes:
    return entry.name
