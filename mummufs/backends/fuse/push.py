"""Pushing: the rest of a window into the kernel's page cache when a mapping walks through it page by page.

With MADV_RANDOM, or wherever the kernel does no read-ahead, each page of a mapped expert costs a fault and a READ of
4 KiB. The second READ in a row within one window shows a walk; then the rest of the window is stored into the page
cache by NOTIFY_STORE, which is one message for a megabyte, and the walk finds its pages there.

NOTIFY_STORE waits for pages that are locked by a READ under way, so it is sent from a thread that serves nothing: one
that serves could wait for itself. It overwrites what the page cache has, so it is sent only while the node is current
and nobody has it open for writing. It is a guess, so it is bounded: bytes that wait, and free memory.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import OrderedDict, deque
from pathlib import Path
from typing import NamedTuple

from mummufs.backends.fuse import wire
from mummufs.backends.fuse.pipes import Pipe
from mummufs.core.ranges import PAGE_SIZE
from mummufs.engine.nodes import Node
from mummufs.engine.views import FileView

QUEUED_BYTES_MAX = 64 << 20
"""Bytes that wait to be pushed; more are not."""
CHUNK_BYTES = 256 << 10
"""Bytes of one message: small, so that the walk meets what was pushed soon."""
WALKS_MAX = 512
"""Windows whose last READ of a page is remembered."""
MEMORY_LEFT_BYTES = 256 << 20
"""Nothing is pushed while the system has less memory available than this."""
PAGES_IN_A_ROW = 2
"""READs of a page, each behind the last, that make a walk."""
PAGES_BEFORE_AGAIN = 64
"""The same for a window whose rest has been pushed before the walk: what was pushed has been dropped."""

log = logging.getLogger(__name__)


class _Walk(NamedTuple):
    """How far single-page READs have come in a window."""

    offset: int
    pages: int
    pushed: bool


class _Job(NamedTuple):
    """What is to be pushed: the bytes `[offset, end)` of a file, which lie in one window."""

    nodeid: int
    node: Node
    view: FileView
    offset: int
    end: int


class Pusher:
    """One thread. `saw_page` is called by those that serve."""

    def __init__(self, fd: int) -> None:
        """Push nothing until `start`.

        Args:
            fd: a descriptor of the connection.
        """
        self._fd = fd
        self._walks: OrderedDict[tuple[int, int], _Walk] = OrderedDict()
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._pipe = Pipe()
        self.queued_bytes = 0
        self.queued_bytes_max = 0
        self.pushed_bytes = 0
        self.wasted_bytes = 0
        """Of these, bytes that the kernel asked for all the same: it had dropped them, or the walk was quicker."""
        self.dropped = 0
        self.failed = 0

    def start(self) -> None:
        """Begin to push."""
        threading.Thread(target=self._run, name="lane pusher", daemon=True).start()

    def end(self) -> None:
        """Push no more. Before the mount goes: a notification must not be under way then."""
        with self._changed:
            self._ended = True
            self._jobs.clear()
            self._changed.notify_all()

    def saw_page(self, nodeid: int, node: Node, view: FileView, window: int, offset: int) -> None:
        """A READ of one page was answered from this window."""
        key = (nodeid, window)
        with self._changed:
            before = self._walks.pop(key, None)
            if before is None or offset <= before.offset:  # the first, or a new walk
                walk = _Walk(offset, 1, False)
            else:
                self.wasted_bytes += PAGE_SIZE * before.pushed
                pages = before.pages + 1 if offset == before.offset + PAGE_SIZE else 1
                walk = _Walk(offset, pages, before.pushed)
            if walk.pages == (PAGES_BEFORE_AGAIN if walk.pushed else PAGES_IN_A_ROW):
                pushed = self._offer(_Job(nodeid, node, view, offset + PAGE_SIZE, view.ends[window]))
                walk = _Walk(offset, 0, pushed or walk.pushed)
            self._walks[key] = walk
            if len(self._walks) > WALKS_MAX:
                self._walks.popitem(last=False)

    def _offer(self, job: _Job) -> bool:
        size = job.end - job.offset
        if size <= 0 or self._ended:
            return False
        if self.queued_bytes + size > QUEUED_BYTES_MAX:
            self.dropped += 1
            return False
        self.queued_bytes += size
        self.queued_bytes_max = max(self.queued_bytes_max, self.queued_bytes)
        self._jobs.append(job)
        self._changed.notify()
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._jobs) or self._ended)
                if self._ended:
                    return
                job = self._jobs.popleft()
            try:
                self._push(job)
            except OSError as error:
                self.failed += 1
                self._renew()
                if error.errno == errno.ENODEV:
                    return
            except Exception:
                self.failed += 1
                self._renew()
                log.exception("pushing failed on a fault of ours")
            finally:
                with self._changed:
                    self.queued_bytes -= job.end - job.offset

    def _push(self, job: _Job) -> None:
        """Store the bytes, chunk by chunk, as long as the node is current and there is memory."""
        at = job.offset
        while at < job.end and not self._ended:
            size = min(CHUNK_BYTES, job.end - at)
            if job.node.view is not job.view or available_bytes() < MEMORY_LEFT_BYTES:
                self.dropped += 1
                return
            pieces = job.view.pieces(at, at + size)
            if pieces is None:  # evicted meanwhile
                return
            whole = wire.OUT_HEADER.size + wire.STORE_OUT.size + size
            header = wire.OUT_HEADER.pack(whole, wire.NOTIFY_STORE, 0) + wire.STORE_OUT.pack(job.nodeid, at, size, 0)
            os.write(self._pipe.write_fd, header)
            for stored, _, within, part in pieces:
                if not stored.splice_proved(self._pipe.write_fd, within, part):
                    self._renew()
                    return
            if os.splice(self._pipe.read_fd, self._fd, whole) != whole:
                raise OSError(errno.EIO, "the kernel took part of a notification")
            self.pushed_bytes += size
            at += size

    def _renew(self) -> None:
        self._pipe.close()
        self._pipe = Pipe()


def available_bytes() -> int:
    """Memory that the system can give without swapping; a lot where it does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return 1 << 62
