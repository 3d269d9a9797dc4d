"""One thread of the lane: reads a request, answers a READ that is in the store, hands on whatever else it is.

`lane` has the theory.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from typing import TYPE_CHECKING, NamedTuple

from mummufs.backends.fuse import relay, wire
from mummufs.backends.fuse.lanereads import LaneRead
from mummufs.backends.fuse.pipes import Pipe
from mummufs.core.ranges import PAGE_SIZE
from mummufs.engine.nodes import Node
from mummufs.engine.views import FileView, Piece
from mummufs.store.storedrange import StoredRange

if TYPE_CHECKING:
    from mummufs.backends.fuse.lane import Lane

REQUEST_BYTES = relay.MAX_WRITE_BYTES + relay.MESSAGE_OVERHEAD_BYTES
TOUCHED_MAX = 4096
"""Range files that a server has touched since it was last asked; more are served without being noted."""
DEVICE_FAULTS_MAX = 100
"""Errors of the device in a row that no thread expects; then it ends."""

_GONE = (errno.ENODEV, errno.EBADF, errno.ECONNABORTED)
_AGAIN = (errno.EINTR, errno.EAGAIN, errno.ENOENT)

log = logging.getLogger(__name__)


class _Hit(NamedTuple):
    """Where the bytes of a READ are."""

    node: Node
    view: FileView
    pieces: list[Piece]
    size: int


class Server:
    """One thread."""

    def __init__(self, lane: Lane, fd: int) -> None:
        self._lane = lane
        self.fd = fd
        self._buffer = bytearray(REQUEST_BYTES)
        self._header = bytearray(wire.OUT_HEADER.size)
        self._pipe = Pipe()
        self.pending: list[LaneRead] = []
        """The READ that this server is in the store for. Whoever takes it out answers it."""
        self.number = 0
        """Goes up with each READ: how the watchdog tells one from the next."""
        self.lost = False
        """Whether the watchdog took its request: another server is in its place."""
        self.hits = 0
        self.hit_bytes = 0
        self.touched: dict[StoredRange, int] = {}

    def start(self) -> None:
        """Run in a thread of its own."""
        threading.Thread(target=self._run, name="lane", daemon=True).start()

    def discard(self) -> None:
        """It will not be started."""
        self._pipe.close()

    def _run(self) -> None:
        lane, buffer, faults = self._lane, self._buffer, 0
        into = [buffer]
        while not self.lost:
            try:
                size = os.readv(self.fd, into)
                if size < wire.IN_HEADER.size:
                    raise OSError(errno.EIO, "the device gave less than a request")
            except OSError as error:
                if error.errno in _AGAIN:
                    continue
                faults += 1
                if error.errno in _GONE or faults > DEVICE_FAULTS_MAX:
                    lane.ended()
                    self._pipe.close()
                    return
                continue
            faults = 0
            _, opcode, unique, nodeid, _, _, pid, _, _ = wire.IN_HEADER.unpack_from(buffer)
            try:
                if opcode == wire.READ:
                    self._read(unique, nodeid, pid)
                else:
                    self._other(opcode, unique, size)
            except Exception:
                lane.faults += 1
                log.exception("a request (opcode %d) failed in the lane on a fault of ours; its caller got EIO", opcode)
                self._pipe.clear()
                if opcode not in wire.UNANSWERED:
                    relay.reply(self.fd, unique, errno.EIO)
        self._pipe.close()
        lane.retire(self)

    def _other(self, opcode: int, unique: int, size: int) -> None:
        message = memoryview(self._buffer)[:size]
        if opcode == wire.INIT:
            self._lane.libfuse.init(bytearray(message), unique, self.fd)
        elif opcode == wire.INTERRUPT:
            (target,) = wire.INTERRUPT_IN.unpack_from(message, wire.IN_HEADER.size)
            self._lane.interrupt(target, message)
        else:
            self._lane.libfuse.forward(message, opcode, unique, self.fd)

    def _read(self, unique: int, nodeid: int, pid: int) -> None:
        lane = self._lane
        fh, offset, size, _, _, flags, _ = wire.READ_IN.unpack_from(self._buffer, wire.IN_HEADER.size)
        request = LaneRead(unique, fh, offset, size, pid, self.fd)
        hit: _Hit | None = None
        entered = filled = False
        try:
            hit = self._hit(request)
            if hit is not None and hit.size <= PAGE_SIZE and self._is_held(request, hit, nodeid, flags):
                self._note(hit)
                return
            if hit is not None:
                self.number += 1
                self.pending.append(request)
                entered = True
                filled = self._fill(request, hit)
        except OSError as error:  # the engine will see it too, and knows what to do about it
            log.debug("the lane cannot read the store: %s", error)
        except Exception:
            lane.faults += 1
            log.exception("a hit failed in the lane on a fault of ours; the engine answers")
        if hit is None or not entered:
            lane.reads.submit(request)
        elif not self._claim():
            self.lost = True  # the watchdog has taken the request and put another server in this place
            if filled and lane.take_back(request) and not self._answered(hit):
                relay.reply(self.fd, unique, errno.EIO)
        elif not filled or not self._answered(hit):
            self._pipe.clear()
            lane.reads.submit(request)

    def _hit(self, request: LaneRead) -> _Hit | None:
        """Where the bytes are; None where the engine has to look."""
        lane = self._lane
        handle = lane.handles.get(request.fh)
        view = None if handle is None else handle.node.view
        if handle is None or view is None or lane.paused or not lane.may_read_store():
            return None
        offset = request.offset
        end = min(offset + request.size, view.size)
        pieces = view.pieces(offset, end)
        if not pieces:
            return None
        pages = 1 + (end - offset + PAGE_SIZE - 1) // PAGE_SIZE
        if offset % PAGE_SIZE:
            pages += 2 * len(pieces)  # bytes that do not begin on a page take parts of more pages
        return _Hit(handle.node, view, pieces, end - offset) if pages <= self._pipe.pages else None

    def _is_held(self, request: LaneRead, hit: _Hit, nodeid: int, flags: int) -> bool:
        """Whether a READ of one page is part of a walk, and the pusher answers it when it has pushed what follows."""
        pusher = self._lane.pusher
        if pusher is None or flags & os.O_DIRECT:  # direct reads do not look into the page cache
            return False
        return pusher.saw_page(request, nodeid, hit.node, hit.view, hit.pieces[0][1])

    def _fill(self, request: LaneRead, hit: _Hit) -> bool:
        """Put the answer into the pipe; False if something short of it may be there."""
        wire.OUT_HEADER.pack_into(self._header, 0, wire.OUT_HEADER.size + hit.size, 0, request.unique)
        pipe = self._pipe.write_fd
        os.write(pipe, self._header)
        for stored, _, at, size in hit.pieces:  # noqa: SIM110 - all() would make a generator for each request
            if not stored.splice_proved(pipe, at, size):
                return False
        return True

    def _claim(self) -> bool:
        """Take the right to answer; False if the watchdog has it."""
        try:
            self.pending.pop()
        except IndexError:
            return False
        return True

    def _note(self, hit: _Hit) -> None:
        """Count it, before the reader can see its bytes and ask for the counts."""
        touched, lane = self.touched, self._lane
        if len(touched) < TOUCHED_MAX:
            for stored, _, _, size in hit.pieces:
                touched[stored] = touched.get(stored, 0) + size
        self.hits += 1
        self.hit_bytes += hit.size
        if not lane.has_news:  # looked at here: that saves a call for each request
            lane.tell_news()

    def _answered(self, hit: _Hit) -> bool:
        """The last step: from here on the kernel has its answer, or it has not been given, and is the engine's."""
        try:
            self._note(hit)
            os.splice(self._pipe.read_fd, self.fd, wire.OUT_HEADER.size + hit.size)  # whole, or not at all
        except OSError as error:
            if error.errno != errno.ENOENT:
                log.debug("the kernel does not take an answer of the lane's: %s", error)
                return False
            self._pipe.clear()  # a caller who does not wait any more
        except Exception:
            self._lane.faults += 1
            log.exception("a hit failed in the lane on a fault of ours; the engine answers")
            return False
        return True
