"""The control requests about what is in the store: warm, pin, unpin, evict, residency.

All of them are jobs: a request is answered at once with the number of its job, and the client asks how far that is.
Paths are relative to the mount; bytes that are no UTF-8 travel as Python's `surrogateescape` has them. What is asked
for is checked here, and every list has a limit; longer answers come in pages.

    {"op": "warm", "paths": [...], "ranges": "*"}             -> {"job": 1, "ahead": 0}
    {"op": "warm_windows", "draft": 0, "path": "...", "windows": [offset, size, ...]}   -> {"draft": 7}, more of them,
    {"op": "warm", "draft": 7, "ranges": "*"}                 and then this: a warm of single windows
    {"op": "warm_progress", "job": 1}                         -> {"state": "running", ...}
    {"op": "warm_stop", "job": 1}                             -> {}, and without a job all of them
    {"op": "pin" | "unpin" | "evict" | "residency", "paths": [...], "ranges": "*", "force": false}   -> {"job": 1}
    {"op": "look", "job": 1, "from": 0}                       -> {"state": "ended", "found": {...}, "next": null}
    {"op": "look_stop", "job": 1}                             -> {}
    {"op": "pins", "from": 0}                                 -> {"pins": [...], "next": null, ...}
"""

from __future__ import annotations

import os
from array import array
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

from mummufs.core.errors import MummufsError
from mummufs.engine.jobs import Job, JobState
from mummufs.engine.pins import PINNED_SHARE_MAX, PinChange, TooMuchPinnedError
from mummufs.engine.placement import Evicted, Look, Placement
from mummufs.engine.selection import ALL
from mummufs.engine.warmprogress import Tally, Target, WarmProgress
from mummufs.store.pins import PATTERN_CHARS_MAX
from mummufs.units import format_size

if TYPE_CHECKING:  # there are no such sockets on Windows, whose status wants this module too
    from mummufs.control import Answer, Handler

PATHS_MAX = 256
"""Paths and patterns of one request."""
PATH_BYTES_MAX = 4096
DRAFTS_MAX = 4
"""Warms of single windows that are being put together; the oldest gives way."""
DRAFT_WINDOWS_MAX = 1_000_000
WINDOWS_MAX = 4096
"""Windows of one request."""
ROWS_MAX = 2000
"""Rows of one answer."""

NO_STORE = "this mount has no store: mount it with --store"


def handlers(placement: Placement | None) -> dict[str, Handler]:
    """The requests by name; without a store each of them is refused with a sentence."""
    ops = _Ops(placement)
    return {
        "warm": ops.warm,
        "warm_windows": ops.warm_windows,
        "warm_progress": ops.warm_progress,
        "warm_stop": ops.warm_stop,
        "pin": ops.pin,
        "unpin": ops.unpin,
        "evict": ops.evict,
        "residency": ops.residency,
        "look": ops.look,
        "look_stop": ops.look_stop,
        "pins": ops.pins,
    }


def placement_status(placement: Placement | None) -> dict[str, Any]:
    """What `status` shows of it: the warm that runs or ran last, and the pins."""
    if placement is None:
        return {"warm": None, "pins": None}
    warms, pins = placement.warmer.jobs, placement.pins
    current = warms.current
    return {
        "warm": {
            **({"job": None, "state": "none"} if current is None else warm_progress(current)),
            "waiting": warms.waiting,
            "started": warms.started,
            "refused": warms.refused,
        },
        "pins": {
            "files": pins.files,
            "asked_bytes": pins.asked_bytes,
            "allowed_bytes": pins.allowed_bytes,
            "ranges_left_out": pins.left_out,
            "files_set_aside": pins.kept.set_aside,
        },
    }


