"""What is written through the mount, and what becomes of the stored ranges of that file.

Theory of operation. A file has a `Writing` from the moment that somebody may change it through the mount (a handle that
is open for writing, or a call that changes attributes or names) until its ranges are believed again. While it has one:

- Nothing of it is served from the store and nothing is put there. It has no view (the lane hands its reads on) and no
  ranges (the engine plans them past the store); flights that are under way are doomed, and the backend is asked to let
  a push that is just being sent end (`quiet`) before the first byte is written. All of that comes before the change
  reaches the source. So a reader never gets old bytes from the store beside new ones: he gets what the source has.
- Its attributes are expected to change: the node keeps its number, its pages and its handles, and moves on. A read that
  began under an older version and meets a newer one is done again.
- Every change of ours is *bracketed*: in one call of one thread, and one after the other for a file, the attributes are
  taken, the change is made, and they are taken again. Whatever lies within a bracket is ours. If a bracket begins with
  another version than the last one has ended with, somebody has changed the file behind us, and then nothing that is
  stored of it is believed any more (`doubtful`). So it is where a call was given up, for nobody knows what it did.
- The bytes of each change are noted (`extents`), and the windows that they overlap are dropped before it is made.

When nobody may change the file any more, and it has not changed for as long as a fill would wait for too (`settle`: by
then another change would show in its ctime), the attributes are taken a last time. If the version is still the last one
of ours, every window that no change has overlapped holds the same bytes as before: its range file is *stamped* with the
new version. That writes a header and reads nothing of the source. All others are dropped.

A crash in between leaves range files of the old version, which is not the file's any more, so they are not believed. A
range file that has not reached its new header, or has it torn, is lost, and no more than that.

What brackets cannot tell: a change that somebody makes to the source itself while ours is being made. The documents say
so.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import trio

from mummufs.core.errors import RangeFileError
from mummufs.core.extents import FILE_END, Extents
from mummufs.core.manifest import RangeTable
from mummufs.core.plan import window_key
from mummufs.core.ranges import RangeKey, Version, page_floor
from mummufs.core.stats import Counters
from mummufs.engine.brackets import Bracketed, ForeignChangeError, Look, Result, bracket
from mummufs.engine.cache import Cache
from mummufs.engine.catalog import Catalog
from mummufs.engine.nodes import Node
from mummufs.engine.threads import Pool, Pools
from mummufs.source.base import Attributes, SourceFile
from mummufs.store.rangestore import RangeStore
from mummufs.store.storedrange import StoredRange

STAMP_BATCH = 64
"""Range files that are stamped in one call to a worker thread."""
STEP = 256
"""Windows looked at between two checkpoints."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Writing:
    """A file that is being changed through the mount, or has been a moment ago.

    Attributes:
        table: the windows that may be in the store, as they were last found.
        believed: the versions whose range files hold what the file holds, but for the extents.
        version: the one that our last change has left.
        attributes: the same, as a whole; None before the first change.
        writers: handles and calls that may change it.
        doubtful: somebody else has changed it, or may have.
        extents: the bytes that were changed.
        lock: held while a change is made.
        file, look: how to see its attributes once nobody changes it any more.
        settles: a task waits for that.
        over: set when its ranges are believed again.
    """

    table: RangeTable | None
    believed: set[Version]
    version: Version
    attributes: Attributes | None = None
    writers: int = 0
    doubtful: bool = False
    extents: Extents = field(default_factory=Extents)
    lock: trio.Lock = field(default_factory=trio.Lock)
    file: SourceFile | None = None
    look: Look | None = None
    settles: bool = False
    over: trio.Event = field(default_factory=trio.Event)

    @property
    def has_changed(self) -> bool:
        """Whether anything that was stored has to be looked at."""
        return self.doubtful or bool(self.extents) or self.version not in self.believed


async def _no_pushes(node: Node) -> None:
    del node


