"""Pushing: the rest of a window into the kernel's page cache when a mapping walks through it page by page.

With MADV_RANDOM, or wherever the kernel does no read-ahead, each page of a mapped expert costs a fault and a READ of
4 KiB. The second READ in a row within one window shows a walk; then the rest of the window is stored into the page
cache by NOTIFY_STORE, which is one message for half a megabyte, and the walk finds its pages there. If nothing else is
being pushed, the READ that showed the walk is *held*: it is answered after the next HELD_BYTES, so that the walk does
not ask for each page that is on its way.

NOTIFY_STORE waits for pages that are locked by a READ under way. A thread that serves READs could wait for itself, so
it is sent from a thread of its own, which holds one READ at most, and never one of a page that it pushes; every other
READ is answered by somebody else. The watchdog of the lane looks after the held one as after any other.

It overwrites what the page cache has, so it is sent only while the node is current and nobody has it open for writing.
It is a guess, so it is bounded: bytes that wait, and free memory.

No READ comes for what was pushed, so the pushed bytes are noted here, and the policy is told of them as of what was
read.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mummufs.backends.fuse import wire
from mummufs.backends.fuse.lanereads import LaneRead
from mummufs.backends.fuse.pipes import Pipe
from mummufs.core.ranges import PAGE_SIZE
from mummufs.engine.nodes import Node
from mummufs.engine.views import FileView, Piece
from mummufs.store.storedrange import StoredRange

QUEUED_BYTES_MAX = 64 << 20
"""Bytes that wait to be pushed; more are not."""
CHUNK_BYTES = 512 << 10
"""Bytes of one message, where the pipe has room for them."""
HELD_BYTES = 2 << 20
"""What is pushed before the READ that showed the walk is answered: some 2 ms, the rest of most experts."""
WALKS_MAX = 512
"""Windows whose last READ of a page is remembered."""
MEMORY_LEFT_BYTES = 256 << 20
"""Nothing is pushed while the system has less memory available than this."""
MEMORY_LOOK_S = 0.05
"""How long an answer about memory is good: QUEUED_BYTES_MAX are pushed in about as long."""
PAGES_IN_A_ROW = 2
"""READs of a page, each behind the last, that make a walk."""
PAGES_BEFORE_AGAIN = 64
"""The same for a window whose rest has been pushed before the walk: what was pushed has been dropped."""
NOTED_MAX = 4096
"""Range files noted as pushed since that was last asked for; more are pushed without being noted."""

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

    def __init__(self, fd: int, otherwise: Callable[[LaneRead], None]) -> None:
        """Push nothing until `start`.

        Args:
            fd: a descriptor of the connection.
            otherwise: has the engine answer a held READ that cannot be answered here.
        """
        self._fd = fd
        self._otherwise = otherwise
        self._walks: OrderedDict[tuple[int, int], _Walk] = OrderedDict()
        self._jobs: deque[_Job] = deque()
        self._job: _Job | None = None
        self._sending: int | None = None
        self._changed = threading.Condition()
        self._ended = False
        self._idle = True
        self._memory = False
        self._memory_until = 0.0
        self._pipe = Pipe()
        self._chunk_bytes = min(CHUNK_BYTES, (self._pipe.pages - 1) * PAGE_SIZE)
        self._noted: dict[StoredRange, int] = {}
        self.tell_noted: Callable[[], None] = lambda: None
        """Told, in the pusher's thread, that there is something to fetch with `take_noted`."""
        self.pending: list[LaneRead] = []
        """The READ that is held. Whoever takes it out answers it."""
        self.number = 0
        """Goes up with each chunk: how the watchdog sees that it goes on."""
        self.queued_bytes = 0
        self.queued_bytes_max = 0
        self.pushed_bytes = 0
        self.wasted_bytes = 0
        """Of these, bytes that the kernel asked for all the same: it had dropped them, or the walk was quicker."""
        self.held = 0
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

    def pushes_to(self, nodeid: int) -> bool:
        """Whether a push to this number waits or is under way. Until it is through, no other node may get the number:
        a store that hangs holds a push up for long, and it would end in the pages of whoever has the number then."""
        with self._changed:
            return any(job.nodeid == nodeid for job in (self._job, *self._jobs) if job is not None)

    def is_sending(self, nodeid: int) -> bool:
        """Whether a message to this number is going out just now. Of a node that has lost its view no other follows."""
        return self._sending == nodeid

    def saw_page(self, request: LaneRead, nodeid: int, node: Node, view: FileView, window: int) -> bool:
        """A READ of one page lies in this window. Returns whether it is held: then it is answered here."""
        key, offset = (nodeid, window), request.offset
        with self._changed:
            before = self._walks.pop(key, None)
            if before is None or offset <= before.offset:  # the first, or a new walk
                walk = _Walk(offset, 1, False)
            else:
                self.wasted_bytes += PAGE_SIZE * before.pushed
                pages = before.pages + 1 if offset == before.offset + PAGE_SIZE else 1
                walk = _Walk(offset, pages, before.pushed)
            held = False
            if walk.pages == (PAGES_BEFORE_AGAIN if walk.pushed else PAGES_IN_A_ROW):
                idle = self._idle
                pushed = self._offer(_Job(nodeid, node, view, offset + PAGE_SIZE, view.ends[window]))
                held = pushed and idle
                walk = _Walk(offset, 0, pushed or walk.pushed)
            self._walks[key] = walk
            if len(self._walks) > WALKS_MAX:
                self._walks.popitem(last=False)
            if held:
                self.held += 1
                self.pending.append(request)
                self._changed.notify()
        return held

    def take_noted(self) -> dict[StoredRange, int]:
        """Bytes of each range file that were pushed since this was last asked."""
        with self._changed:
            noted, self._noted = self._noted, {}
        return noted

    def _note(self, pieces: list[Piece]) -> None:
        """These were pushed."""
        with self._changed:
            noted = self._noted
            if len(noted) < NOTED_MAX:
                for stored, _, _, size in pieces:
                    noted[stored] = noted.get(stored, 0) + size
        self.tell_noted()

    def _offer(self, job: _Job) -> bool:
        size = job.end - job.offset
        if size <= 0 or self._ended or self._chunk_bytes == 0:
            return False
        if self.queued_bytes + size > QUEUED_BYTES_MAX:
            self.dropped += 1
            return False
        self.queued_bytes += size
        self.queued_bytes_max = max(self.queued_bytes_max, self.queued_bytes)
        self._idle = False
        self._jobs.append(job)
        self._changed.notify()
        return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle = not self._jobs
                self._changed.wait_for(lambda: bool(self._jobs) or self._ended)
                if self._ended:
                    break
                job = self._job = self._jobs.popleft()
            try:
                self._push(job)
            except OSError as error:
                self.failed += 1
                self._pipe.clear()
                log.debug("pushing failed: %s", error)
            except Exception:
                self.failed += 1
                self._pipe.clear()
                log.exception("pushing failed on a fault of ours")
            finally:
                self._let_go(job)
                with self._changed:
                    self._job = None
                    self.queued_bytes -= job.end - job.offset
        while self.pending:
            self._otherwise(self.pending.pop())

    def _push(self, job: _Job) -> None:
        """Store the bytes, chunk by chunk, as long as the node is current and there is memory."""
        if not self._has_memory():
            self.dropped += 1
            return
        at = job.offset
        while at < job.end and not self._ended:
            if at - job.offset >= HELD_BYTES:
                self._let_go(job)
            size = min(self._chunk_bytes, job.end - at)
            pieces = job.view.pieces(at, at + size)
            if job.node.view is not job.view or pieces is None:  # it has changed, or was evicted
                self.dropped += 1
                return
            whole = wire.OUT_HEADER.size + wire.STORE_OUT.size + size
            header = wire.OUT_HEADER.pack(whole, wire.NOTIFY_STORE, 0) + wire.STORE_OUT.pack(job.nodeid, at, size, 0)
            self.number += 1
            if not self._fill(header, pieces):
                return
            if not self._send(job, whole):
                return
            self.pushed_bytes += size
            self._note(pieces)
            at += size

    def _send(self, job: _Job, whole: int) -> bool:
        """Hand the kernel the message that is in the pipe; False if its bytes are not to be believed any more."""
        self._sending = job.nodeid  # first: whoever takes the view away looks at this afterwards
        try:
            if job.node.view is not job.view:  # the store may have taken its time
                self._pipe.clear()
                self.dropped += 1
                return False
            if os.splice(self._pipe.read_fd, self._fd, whole) != whole:
                raise OSError(errno.EIO, "the kernel took part of a notification")
        finally:
            self._sending = None
        return True

    def _has_memory(self) -> bool:
        """Whether there is memory to spare, looked at now or MEMORY_LOOK_S ago."""
        now = time.monotonic()
        if now >= self._memory_until:
            self._memory_until = now + MEMORY_LOOK_S
            self._memory = available_bytes() >= MEMORY_LEFT_BYTES
        return self._memory

    def _fill(self, header: bytes, pieces: list[Piece]) -> bool:
        """Put a message into the pipe; False, and an empty pipe, if the store does not have it all."""
        os.write(self._pipe.write_fd, header)
        for stored, _, within, size in pieces:
            if not stored.splice_proved(self._pipe.write_fd, within, size):
                self._pipe.clear()
                return False
        return True

    def _let_go(self, job: _Job) -> None:
        """Answer the held READ, if there is one and nobody else has seen to it."""
        try:
            request = self.pending[0]
        except IndexError:
            return
        filled, size = False, min(request.size, job.view.size - request.offset)
        try:
            pieces = job.view.pieces(request.offset, request.offset + size)
            header = wire.OUT_HEADER.pack(wire.OUT_HEADER.size + size, 0, request.unique)
            filled = pieces is not None and self._fill(header, pieces)
        except OSError as error:
            log.debug("the pusher cannot read the store: %s", error)
        except Exception:
            self.failed += 1
            log.exception("pushing failed on a fault of ours; the engine answers")
        try:
            self.pending.pop()
        except IndexError:  # the watchdog was here
            self._pipe.clear()
            return
        if filled:
            try:
                os.splice(self._pipe.read_fd, request.fd, wire.OUT_HEADER.size + size)
                return
            except OSError as error:
                log.debug("the kernel does not take an answer of the pusher's: %s", error)
        self._pipe.clear()
        self._otherwise(request)


def available_bytes() -> int:
    """Memory that the system can give without swapping; a lot where it does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return 1 << 62
