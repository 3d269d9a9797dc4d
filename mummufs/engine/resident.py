"""The view of what is resident, and the owner of the open range files.

The trio side puts entries in and takes them out; worker threads (and every backend that serves without asking trio)
look them up. An entry is immutable and the table is one dict, replaced entry by entry, so a look-up needs no lock and
sees an entry or none. A descriptor is closed with the last reference to its `StoredRange`: whoever has one in hand
reads from that file or is told that it is gone, and never from another that got its number.

At most `open_max` range files are kept open; the one used longest ago is let go first. That it was proved is kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple
from weakref import WeakValueDictionary

from mummufs.core.manifest import RangeTable
from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.engine.views import FileView, OpenRanges
from mummufs.store.osfs import FileState
from mummufs.store.rangestore import RangeStore
from mummufs.store.storedrange import StoredRange

OPEN_MAX = 64 << 10
"""Range files kept open, where the limit of descriptors allows: each has two, and takes some 3 KiB of memory."""


class ResidentRange(NamedTuple):
    """A range that can be served: this version of it is in the store."""

    key: RangeKey
    version: Version


class Resident:
    """The resident ranges. `acquire` is called from worker threads, everything else from the trio thread."""

    def __init__(self, store: RangeStore, open_max: int = OPEN_MAX) -> None:
        self._store = store
        self._open_max = open_max
        self._ranges: dict[RangeKey, ResidentRange | Version] = {}  # a Version until it is first opened
        self._open: OrderedDict[ResidentRange, tuple[StoredRange, OpenRanges]] = OrderedDict()
        self._in_use: WeakValueDictionary[ResidentRange, StoredRange] = WeakValueDictionary()
        self._proofs: dict[ResidentRange, FileState] = {}
        self._files: WeakValueDictionary[tuple[FileId, Version], OpenRanges] = WeakValueDictionary()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ranges)

    def add(self, key: RangeKey, version: Version, stored: StoredRange | None = None) -> None:
        """A range can be served from now on, from `stored` if that is given."""
        if stored is None:
            with self._lock:
                self._ranges[key] = version
            return
        entry = ResidentRange(key, version)
        with self._lock:
            self._ranges[key] = entry
        self._keep(entry, stored)

    def remove(self, key: RangeKey) -> StoredRange | None:
        """No read that begins from now on is served from this range. Returns its open file, if anybody has one."""
        with self._lock:
            entry = self._ranges.pop(key, None)
            if not isinstance(entry, ResidentRange):
                return None
            stored = self._in_use.pop(entry, None)
            self._proofs.pop(entry, None)
            self._let_go(entry)
        return stored

    def view(self, file: FileId, version: Version, table: RangeTable) -> FileView:
        """A view of a file's version, with the range files of it that are open."""
        with self._lock:
            return FileView(version, table, self._of(file, version))

    def acquire(self, key: RangeKey, version: Version) -> StoredRange | None:
        """The open file of a range, None if it is not resident. Blocks.

        Raises:
            RangeFileError, OSError: as `RangeStore.open_range`.
        """
        with self._lock:
            entry = self._ranges.get(key)
            if isinstance(entry, Version):
                entry = self._ranges[key] = ResidentRange(key, entry)
            if entry is None or entry.version != version:
                return None
            stored = self._in_use.get(entry)
        if stored is None:
            stored = self._store.open_range(key, version)
        return self._keep(entry, stored)

    def keys(self) -> list[RangeKey]:
        """The ranges that can be served now, in no order."""
        return list(self._ranges)

    @property
    def open_files(self) -> int:
        """Range files kept open."""
        return len(self._open)

    def _keep(self, entry: ResidentRange, stored: StoredRange) -> StoredRange | None:
        """Keep a file open; the one to use, if several threads have opened it at once: it is proved only once.

        None where the range was evicted while its file was opened: nobody would count what that file still takes.
        """
        let_go: StoredRange | None = None
        with self._lock:
            if self._ranges.get(entry.key) is not entry:
                return None
            known = self._in_use.get(entry)
            if known is None:
                self._in_use[entry] = stored
                stored.believe(self._proofs.pop(entry, stored.proof))
            else:
                stored = known
            ranges = self._of(entry.key.file, entry.version)
            ranges[entry.key.offset, entry.key.size] = stored
            self._open[entry] = (stored, ranges)
            self._open.move_to_end(entry)
            if len(self._open) > self._open_max:
                old = next(iter(self._open))
                let_go = self._let_go(old)
                if let_go is not None and let_go.proof is not None:
                    self._proofs[old] = let_go.proof
        del let_go  # closed outside the lock
        return stored

    def _let_go(self, entry: ResidentRange) -> StoredRange | None:
        """Keep this file open no longer, and show it in no view."""
        stored, ranges = self._open.pop(entry, (None, None))
        if ranges is not None:
            ranges.pop((entry.key.offset, entry.key.size), None)
        return stored

    def _of(self, file: FileId, version: Version) -> OpenRanges:
        """The open range files of a file's version. They live as long as one is open or a view shows them."""
        ranges = self._files.get((file, version))
        if ranges is None:
            ranges = self._files[file, version] = OpenRanges()
        return ranges
