"""The one state machine: what is resident, what is being filled, what is on its way out.

Theory of operation. The index decides and only decides; it never waits and never touches a file. Everything that
changes on the store goes through it first (`begin_*`) and comes back to it last (`commit_`, `abort_`, `finish_*`), so
that its bytes are always at least those on disk and the budget cannot be passed:

    used (RESIDENT + EVICTING) + filling (FILLING) + overhead <= budget

A range that is not in `_entries` is ABSENT. Its heat may still be known (`_ghosts`): a range that was hot before it
was evicted comes back as hot. Each method is synchronous, so under trio each call is atomic and there are no locks.

A RESIDENT range whose file has had its ctime changed since, and nothing else, is *suspended*: no read is planned from
it, but it keeps its place and its heat. The next fill that is wanted of it is a proof (`Decision.SUSPENDED`): what the
source has now is held against the range file, which is restamped or evicted.

Only a scan may bring the bytes over the budget (the mount was given a smaller one than before); then no fill begins
until eviction has brought them back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from sortedcontainers import SortedKeyList

from mummufs.core.errors import TransitionError
from mummufs.core.hotness import COLD
from mummufs.core.manifest import RangeTable
from mummufs.core.plan import ReadPlan, plan_segments, window_key
from mummufs.core.policy import Policy
from mummufs.core.ranges import FileId, RangeKey, Version

WATERMARK_HIGH = 0.95
"""Eviction in the background begins when more than this share of the budget is taken ..."""
WATERMARK_LOW = 0.90
"""... and goes on down to this share, so that a fill seldom has to wait for room."""
GHOSTS_MAX = 200_000
"""Absent ranges whose heat is remembered; the one touched longest ago is forgotten first."""
VICTIMS_MAX = 256
"""Victims of one plan: a bounded batch, so that no plan takes more than a fraction of a millisecond."""


class State(Enum):
    """The life of a range."""

    ABSENT = "absent"
    FILLING = "filling"
    RESIDENT = "resident"
    EVICTING = "evicting"


class Event(Enum):
    """What can happen to a range."""

    BEGIN_FILL = "begin_fill"
    COMMIT_FILL = "commit_fill"
    ABORT_FILL = "abort_fill"
    RESTORE = "restore"
    RESTAMP = "restamp"
    BEGIN_EVICT = "begin_evict"
    FINISH_EVICT = "finish_evict"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.ABSENT, Event.BEGIN_FILL): State.FILLING,
    (State.FILLING, Event.COMMIT_FILL): State.RESIDENT,
    (State.FILLING, Event.ABORT_FILL): State.ABSENT,
    (State.ABSENT, Event.RESTORE): State.RESIDENT,
    (State.RESIDENT, Event.RESTAMP): State.RESIDENT,
    (State.RESIDENT, Event.BEGIN_EVICT): State.EVICTING,
    (State.EVICTING, Event.FINISH_EVICT): State.ABSENT,
}
"""Anything else is a programmer's error."""


class Decision(Enum):
    """The answer to a wanted fill."""

    READY = "ready"
    """There is room: `begin_fill` will take it."""
    ROOM = "room"
    """There will be, once the plan's victims and those already on their way out have gone."""
    PRESENT = "present"
    """The range is resident or being filled."""
    SUSPENDED = "resident, but of another ctime"
    """The range file may hold these very bytes: they are read and held against its checksum, which needs no room."""
    TOO_LARGE = "larger than the whole budget"
    COLDER = "colder than what it would evict"
    NO_VICTIMS = "nothing can make room for it"


DECLINED = frozenset({Decision.TOO_LARGE, Decision.COLDER, Decision.NO_VICTIMS})


class FillPlan(NamedTuple):
    """Whether a fill may begin, and what has to go first."""

    decision: Decision
    victims: tuple[RangeKey, ...] = ()


@dataclass(slots=True, eq=False)
class _Entry:
    key: RangeKey
    state: State
    charge: int
    version: Version
    date: float
    seq: int


def _order(entry: _Entry) -> tuple[float, int, RangeKey]:
    """Its place. With the key it has that alone: restored ranges are all COLD, and equals would be searched through."""
    return entry.date, entry.seq, entry.key


class IndexStatistics(NamedTuple):
    """Gauges of the index, in bytes and ranges."""

    budget_bytes: int
    used_bytes: int
    filling_bytes: int
    overhead_bytes: int
    resident: int
    filling: int
    evicting: int
    ghosts: int


