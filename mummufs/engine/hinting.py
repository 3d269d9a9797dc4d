"""What disks that spin are told: of a read the windows that it has them read, in order, and what is likely to follow.

`core/around.py` and `core/siblings.py` say what that is. Here it is held against what is in the store already, and
told: what belongs to the read itself by the thread that reads, before it does, and the rest in threads that nobody
waits for, because a hint takes as long as the file system needs to find where the bytes are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import trio

from mummufs.core.around import Reach, ReadAround
from mummufs.core.index import CacheIndex
from mummufs.core.plan import ReadPlan, SegmentKind, window_key
from mummufs.core.ranges import ByteRange, RangeKey, Version
from mummufs.core.siblings import Siblings
from mummufs.core.stats import Counters
from mummufs.engine.flight import FOREGROUND_BYTES, PIECE_MAX_BYTES
from mummufs.engine.threads import Pools
from mummufs.source.base import SourceFile
from mummufs.source.hints import will_need

HINTING_MAX = 8
"""Threads that tell the source at once; more is not told."""
SIBLING_BYTES = 8 << 20
"""What is asked for of each of the other slices of an expert, at most."""
HOLE_BYTES = 4 << 20
"""What is in the store is asked for all the same between two runs: to pass over it costs disks no less."""
PASS_PIECE_BYTES = 256 << 10
"""A read of a window that no flight brings counts as a piece of a pass over it if it is at least this large."""
PASS_WINDOW_BYTES = 8 << 20
"""Up to this size the whole window is asked for then: some two seeks' time of four disks."""

log = logging.getLogger(__name__)


class Ask(NamedTuple):
    """What is read from the source because of a read: all of it, and what disks are told of that before.

    They are the same up to a few MiB; more would be in the way of others.
    """

    whole: ByteRange
    now: ByteRange


