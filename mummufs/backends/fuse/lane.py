"""The fast lane: threads in front of libfuse that answer READs of what is in the store by themselves.

Theory of operation. Each *server* is a thread with its own clone of /dev/fuse and its own pipe. It reads a request.
A READ whose bytes all lie in open, proved range files is answered by splice(2): header into the pipe, pages of the
range files into the pipe, pipe into the device. No byte passes through Python and no other thread is asked. Every
other READ is a task of the engine (`lanereads`), everything else goes to libfuse (`relay`).

Exactly one answer. Until the last splice nothing has reached the kernel, so whatever goes wrong before it (a range
file that is short or has changed, an error, an exception of ours) costs the pipe, which may hold half an answer, and
the engine answers. While a server is in the store its request lies in `pending`; to take it out is to have the right
to answer, and only one thread can. The watchdog takes it out when the server has been there for STALL_S, hands it to
the engine, and puts another server in its place; as long as one is stuck, no other goes to the store by itself.
So a store that hangs holds SERVERS threads, delays SERVERS reads by STALL_S, and the engine's gate decides about the
rest.

What the lane reads of the engine is immutable or changes entry by entry (`engine.views`). What it tells the engine,
touches and counts, is collected by each server and fetched in batches.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mummufs.backends.fuse import relay, wire
from mummufs.backends.fuse.lanereads import LaneRead, LaneReads
from mummufs.backends.fuse.pipes import Pipe
from mummufs.backends.fuse.push import Pusher
from mummufs.backends.fuse.relay import Relay
from mummufs.core.ranges import PAGE_SIZE
from mummufs.engine.nodes import Node
from mummufs.engine.overlay import Handle
from mummufs.engine.views import FileView, Piece
from mummufs.store.storedrange import StoredRange

SERVERS = 4
"""Threads that read the device."""
STALL_S = 0.1
"""A server that is in the store for longer is given up."""
LOOK_S = STALL_S / 2
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


class Lane:
    """The servers, their watchdog, and what they share."""

    def __init__(
        self,
        clones: list[int],
        handles: Mapping[int, Handle],
        reads: LaneReads,
        libfuse: Relay,
        pusher: Pusher | None,
        *,
        may_read_store: Callable[[], bool],
        stalled: Callable[[], None],
        gone: Callable[[], None],
        touched: Callable[[], None],
    ) -> None:
        """Make a lane that reads nothing until `start`.

        Args:
            clones: descriptors of the connection, one for each server.
            handles: file handle -> open file, as the operations have it.
            may_read_store: whether the engine reads the store at present.
            stalled: told, in any thread, that the store does not answer.
            gone: told, in any thread, that the connection has ended.
            touched: told, in any thread, that there is something to fetch with `take_touched`.
        """
        self.handles = handles
        self.reads = reads
        self.libfuse = libfuse
        self.pusher = pusher
        self.may_read_store = may_read_store
        self.clones = clones
        self.paused = False
        """Whether a server is stuck: then no other goes to the store."""
        self.has_news = False
        self.replaced = 0
        self.faults = 0
        self.tell_touched = touched
        self._stalled = stalled
        self._gone = gone
        self._gone_told = False
        self._servers = [_Server(self, fd) for fd in clones]
        self._stuck: set[_Server] = set()
        self._retired_hits = self._retired_hit_bytes = 0
        self._fetched_hits = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to serve."""
        for server in self._servers:
            server.start()
        threading.Thread(target=self._watch, name="lane watchdog", daemon=True).start()

    @property
    def hits(self) -> int:
        """READs answered by the lane."""
        return self._retired_hits + sum(server.hits for server in self._servers)

    @property
    def hit_bytes(self) -> int:
        """Bytes of these."""
        return self._retired_hit_bytes + sum(server.hit_bytes for server in self._servers)

    @property
    def stuck(self) -> int:
        """Servers that the store holds."""
        return len(self._stuck)

    def take_touched(self) -> tuple[int, dict[StoredRange, int]]:
        """READs answered and bytes of each range file read since this was last asked."""
        self.has_news = False
        touched: dict[StoredRange, int] = {}
        for server in list(self._servers):
            part, server.touched = server.touched, {}
            for stored, size in list(part.items()):
                touched[stored] = touched.get(stored, 0) + size
        before, self._fetched_hits = self._fetched_hits, self.hits
        return self._fetched_hits - before, touched

    def ended(self) -> None:
        """The connection has gone: say so once."""
        with self._lock:
            told, self._gone_told = self._gone_told, True
        self._ended.set()
        if not told:
            self._gone()

    def interrupt(self, unique: int, message: memoryview) -> None:
        """The caller of a request has got a signal."""
        if self.reads.interrupt(unique) or any(server.serves(unique) for server in self._servers):
            return  # the engine looks after it, or it is being answered this very moment
        if self.libfuse.owns(unique):
            self.libfuse.forward(message, wire.INTERRUPT, 0, self.clones[0])
            return
        # Read by another thread, and not taken up yet: the kernel is to ask again, by the clone that it was read from.
        for fd in self.clones:
            with contextlib.suppress(OSError):
                os.write(fd, wire.error_reply(unique | 1, errno.EAGAIN))
                return

    def _watch(self) -> None:
        """Find servers that the store holds."""
        seen: dict[_Server, int] = {}
        held = -1
        while not self._ended.wait(LOOK_S):
            for server in list(self._servers):
                number = server.number
                if server.pending and seen.get(server) == number:
                    self._replace(server)
                seen[server] = number
            pusher = self.pusher
            if pusher is not None:
                if pusher.pending and held == pusher.number:
                    self._free_held(pusher)
                held = pusher.number
            seen = {server: seen[server] for server in self._servers if server in seen}

    def _replace(self, server: _Server) -> None:
        try:
            request = server.pending.pop()
        except IndexError:  # it has come back this very moment
            return
        with self._lock:
            self._stuck.add(server)
            self.paused = True
        self.replaced += 1
        log.warning("a read of the store has not come back for %.1f s: the source answers", STALL_S)
        self._stalled()
        request.avoid_store = True
        self.reads.submit(request)
        stand_in = _Server(self, server.fd)
        with self._lock:
            self._servers.append(stand_in)
        stand_in.start()

    def _free_held(self, pusher: Pusher) -> None:
        """The READ that the pusher holds has waited long enough, for the store or for a page that is locked."""
        with contextlib.suppress(IndexError):
            request = pusher.pending.pop()
            request.avoid_store = True
            self.reads.submit(request)

    def retire(self, server: _Server) -> None:
        """A server that was given up has come back: another is in its place."""
        with self._lock:
            self._retired_hits += server.hits
            self._retired_hit_bytes += server.hit_bytes
            self._servers.remove(server)
            self._stuck.discard(server)
            self.paused = bool(self._stuck)