def warm_progress(job: Job[WarmProgress]) -> dict[str, Any]:
    """How far a warm is, as JSON."""
    progress = job.progress
    return {
        "job": job.number,
        "state": job.state.value,
        "stopped": job.stopped,
        "failure": None if job.failure is None else sentence(job.failure),
        "counted": progress.counted,
        "files": progress.files,
        "files_done": progress.files_done,
        "files_without_ranges": progress.without_ranges,
        "files_failed": progress.failed_files,
        "last_error": progress.error or None,
        "looked_at_bytes": progress.looked_at_bytes,
        **_tally("asked", progress.asked),
        **_tally("resident", progress.resident),
        **_tally("filled", progress.filled),
        "declined": {reason.value: asdict(tally) for reason, tally in progress.declined.items()},
    }


def sentence(failure: MummufsError | OSError) -> str:
    """What is told of a job that came to nothing."""
    match failure:
        case TooMuchPinnedError():
            return (
                f"{format_size(failure.asked_bytes)} more cannot be pinned: {format_size(failure.pinned_bytes)} are"
                f" pinned, and no more than {format_size(failure.allowed_bytes)} may be, {PINNED_SHARE_MAX:.0%} of the"
                " budget; pin less, unpin something, or mount with a larger store"
            )
        case OSError():
            return f"the source cannot be read: {failure.strerror or failure}"
        case _:
            return str(failure)


class _Ops:
    """The handlers."""

    def __init__(self, placement: Placement | None) -> None:
        self._have = placement
        self._drafts: OrderedDict[int, dict[bytes, array[int]]] = OrderedDict()
        self._numbers = count(1)

    @property
    def _placement(self) -> Placement:
        if self._have is None:
            raise MummufsError(NO_STORE)
        return self._have

    # ------------------------------------------------------------------ warms

    async def warm(self, asked: Mapping[str, object]) -> Answer:
        warmer = self._placement.warmer
        ranges = _pattern(asked)
        if "draft" in asked:
            draft = self._draft(asked)
            targets = [Target(path, windows) for path, windows in sorted(draft.items())]
            job = warmer.warm_nowait(targets, ranges)
            self._drafts.pop(_number(asked, "draft"), None)
        else:
            job = warmer.find_and_warm_nowait(_paths(asked), ranges)
        return {"job": job.number, "ahead": warmer.jobs.waiting - (job.state is JobState.WAITING)}

    async def warm_windows(self, asked: Mapping[str, object]) -> Answer:
        room_bytes = self._placement.room_bytes
        windows = asked.get("windows")
        if not isinstance(windows, list) or len(windows) > 2 * WINDOWS_MAX or len(windows) % 2:
            _refuse(f"at most {WINDOWS_MAX} windows, each an offset and a size")
        number = _number(asked, "draft") or next(self._numbers)
        draft = self._drafts.setdefault(number, {})
        if windows:
            try:
                draft.setdefault(_path(asked.get("path")), array("Q")).extend(array("Q", windows))
            except (TypeError, OverflowError):
                _refuse("offsets and sizes that are numbers")
        if sum(map(len, draft.values())) > 2 * DRAFT_WINDOWS_MAX:
            del self._drafts[number]
            _refuse(f"at most {DRAFT_WINDOWS_MAX} windows in all")
        while len(self._drafts) > DRAFTS_MAX:
            self._drafts.popitem(last=False)
        return {"draft": number, "room_bytes": room_bytes}

    async def warm_progress(self, asked: Mapping[str, object]) -> Answer:
        return warm_progress(self._placement.warmer.jobs.get(asked.get("job")))

    async def warm_stop(self, asked: Mapping[str, object]) -> Answer:
        jobs = self._placement.warmer.jobs
        if asked.get("job") is None:
            jobs.stop_all()
        else:
            jobs.get(asked["job"]).stop()
        return {}

    def _draft(self, asked: Mapping[str, object]) -> dict[bytes, array[int]]:
        draft = self._drafts.get(_number(asked, "draft"))
        if draft is None:
            raise MummufsError("the list of windows to warm is gone: ask again")
        return draft

    # ------------------------------------------------------------------ looks

    async def pin(self, asked: Mapping[str, object]) -> Answer:
        return {"job": self._placement.pin_nowait(_paths(asked), _pattern(asked)).number}

    async def unpin(self, asked: Mapping[str, object]) -> Answer:
        ranges = None if asked.get("ranges") is None else _pattern(asked)
        return {"job": self._placement.unpin_nowait(_paths(asked), ranges).number}

    async def evict(self, asked: Mapping[str, object]) -> Answer:
        force = asked.get("force") is True
        return {"job": self._placement.evict_nowait(_paths(asked), _pattern(asked), force=force).number}

    async def residency(self, asked: Mapping[str, object]) -> Answer:
        return {"job": self._placement.residency_nowait(_paths(asked)).number}

    async def look(self, asked: Mapping[str, object]) -> Answer:
        job = self._placement.looks.get(asked.get("job"))
        found, following = _found(job.progress, _number(asked, "from"))
        return {
            "state": job.state.value,
            "stopped": job.stopped,
            "failure": None if job.failure is None else sentence(job.failure),
            "found": found,
            "next": following,
        }

    async def look_stop(self, asked: Mapping[str, object]) -> Answer:
        self._placement.looks.get(asked.get("job")).stop()
        return {}

    async def pins(self, asked: Mapping[str, object]) -> Answer:
        pins = self._placement.pins
        first = _number(asked, "from")
        listed = pins.listed()
        page = []
        for path, pattern, pinned in listed[first : first + ROWS_MAX]:
            page.append(
                {
                    "path": os.fsdecode(path),
                    "ranges": pattern,
                    "file_ranges": len(pinned.charges),
                    "file_bytes": pinned.bytes,
                    "file_ranges_left_out": pinned.left_out,
                    "found": pinned.file is not None,
                }
            )
        following = first + ROWS_MAX
        return {
            "pins": page,
            "next": following if following < len(listed) else None,
            "asked_bytes": pins.asked_bytes,
            "allowed_bytes": pins.allowed_bytes,
        }


