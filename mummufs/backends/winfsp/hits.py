"""Reads that WinFsp's own threads answer: those whose bytes all lie in open, proved range files.

The views of nodes say where they are (`engine.views`), as they do for the fast lane. Whatever goes wrong means that the
engine is asked, which knows what to do about it; nothing has been answered by then.

A thread may hang in the store. At most THREADS_MAX do: the others keep to the engine meanwhile, whose gate gives a read
of the store up after a second. And who has been in the store for so long tells that gate, so that it is left alone.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time

import trio

from mummufs.core.breaker import STALL_S
from mummufs.core.errors import RangeFileError
from mummufs.core.stats import Counters
from mummufs.engine.gate import Gate
from mummufs.engine.nodes import Node
from mummufs.engine.views import HitReports
from mummufs.store.storedrange import StoredRange

THREADS_MAX = 64
"""Threads of WinFsp that read the store at once."""
TOUCHED_MAX = 4096
"""Range files that are noted between two reports; more are served without being noted."""
REPORT_S = 0.02
"""How long touches are collected before the engine hears of them."""
LOOK_S = STALL_S / 2
"""How often it is looked at who is in the store."""

log = logging.getLogger(__name__)


class Hits:
    """Serves hits. `read` is called from any thread, `run` and `report` from trio's.

    Attributes:
        hits, hit_bytes: what was served so.
        faults: failures that were a fault of ours.
    """

    def __init__(self, gate: Gate | None, reports: HitReports | None, counters: Counters) -> None:
        """Make one.

        Args:
            gate, reports: the store's side; None where there is no store, and then nothing is served.
        """
        self._gate = gate
        self._reports = reports
        self._counters = counters
        self._lock = threading.Lock()
        self._inside: dict[int, float] = {}
        self._touched: dict[StoredRange, int] = {}
        self._unreported = 0
        self._news = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self.hits = 0
        self.hit_bytes = 0
        self.faults = 0

    @property
    def inside(self) -> int:
        """Threads that are in the store."""
        return len(self._inside)

    def read(self, node: Node, place: memoryview, offset: int) -> int | None:
        """Fill the place as far as the file goes; the bytes it has got, or None where the engine has to be asked.

        What the place holds after None is not defined.
        """
        view, gate = node.view, self._gate
        if view is None or gate is None or gate.reads.is_open:
            return None
        end = min(offset + len(place), view.size)
        pieces = view.pieces(offset, end)
        me = threading.get_ident()
        if not pieces or len(self._inside) >= THREADS_MAX:
            return None
        self._inside[me] = time.monotonic()
        at = 0
        try:
            for stored, _, start, size in pieces:
                if not stored.read_proved(place[at : at + size], start):
                    return None
                at += size
        except (OSError, RangeFileError) as error:  # the engine will see it too, and knows what to do about it
            log.debug("a hit cannot be read from the store: %s", error)
            return None
        except Exception:
            self.faults += 1
            log.exception("a hit failed on a fault of ours; the engine answers")
            return None
        finally:
            self._inside.pop(me, None)
        if node.view is not view:  # the file has changed, or this version is not believed any more
            return None
        self._note([(piece[0], piece[3]) for piece in pieces], at)
        return at

    def _note(self, pieces: list[tuple[StoredRange, int]], size: int) -> None:
        with self._lock:
            self.hits += 1
            self.hit_bytes += size
            self._unreported += 1
            is_news = self._unreported == 1
            if len(self._touched) < TOUCHED_MAX:
                for stored, read in pieces:
                    self._touched[stored] = self._touched.get(stored, 0) + read
        if is_news and self._token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._tell)

    def _tell(self) -> None:
        self._news.set()

    def report(self) -> None:
        """Have the engine take in what was served so far."""
        with self._lock:
            touched, self._touched = self._touched, {}
            requests, self._unreported = self._unreported, 0
        if not requests or self._reports is None:
            return
        if self._gate is not None:
            self._gate.answered()
        self._reports.take(requests, touched)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Report what is served, and watch who is in the store, until cancelled."""
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report_all)
            nursery.start_soon(self._watch)
            task_status.started()

    async def _report_all(self) -> None:
        while True:
            await self._news.wait()
            await trio.sleep(REPORT_S)
            self._news = trio.Event()
            try:
                self.report()
            except Exception:  # what was read is served, noted or not
                self._counters.errors.handler += 1
                log.exception("what was served could not be taken in, on a fault of ours")

    async def _watch(self) -> None:
        told: set[tuple[int, float]] = set()
        while True:
            await trio.sleep(LOOK_S)
            now = time.monotonic()
            stuck = {(thread, since) for thread, since in list(self._inside.items()) if now - since >= STALL_S}
            for _ in stuck - told:
                if self._gate is not None:
                    self._gate.stalled()
            told = stuck
