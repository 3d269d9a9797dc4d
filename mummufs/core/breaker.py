"""When to leave the store alone: a breaker for its reads and one for its writes. Pure; `now` is in seconds.

A breaker is *closed* (calls pass), or *open* (nobody calls; a probe in the background asks from time to time). It
opens at once when a call says that the device or the file system is at fault, when FAULTS_MAX calls in a row have
failed in any way, or when a call has not come back while nothing else came back either. One call that is late while
others are answered is load, not a fault. Probes begin PROBE_S after it opened and back off to PROBE_S_MAX; a probe that
succeeds closes it.

The store is `normal` while both are closed and nothing has failed for QUIET_S, `off` while reads are open (every read
goes to the source), and `degraded` in between: hits may be served, or new ranges stored, but not both as ever.
"""

from __future__ import annotations

from enum import Enum

FAULTS_MAX = 8
"""Failures in a row that open a breaker, whatever they say."""
STALL_S = 1.0
"""With no call answered for this long, one that is late is taken for a hang."""
PROBE_S = 1.0
PROBE_S_MAX = 30.0
QUIET_S = 10.0


class StoreState(Enum):
    """What `status` shows."""

    NORMAL = "normal"
    DEGRADED = "degraded"
    OFF = "off"


class Breaker:
    """One kind of call. Every method is O(1)."""

    def __init__(self) -> None:
        self._failed_in_a_row = 0
        self._answered_at = float("-inf")
        self._failed_at = float("-inf")
        self._probe_at: float | None = None
        self._closed_at = float("-inf")
        self._pause_s = PROBE_S
        self.opened = 0
        """How often it has opened."""

    @property
    def is_open(self) -> bool:
        """Whether calls are to be left out."""
        return self._probe_at is not None

    def succeeded(self, now: float) -> None:
        """A call was answered."""
        self._answered_at = now
        self._failed_in_a_row = 0

    def came_back(self, now: float) -> None:
        """A call met a fault that is counted once for all who meet it, here or elsewhere: at least nothing hangs."""
        self._answered_at = now

    def failed(self, now: float, *, at_once: bool) -> None:
        """A call failed.

        Args:
            at_once: what it said concerns every other call too (the disk, the file system, no space).
        """
        self._answered_at = self._failed_at = now
        self._failed_in_a_row += 1
        if at_once or self._failed_in_a_row >= FAULTS_MAX:
            self._open(now)

    def late(self, now: float) -> None:
        """A call has not come back in time."""
        self._failed_at = now
        if now - self._answered_at >= STALL_S:
            self._open(now)

    def next_probe(self) -> float | None:
        """When to probe; None while it is closed."""
        return self._probe_at

    def probed(self, now: float, *, well: bool) -> None:
        """A probe has ended, or has not come back in time."""
        if not self.is_open:
            return
        if well:
            self._probe_at = None
            self._closed_at = now
            self.succeeded(now)
        else:
            self._pause_s = min(PROBE_S_MAX, 2 * self._pause_s)
            self._probe_at = now + self._pause_s

    def is_quiet(self, now: float) -> bool:
        """Whether it is closed and nothing has failed lately."""
        return not self.is_open and now - self._failed_at >= QUIET_S

    def _open(self, now: float) -> None:
        if self._probe_at is not None:
            return
        self.opened += 1
        soon = now - self._closed_at < QUIET_S
        self._pause_s = min(PROBE_S_MAX, 2 * self._pause_s) if soon else PROBE_S
        self._probe_at = now + self._pause_s


def store_state(reads: Breaker, writes: Breaker, now: float) -> StoreState:
    """The two together."""
    if reads.is_open:
        return StoreState.OFF
    if reads.is_quiet(now) and writes.is_quiet(now):
        return StoreState.NORMAL
    return StoreState.DEGRADED
