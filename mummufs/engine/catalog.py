"""Which windows each file has: parsed once per version, off the read path, and remembered in the store.

When a file is opened its table is loaded from the store, or a parse is started in the background. Until that has ended
reads pass through; what they read is noted, and when the table has come the windows that were read are filled after
all, so that the second read of a range is served from the store even if the first came before its parse had ended.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import trio

from mummufs.core.errors import ManifestError, RangeFileError
from mummufs.core.grazes import Grazes
from mummufs.core.manifest import RangeTable
from mummufs.core.packs import pack_of
from mummufs.core.plan import is_wanted, window_key
from mummufs.core.ranges import ByteRange, FileId, RangeKey, Version
from mummufs.core.stats import Counters
from mummufs.engine.cache import Cache
from mummufs.engine.gate import StoreLateError
from mummufs.engine.merging import MERGE_MAX_BYTES
from mummufs.engine.nodes import Node
from mummufs.engine.threads import Pools
from mummufs.source.base import SourceFile

STEP = 256
"""Windows looked at between two checkpoints."""

WITHOUT_MAX = 4096
"""Files without ranges that are remembered after everybody has closed and forgotten them."""

log = logging.getLogger(__name__)


class Parser(Protocol):
    """Reads the manifest of an open file."""

    async def parse(self, path: bytes, file: SourceFile) -> RangeTable | None:
        """The windows of a file; None where no format recognises it.

        Raises:
            ManifestError: a format does, and its header is broken or absurd.
            OSError: the source failed.
        """
        ...


class Catalog:
    """Finds out the windows of files that are opened."""

    def __init__(self, parser: Parser, cache: Cache, pools: Pools, counters: Counters, *, views: bool = False) -> None:
        """Make a catalog that does nothing until `run`.

        Args:
            views: give nodes views, for a backend that serves hits by itself.
        """
        self._views = views
        self._parser = parser
        self._cache = cache
        self._pools = pools
        self._counters = counters
        self._parsing: dict[Node, Version] = {}
        self._loading: dict[Node, trio.Event] = {}
        self._parse_ended = trio.Event()
        self._without: OrderedDict[FileId, Version] = OrderedDict()
        self._finishing = 0
        self._early = Grazes()
        self._nursery: trio.Nursery | None = None
        self.known: Callable[[Node], None] | None = None
        """Told when the windows of a version of a file are known and may be in the store; more than once, maybe."""
        self.parsed = 0
        self.refused = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Parse in the background until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    @property
    def parsing(self) -> int:
        """Parses under way or waiting for their turn, until the windows that were read meanwhile are being filled."""
        return len(self._parsing) + self._finishing

    async def opened(self, node: Node, file: SourceFile) -> None:
        """A file has been opened: see that its table is known, now or soon.

        Of a file that was found to have no ranges this is believed at once, and looked at again: somebody may have put
        a manifest beside it.
        """
        if node in self._loading:  # another has opened it just now: what is in the store is known in a moment
            await self._loading[node].wait()
        if node.is_written:  # its version moves on; it is seen to when that is over
            return
        version = node.version
        if node.parsed == version and node.view is None:
            self.show(node)
        if node.parsed == version or node in self._parsing or version.size == 0 or self._nursery is None:
            return
        self._parsing[node] = version
        if self._without.get(node.file) == version:
            self._known(node, None, version)
        self._loading[node] = trio.Event()
        try:
            table = await self._load(node, version)
            if table is None:
                self._nursery.start_soon(self._parse, node, file, version)
                return
            self._known(node, table, version)
            self._parsing_ended(node)
        except BaseException:
            self._parsing_ended(node)
            raise
        finally:
            self._loading.pop(node).set()
        await self._again(node, file, version)  # not before: it waits for who is loading

    async def recall(self, node: Node) -> None:
        """Find out what an earlier mount may have stored of a file that nobody has opened in this one."""
        version = node.version
        if node.parsed is None and node.table is None and node.attributes.is_file and version.size:
            table = await self._load(node, version)
            if table is not None and node.parsed is None and node.version == version:
                self._known(node, table, version)

    async def wait_parsed(self, node: Node) -> None:
        """Wait until it is known which windows a file has, or that it cannot be known: `node.ranges` has them then."""
        while node in self._parsing:
            await self._parse_ended.wait()

    def _parsing_ended(self, node: Node) -> None:
        self._parsing.pop(node, None)
        ended, self._parse_ended = self._parse_ended, trio.Event()
        ended.set()

    def _known(self, node: Node, table: RangeTable | None, version: Version) -> None:
        """The windows of a version of a file have been found."""
        node.table, node.parsed = table, version
        if table:
            self._cache.index.join(node.file, pack_of(node.path))
        self._without.pop(node.file, None)
        if not table:
            self._without[node.file] = version
            if len(self._without) > WITHOUT_MAX:
                self._without.popitem(last=False)
        self.show(node)

    def show(self, node: Node) -> None:
        """Give a node a view and tell that its windows are known, if they are and it is not being changed."""
        if self._views and node.ranges and not node.stale:
            node.view = self._cache.resident.view(node.file, node.version, node.ranges)
        if self.known is not None and node.parsed == node.version and node.writing is None:
            self.known(node)

    def passed_through(self, node: Node, offset: int, size: int) -> None:
        """A read went to the source because the table is not known yet."""
        end = min(offset + size, node.version.size)  # the kernel asks for the whole last page
        if node in self._parsing and offset < end:
            self._early.add(_whole(node), offset, end)

    async def _load(self, node: Node, version: Version) -> RangeTable | None:
        """The table that an earlier mount has left, if it is of this version."""
        try:
            payload = await self._cache.gate.read(self._cache.store.load_table, node.file, version)
            return RangeTable.from_bytes(payload)
        except (FileNotFoundError, StoreLateError):
            return None
        except (OSError, RangeFileError, ManifestError) as error:
            log.debug("the stored range table of %s is passed over: %s", _shown(node), error)
            return None

    async def _parse(self, node: Node, file: SourceFile, version: Version) -> None:
        table: RangeTable | None = None
        try:
            table = await self._parser.parse(node.path, file)
            if (await self._pools.metadata.run(file.attributes)).version == version == node.version:
                self._known(node, table, version)
                self.parsed += 1
        except ManifestError as error:
            self.refused += 1
            node.table, node.parsed = None, version
            log.warning("%s: no ranges, it is passed through: %s", _shown(node), error)
        except OSError as error:
            log.warning("%s: its header could not be read, it is passed through: %s", _shown(node), error)
        except Exception:
            self._counters.errors.handler += 1
            log.exception("%s: parsing failed on a fault of ours", _shown(node))
        finally:
            self._parsing_ended(node)
        self._finishing += 1
        try:
            await self._again(node, file, version)
            if table is not None and node.ranges is table:
                await self._save(node, version, table)
                await self._fill_early(node, file, table)
        except Exception:  # a task of the engine must not end the mount
            self._counters.errors.handler += 1
            log.exception("%s: filling what was read early failed on a fault of ours", _shown(node))
        finally:
            self._finishing -= 1
        if node not in self._parsing:
            self._early.forget(_whole(node))

    async def _again(self, node: Node, file: SourceFile, version: Version) -> None:
        """A chmod while the table was being found: the handles need one of the version that it has made."""
        if not node.stale and node.version != version and node.writing is None:
            await self.opened(node, file)

    async def _save(self, node: Node, version: Version, table: RangeTable) -> None:
        if self._cache.gate.writes.is_open:
            return
        try:
            await self._cache.gate.write(self._cache.store.save_table, node.file, version, table.to_bytes())
        except (OSError, RangeFileError) as error:
            self._counters.errors.store += 1
            log.warning("%s: its range table is not kept: %s", _shown(node), error)
        self._cache.index.set_overhead(self._cache.store.overhead_bytes)
        self._cache.evictor.wake()

    async def _fill_early(self, node: Node, file: SourceFile, table: RangeTable) -> None:
        """Touch what was read before the table was known, and fill the windows that it makes wanted.

        Distinct bytes are known, so each window gets one touch at most, however often it was read.
        """
        version = node.version
        looked_at = 0
        wanted: list[RangeKey] = []
        size = 0
        for start, end in self._early.runs(_whole(node)):
            for i in table.overlapping(start, end - start):
                key = window_key(node.file, table, i)
                window, run = ByteRange(key.offset, key.size), ByteRange(start, end - start)
                seen = window.intersection(run)
                self._touch(key, seen.size)
                if is_wanted(window, run, seen.size) and (not wanted or key != wanted[-1]):
                    if size + key.size > MERGE_MAX_BYTES:
                        await self._fill(node, file, version, wanted)
                        wanted, size = [], 0
                    wanted.append(key)
                    size += key.size
                looked_at += 1
                if looked_at % STEP == 0:
                    await trio.lowlevel.checkpoint()
        await self._fill(node, file, version, wanted)

    def _touch(self, key: RangeKey, size: int) -> None:
        self._cache.index.touch(key, size, hit=False)
        if self._cache.tracing.on:
            self._cache.tracing.touched(key, size, hit=False)

    async def _fill(self, node: Node, file: SourceFile, version: Version, wanted: list[RangeKey]) -> None:
        """Offer these windows once the filler has a place for them."""
        filler = self._cache.filler
        while (
            filler.is_full(sum(key.size for key in wanted))
            and filler.flights
            and not node.stale
            and node.writing is None
        ):
            await filler.wait_landing()
        if node.writing is None:
            filler.offer_all_nowait(wanted, version, file)


def _whole(node: Node) -> RangeKey:
    return RangeKey(node.file, 0, node.version.size)


def _shown(node: Node) -> str:
    return repr(node.path.decode("utf-8", "backslashreplace"))
