"""Both sources, each with a tree that a test can change: the contract suite runs on either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source.trees import DiskTree, MemoryTree, Tree


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskTree]:
    root = tmp_path / "root"
    root.mkdir()
    tree = DiskTree(root)
    yield tree
    tree.source.close()


@pytest.fixture(params=["disk", "memory"])
def tree(request: pytest.FixtureRequest) -> Tree:
    if request.param == "memory":
        return MemoryTree()
    disk: DiskTree = request.getfixturevalue("disk")
    return disk