class Writes:
    """Keeps the store right while files are changed through the mount."""

    def __init__(
        self,
        pools: Pools,
        counters: Counters,
        cache: Cache | None,
        catalog: Catalog | None,
        *,
        settle_ns: int,
        wall_ns: Callable[[], int],
    ) -> None:
        """See `Filler` for the arguments. Nothing settles before `run`."""
        self._pools = pools
        self._counters = counters
        self._cache = cache
        self._catalog = catalog
        self._settle_ns = settle_ns
        self._wall_ns = wall_ns
        self._nursery: trio.Nursery | None = None
        self.quiet: Callable[[Node], Awaitable[None]] = _no_pushes
        """Waits until a push to this node that is being sent has ended; the backend sets it."""
        self.written = 0
        """Files that may be changed now."""
        self.settling = 0
        """Files whose ranges wait to be believed again."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Let files settle until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    # ------------------------------------------------------------------ who may change a file

    async def begin(self, node: Node) -> Writing:
        """Somebody may change this file from now on, until `end`."""
        if node.writing is None and self._catalog is not None:
            await self._catalog.recall(node)
        writing = node.writing
        if writing is None:
            writing = node.writing = Writing(node.table, {node.version}, node.version)
            node.changes += 1
        writing.writers += 1
        self.written += writing.writers == 1
        node.view = None
        if self._cache is not None:
            self._cache.filler.hold(node.file)
        try:
            await self.quiet(node)
        except BaseException:
            self.end(node, None)
            raise
        return writing

    def end(self, node: Node, file: SourceFile | None, *, look: Look | None = None) -> None:
        """He will not change it any more.

        Args:
            file: the file, open; None where it is not.
            look: how to see its attributes then; None where there is no way, and its ranges are given up.
        """
        writing = node.writing
        assert writing is not None, "begin() comes first"
        writing.writers -= 1
        if writing.writers:
            return
        self.written -= 1
        last = writing.attributes
        if last is not None and last.ctime_ns == node.version.ctime_ns:  # a look in the same tick may have come late
            node.attributes = last
        writing.file, writing.look = file, look if file is None else file.attributes
        if self._cache is None or not writing.table or self._nursery is None:
            self._settled(node, file)
        elif not writing.settles:
            writing.settles = True
            self.settling += 1
            self._nursery.start_soon(self._settle, node, writing)

    # ------------------------------------------------------------------ changing it

    async def overlapped(self, node: Node, start: int, end: int) -> None:
        """These bytes are about to be changed: what is stored of them is dropped."""
        writing = node.writing
        assert writing is not None, "begin() comes first"
        writing.extents.add(start, end)
        table, cache = writing.table, self._cache
        if not table or cache is None:
            return
        windows = table.overlapping(start, end - start)
        for first in range(windows.start, windows.stop, STEP):
            if first > windows.start:
                await trio.lowlevel.checkpoint()
            some = range(first, min(first + STEP, windows.stop))
            cache.evictor.evict_nowait(window_key(node.file, table, i) for i in some)

    async def bracketed(
        self,
        pool: Pool,
        nodes: Sequence[Node],
        before: Sequence[Look],
        after: Sequence[Look],
        call: Callable[[], Result],
        *,
        expected: Sequence[Version | None] = (),
    ) -> Bracketed[Result]:
        """Make a change to files that have been begun, all of whose locks the caller holds.

        Args:
            before, after: how to see the attributes of each.
            expected: the version that each file must be of, or nothing is done; None where that does not matter.

        Raises:
            ForeignChangeError: it is not.
            OSError: the call was given up. The change's own error is in the result.
        """
        try:
            done = await pool.run(bracket, before, after, call, expected or (None,) * len(nodes))
        except ForeignChangeError:
            raise
        except BaseException:  # it may go on in its thread
            for node in nodes:
                if node.writing is not None:
                    node.writing.doubtful = True
            raise
        for node, was, now in zip(nodes, done.before, done.after, strict=False):
            self._moved(node, was, now)
        return done

    def _moved(self, node: Node, was: Attributes | None, now: Attributes | None) -> None:
        writing = node.writing
        assert writing is not None
        if was is None or now is None or was.file != node.file or now.file != node.file:
            writing.doubtful = True
            return
        if was.version != writing.version:
            writing.doubtful = True
            node.keep_pages = False
        if was.size != now.size:
            writing.extents.add(page_floor(min(was.size, now.size)), FILE_END)
        if now.nlink == 0:  # nobody will open it any more
            writing.doubtful = True
        writing.version, writing.attributes = now.version, now
        node.changes += 1
        node.attributes = now

    # ------------------------------------------------------------------ believing again

    async def _settle(self, node: Node, writing: Writing) -> None:
        """Believe the ranges of a file again once it has not changed for a while, unless somebody begins anew."""
        try:
            while not writing.writers:
                left_ns = writing.version.ctime_ns + self._settle_ns - self._wall_ns()
                if left_ns > 0 and not writing.doubtful and not node.stale:
                    await trio.sleep(min(left_ns, self._settle_ns) / 1e9)
                elif not writing.has_changed or await self._conclude(node, writing):
                    self._settled(node, writing.file)
                    break
        except Exception:  # nobody waits for this task, and it must not end the mount
            self._counters.errors.handler += 1
            log.exception("the ranges of a file that was written could not be settled, on a fault of ours")
        finally:
            writing.settles = False
            self.settling -= 1

    async def _conclude(self, node: Node, writing: Writing) -> bool:
        """Believe what may be believed. False if somebody has begun anew meanwhile."""
        version = await self._version_now(writing)
        if writing.writers:
            return False
        if version != writing.version or writing.doubtful or node.stale:
            await self._drop_all(node, writing, version)
            return not writing.writers
        writing.believed.add(version)
        await self._stamp_all(node, writing, version)
        if writing.writers or version != writing.version:
            return False
        if not writing.extents and node.table is writing.table:
            node.parsed = version  # its contents are what they were, and so are its windows
        return True

    async def _version_now(self, writing: Writing) -> Version | None:
        if writing.look is None:
            return None
        try:
            return (await self._pools.metadata.run(writing.look)).version
        except OSError:
            return None

    def _settled(self, node: Node, file: SourceFile | None) -> None:
        """Reads may be served from the store again, once the windows of the version are known."""
        if node.writing is not None:
            node.writing.over.set()
        node.writing = None
        if self._cache is not None:
            self._cache.filler.held.discard(node.file)
        if self._catalog is None or self._nursery is None or node.stale or not node.opens or file is None:
            return
        self._catalog.show(node)
        self._nursery.start_soon(self._open_again, node, file)

    async def _open_again(self, node: Node, file: SourceFile) -> None:
        assert self._catalog is not None
        try:
            await self._catalog.opened(node, file)
        except Exception:
            self._counters.errors.handler += 1
            log.exception("the windows of a file that was written could not be found, on a fault of ours")

    async def _drop_all(self, node: Node, writing: Writing, version: Version | None) -> None:
        """Drop what was believed, and whatever is of another version than the file has now."""
        assert writing.table is not None and self._cache is not None
        for i in range(len(writing.table)):
            key = window_key(node.file, writing.table, i)
            known = self._cache.index.version(key)
            if known in writing.believed or known != version:
                self._cache.evictor.evict_nowait((key,))
            if i % STEP == STEP - 1:
                await trio.lowlevel.checkpoint()

    async def _stamp_all(self, node: Node, writing: Writing, version: Version) -> None:
        """Stamp what no change has overlapped and drop the rest, until it is done or somebody begins anew."""
        assert writing.table is not None and self._cache is not None
        batch: list[tuple[RangeKey, Version]] = []
        for i in range(len(writing.table)):
            key = window_key(node.file, writing.table, i)
            known = self._cache.index.version(key)
            overlapped = writing.extents.overlap(key.offset, key.offset + key.size)
            if known is not None and overlapped:  # a flight that had its bytes before the change has brought it
                self._cache.evictor.evict_nowait((key,))
            elif known in writing.believed and known != version:
                batch.append((key, known))
            elif known is not None and known.differs_in_contents(version):  # else a fill will prove it
                self._cache.evictor.evict_nowait((key,))
            if len(batch) == STAMP_BATCH:
                await self._stamp(batch, version)
                batch = []
            elif i % STEP == STEP - 1:
                await trio.lowlevel.checkpoint()
            if writing.writers or writing.version != version or node.stale:
                return
        await self._stamp(batch, version)

    async def _stamp(self, batch: list[tuple[RangeKey, Version]], version: Version) -> None:
        """Have these range files state another version. They are out of everybody's sight meanwhile."""
        cache = self._cache
        assert cache is not None
        stored: dict[RangeKey, StoredRange | None] = {}
        for key, old in batch:
            if cache.index.version(key) == old:  # not evicted meanwhile
                cache.index.restamp(key, version)
                stored[key] = cache.resident.remove(key)
        if not stored:
            return
        olds = [(key, old) for key, old in batch if key in stored]
        stamped: set[RangeKey] = set()
        try:
            if not cache.gate.writes.is_open:
                stamped = await cache.gate.write(_stamp_files, cache.store, olds, version)
        finally:
            for key, kept in stored.items():
                if cache.index.version(key) != version:
                    continue
                if kept is not None:
                    kept.restamped(version)
                cache.resident.add(key, version, kept)
                if key not in stamped:
                    cache.evictor.evict_nowait((key,))
            self._counters.fills.stamped += len(stamped)


def _stamp_files(store: RangeStore, batch: list[tuple[RangeKey, Version]], version: Version) -> set[RangeKey]:
    """Those of these ranges whose files state the version now."""
    stamped: set[RangeKey] = set()
    for key, old in batch:
        try:
            store.stamp_range(key, old, version)
            stamped.add(key)
        except (OSError, RangeFileError) as error:
            log.debug("a range file of inode %d keeps its version, and is dropped: %s", key.file.inode, error)
    return stamped
