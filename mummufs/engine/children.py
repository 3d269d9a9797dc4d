"""Child processes of the daemon: what is seconds of Python, and what is hostile, is done in them.

They work in the background: readers that wait come first. A nice value alone does not say so. Linux gives the
processes of one session a group of their own where `sched_autogroup_enabled` is set, which it is by default, and a
nice value counts within its group only. So a child is the leader of a session of its own, and its group is made as
nice as the child. The parent does both before the child's interpreter has started, which is the first thing that
would take time from readers.

Until a child's own program runs it has a copy of every descriptor of the daemon: where one of them is of a range file
that is deleted meanwhile, the disk has its bytes back only then. `wait_started` is for who counts them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

NICENESS = 19
"""What it leaves is not nothing: on cores that are all in use, a header of a second takes about one minute."""
KILLED_WAIT_S = 1.0
"""How long a killed child is waited for."""

_starting: set[trio.Event] = set()
"""Children that may not run their own program yet."""


@asynccontextmanager
async def running_child(
    module: str, *arguments: str, inherited_fds: Sequence[int] = (), asks: bool = False
) -> AsyncIterator[trio.Process]:
    """Run `python -m module arguments...`; at the end of the block a child that has not ended is killed.

    Its standard output is a pipe. So is its standard input where it `asks`, else that is empty.

    Raises:
        OSError: it cannot be started.
    """
    started = trio.Event()
    _starting.add(started)
    try:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE if asks else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
            cwd=os.sep,
            **_options(inherited_fds),
        )
    finally:
        _starting.discard(started)
        started.set()
    try:
        _put_behind(process.pid)
        yield process
    finally:
        await _end(process)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                await trio.aclose_forcefully(stream)


def is_starting() -> bool:
    """Whether a child is being started, which may have a copy of a descriptor that has been closed here."""
    return bool(_starting)


async def wait_started() -> None:
    """Wait until every child that is being started now runs its own program, or could not be started."""
    for started in tuple(_starting):
        await started.wait()


def child_environment() -> dict[str, str]:
    """The environment of a child: what it takes to find this package, from an empty environment too."""
    package = Path(__file__).resolve().parents[2]
    kept = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}  # Windows starts nothing without
    return {"PATH": os.defpath, "PYTHONPATH": os.fspath(package), "PYTHONDONTWRITEBYTECODE": "1", **kept}


def _options(inherited_fds: Sequence[int]) -> dict[str, Any]:
    """What each system has of its own, and the types of the other know nothing of."""
    below_normal = getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", None)
    if below_normal is not None:
        return {"creationflags": below_normal}
    return {"pass_fds": inherited_fds, "start_new_session": True}


def _put_behind(pid: int) -> None:
    """Let a process that leads a session run behind everything else. Where that fails it is faster, not wrong."""
    set_priority, process = getattr(os, "setpriority", None), getattr(os, "PRIO_PROCESS", None)
    if set_priority is None:
        return
    with contextlib.suppress(OSError):
        set_priority(process, pid, NICENESS)
    with contextlib.suppress(OSError), open(f"/proc/{pid}/autogroup", "w") as group:
        group.write(str(NICENESS))


async def _end(process: trio.Process) -> None:
    """Kill a child that has not ended. One that hangs in the kernel, in a read of the source, is not waited for."""
    if process.returncode is None:
        process.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + KILLED_WAIT_S):
            await process.wait()
