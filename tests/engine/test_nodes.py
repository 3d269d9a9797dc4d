"""What attributes tell of a change, and what becomes of the node."""

from __future__ import annotations

import stat
from dataclasses import replace

import pytest

from mummufs.core.ranges import FileId
from mummufs.engine.nodes import Change, Node, NodeTable, change, refresh
from mummufs.engine.views import FileView, OpenRanges
from mummufs.source.base import Attributes
from tests.engine.harness import make_table

ROOT = Attributes(FileId(1, 1), stat.S_IFDIR | 0o755, 2, 0, 0, 0, 0, 0, 1, 1, 1)
FILE = Attributes(FileId(1, 2), stat.S_IFREG | 0o644, 1, 0, 0, 0, 1000, 2, 10, 10, 10)
LATER = replace(FILE, ctime_ns=11)
"""The ctime moved, and nothing else."""


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (FILE, Change.NONE),
        (replace(FILE, atime_ns=99), Change.NONE),
        (LATER, Change.UNCLEAR),
        (replace(FILE, ctime_ns=9), Change.UNCLEAR),
        (replace(LATER, atime_ns=99), Change.UNCLEAR),
        (replace(LATER, blocks=4), Change.UNCLEAR),
        (replace(LATER, mode=stat.S_IFREG | 0o600), Change.METADATA),
        (replace(LATER, uid=7), Change.METADATA),
        (replace(LATER, gid=7), Change.METADATA),
        (replace(LATER, nlink=2), Change.METADATA),
        (replace(LATER, mtime_ns=11), Change.CONTENTS),
        (replace(LATER, mtime_ns=11, mode=stat.S_IFREG | 0o600), Change.CONTENTS),
        (replace(LATER, size=999, nlink=0), Change.CONTENTS),
        (replace(FILE, mode=stat.S_IFDIR | 0o755), Change.CONTENTS),
        (replace(FILE, mode=stat.S_IFIFO | 0o644), Change.CONTENTS),
    ],
)
def test_what_the_attributes_say(found: Attributes, expected: Change) -> None:
    assert change(FILE, found) is expected


@pytest.mark.parametrize("kind", [stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO])
def test_only_files_have_contents(kind: int) -> None:
    known = replace(FILE, mode=kind | 0o755)
    assert change(known, replace(known, size=1, mtime_ns=11, ctime_ns=11)) is Change.NONE


def seen_once() -> tuple[NodeTable, Node]:
    table = NodeTable(ROOT)
    node, replaced = table.seen(table.root, b"f", FILE)
    assert replaced is None
    node.view = FileView(FILE.version, make_table(FILE.size, []), OpenRanges())
    return table, node


def test_a_ctime_that_nothing_accounts_for_makes_another_node() -> None:
    table, node = seen_once()
    other, replaced = table.seen(table.root, b"f", LATER)
    assert replaced is node and other is not node
    assert node.stale and node.view is None and node.attributes == FILE
    assert not other.stale and other.keep_pages and other.attributes == LATER
    assert table.current(FILE.file) is other and table.child(table.root, b"f") is other


def test_a_rename_that_accounts_for_it_keeps_the_node() -> None:
    table, node = seen_once()
    assert table.seen(table.root, b"g", LATER, renamed=True) == (node, None)
    assert (node.path, node.version, node.view, node.keep_pages) == (b"g", LATER.version, None, False)
    assert not node.lost and not node.stale
    assert table.child(table.root, b"f") is None


def test_a_mode_that_accounts_for_it_keeps_the_node() -> None:
    table, node = seen_once()
    changed = replace(LATER, mode=stat.S_IFREG | 0o600)
    assert table.seen(table.root, b"f", changed) == (node, None)
    assert (node.attributes, node.view, node.keep_pages, node.lost) == (changed, None, False, False)


def test_a_refresh_that_finds_nothing_new_leaves_all_as_it_is() -> None:
    _, node = seen_once()
    view = node.view
    assert refresh(node, replace(FILE, atime_ns=99))
    assert node.view is view and node.keep_pages and node.attributes.atime_ns == 99


def test_a_node_is_lost_from_its_rename_until_it_is_found() -> None:
    table, node = seen_once()
    assert refresh(node, LATER, renamed=True)
    assert node.lost and node.path == b"f"
    assert table.seen(table.root, b"g", LATER) == (node, None)
    assert (node.lost, node.path) == (False, b"g")


def test_a_refresh_that_nothing_accounts_for_leaves_it_stale_and_as_it_was() -> None:
    _, node = seen_once()
    assert not refresh(node, LATER)
    assert node.stale and node.view is None and node.attributes == FILE