def _found(look: Look, first: int) -> tuple[dict[str, Any], int | None]:
    """What a job has found, a page of it, and where the next page begins."""
    match look:
        case PinChange():
            return asdict(look), None
        case Evicted():
            return {
                "files": look.files,
                **_tally("evicted", look.evicted),
                **_tally("pinned", look.pinned),
                **_tally("filling", look.filling),
            }, None
        case _:
            rows = [row._asdict() for row in look.rows[first : first + ROWS_MAX]]
            following = first + ROWS_MAX
            page = {"files": look.files, "files_without_ranges": look.without_ranges, "layers": rows}
            return page, following if following < len(look.rows) else None


def _tally(name: str, tally: Tally) -> dict[str, int]:
    return {f"{name}_ranges": tally.ranges, f"{name}_bytes": tally.bytes}


# ---------------------------------------------------------------------- checking


def _paths(asked: Mapping[str, object]) -> list[bytes]:
    paths = asked.get("paths")
    if not isinstance(paths, list) or not 0 < len(paths) <= PATHS_MAX:
        _refuse(f"from 1 to {PATHS_MAX} paths: a folder stands for everything in it, a pattern for many files")
    return [_path(path) for path in paths]


def _path(text: object) -> bytes:
    """A path below the root of the mount; "" is the root itself."""
    try:
        path = os.fsencode(text) if isinstance(text, str) else b"\0"
    except UnicodeEncodeError:
        path = b"\0"
    parts = path.split(b"/") if path else []
    if b"\0" in path or len(path) > PATH_BYTES_MAX or any(part in (b"", b".", b"..") for part in parts):
        _refuse(f"paths below the mount, and {str(text)[:60]!r} is none")
    return path


def _pattern(asked: Mapping[str, object]) -> str:
    pattern = asked.get("ranges", ALL)
    if not isinstance(pattern, str) or not 0 < len(pattern) <= PATTERN_CHARS_MAX:
        _refuse(f"a pattern for the names of ranges of 1 to {PATTERN_CHARS_MAX} characters")
    return pattern


def _number(asked: Mapping[str, object], name: str) -> int:
    value = asked.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        _refuse(f"'{name}' is a number")
    return value


def _refuse(what: str) -> NoReturn:
    raise MummufsError(f"this request takes {what}")
