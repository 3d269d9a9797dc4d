"""What every folder of tests with real mounts shares. A conftest imports these by name, which makes them its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mounts.harness import need_mounts


@pytest.fixture(autouse=True)
def mounts() -> None:
    """Leave the test out where the machine cannot mount."""
    need_mounts()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An empty directory to be a source."""
    path = tmp_path / "source"
    path.mkdir()
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "store"
