"""Pins: ranges that are to stay in the store whatever is read, by path, kept from mount to mount.

A pin is a file and a pattern for the names of its ranges (`store/pins.py`). Which windows it makes is known once the
file's table is; then the index is told, window by window, and from there on they are no victims. That is done when the
pin is made, when a mount begins (before its first fill, as far as RECALL_S allows), and whenever the windows of a
pinned path turn out to be others: its file has changed, or another has taken its place.

Pinned ranges may take PINNED_SHARE_MAX of the budget, resident or not. More is refused when it is asked for; where a
file has grown or the budget is smaller than it was, the first windows of it are pinned and the others are not.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from array import array
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVarTuple

import trio

from mummufs.core.errors import MummufsError
from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.core.stats import Counters
from mummufs.engine.cache import Cache
from mummufs.engine.nodes import Node
from mummufs.engine.overlay import Handle, Overlay
from mummufs.engine.pinfile import PatternsByPath, PinFile
from mummufs.engine.places import BeingWrittenError, Places, Unreadable, matches, shown
from mummufs.engine.selection import ALL, STEP, Selection
from mummufs.engine.warmer import Warmer
from mummufs.engine.warmprogress import Target
from mummufs.store.layout import charge_of

PINNED_SHARE_MAX = 0.9
"""The share of the budget that may be pinned: the rest is for everything else that is read."""
RECALL_S = 10.0
"""How long fills wait, when a mount begins, for the pins of earlier ones to be found again."""

LOAD_RETRY_S = 10.0
"""Pause before a file of pins that could not be read is tried again."""

GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ELOOP))
"""What opening a path says that leads to no regular file any more. Anything else may pass, and pins stay."""

log = logging.getLogger(__name__)

Args = TypeVarTuple("Args")


class TooMuchPinnedError(MummufsError):
    """More would be pinned than may be. All in bytes of the budget."""

    def __init__(self, pinned_bytes: int, asked_bytes: int, allowed_bytes: int) -> None:
        super().__init__(f"{pinned_bytes} bytes are pinned, {asked_bytes} more are asked for, {allowed_bytes} allowed")
        self.pinned_bytes = pinned_bytes
        self.asked_bytes = asked_bytes
        self.allowed_bytes = allowed_bytes


@dataclass
class Pinned:
    """What the pins of one path have come to.

    Attributes:
        file, version: what its windows are those of; None while no such file is there.
        charges: the ranges that are pinned, and bytes of the budget that each takes when it is resident.
        bytes: the sum of these.
        left_out: ranges that would have passed the limit.
    """

    file: FileId | None = None
    version: Version | None = None
    charges: dict[RangeKey, int] = field(default_factory=dict)
    bytes: int = 0
    left_out: int = 0

    def add(self, key: RangeKey) -> None:
        """One more range, unless it is there already."""
        if key not in self.charges:
            self.charges[key] = charge_of(key.size)
            self.bytes += self.charges[key]

    async def cut(self, limit: int) -> None:
        """Leave out the last ones that pass a limit, in bytes of the budget."""
        while self.charges and self.bytes > limit:
            self.bytes -= self.charges.popitem()[1]
            self.left_out += 1
            if self.left_out % STEP == 0:
                await trio.lowlevel.checkpoint()


class Absent(NamedTuple):
    """Ranges that are not in the store: offset and size of each, one after the other, and the sum of the sizes."""

    windows: array[int]
    bytes: int


@dataclass
class PinChange:
    """What a request to pin or unpin has come to: files and ranges that it was for, and bytes of the budget."""

    files: int = 0
    ranges: int = 0
    bytes: int = 0
    absent_ranges: int = 0
    absent_bytes: int = 0
    note: str = ""
    unreadable: Unreadable = field(default_factory=Unreadable)


class Pins:
    """The pins of one mount."""

    def __init__(self, cache: Cache, places: Places, warmer: Warmer, counters: Counters, overlay: Overlay) -> None:
        """Know of none until `recall`."""
        self._cache = cache
        self._places = places
        self._warmer = warmer
        self._counters = counters
        self._overlay = overlay
        self.kept = PinFile(cache, counters)
        self._pins: PatternsByPath = {}
        self._pinned: dict[bytes, Pinned] = {}
        self._changing = trio.Lock()
        self._renewing: bytes | None = None
        self._again: dict[bytes, None] = {}
        self._wake = trio.Event()
        self.recalled = trio.Event()
        """Set when what is pinned is known, as far as it can be."""
        self.left_out = 0

    # ------------------------------------------------------------------ looking

    @property
    def allowed_bytes(self) -> int:
        """What may be pinned, in bytes of the budget."""
        return int(PINNED_SHARE_MAX * self._cache.index.budget_bytes)

    @property
    def asked_bytes(self) -> int:
        """What is pinned, resident or not, in bytes of the budget."""
        return sum(pinned.bytes for pinned in self._pinned.values())

    @property
    def files(self) -> int:
        """Paths that are pinned, or ranges of them."""
        return len(self._pins)

    def listed(self) -> list[tuple[bytes, str, Pinned]]:
        """The pins in order: path, pattern, and what the pins of that path have come to."""
        return [
            (path, pattern, self._pinned.get(path, Pinned()))
            for path in sorted(self._pins)
            for pattern in self._pins[path]
        ]

    async def absent_of(self, pinned: Pinned) -> Absent:
        """The ranges of these that are not in the store."""
        windows, size = array("Q"), 0
        for i, key in enumerate(list(pinned.charges)):
            if pinned.version is None or not self._cache.index.is_resident(key, pinned.version):
                windows.extend(key[1:])
                size += key.size
            if i % STEP == STEP - 1:
                await trio.lowlevel.checkpoint()
        return Absent(windows, size)

    # ------------------------------------------------------------------ an earlier mount's

    async def run(self) -> None:
        """Take up the pins of earlier mounts; then those again whose files have changed, until cancelled."""
        while not self.kept.loaded:
            await self._guarded(self._load)
            if not self.kept.loaded:
                self.recalled.set()
                await trio.sleep(LOAD_RETRY_S)
        for path in list(self._pins):
            await self._guarded(self._renew, path)
        self.recalled.set()
        await self._warmer.ready.wait()
        await self._guarded(self._warm_absent, list(self._pinned))
        while True:
            while self._again:
                path = next(iter(self._again))
                del self._again[path]
                await self._guarded(self._renew, path)
                await self._guarded(self._warm_absent, [path])
            self._wake = trio.Event()
            await self._wake.wait()

    async def _guarded(self, call: Callable[[*Args], Awaitable[object]], *args: *Args) -> None:
        """Make a call that must not end the mount, whatever it raises."""
        try:
            await call(*args)
        except Exception:
            self._counters.errors.handler += 1
            log.exception("the pins: a fault of ours")

    def known(self, node: Node) -> None:
        """The windows of a version of a file have been found. If it is pinned, these may be others than so far."""
        if not self._pins:
            return
        path = node.path
        if path not in self._pins or path == self._renewing:
            return
        pinned = self._pinned.get(path, Pinned())
        if (pinned.file, pinned.version) != (node.file, node.version):
            self._again[path] = None
            self._wake.set()

    async def _load(self) -> None:
        self._pins = await self.kept.load(self._overlay.nodes.root.file)

    async def _renew(self, path: bytes) -> None:
        """Pin the windows that a path has now, and no others of it."""
        async with self._changing:
            patterns = self._pins.get(path)
            if patterns is None:
                return
            self._renewing = path
            try:
                async with self._places.opened(path) as handle:
                    fresh = await self._windows(handle, patterns)
            except BeingWrittenError:
                return  # what is pinned of it stays so; the catalog tells when that is over
            except OSError as error:
                log.warning("%r is pinned and cannot be opened: %s", shown(path), error)
                if error.errno not in GONE:
                    return
                fresh = Pinned()
            finally:
                self._renewing = None
            await fresh.cut(self.allowed_bytes - self.asked_bytes + self._pinned.get(path, Pinned()).bytes)
            if fresh.left_out:
                self.left_out += fresh.left_out
                log.warning("%r: %d ranges are not pinned: the budget is too small", shown(path), fresh.left_out)
            await self._set(path, fresh)

    # ------------------------------------------------------------------ requests

    async def pin(self, wanted: Sequence[bytes], ranges: str, change: PinChange) -> None:
        """Pin the ranges of these files whose names match, and warm those that are absent.

        Raises:
            TooMuchPinnedError: that would be too much.
            MummufsError: nothing is meant by it, or it cannot be kept.
            OSError: the source's.
        """
        await self._ready()
        paths = await self._places.find(wanted)
        async with self._changing:
            fresh: dict[bytes, Pinned] = {}
            for path in paths:
                async with self._places.tried(path, change.unreadable) as handle:
                    if handle is not None and (await self._windows(handle, [ranges])).charges:
                        fresh[path] = await self._windows(handle, [*self._pins.get(path, []), ranges])
            change.unreadable.check(paths)
            if not fresh:
                raise MummufsError(_nothing_pinned(len(paths), ranges, change.unreadable))
            self._check_room(fresh)
            pins = {path: list(patterns) for path, patterns in self._pins.items()}
            for path in fresh:
                if ranges not in pins.setdefault(path, []):
                    pins[path].append(ranges)
            await self.kept.keep(self._overlay.nodes.root.file, pins)
            self._pins = pins
            with trio.CancelScope(shield=True):  # what is written down is what is pinned; it takes milliseconds
                for path, pinned in fresh.items():
                    await self._set(path, pinned)
                    await self._tell(pinned, change)
        change.note = await self._warm_absent(list(fresh))

    async def unpin(self, wanted: Sequence[bytes], ranges: str | None, change: PinChange) -> None:
        """Take pins away: those of these paths, or of them those that were made with this pattern.

        Raises:
            MummufsError: there are none, or it cannot be kept.
        """
        await self._ready()
        async with self._changing:
            pins: PatternsByPath = {}
            gone: dict[bytes, Pinned] = {}
            for path, patterns in self._pins.items():
                left = patterns
                if any(matches(one, path) for one in wanted):
                    left = [] if ranges is None else [pattern for pattern in patterns if pattern != ranges]
                if left:
                    pins[path] = left
                if left != patterns:
                    gone[path] = await self._left(path, left)
            if not gone:
                made = "" if ranges is None else f" that was made with '{ranges}'"
                raise MummufsError(f"there is no such pin{made}: `mummufs pin --list` shows them")
            await self.kept.keep(self._overlay.nodes.root.file, pins)
            self._pins = pins
            with trio.CancelScope(shield=True):
                for path, pinned in gone.items():
                    old = self._pinned.get(path, Pinned())
                    await self._set(path, pinned)
                    change.files += 1
                    change.ranges += len(old.charges) - len(pinned.charges)
                    change.bytes += old.bytes - pinned.bytes

    async def _left(self, path: bytes, patterns: Sequence[str]) -> Pinned:
        """What is still pinned of a path by these patterns."""
        if patterns:
            with contextlib.suppress(OSError):
                async with self._places.opened(path) as handle:
                    return await self._windows(handle, patterns)
        return Pinned()

    async def _ready(self) -> None:
        await self.recalled.wait()
        if not self.kept.loaded:
            raise MummufsError("the pins of earlier mounts cannot be read from the store: see its log, and try again")

    async def _tell(self, pinned: Pinned, change: PinChange) -> None:
        absent = await self.absent_of(pinned)
        change.files += 1
        change.ranges += len(pinned.charges)
        change.bytes += pinned.bytes
        change.absent_ranges += len(absent.windows) // 2
        change.absent_bytes += absent.bytes

    def _check_room(self, fresh: dict[bytes, Pinned]) -> None:
        before = self.asked_bytes
        replaced = sum(self._pinned.get(path, Pinned()).bytes for path in fresh)
        asked = sum(pinned.bytes for pinned in fresh.values()) - replaced
        if before + asked > self.allowed_bytes:
            raise TooMuchPinnedError(before, asked, self.allowed_bytes)

    # ------------------------------------------------------------------ windows

    async def _windows(self, handle: Handle, patterns: Iterable[str]) -> Pinned:
        """The windows of an open file whose names match one of these patterns."""
        node = handle.node
        is_known = node.parsed == node.version  # else its header could not be read, and may be another time
        found = Pinned(node.file, node.version) if is_known else Pinned()
        for pattern in patterns:
            async for key in Selection(pattern).keys(node):
                found.add(key)
        return found

    async def _set(self, path: bytes, pinned: Pinned) -> None:
        """Have just these ranges of a path pinned."""
        old = self._pinned.pop(path, Pinned())
        if path in self._pins:
            self._pinned[path] = pinned
        index = self._cache.index
        for i, key in enumerate(pinned.charges):
            index.pin(key)
            if i % STEP == STEP - 1:
                await trio.lowlevel.checkpoint()
        elsewhere = [p for p in self._pinned.values() if p.file == old.file]  # a file with two names
        for i, key in enumerate(old.charges):
            if not any(key in p.charges for p in elsewhere):
                index.unpin(key)
            if i % STEP == STEP - 1:
                await trio.lowlevel.checkpoint()

    async def _warm_absent(self, paths: Sequence[bytes]) -> str:
        """Have what is pinned and absent brought in the background; why not, where that cannot be."""
        targets = []
        for path in paths:
            absent = await self.absent_of(self._pinned.get(path, Pinned()))
            if absent.windows:
                targets.append(Target(path, absent.windows))
        if not targets:
            return ""
        try:
            self._warmer.warm_nowait(targets, ALL)
        except MummufsError as error:
            return f"they are not warmed, but filled when they are read: {error}"
        return ""


def _nothing_pinned(files: int, ranges: str, unreadable: Unreadable) -> str:
    """A sentence on files of which nothing can be pinned."""
    said = f"no range of these {files} files has a name that matches '{ranges}'"
    if ranges == ALL:
        said = "none of these files has ranges: they are passed through"
    return f"{said}; {unreadable.error}" if unreadable.files else said
