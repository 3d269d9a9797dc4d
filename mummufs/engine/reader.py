"""One read: plan it, run its segments, account for it.

A plan's segments become *parts* (`parts`), each filled into its place in one buffer: from the range file, by a worker
thread; by waiting for a flight; or straight from the source, all parts in one call where it reads several at once. Any
fault of a range file (gone, short, corrupt, unreadable) makes it a miss of this very read: the entry is dropped once
and the source answers.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

import trio

from mummufs.core.errors import RangeFileError
from mummufs.core.plan import ReadPlan, SegmentKind
from mummufs.core.ranges import ByteRange, RangeKey, Version
from mummufs.core.states import State
from mummufs.core.stats import Counters
from mummufs.engine.cache import Cache
from mummufs.engine.flight import FlightFailedError, MovedOnError, read_piece, read_pieces
from mummufs.engine.gate import StoreLateError
from mummufs.engine.nodes import Node
from mummufs.engine.parts import Part, Placing
from mummufs.engine.resident import Resident
from mummufs.engine.schedule import Schedule
from mummufs.engine.threads import Pools
from mummufs.source.base import SourceFile, Wanted
from mummufs.store.layout import charge_of
from mummufs.store.storedrange import StoredRange

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What this process is short of, which says nothing of a range file."""

log = logging.getLogger(__name__)


class _Done(NamedTuple):
    """A read that has its bytes."""

    data: bytes | bytearray
    kinds: list[tuple[SegmentKind, int]]


