"""The sources, each with a tree that a test can change: the contract suite runs on either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source.trees import DirectTree, DiskTree, MemoryTree, Tree


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskTree]:
    root = tmp_path / "root"
    root.mkdir()
    tree = DiskTree(root)
    yield tree
    tree.source.close()


@pytest.fixture(params=["disk", "memory", "direct"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tree]:
    if request.param == "memory":
        yield MemoryTree()
        return
    if request.param == "direct":
        (tmp_path / "direct").mkdir()
        direct = DirectTree(tmp_path / "direct")
        yield direct
        direct.source.close()
        return
    disk: DiskTree = request.getfixturevalue("disk")
    yield disk
