"""Where tests run in several processes (pytest-xdist), none of them meets the mounts of another.

A test that copies the mount namespace keeps every mount of the old one alive, one that asks for all mounts gets them
all, and one that puts a file over /etc/fstab does so for everybody: so each process has a namespace of its own.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.namespaces import leave_mount_namespace

TOGETHER = ("tests/engines/", "tests/mounts/test_fstab.py")
"""What one process does: the answers of engines are made once, and the helper is in /sbin or is not."""


class OneByOne(LoadScopeScheduling):  # type: ignore[misc]
    """Every test is given to whoever is free, but for what belongs together."""

    def _split_scope(self, nodeid: str) -> str:
        return next((start for start in TOGETHER if nodeid.startswith(start)), nodeid)


def pytest_configure(config: pytest.Config) -> None:
    """The first thing in each process."""
    if hasattr(config, "workerinput"):
        with contextlib.suppress(PermissionError):  # then there will be no mounts either
            leave_mount_namespace()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneByOne | None:
    """With `--dist loadscope` our own. (The mark `xdist_group` of `loadgroup` is not heeded under every pytest.)"""
    return OneByOne(config, log) if config.getoption("dist") == "loadscope" else None
