"""The scrub: prove every resident range again, slowly, in the background.

It goes through the ranges in the order of their keys, so that it can be resumed: the position is one key. Each range
file is read whole and held against its checksum; with `against_source` its bytes are held against the source's too,
where the file is still there and of the version that the range is of. What fails is dropped and counted.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio
from xxhash import xxh3_128

from mummufs.core.errors import MummufsError, RangeFileError
from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.core.stats import Counters
from mummufs.engine.cache import Cache
from mummufs.engine.gate import StoreLateError
from mummufs.engine.threads import Pools
from mummufs.source.base import Source, SourceFile
from mummufs.source.find import find_files

RATE_BYTES_PER_S = 200 << 20
"""What a scrub reads of the store at most, so that it is not felt."""
MARK_S = 5.0
"""How often a scrub keeps how far it has come."""
MARK_WAIT_S = 1.0
"""How long that may take at its end."""
COMPARE_BYTES = 1 << 20

log = logging.getLogger(__name__)


@dataclass
class ScrubProgress:
    """How far a scrub is.

    Attributes:
        ranges, bytes: looked at so far.
        ranges_total, bytes_total: to be looked at.
        corrupt: whose file did not have its checksum, or could not be read.
        different: whose bytes were not the source's.
        skipped: evicted meanwhile, or (against the source) of a file that is not there in this version.
    """

    running: bool = False
    against_source: bool = False
    ranges: int = 0
    ranges_total: int = 0
    bytes: int = 0
    bytes_total: int = 0
    corrupt: int = 0
    different: int = 0
    skipped: int = 0


class Scrub:
    """Runs at most one scrub at a time."""

    def __init__(self, source: Source, cache: Cache, pools: Pools, counters: Counters) -> None:
        self._source = source
        self._cache = cache
        self._pools = pools
        self._counters = counters
        self.progress = ScrubProgress()

    async def run(
        self,
        *,
        against_source: bool = False,
        sample: int | None = None,
        resume: bool = False,
        rate_bytes_per_s: float = RATE_BYTES_PER_S,
        choose: Callable[[list[RangeKey], int], list[RangeKey]] = random.sample,
    ) -> None:
        """Prove the resident ranges, all of them or a random sample.

        Args:
            resume: go on after the range where the last scrub was interrupted, by the end of its mount perhaps.
        """
        keys = sorted(self._cache.index.resident_keys())
        last = await self._marked() if resume else None
        if last is not None:
            keys = [key for key in keys if key > last]
        if sample is not None and sample < len(keys):
            keys = sorted(choose(keys, sample))
        progress = self.progress = ScrubProgress(True, against_source, ranges_total=len(keys))
        progress.bytes_total = sum(key.size for key in keys)
        files: dict[FileId, bytes] = {}
        if against_source:
            wanted = {key.file for key in keys}
            files = await self._pools.metadata.run(find_files, self._source, wanted)
        begun = marked_at = trio.current_time()
        at: RangeKey | None = None
        try:
            for key in keys:
                await self._look_at(key, files.get(key.file))
                progress.ranges += 1
                progress.bytes += key.size
                at = key
                if sample is None and trio.current_time() - marked_at >= MARK_S:
                    await self._mark(at)
                    marked_at = trio.current_time()
                await trio.sleep_until(begun + progress.bytes / rate_bytes_per_s)
            at = None
        finally:
            try:
                if sample is None:
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + MARK_WAIT_S):
                        await self._mark(at)
            finally:
                progress.running = False  # not before the mark is there: the next scrub may be asked to go on from it
            log.info(
                "scrub: %d ranges, %d corrupt, %d different", progress.ranges, progress.corrupt, progress.different
            )

    async def _mark(self, at: RangeKey | None) -> None:
        try:
            await self._cache.gate.write(self._cache.store.save_mark, at)
        except OSError as error:
            log.warning("scrub: how far it has come cannot be kept: %s", error)

    async def _marked(self) -> RangeKey | None:
        try:
            return await self._cache.gate.read(self._cache.store.load_mark)
        except (OSError, StoreLateError):
            return None

    async def _look_at(self, key: RangeKey, path: bytes | None) -> None:
        version = self._cache.index.version(key)
        if version is None:
            self.progress.skipped += 1
            return
        try:
            proved = await self._cache.gate.read_slowly(_prove, self._cache, key, version)
        except StoreLateError:
            self.progress.skipped += 1
            return
        if isinstance(proved, str) and (self._cache.index.version(key) != version or self._cache.filler.has(key)):
            self.progress.skipped += 1  # it was evicted or restamped meanwhile, or is being restamped now
        elif isinstance(proved, str):
            self.progress.corrupt += 1
            self._counters.errors.corrupt += 1
            self._drop(key, proved)
        elif proved is None or not self.progress.against_source:
            self.progress.skipped += proved is None
        else:
            await self._compare(key, version, path, proved)

    async def _compare(self, key: RangeKey, version: Version, path: bytes | None, digest: bytes) -> None:
        try:
            same = path and await self._pools.source.run(_digest_of_source, self._source, path, key, version)
        except OSError as error:
            log.warning("scrub: the source of inode %d cannot be read: %s", key.file.inode, error)
            same = None
        if not same:
            self.progress.skipped += 1
        elif same != digest:
            self.progress.different += 1
            self._drop(key, "its bytes are not those of the source")

    def _drop(self, key: RangeKey, reason: str) -> None:
        self._counters.errors.store += 1
        log.warning(
            "scrub: the range file of inode %d, offset %d, %d bytes is dropped: %s", key.file.inode, *key[1:], reason
        )
        self._cache.evictor.evict_nowait((key,))


def _prove(cache: Cache, key: RangeKey, version: Version) -> bytes | str | None:
    """The checksum of a range file that has just been proved; a reason why not; None where it is gone."""
    try:
        stored = cache.resident.acquire(key, version)
        if stored is None:
            return None
        stored.believe(None)
        stored.prove()
        return stored.check_header().checksum
    except (OSError, RangeFileError) as error:
        return str(error)


def _digest_of_source(source: Source, path: bytes, key: RangeKey, version: Version) -> bytes | None:
    """The checksum of the source's bytes; None where the file is not of this version."""
    file: SourceFile = source.open(path)
    try:
        if file.attributes().file != key.file or file.attributes().version != version:
            return None
        hasher, buffer, done = xxh3_128(), memoryview(bytearray(COMPARE_BYTES)), 0
        while done < key.size:
            piece = buffer[: key.size - done]
            if file.read_into(piece, key.offset + done) < len(piece):
                return None
            hasher.update(piece)
            done += len(piece)
        return hasher.digest() if file.attributes().version == version else None
    finally:
        file.close()