class _Server:
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
        self.unfilled = 0
        self.touched: dict[StoredRange, int] = {}

    def start(self) -> None:
        """Run in a thread of its own."""
        threading.Thread(target=self._run, name="lane", daemon=True).start()

    def serves(self, unique: int) -> bool:
        """Whether it is in the store for this request."""
        return any(request.unique == unique for request in self.pending)

    def _run(self) -> None:
        lane, buffer, faults = self._lane, self._buffer, 0
        into = [buffer]
        while not self.lost:
            try:
                size = os.readv(self.fd, into)
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
        filled = False
        try:
            hit = self._hit(request)
            if hit is not None and hit.size <= PAGE_SIZE and self._is_held(request, hit, nodeid, flags):
                self._note(hit)
                return
            if hit is not None:
                self.number += 1
                self.pending.append(request)
                filled = self._fill(request, hit)
        except OSError as error:  # the engine will see it too, and knows what to do about it
            log.debug("the lane cannot read the store: %s", error)
        except Exception:
            lane.faults += 1
            log.exception("a hit failed in the lane on a fault of ours; the engine answers")
        if hit is None:
            lane.reads.submit(request)
        elif not self._claim():
            self.lost = True  # the watchdog has handed the request to the engine and put another server in this place
        elif not filled:
            self.unfilled += 1
            self._new_pipe()
            lane.reads.submit(request)
        else:
            self._note(hit)
            self._answer(request, hit.size)

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
        return pusher.saw_page(request, nodeid, hit.node, hit.view, hit.pieces[0].window)

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
        if not lane.has_news:
            lane.has_news = True
            lane.tell_touched()

    def _answer(self, request: LaneRead, size: int) -> None:
        """The last step: from here on the kernel has its answer, or the caller is told EIO."""
        whole = wire.OUT_HEADER.size + size
        try:
            if os.splice(self._pipe.read_fd, self.fd, whole) == whole:
                return
            code = errno.EIO
        except OSError as error:
            code = error.errno or errno.EIO
        self._new_pipe()
        if code != errno.ENOENT:  # that is a caller who does not wait any more
            relay.reply(self.fd, request.unique, errno.EIO)

    def _new_pipe(self) -> None:
        """Throw away what is in the pipe."""
        self._pipe.close()
        self._pipe = Pipe()