class Reader:
    """Runs reads. Without a cache every read goes to the source."""

    def __init__(self, pools: Pools, counters: Counters, cache: Cache | None, *, verify_always: bool = False) -> None:
        """Make a reader.

        Args:
            verify_always: prove a range file before every hit.
        """
        self._verify_always = verify_always
        self._pools = pools
        self._counters = counters
        self._cache = cache
        self._placing = Placing()
        self._schedule = Schedule(pools) if cache is None else cache.filler.schedule
        self.scanning = cache is not None
        """Whether the store still has range files that the index does not know of: they are looked for by name."""
        self.reads_in_flight = 0
        self.bytes_in_flight = 0

    async def read(
        self, node: Node, file: SourceFile, offset: int, size: int, *, avoid_store: bool = False
    ) -> bytes | bytearray:
        """The bytes `[offset, offset + size)` of a node's version, cut at its end of file.

        Args:
            avoid_store: have the source answer, whatever the store has.

        Raises:
            MovedOnError: the file's ctime is another than the node's, and nothing else.
            OSError: the source failed, or ESTALE where the file is of another version by now.
        """
        if node.stale:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        version = node.version
        size = max(0, min(size, version.size - offset))
        if size == 0:
            self._counters.reads.request(SegmentKind.BYPASS)
            return b""
        self.reads_in_flight += 1
        self.bytes_in_flight += size
        try:
            data, kinds = await self._read(node, file, version, offset, size, None if avoid_store else self._cache)
        except MovedOnError:
            raise
        except OSError as error:
            if error.errno == errno.ESTALE and not node.stale and (node.is_written or node.version != version):
                raise MovedOnError(errno.ESTALE, os.strerror(errno.ESTALE)) from None  # it is our own writers' doing
            if error.errno == errno.ESTALE:
                self._counters.errors.stale += 1
                node.mark_stale()
            else:
                self._counters.errors.source += 1
            raise
        finally:
            self.reads_in_flight -= 1
            self.bytes_in_flight -= size
        if node.stale:  # it was found out while this read was under way
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        self._account(kinds, size)
        return data

    async def read_written(self, file: SourceFile, offset: int, size: int) -> bytearray:
        """Bytes of a file that is being changed through the mount: what the source has; short only at its end.

        Raises:
            OSError: the source failed.
        """
        self.reads_in_flight += 1
        self.bytes_in_flight += size
        try:
            data = await self._schedule.read(_read_now, file, offset, size)
        except OSError:
            self._counters.errors.source += 1
            raise
        finally:
            self.reads_in_flight -= 1
            self.bytes_in_flight -= size
        self._counters.source_reads.count += 1
        self._counters.source_reads.bytes += len(data)
        self._account([(SegmentKind.BYPASS, len(data))], len(data))
        return data

    async def _read(
        self, node: Node, file: SourceFile, version: Version, offset: int, size: int, cache: Cache | None
    ) -> _Done:
        """The bytes, and the kinds that the segments turned out to be."""
        if cache is None:
            buffer = bytearray(size)
            await self._from_source(file, version, memoryview(buffer), offset)
            return _Done(buffer, [(SegmentKind.BYPASS, size)])
        plan = cache.index.plan_read(node.file, version, node.ranges, offset, size)
        if self.scanning and await self._look_by_name(cache, plan):
            plan = cache.index.plan_read(node.file, version, node.ranges, offset, size)
        parts = self._placing.parts(cache, plan, file)
        if len(parts) == 1 and parts[0].hit is not None:
            whole = await self._from_store(cache, parts[0].hit, version, offset, size)
            if whole is not None:
                return _Done(whole, [(SegmentKind.HIT, size)])
            parts[0].hit = None
            parts[0].segments = [parts[0].segments[0]._replace(kind=SegmentKind.MISS)]
        kinds: list[tuple[SegmentKind, int]] = []
        if len(parts) == 1 and parts[0].flight is not None:
            with contextlib.suppress(FlightFailedError):
                brought = await parts[0].flight.wait_read(ByteRange(offset, size))
                kinds += [(segment.kind, segment.size) for segment in parts[0].segments]
                return _Done(bytes(brought), kinds)
            parts[0].flight = None
        buffer = bytearray(size)
        runs, together = parts, list[Part]()
        if file.reads_at_once:
            runs = [part for part in parts if not part.is_of_source]
            together = [part for part in parts if part.is_of_source]
        calls: list[Callable[[], Awaitable[None]]] = [
            partial(self._run, cache, part, plan, file, memoryview(buffer), kinds) for part in runs
        ]
        if together:
            calls.append(partial(self._run_together, together, plan, file, memoryview(buffer), kinds))
        await _all(calls)
        return _Done(buffer, kinds)

    async def _run(
        self,
        cache: Cache,
        part: Part,
        plan: ReadPlan,
        file: SourceFile,
        buffer: memoryview,
        kinds: list[tuple[SegmentKind, int]],
    ) -> None:
        """Fill one part of the buffer."""
        place = buffer[part.offset - plan.offset : part.end - plan.offset]
        if part.hit is not None:
            stored = await self._from_store(cache, part.hit, plan.version, part.offset, len(place))
            if stored is not None:
                place[:] = stored
                kinds.append((SegmentKind.HIT, len(place)))
                return
            kinds.append((SegmentKind.MISS, len(place)))
        else:
            kinds += [(segment.kind, segment.size) for segment in part.segments]
        if part.flight is not None:
            try:
                place[:] = await part.flight.wait_read(ByteRange(part.offset, len(place)))
                return
            except FlightFailedError:
                pass
        try:
            await self._from_source(file, plan.version, place, part.offset, part.hints)
        except BaseException as error:
            for flight in part.gifts:
                flight.end(error if isinstance(error, OSError) else OSError(errno.EIO, "the reader went away"))
            raise
        for flight in part.gifts:
            flight.give(part.offset, place)

    async def _run_together(
        self,
        parts: Sequence[Part],
        plan: ReadPlan,
        file: SourceFile,
        buffer: memoryview,
        kinds: list[tuple[SegmentKind, int]],
    ) -> None:
        """Fill the parts that come from the source by one call to it."""
        kinds += [(segment.kind, segment.size) for part in parts for segment in part.segments]
        at = plan.offset
        wanted = [Wanted(part.offset, buffer[part.offset - at : part.end - at]) for part in parts]
        self._counters.source_reads.count += len(wanted)
        await self._schedule.read(read_pieces, file, plan.version, wanted)
        self._counters.source_reads.bytes += sum(len(part.place) for part in wanted)

    async def _from_store(
        self, cache: Cache, key: RangeKey, version: Version, offset: int, size: int
    ) -> bytearray | None:
        """Bytes of a range file; None if it cannot give them, and then its entry is dropped if that is its own fault.

        The buffer belongs to the call alone: one that was given up may still write to it.
        """
        buffer = bytearray(size)
        try:
            read = await cache.gate.read(
                _read_stored, cache.resident, key, version, memoryview(buffer), offset, self._verify_always
            )
        except StoreLateError:
            return None
        if isinstance(read, bool):
            return buffer if read else None
        if isinstance(read, OSError) and read.errno in _SHORTAGES:
            self._counters.errors.store += 1
            return None
        # Else it was evicted or restamped meanwhile, or is being restamped now, which is no fault.
        if cache.index.version(key) == version and not cache.filler.has(key):
            self._counters.errors.store += 1
            self._counters.errors.corrupt += isinstance(read, RangeFileError)
            if isinstance(read, OSError) and not isinstance(read, FileNotFoundError):
                cache.gate.failed(cache.gate.reads, read, at_once=False)  # once, however many readers have met it
            log.warning(
                "the range file of inode %d, offset %d, %d bytes is dropped: %s", key.file.inode, *key[1:], read
            )
            cache.evictor.evict_nowait((key,))
        return None

    async def _from_source(
        self, file: SourceFile, version: Version, place: memoryview, offset: int, hints: Sequence[ByteRange] = ()
    ) -> None:
        self._counters.source_reads.count += 1
        await self._schedule.read(read_piece, file, version, place, offset, hints)
        self._counters.source_reads.bytes += len(place)

    async def _look_by_name(self, cache: Cache, plan: ReadPlan) -> bool:
        """While the scan is under way: whether the index now knows a range of this plan that it did not know before.

        The scan may be the one that has found it: then that was between the plan and now.
        """
        found = False
        for segment in plan.segments:
            if segment.kind is not SegmentKind.MISS:
                continue
            key = plan.key(segment)
            if cache.index.state(key) is not State.ABSENT:
                found = True
                continue
            try:
                stored = await cache.gate.read(cache.store.open_range, key, plan.version)
            except (OSError, RangeFileError, StoreLateError):
                continue  # the scan will say what is wrong with it
            if cache.index.restore(key, charge_of(key.size), plan.version):
                cache.resident.add(key, plan.version, stored)
            found = True
        return found

    def _account(self, kinds: list[tuple[SegmentKind, int]], size: int) -> None:
        reads = self._counters.reads
        reads.request(max(kind for kind, _ in kinds))
        for kind, part in kinds:
            reads.segment(kind, part)
        reads.replied_bytes += size


