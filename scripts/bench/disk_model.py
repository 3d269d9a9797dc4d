"""A spinning disk's timing, without a clock: one head, a seek where a request does not follow the last, then its rate.

Theory of operation. Requests wait in a queue, and the head takes one at a time. It takes the one that starts where it
stands (no seek), else the nearest one ahead, else it goes back to the lowest: so sorting and merging earn what they
earn on a real disk with a command queue. A request that has waited MAX_WAIT_S goes first, so a stream starves nobody.

The head's time line is its own: a request that was waiting when the last one ended starts at that very moment, however
late the caller notices. So a caller's coarse timers do not add up to a slower disk.
"""

from __future__ import annotations

from dataclasses import dataclass

SEEK_S = 0.0083
"""Half a turn at 7200/min plus an average move of the arm."""

RATE_BYTES_PER_S = 180e6
MAX_WAIT_S = 0.5


@dataclass(frozen=True)
class Job:
    """A request that the head has taken. Its data is there at `finish_s`."""

    number: int
    finish_s: float


@dataclass(frozen=True)
class _Request:
    number: int
    offset: int
    size: int
    arrival_s: float


@dataclass
class DiskCounters:
    """What the disk did. `busy_s` is the time that the head was moving or reading."""

    requests: int = 0
    seeks: int = 0
    bytes: int = 0
    busy_s: float = 0.0


class DiskModel:
    """One disk. Times are seconds of any one monotonic clock."""

    def __init__(self, seek_s: float = SEEK_S, bytes_per_s: float = RATE_BYTES_PER_S) -> None:
        """Raises ValueError unless `seek_s` is at least 0 and `bytes_per_s` above it."""
        if seek_s < 0 or bytes_per_s <= 0:
            raise ValueError("a disk's seek time is at least 0 and its rate is above 0")
        self.counters = DiskCounters()
        self._seek_s = seek_s
        self._bytes_per_s = bytes_per_s
        self._pending: list[_Request] = []
        self._position = -1
        self._free_s = float("-inf")
        self._next_number = 0

    def submit(self, offset: int, size: int, now_s: float) -> int:
        """Queue a request; returns the number that its `Job` will have."""
        self._next_number += 1
        self._pending.append(_Request(self._next_number, offset, size, now_s))
        return self._next_number

    def cancel(self, number: int) -> None:
        """Take a waiting request out of the queue; nothing if the head has taken it."""
        self._pending = [request for request in self._pending if request.number != number]

    def begin(self, now_s: float) -> Job | None:
        """Let the head take the next request, or None. The caller waits for its end before it asks again."""
        if not self._pending:
            return None
        request = min(self._pending, key=lambda waiting: self._order(waiting, now_s))
        self._pending.remove(request)
        cost_s = request.size / self._bytes_per_s
        if request.offset != self._position:
            cost_s += self._seek_s
            self.counters.seeks += 1
        self._position = request.offset + request.size
        self._free_s = max(self._free_s, request.arrival_s) + cost_s
        self.counters.requests += 1
        self.counters.bytes += request.size
        self.counters.busy_s += cost_s
        return Job(request.number, self._free_s)

    def _order(self, request: _Request, now_s: float) -> tuple[int, float]:
        """Overdue first, the oldest of them; then ahead of the head, the nearest; then behind it, the lowest."""
        if now_s - request.arrival_s > MAX_WAIT_S:
            return (0, request.arrival_s)
        if request.offset >= self._position:
            return (1, request.offset)
        return (2, request.offset)