class Hinter:
    """Tells one source."""

    def __init__(
        self, index: CacheIndex, pools: Pools, counters: Counters, is_flying: Callable[[RangeKey], bool]
    ) -> None:
        """Make one that tells nothing until `run`.

        Args:
            is_flying: whether a range is being brought.
        """
        self._index = index
        self._pools = pools
        self._counters = counters
        self._is_flying = is_flying
        self._around = ReadAround()
        self._siblings = Siblings()
        self._nursery: trio.Nursery | None = None
        self.hinting = 0
        self.dropped = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tell until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    @property
    def share_used(self) -> float | None:
        """Which part of what was asked for besides was read then; None where nothing was."""
        around = self._around
        return min(1.0, around.used_bytes / around.asked_bytes) if around.asked_bytes else None

    @property
    def siblings_told(self) -> int:
        """Slices of experts that were asked for when another slice was missed."""
        return self._siblings.told

    @property
    def siblings_used(self) -> int:
        """How many of these were read then."""
        return self._siblings.used

    def hints_nowait(self, plan: ReadPlan, file: SourceFile, asks: Sequence[Ask]) -> list[ByteRange]:
        """Some of a read is to be read from the source.

        Args:
            plan: the read, of a file that has windows.
            asks: what will be read because of it, by offset; nothing where all of it is on its way.

        Returns:
            what to tell the source before any of it is read.
        """
        assert plan.table is not None, "a read of a file without windows is told as it comes"
        starts = [
            s.window for s in plan.segments if s.kind is SegmentKind.MISS and s.offset == plan.table.starts[s.window]
        ]
        before = []
        if asks:
            used = sum(ask.whole.size for ask in asks)
            start = asks[0].whole.offset
            wanted = ByteRange(start, max(ask.whole.end for ask in asks) - start)
            from_start = any(plan.table.starts[i] == wanted.offset for i in starts)
            along = self._around.plan(plan.file, wanted, plan.version.size, used=used, from_start=from_start)
            before = self._flying(plan, along.before) if along.again else self._missing(plan, along.before)
            ahead = self._missing(plan, along.ahead)
            self._count([*([] if along.again else before), *ahead])
            self._tell_nowait(file, ahead)
        after = [run for i in starts for run in self._begin_nowait(plan, file, i)]
        if not asks:
            self._tell_nowait(file, after)
            return []
        # Two runs: who waits for the window does not wait until the file system knows where the rest is.
        return [*joined([*before, *(ask.now for ask in asks)]), *after]

    def _begin_nowait(self, plan: ReadPlan, file: SourceFile, number: int) -> list[ByteRange]:
        """A window is read from its start. What will be read after it, if its reader came for it; its siblings then."""
        table, size = plan.table, plan.version.size
        assert table is not None
        window = ByteRange(table.starts[number], table.ends[number] - table.starts[number])
        reach = self._around.begins(plan.file, window, size)
        if reach is None:
            return []

        def is_missing(i: int) -> bool:
            return self._is_missing(window_key(plan.file, table, i), plan.version)

        for i in self._siblings.missed(plan.file, table, number, is_missing):
            sibling = ByteRange(table.starts[i], min(SIBLING_BYTES, table.ends[i] - table.starts[i]))
            runs = self._missing(plan, [reach.around(sibling, size)])
            self._count(runs)
            # Each in a thread of its own, so that what file systems have to find first is found at once.
            self._tell_nowait(file, runs)
        end = Reach(0, reach.after).around(window, size).end
        after = self._missing(plan, [ByteRange(window.end, end - window.end)])
        self._count(after)
        return after

    def _missing(self, plan: ReadPlan, runs: Sequence[ByteRange]) -> list[ByteRange]:
        """Of these runs what lies in windows that are not in the store, nor on their way there."""
        parts = [part for key, part in self._parts(plan, runs) if self._is_missing(key, plan.version)]
        return joined(parts, HOLE_BYTES)

    def _is_missing(self, key: RangeKey, version: Version) -> bool:
        return not (self._is_flying(key) or self._index.is_resident(key, version))

    def _flying(self, plan: ReadPlan, runs: Sequence[ByteRange]) -> list[ByteRange]:
        """Of these runs what lies in windows that are on their way."""
        return joined([part for key, part in self._parts(plan, runs) if self._is_flying(key)])

    def _parts(self, plan: ReadPlan, runs: Sequence[ByteRange]) -> Iterator[tuple[RangeKey, ByteRange]]:
        """The windows of these runs, and what of each of them lies in one."""
        assert plan.table is not None
        for run in runs:
            for i in plan.table.overlapping(run.offset, run.size):
                key = window_key(plan.file, plan.table, i)
                yield key, run.intersection(ByteRange(key.offset, key.size))

    def _count(self, runs: Sequence[ByteRange]) -> None:
        self._counters.source_reads.along_bytes += sum(run.size for run in runs)

    def _tell_nowait(self, file: SourceFile, runs: Sequence[ByteRange]) -> None:
        """Tell the source of these in a thread that nobody waits for."""
        if not runs or self._nursery is None:
            return
        if self.hinting >= HINTING_MAX:
            self.dropped += 1
            return
        self.hinting += 1
        self._nursery.start_soon(self._tell, file, runs)

    async def _tell(self, file: SourceFile, runs: Sequence[ByteRange]) -> None:
        try:
            await self._pools.metadata.run(will_need, file, runs)
        except OSError as error:
            log.debug("the source takes no hints: %s", error)
        except Exception:
            self._counters.errors.handler += 1
            log.exception("a hint failed on a fault of ours")
        finally:
            self.hinting -= 1


def asked_by_flight(window: ByteRange, part: ByteRange) -> Ask:
    """What a flight has the disks read when it reads a part of its window first: in the window's order, because to read
    its end first would cost them more than its start."""
    if window.size <= FOREGROUND_BYTES:
        return Ask(window, window)
    return Ask(window, window.intersection(ByteRange(part.offset, part.size + PIECE_MAX_BYTES)))


def asked_when_declined(window: ByteRange, part: ByteRange) -> Ask:
    """What the disks read when a reader reads a part of a window himself, because its fill was declined.

    The kernel cuts a reader's pass over a window into requests, which reach the source side by side and in any order.
    Each would cost disks a seek; told of the whole they read it in one pass.
    """
    if part.size < PASS_PIECE_BYTES or part.contains(window):
        return Ask(part, part)
    if window.size <= PASS_WINDOW_BYTES:
        return Ask(window, window)
    run = window.intersection(ByteRange(part.offset, part.size + PIECE_MAX_BYTES))
    return Ask(run, run)


def joined(runs: Sequence[ByteRange], hole_bytes: int = 0) -> list[ByteRange]:
    """The same bytes, with what follows on something in one run with it, over holes of at most `hole_bytes`."""
    found: list[ByteRange] = []
    for run in runs:
        if found and found[-1].offset <= run.offset <= found[-1].end + hole_bytes:
            before = found.pop()
            found.append(ByteRange(before.offset, max(run.end, before.end) - before.offset))
        else:
            found.append(run)
    return found
