"""One mode for an inode, from its first open to its last release."""

from __future__ import annotations

import errno
import itertools
from typing import Any, cast

import pytest

from mummufs.backends.fuse import modes as modes_module
from mummufs.backends.fuse.modes import Mode, OpenModes
from mummufs.engine.nodes import Node
from mummufs.engine.overlay import Handle


class File:
    def fileno(self) -> int:
        return 99


class Backings:
    """The kernel's side."""

    def __init__(self) -> None:
        self.open_ids: set[int] = set()
        self.opened = 0
        self.refuses = False
        self._numbers = itertools.count(1)

    def open(self, fd: int) -> int:
        assert fd == File().fileno()
        if self.refuses:
            raise OSError(errno.EPERM, "refused")
        number = next(self._numbers)
        self.open_ids.add(number)
        self.opened += 1
        return number

    def close(self, number: int) -> None:
        self.open_ids.remove(number)


def handle(name: bytes = b"f", node: Node | None = None) -> Handle:
    return Handle(node or Node(None, name, cast(Any, None)), cast(Any, File()), True)


def modes(backings: Backings, *, direct: bool = False, passes: bool = True) -> OpenModes:
    return OpenModes(
        direct=direct,
        passes_through=lambda _: passes,
        open_backing=backings.open,
        close_backing=backings.close,
    )


@pytest.mark.parametrize(("direct", "mode"), [(False, Mode.CACHED), (True, Mode.DIRECT)])
def test_without_passthrough(direct: bool, mode: Mode) -> None:
    opened = OpenModes(direct=direct, passes_through=lambda _: True)
    first = opened.open(handle())
    assert (first.mode, first.backing_id) == (mode, None)
    assert opened.passed_through == 0


def test_one_backing_for_all_opens_of_an_inode() -> None:
    backings = Backings()
    opened = modes(backings)
    first = handle()
    ids = {opened.open(handle(node=first.node)).backing_id for _ in range(3)}
    other = opened.open(handle(b"g"))
    assert len(ids) == 1
    assert other.backing_id not in ids
    assert opened.passed_through == 2
    for left in (2, 2, 1):
        opened.close(first.node)
        assert opened.passed_through == left
    assert backings.open_ids == {other.backing_id}
    assert opened.open(first).backing_id not in ids, "a new first open has a new one"


def test_what_was_chosen_first_holds() -> None:
    """A file whose parse ends while it is open goes on as it was opened, and changes with its next first open."""
    backings = Backings()
    passes: set[Node] = set()
    opened = OpenModes(
        direct=False,
        passes_through=lambda node: node in passes,
        open_backing=backings.open,
        close_backing=backings.close,
    )
    first = handle()
    assert opened.open(first).mode is Mode.CACHED
    passes.add(first.node)
    assert opened.open(handle(node=first.node)).mode is Mode.CACHED
    opened.close(first.node)
    assert opened.open(handle(node=first.node)).mode is Mode.CACHED
    opened.close(first.node)
    opened.close(first.node)
    assert opened.open(handle(node=first.node)).mode is Mode.PASSTHROUGH
    passes.clear()
    assert opened.open(handle(node=first.node)).mode is Mode.PASSTHROUGH


def test_a_backing_that_is_refused() -> None:
    backings = Backings()
    backings.refuses = True
    opened = modes(backings, direct=True)
    first = handle()
    assert opened.open(first).mode is Mode.DIRECT
    assert opened.refused == 1
    backings.refuses = False
    assert opened.open(handle(node=first.node)).mode is Mode.DIRECT, "as the first one"
    opened.close(first.node)
    opened.close(first.node)
    assert opened.open(first).mode is Mode.PASSTHROUGH


def test_files_with_ranges_are_not_passed_through() -> None:
    backings = Backings()
    assert modes(backings, passes=False).open(handle()).mode is Mode.CACHED
    assert backings.opened == 0


def test_backings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes_module, "BACKINGS_MAX", 2)
    backings = Backings()
    opened = modes(backings)
    handles = [handle(bytes([i])) for i in range(3)]
    assert [opened.open(h).mode for h in handles] == [Mode.PASSTHROUGH, Mode.PASSTHROUGH, Mode.CACHED]
    opened.close(handles[0].node)
    assert opened.open(handle(b"later")).mode is Mode.PASSTHROUGH
