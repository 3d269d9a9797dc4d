"""`python -m tests.hostile.planted PLAN ARGUMENT...`: the command line of mummufs with exceptions planted in it.

PLAN is a JSON file that is looked at on every call of a place: `{"Overlay.read": "KeyError"}`. Without the file nothing
is raised. Each exception that was raised adds a line with its place to PLAN.raised.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mummufs.backends.fuse.front import Front
from mummufs.backends.fuse.lanereads import LaneReads
from mummufs.backends.fuse.laneserver import Server
from mummufs.backends.fuse.modes import OpenModes
from mummufs.backends.fuse.push import Pusher
from mummufs.backends.fuse.relay import Relay
from mummufs.cli import main
from mummufs.core.index import CacheIndex
from mummufs.engine.catalog import Catalog
from mummufs.engine.evictor import Evictor
from mummufs.engine.filler import Filler
from mummufs.engine.landing import Landing
from mummufs.engine.listing import Listing
from mummufs.engine.mirror import Mirror
from mummufs.engine.overlay import Overlay
from mummufs.engine.parse import ChildParser
from mummufs.engine.reader import Reader
from mummufs.engine.resident import Resident
from mummufs.engine.scrub import Scrub
from mummufs.engine.writes import Writes
from mummufs.store.rangestore import RangeStore

KINDS: dict[str, type[Exception]] = {kind.__name__: kind for kind in (RuntimeError, MemoryError, KeyError)}

PLACES: dict[type, tuple[str, ...]] = {
    Overlay: (
        *("look_up", "attributes", "readlink", "getxattr", "listxattr", "statfs", "open", "read"),
        *("close", "forget"),
    ),
    Listing: ("reach",),
    Mirror: (
        *("open", "create", "write", "sync", "flush", "set_attributes", "setxattr", "removexattr", "mkdir", "mknod"),
        *("symlink", "link", "unlink", "rmdir", "rename", "sync_directory"),
    ),
    Writes: ("_conclude",),
    Reader: ("_from_source",),
    Filler: ("offer_nowait", "_bring"),
    Landing: ("_wait_room", "_write"),
    Evictor: ("_remove_queued", "purge"),
    CacheIndex: ("plan_eviction", "plan_read"),
    Catalog: ("_load", "_save", "_fill_early"),
    ChildParser: ("parse",),
    Resident: ("acquire",),
    Scrub: ("_look_at",),
    Server: ("_hit", "_fill", "_note", "_read", "_other"),
    Pusher: ("saw_page", "_push", "_fill"),
    Relay: ("forward", "_opened"),
    LaneReads: ("submit", "_outcome", "_reply"),
    OpenModes: ("open", "close"),
    Front: ("report", "open_backing"),
    RangeStore: ("write_range", "remove_range", "open_range", "load_table", "save_table", "probe_read", "probe_write"),
}


def plant(plan: Path) -> None:
    """Put a look at the plan before each place."""
    for owner, names in PLACES.items():
        for name in names:
            setattr(owner, name, _planted(getattr(owner, name), f"{owner.__name__}.{name}", plan))


def _planted(function: Callable[..., Any], place: str, plan: Path) -> Callable[..., Any]:
    def look() -> None:
        try:
            kind = json.loads(plan.read_text()).get(place)
        except FileNotFoundError:
            return
        if kind is not None:
            with plan.with_suffix(".raised").open("a") as raised:
                raised.write(place + "\n")
            raise KINDS[kind](f"planted in {place}")

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def asynchronous(*args: Any, **kwargs: Any) -> Any:
            look()
            return await function(*args, **kwargs)

        return asynchronous

    @functools.wraps(function)
    def synchronous(*args: Any, **kwargs: Any) -> Any:
        look()
        return function(*args, **kwargs)

    return synchronous


if __name__ == "__main__":
    plant(Path(sys.argv.pop(1)))
    main()
