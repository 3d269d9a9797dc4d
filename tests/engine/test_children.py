"""The daemon's child processes work in the background, and end with the block that runs them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from mummufs.engine.children import NICENESS, running_child

WAITS = ("mummufs.manifests.pipechild", "00", "0")
"""It asks for bytes, and waits until it gets them."""


async def test_a_child_runs_behind_everything_else() -> None:
    async with running_child(*WAITS, asks=True) as process:
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == NICENESS
        assert os.getsid(process.pid) == process.pid, (
            "in the group of the daemon, its nice value would count there only"
        )
        if group := _autogroup(process.pid):
            assert group.split()[-1] == str(NICENESS)
            assert group != _autogroup(os.getpid())


async def test_a_child_ends_with_its_block() -> None:
    with pytest.raises(KeyError):
        async with running_child(*WAITS, asks=True) as process:
            raise KeyError
    assert process.returncode is not None
    with pytest.raises(trio.ClosedResourceError):
        assert process.stdin is not None
        await process.stdin.send_all(b"x")


def _autogroup(pid: int) -> str:
    """The group that the kernel has made for the process's session, and its nice value; nothing where it makes none."""
    group = Path(f"/proc/{pid}/autogroup")
    return group.read_text() if group.exists() else ""