class BackgroundScrub:
    """Runs a scrub that was asked for, and ends it when asked to."""

    def __init__(self, scrub: Scrub, counters: Counters) -> None:
        self.scrub = scrub
        self._counters = counters
        self._nursery: trio.Nursery | None = None
        self._scope = trio.CancelScope()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Have a place for scrubs until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def start_nowait(self, *, against_source: bool, sample: int | None, resume: bool, rate_bytes_per_s: float) -> None:
        """Start one; see `Scrub.run`.

        Raises:
            MummufsError: there is one already.
        """
        if self.scrub.progress.running:
            raise MummufsError("it is being verified already: `mummufs status` shows how far it is")
        if self._nursery is None:
            raise MummufsError("the mount has not begun to serve: ask again")
        self.scrub.progress.running = True
        self._scope = trio.CancelScope()
        what: dict[str, Any] = {"against_source": against_source, "sample": sample, "resume": resume}
        self._nursery.start_soon(self._run, partial(self.scrub.run, rate_bytes_per_s=rate_bytes_per_s, **what))

    def stop(self) -> None:
        """End the one that runs, if any; it keeps how far it has come."""
        self._scope.cancel()

    async def _run(self, scrub: Callable[[], Awaitable[None]]) -> None:
        with self._scope:
            try:
                await scrub()
            except Exception:  # a scrub must not end the mount
                self._counters.errors.handler += 1
                log.exception("the scrub failed on a fault of ours")
            finally:
                self.scrub.progress.running = False
