"""The fast lane: threads in front of libfuse that answer READs of what is in the store by themselves.

Theory of operation. Each *server* is a thread with its own clone of /dev/fuse and its own pipe. It reads a request.
A READ whose bytes all lie in open, proved range files is answered by splice(2): header into the pipe, pages of the
range files into the pipe, pipe into the device. No byte passes through Python and no other thread is asked. Every
other READ is a task of the engine (`lanereads`), everything else goes to libfuse (`relay`).

Exactly one answer. Until the last splice nothing has reached the kernel, so whatever goes wrong before it (a range
file that is short or has changed, an error, an exception of ours) costs what is in the pipe, which may be half an
answer, and the engine answers. So it does where the kernel has refused the answer: an answer to a request that has
none any more is refused too, so there are never two. While a server is in the store its request lies in `pending`; to
take it out is to have the right to answer, and only one thread can. The watchdog takes it out when the server has been
there for STALL_S, and puts another server in its place; as long as one is stuck, no other goes to the store by itself.
After SOURCE_S it hands the request to the engine. A server that comes back before the engine has answered takes the
request back: the source may be slower than a slow store, or hang.
So a store that hangs holds SERVERS threads, delays SERVERS reads by SOURCE_S, and the engine's gate decides about the
rest. It hears of a server that has been stuck for as long as it waits itself, not before: a disk that takes a tenth of
a second once is slow, and does not hang.

What the lane reads of the engine is immutable or changes entry by entry (`engine.views`). What it tells the engine,
touches and counts, is collected by each server and fetched in batches.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping

from mummufs.backends.fuse import wire
from mummufs.backends.fuse.lanereads import LaneRead, LaneReads
from mummufs.backends.fuse.laneserver import Server
from mummufs.backends.fuse.push import Pusher
from mummufs.backends.fuse.relay import Relay
from mummufs.core import breaker
from mummufs.engine.overlay import Handle
from mummufs.store.storedrange import StoredRange

SERVERS = 4
"""Threads that read the device."""
STALL_S = 0.1
"""A server that is in the store for longer is given up: another one takes its place."""
SOURCE_S = 0.5
"""After this the request that a server is stuck with goes to the engine, and the source answers."""
LOOKS = 2
"""The watchdog looks this often in STALL_S."""
LOOK_S = STALL_S / LOOKS
LATE_S = 2 * LOOK_S
"""A look that comes later than this says that the machine does not let us run, and nothing of the store."""

log = logging.getLogger(__name__)


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
            touched: told, in any thread, that there is something to fetch with `take_touched` or `take_pushed`.
        """
        self.handles = handles
        self.reads = reads
        self.libfuse = libfuse
        self.pusher = pusher
        if pusher is not None:
            pusher.tell_noted = self.tell_news
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
        self._servers = [Server(self, fd) for fd in clones]
        self._stuck: dict[Server, float] = {}
        """Server -> when the engine is told of it; infinity once it was."""
        self._parked: dict[int, tuple[float, LaneRead]] = {}
        """Unique -> when a request that a server is stuck with goes to the engine, and the request."""
        self._vacant: list[int] = []
        """Descriptors that nobody serves: there was no thread or no pipe left."""
        self._retired_hits = self._retired_hit_bytes = 0
        self._retired_touched: list[dict[StoredRange, int]] = []
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

    def tell_news(self) -> None:
        """There is something to fetch with `take_touched` or `take_pushed`."""
        if not self.has_news:
            self.has_news = True
            self.tell_touched()

    def take_pushed(self) -> dict[StoredRange, int]:
        """Bytes of each range file that were pushed since this was last asked. To be asked after `take_touched`."""
        return {} if self.pusher is None else self.pusher.take_noted()

    def take_touched(self) -> tuple[int, dict[StoredRange, int]]:
        """READs answered and bytes of each range file read since this was last asked."""
        self.has_news = False
        touched: dict[StoredRange, int] = {}
        with self._lock:
            parts, self._retired_touched = self._retired_touched, []
            for server in self._servers:
                parts.append(server.touched)
                server.touched = {}
        for part in parts:
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
        held = [] if self.pusher is None else self.pusher.pending
        if (
            unique in self._parked
            or self.reads.interrupt(unique)
            or any(
                request.unique == unique
                for pending in (held, *(s.pending for s in self._servers))
                for request in pending
            )
        ):
            return  # the engine looks after it, or it is being answered this very moment
        if self.libfuse.owns(unique):
            self.libfuse.forward(message, wire.INTERRUPT, 0, self.clones[0])
            return
        # Read by another thread, and not taken up yet: the kernel is to ask again, by the clone that it was read from.
        for fd in self.clones:
            with contextlib.suppress(OSError):
                os.write(fd, wire.error_reply(unique | wire.INTERRUPT_BIT, errno.EAGAIN))
                return

    def _watch(self) -> None:
        """Find servers that the store holds."""
        seen: dict[Server | Pusher, tuple[int, int]] = {}
        before = time.monotonic()
        while not self._ended.wait(LOOK_S):
            now = time.monotonic()
            late, before = now - before > LATE_S, now
            try:
                seen = seen if late else self._look(seen)
                self._hand_over(now)
                self._tell_stuck(now)
                self._fill_vacancies()
            except Exception:  # without a watchdog a store that hangs would be waited for
                self.faults += 1
                log.exception("the watchdog of the lane failed on a fault of ours; it goes on")

    def _look(self, seen: dict[Server | Pusher, tuple[int, int]]) -> dict[Server | Pusher, tuple[int, int]]:
        """Free the request that has been held for STALL_S; the others, by who holds them: request and looks so far."""
        now_seen: dict[Server | Pusher, tuple[int, int]] = {}
        holders: list[Server | Pusher] = [*self._servers]
        if self.pusher is not None:
            holders.append(self.pusher)
        for holder in holders:
            number = holder.number
            if not holder.pending:
                continue
            known, looks = seen.get(holder, (number, 0))
            looks = looks + 1 if known == number else 1
            if looks <= LOOKS:
                now_seen[holder] = number, looks
            elif isinstance(holder, Server):
                self._replace(holder)
            else:
                self._free_held(holder)
        return now_seen

    def _tell_stuck(self, now: float) -> None:
        with self._lock:
            due = [server for server, at in self._stuck.items() if at <= now]
            self._stuck.update(dict.fromkeys(due, math.inf))
        for _ in due:
            self._stalled()

    def _replace(self, server: Server) -> None:
        try:
            request = server.pending.pop()
        except IndexError:  # it has come back this very moment
            return
        with self._lock:
            self._stuck[server] = time.monotonic() + breaker.STALL_S - STALL_S
            self.paused = True
            self._vacant.append(server.fd)
        self._parked[request.unique] = time.monotonic() + SOURCE_S - STALL_S, request
        self.replaced += 1
        log.warning("a read of the store has not come back for %.1f s", STALL_S)
        self._fill_vacancies()

    def _hand_over(self, now: float) -> None:
        for unique, (at, request) in list(self._parked.items()):
            if at <= now and self._parked.pop(unique, None) is not None:
                request.avoid_store = True
                self.reads.submit(request)

    def take_back(self, request: LaneRead) -> bool:
        """A server that was given up can answer its request after all. Whether it may: else the engine has."""
        return self._parked.pop(request.unique, None) is not None or self.reads.take_back(request)

    def _free_held(self, pusher: Pusher) -> None:
        """The READ that the pusher holds has waited long enough, for the store or for a page that is locked."""
        with contextlib.suppress(IndexError):
            self.reads.submit(pusher.pending.pop())

    def _fill_vacancies(self) -> None:
        """Put servers where there are none. Where there is no pipe or thread for one, that is tried again later."""
        while self._vacant:
            try:
                stand_in = Server(self, self._vacant[0])
            except OSError as error:
                log.warning("no server can be put in the place of one that is stuck: %s", error)
                return
            try:
                stand_in.start()
            except RuntimeError as error:
                stand_in.discard()
                log.warning("no server can be put in the place of one that is stuck: %s", error)
                return
            self._vacant.pop(0)
            with self._lock:
                self._servers.append(stand_in)

    def retire(self, server: Server) -> None:
        """A server that was given up has come back: another is in its place."""
        with self._lock:
            self._retired_hits += server.hits
            self._retired_hit_bytes += server.hit_bytes
            self._retired_touched.append(server.touched)
            self._servers.remove(server)
            self._stuck.pop(server, None)
            self.paused = bool(self._stuck)