def _read_now(file: SourceFile, offset: int, size: int) -> bytearray:
    buffer = bytearray(size)
    with memoryview(buffer) as view:
        n = file.read_into(view, offset)
    del buffer[n:]
    return buffer


def _read_stored(
    resident: Resident, key: RangeKey, version: Version, place: memoryview, offset: int, verify: bool
) -> bool | OSError | RangeFileError:
    """Whether the place was filled, or what was wrong with the range file.

    The error is returned and its traceback dropped: raised through a worker thread it becomes part of a reference
    cycle, and the `StoredRange` in its frames would stay open, and its bytes counted, until the garbage is collected.
    """
    try:
        stored: StoredRange | None = resident.acquire(key, version)
        if stored is None:
            return False
        if verify:
            stored.believe(None)
        stored.read_into(place, offset - key.offset)
        return True
    except (OSError, RangeFileError) as error:
        return error.with_traceback(None)


async def _all(runs: list[Callable[[], Awaitable[None]]]) -> None:
    """Run them at once; when all have ended, raise the first error as it is."""
    if len(runs) == 1:
        await runs[0]()
        return
    errors: list[OSError] = []

    async def guarded(run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except OSError as error:
            errors.append(error.with_traceback(None))

    async with trio.open_nursery() as nursery:
        for run in runs:
            nursery.start_soon(guarded, run)
    if errors:
        raise errors.pop(0)