class CacheIndex:
    """What the store holds and what may enter it. O(log n) per call, plus the length of what is returned."""

    def __init__(self, budget_bytes: int, policy: Policy) -> None:
        self.budget_bytes = budget_bytes
        self._policy = policy
        self._entries: dict[RangeKey, _Entry] = {}
        self._order: SortedKeyList = SortedKeyList(key=_order)
        self._ghosts: OrderedDict[RangeKey, tuple[float, int]] = OrderedDict()
        self._seq = 0
        self._used = 0
        self._evicting_bytes = 0
        self._filling_bytes = 0
        self._overhead = 0
        self._counts = dict.fromkeys((State.FILLING, State.RESIDENT, State.EVICTING), 0)

    # ------------------------------------------------------------------ reading

    def plan_read(self, file: FileId, version: Version, table: RangeTable | None, offset: int, size: int) -> ReadPlan:
        """Cut a read, already clamped to the file, into segments. Changes nothing."""

        def is_resident(i: int) -> bool:
            assert table is not None
            return self.is_resident(window_key(file, table, i), version)

        segments = tuple(plan_segments(table, offset, size, is_resident))
        return ReadPlan(file, version, table, offset, size, segments)

    def is_resident(self, key: RangeKey, version: Version) -> bool:
        """Whether this version of the range can be served from its range file."""
        entry = self._entries.get(key)
        return entry is not None and entry.state is State.RESIDENT and entry.version == version

    def state(self, key: RangeKey) -> State:
        """The state of a range."""
        entry = self._entries.get(key)
        return State.ABSENT if entry is None else entry.state

    def version(self, key: RangeKey) -> Version | None:
        """The version of a resident range; None if it is not resident."""
        entry = self._entries.get(key)
        return entry.version if entry is not None and entry.state is State.RESIDENT else None

    def touch(self, key: RangeKey, size: int, *, hit: bool) -> None:
        """`size` bytes of a range were read. A touch weighs them over the window's length, at most 1.

        The pieces of one pass over a window add up to one touch, however many requests the kernel makes of it.
        """
        weight = min(1.0, size / key.size)
        if weight <= 0:
            return
        if hit:
            self._policy.hit(size)
        self._seq += 1
        entry = self._entries.get(key)
        if entry is None:
            date, _ = self._ghosts.pop(key, (COLD, 0))
            self._remember(key, self._policy.date(date, weight, self._seq), self._seq)
            return
        listed = entry.state is State.RESIDENT
        if listed:
            self._order.remove(entry)
        entry.date = self._policy.date(entry.date, weight, self._seq)
        entry.seq = self._seq
        if listed:
            self._order.add(entry)

    # ------------------------------------------------------------------ filling

    @property
    def free_bytes(self) -> int:
        """Bytes of the budget that nothing has or has been promised; negative when over the budget."""
        return self.budget_bytes - self._used - self._filling_bytes - self._overhead

    def plan_fill(self, key: RangeKey, charge: int, version: Version) -> FillPlan:
        """Whether a range may be filled, and what has to make room for it.

        Args:
            charge: bytes that its range file takes on the store.
        """
        if charge > self.budget_bytes - self._overhead:
            return FillPlan(Decision.TOO_LARGE)
        entry = self._entries.get(key)
        stale: tuple[RangeKey, ...] = ()
        if entry is not None:
            if entry.state is State.FILLING or (entry.state is State.RESIDENT and entry.version == version):
                return FillPlan(Decision.PRESENT)
            if entry.state is State.EVICTING:
                return FillPlan(Decision.ROOM)
            if not entry.version.differs_in_contents(version):
                return FillPlan(Decision.SUSPENDED)
            stale = (key,)
        missing = charge - self.free_bytes - self._evicting_bytes - (entry.charge if stale and entry else 0)
        if missing <= 0 and not stale:
            return FillPlan(Decision.READY if charge <= self.free_bytes else Decision.ROOM)
        date = self._heat_of(key)[0]
        victims = list(stale)
        for victim in self._order:
            if missing <= 0 or len(victims) >= VICTIMS_MAX:
                break
            if victim.key == key:
                continue
            if not self._policy.admits(date, victim.date):
                return FillPlan(Decision.COLDER)
            victims.append(victim.key)
            missing -= victim.charge
        if missing > 0 and len(victims) < VICTIMS_MAX:
            return FillPlan(Decision.NO_VICTIMS)
        return FillPlan(Decision.ROOM, tuple(victims))

    def begin_fill(self, key: RangeKey, charge: int, version: Version) -> None:
        """Promise `charge` bytes to a range. Only after `plan_fill` said READY, with nothing in between."""
        assert charge <= self.free_bytes, f"no room for {charge} bytes: plan_fill comes first"
        state = self._next(key, Event.BEGIN_FILL)
        date, seq = self._ghosts.pop(key, (COLD, 0))
        self._entries[key] = _Entry(key, state, charge, version, date, seq)
        self._filling_bytes += charge
        self._counts[state] += 1

    def commit_fill(self, key: RangeKey) -> None:
        """The range file is complete and has its name."""
        entry = self._move(key, Event.COMMIT_FILL)
        self._filling_bytes -= entry.charge
        self._used += entry.charge
        self._order.add(entry)

    def abort_fill(self, key: RangeKey) -> None:
        """The fill came to nothing and left nothing. Its heat stays."""
        entry = self._move(key, Event.ABORT_FILL)
        self._filling_bytes -= entry.charge
        self._forget(entry)

    def restore(self, key: RangeKey, charge: int, version: Version) -> bool:
        """A range file from an earlier mount was found. False if the range is known already."""
        if key in self._entries:
            return False
        state = self._next(key, Event.RESTORE)
        date, seq = self._ghosts.pop(key, (COLD, 0))
        entry = _Entry(key, state, charge, version, date, seq)
        self._entries[key] = entry
        self._used += charge
        self._counts[state] += 1
        self._order.add(entry)
        return True

    def restamp(self, key: RangeKey, version: Version) -> None:
        """A suspended range was proved: its range file states this version from now on. Its heat stays."""
        self._move(key, Event.RESTAMP).version = version

    def set_overhead(self, size: int) -> None:
        """Bytes of the budget that the store takes beside range files (its range tables)."""
        self._overhead = size

    # ------------------------------------------------------------------ evicting

    def plan_eviction(self) -> tuple[RangeKey, ...]:
        """The coldest ranges that bring the store from above the high watermark to the low one, at most VICTIMS_MAX."""
        taken = self._used + self._filling_bytes + self._overhead - self._evicting_bytes
        if taken <= WATERMARK_HIGH * self.budget_bytes:
            return ()
        victims: list[RangeKey] = []
        for victim in self._order:
            if taken <= WATERMARK_LOW * self.budget_bytes or len(victims) >= VICTIMS_MAX:
                break
            victims.append(victim.key)
            taken -= victim.charge
        return tuple(victims)

    def begin_evict(self, key: RangeKey) -> int:
        """From now on no read is planned from this range; its bytes stay counted. Returns them."""
        entry = self._entries.get(key)
        if entry is not None and entry.state is State.RESIDENT:
            self._order.remove(entry)
        entry = self._move(key, Event.BEGIN_EVICT)
        self._evicting_bytes += entry.charge
        return entry.charge

    def finish_evict(self, key: RangeKey) -> None:
        """The range file is gone and nobody reads it any more: its bytes are free. Its heat stays."""
        entry = self._move(key, Event.FINISH_EVICT)
        self._evicting_bytes -= entry.charge
        self._used -= entry.charge
        self._forget(entry)

    # ------------------------------------------------------------------ looking

    def resident_keys(self) -> Iterator[RangeKey]:
        """The resident ranges, coldest first."""
        return (entry.key for entry in self._order)

    def statistics(self) -> IndexStatistics:
        """The gauges."""
        return IndexStatistics(
            self.budget_bytes,
            self._used,
            self._filling_bytes,
            self._overhead,
            self._counts[State.RESIDENT],
            self._counts[State.FILLING],
            self._counts[State.EVICTING],
            len(self._ghosts),
        )

    def _heat_of(self, key: RangeKey) -> tuple[float, int]:
        entry = self._entries.get(key)
        if entry is not None:
            return entry.date, entry.seq
        return self._ghosts.get(key, (COLD, 0))

    def _next(self, key: RangeKey, event: Event) -> State:
        state = self.state(key)
        following = TRANSITIONS.get((state, event))
        if following is None:
            raise TransitionError(f"{event.value} of a range that is {state.value}: {key}")
        return following

    def _move(self, key: RangeKey, event: Event) -> _Entry:
        following = self._next(key, event)
        entry = self._entries[key]
        self._counts[entry.state] -= 1
        if following is not State.ABSENT:
            self._counts[following] += 1
        entry.state = following
        return entry

    def _forget(self, entry: _Entry) -> None:
        del self._entries[entry.key]
        if entry.seq:
            self._remember(entry.key, entry.date, entry.seq)

    def _remember(self, key: RangeKey, date: float, seq: int) -> None:
        self._ghosts[key] = (date, seq)
        if len(self._ghosts) > GHOSTS_MAX:
            self._ghosts.popitem(last=False)

    def _check(self) -> None:
        """Assert every invariant. O(n log n): for tests."""
        entries = self._entries.values()

        def charged(*states: State) -> int:
            return sum(e.charge for e in entries if e.state in states)

        assert all(key == e.key for key, e in self._entries.items()), "an entry is listed under its key"
        assert all(e.state is not State.ABSENT for e in entries), "an absent range has no entry"
        assert not self._entries.keys() & self._ghosts.keys(), "a range is an entry or a ghost, not both"
        assert self._used == charged(State.RESIDENT, State.EVICTING), "used bytes are those of what is on the store"
        assert self._evicting_bytes == charged(State.EVICTING), "evicting bytes are part of them"
        assert self._filling_bytes == charged(State.FILLING), "filling bytes are those promised to fills"
        listed = [e for e in entries if e.state is State.RESIDENT]
        assert sorted(listed, key=_order) == list(self._order), "the order lists the resident ranges, coldest first"
        assert len({_order(e) for e in listed}) == len(listed), "each has a place of its own"
        for state, count in self._counts.items():
            assert count == sum(e.state is state for e in entries), f"the count of {state.value} is right"
        assert len(self._ghosts) <= GHOSTS_MAX, "the number of ghosts is bounded"
