"""The view of what is resident, and the owner of the open range files.

The trio side puts entries in and takes them out; worker threads (and every backend that serves without asking trio)
look them up. What a scan has found has no entry until it is opened, because there may be half a million of them: the
index knows the version of each. The index is changed first and `remove` called then, so that who is opening a range
meanwhile is either seen by `remove` or sees the change.

A descriptor is closed with the last reference to its `StoredRange`: whoever has one in hand reads from that file or is
told that it is gone, and never from another that got its number.

At most `open_max` range files are kept open; the one used longest ago is let go first. That it was proved is kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakValueDictionary

from mummufs.core.manifest import RangeTable
from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.engine.views import FileView, OpenRanges
from mummufs.store.osfs import FileState
from mummufs.store.rangestore import RangeStore
from mummufs.store.storedrange import StoredRange

OPEN_MAX = 16 << 10
"""Range files kept open, where the limit of descriptors allows: each has two, and takes some 1.3 KB of our memory."""


class ResidentRange(NamedTuple):
    """A range that can be served: this version of it is in the store."""

    key: RangeKey
    version: Version


class Resident:
    """The resident ranges. `acquire` is called from worker threads, everything else from the trio thread."""

    def __init__(
        self, store: RangeStore, known: Callable[[RangeKey], Version | None], open_max: int = OPEN_MAX
    ) -> None:
        """A view in which nothing has been opened.

        Args:
            known: the version of a range that the index has as resident; None of any other. Any thread may call it.
            open_max: range files kept open.
        """
        self._store = store
        self._known = known
        self._open_max = open_max
        self._ranges: dict[RangeKey, ResidentRange] = {}  # those that were opened or filled
        self._withheld: set[RangeKey] = set()  # those that are resident, but out of sight until they are added again
        self._open: OrderedDict[ResidentRange, tuple[StoredRange, OpenRanges]] = OrderedDict()
        self._in_use: WeakValueDictionary[ResidentRange, StoredRange] = WeakValueDictionary()
        self._proofs: dict[ResidentRange, FileState] = {}
        self._files: WeakValueDictionary[tuple[FileId, Version], OpenRanges] = WeakValueDictionary()
        self._lock = threading.Lock()

    def add(self, key: RangeKey, version: Version, stored: StoredRange | None = None) -> None:
        """A range, which is resident by the index, can be served from now on, from `stored` if that is given."""
        with self._lock:
            self._withheld.discard(key)
            if stored is None:
                return
            entry = self._ranges[key] = ResidentRange(key, version)
        self._keep(entry, stored)

    def remove(self, key: RangeKey) -> StoredRange | None:
        """No read that begins from now on is served from this range. Returns its open file, if anybody has one.

        The index has been told before: it is on its way out, or its version has changed. Then it is added again.
        """
        with self._lock:
            if self._known(key) is None:
                self._withheld.discard(key)
            else:
                self._withheld.add(key)
            entry = self._ranges.pop(key, None)
            if entry is None:
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
            if entry is None:
                if key in self._withheld or self._known(key) != version:
                    return None
                entry = self._ranges[key] = ResidentRange(key, version)
            if entry.version != version:
                return None
            stored = self._in_use.get(entry)
        if stored is None:
            stored = self._store.open_range(key, version)
        return self._keep(entry, stored)

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
