"""The one state machine: what is resident, what is being filled, what is on its way out.

Theory of operation. The index decides and only decides; it never waits and never touches a file. Everything that
changes on the store goes through it first (`begin_*`) and comes back to it last (`commit_`, `abort_`, `finish_*`), so
that its bytes are always at least those on disk and the budget cannot be passed:

    used (RESIDENT + EVICTING) + filling (FILLING) + overhead <= budget

A range that is not in `_entries` is ABSENT. How hot a range is, and which are the coldest, `ratings` knows. Each method
is synchronous, so under trio each call is atomic and there are no locks.

Room is made beforehand. A fill that would pass the budget less its headroom names its victims, and must be worth more
than each of them, whether or not there is room this very moment; it begins at once where there is (READY), while the
victims go in the background.

A *pinned* range is never a victim, and nothing is weighed before it is let in.

A RESIDENT range whose file has had its ctime changed since, and nothing else, is *suspended*: no read is planned from
it, but it keeps its place and its heat. The next fill that is wanted of it is a proof (`Decision.SUSPENDED`): what the
source has now is held against the range file, which is restamped or evicted.

Only a scan may bring the bytes over the budget (the mount was given a smaller one than before); then no fill begins
until eviction has brought them back.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from mummufs.core.entries import CommonEntries, Entry
from mummufs.core.errors import TransitionError
from mummufs.core.invariants import check
from mummufs.core.manifest import RangeTable
from mummufs.core.plan import ReadPlan, plan_segments, window_key
from mummufs.core.policy import Policy
from mummufs.core.ranges import FileId, RangeKey, Version, page_floor
from mummufs.core.ratings import HeatRecord, PackRecord, Rating, Ratings
from mummufs.core.states import COLDER, TRANSITIONS, Decision, Event, FillPlan, IndexStatistics, State

HEADROOM_SHARE = 0.01
HEADROOM_BYTES_MAX = 1 << 30
"""The part of the budget that is kept free, so that a fill seldom has to wait for room: what is in flight at a time."""
VICTIMS_MAX = 256
"""Victims of one plan: a bounded batch, so that no plan takes more than a fraction of a millisecond."""


class CacheIndex:
    """What the store holds and what may enter it. O(log n) per call, plus the length of what is returned."""

    def __init__(self, budget_bytes: int, policy: Policy) -> None:
        self.budget_bytes = budget_bytes
        self.headroom_bytes = page_floor(min(HEADROOM_BYTES_MAX, int(HEADROOM_SHARE * budget_bytes)))
        self._ratings = Ratings(policy)
        self._entries: dict[RangeKey, Entry] = {}
        self._common = CommonEntries()
        self._pins: set[RangeKey] = set()
        self._used = 0
        self._evicting_bytes = 0
        self._filling_bytes = 0
        self._overhead = 0
        self._pinned_bytes = 0
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
        if size <= 0:
            return
        entry = self._entries.get(key)
        if entry is None:
            self._ratings.touch_absent(key, size, hit)
        else:
            self._ratings.touch(entry.rating or self._rate(key), size, hit)

    def join(self, file: FileId, pack: bytes) -> None:
        """A file belongs to this pack: its ranges are weighed against one another. It may be repeated."""
        self._ratings.join(file, pack)

    @property
    def touches(self) -> int:
        """Touches in this mount."""
        return self._ratings.touches

    def last_touch(self, file: FileId) -> int:
        """The number of the last touch of a range of this file's pack; 0 if there was none in this mount."""
        return self._ratings.last_touch(file)

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
        room = self.budget_bytes - self.headroom_bytes - self._overhead
        if charge > room:
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
            room += entry.charge
        missing = charge + self._used + self._filling_bytes - self._evicting_bytes - room
        victims = list(stale)
        if missing > 0:
            rating = self._rating_of(key)
            for victim in self._coldest():
                if missing <= 0 or len(victims) >= VICTIMS_MAX:
                    break
                if victim.key == key:
                    continue
                if key not in self._pins and not self._ratings.admits(rating, victim):
                    return COLDER
                victims.append(victim.key)
                missing -= self._entries[victim.key].charge
            if missing > 0 and len(victims) < VICTIMS_MAX:
                return FillPlan(Decision.NO_VICTIMS)
        ready = charge <= self.free_bytes and not stale
        return FillPlan(Decision.READY if ready else Decision.ROOM, tuple(victims))

    def begin_fill(self, key: RangeKey, charge: int, version: Version) -> None:
        """Promise `charge` bytes to a range. Only after `plan_fill` said READY, with nothing in between."""
        assert charge <= self.free_bytes, f"no room for {charge} bytes: plan_fill comes first"
        state = self._next(self._entries.get(key), Event.BEGIN_FILL, key)
        rating = self._ratings.take(key)
        self._enter(rating.key, Entry(state, charge, version, rating))  # one key is enough for both
        self._filling_bytes += charge

    def commit_fill(self, key: RangeKey) -> None:
        """The range file is complete and has its name."""
        entry = self._move(key, Event.COMMIT_FILL)
        self._filling_bytes -= entry.charge
        self._used += entry.charge
        self._enlist(key, entry)

    def abort_fill(self, key: RangeKey) -> None:
        """The fill came to nothing and left nothing. Its heat stays."""
        entry = self._move(key, Event.ABORT_FILL)
        self._filling_bytes -= entry.charge
        self._pinned_bytes -= entry.charge * (key in self._pins)
        self._forget(key, entry)

    def restore(self, key: RangeKey, charge: int, version: Version) -> bool:
        """A range file from an earlier mount was found. False if the range is known already."""
        if key in self._entries:
            return False
        self._used += charge
        entry = self._common.entry(charge, version)
        if key not in self._pins and not self._ratings.remembers(key):
            self._common.found(key)
            self._enter(key, entry)
            return True
        rating = self._ratings.take(key)
        entry = Entry(entry.state, entry.charge, entry.version, rating)
        self._enter(rating.key, entry)
        self._enlist(key, entry)
        return True

    def restamp(self, key: RangeKey, version: Version) -> None:
        """A suspended range was proved: its range file states this version from now on. Its heat stays."""
        entry = self._move(key, Event.RESTAMP)
        if entry.rating is None:
            self._entries[key] = self._common.entry(entry.charge, version)
        else:
            entry.version = version

    def set_overhead(self, size: int) -> None:
        """Bytes of the budget that the store takes beside range files (its range tables)."""
        self._overhead = size

    # ------------------------------------------------------------------ evicting

    def plan_eviction(self) -> tuple[RangeKey, ...]:
        """The coldest ranges that give the budget its headroom back, at most VICTIMS_MAX.

        Fills see to that themselves; this is for a budget that was larger, and for tables that have grown.
        """
        missing = self._used + self._filling_bytes + self._overhead - self._evicting_bytes
        missing -= self.budget_bytes - self.headroom_bytes
        victims: list[RangeKey] = []
        if missing <= 0:
            return ()
        for victim in self._coldest():
            if missing <= 0 or len(victims) >= VICTIMS_MAX:
                break
            victims.append(victim.key)
            missing -= self._entries[victim.key].charge
        return tuple(victims)

    def begin_evict(self, key: RangeKey) -> int:
        """From now on no read is planned from this range; its bytes stay counted. Returns them."""
        known = self._entries.get(key)
        if known is not None and known.rating is None:
            self._rate(key)
        entry = self._move(key, Event.BEGIN_EVICT)
        if entry.rating is not None:
            self._ratings.delist(entry.rating)
        self._pinned_bytes -= entry.charge * (key in self._pins)
        self._evicting_bytes += entry.charge
        return entry.charge

    def abort_evict(self, key: RangeKey) -> Version:
        """Its range file could not be removed, and is as it was: reads are planned from it again. Gives its version."""
        entry = self._move(key, Event.ABORT_EVICT)
        self._evicting_bytes -= entry.charge
        self._pinned_bytes += entry.charge * (key in self._pins)
        self._enlist(key, entry)
        return entry.version

    def finish_evict(self, key: RangeKey) -> None:
        """The range file is gone and nobody reads it any more: its bytes are free. Its heat stays."""
        entry = self._move(key, Event.FINISH_EVICT)
        self._evicting_bytes -= entry.charge
        self._used -= entry.charge
        self._forget(key, entry)

    # ------------------------------------------------------------------ pinning

    @property
    def pinned_bytes(self) -> int:
        """Bytes of the budget that pinned ranges have or have been promised."""
        return self._pinned_bytes

    def is_pinned(self, key: RangeKey) -> bool:
        """Whether a range is pinned, be it resident or not."""
        return key in self._pins

    def pin(self, key: RangeKey) -> None:
        """Never make a victim of this range. It may be absent: then it is let in when it comes."""
        if key in self._pins:
            return
        self._pins.add(key)
        entry = self._entries.get(key)
        if entry is not None and entry.state is not State.EVICTING:
            self._pinned_bytes += entry.charge
            self._ratings.delist(self._rate(key))

    def unpin(self, key: RangeKey) -> None:
        """The range is like any other again."""
        if key not in self._pins:
            return
        self._pins.remove(key)
        entry = self._entries.get(key)
        if entry is not None and entry.state is not State.EVICTING:
            self._pinned_bytes -= entry.charge
            if entry.state is State.RESIDENT:
                self._enlist(key, entry)

    # ------------------------------------------------------------------ for a later mount

    def hot_steps(self, size: int) -> Iterator[list[HeatRecord]]:
        """The heat of every range that has any, in steps that look at so many each. Changes may come between them."""
        keys = chain(self.keys(), self._ratings.ghost_keys())  # both as they are now: nothing is in it twice
        while step := list(islice(keys, size)):
            records = (self._ratings.record(self._rating_of(key)) for key in step)
            yield [record for record in records if record is not None]

    def recall(self, record: HeatRecord) -> None:
        """Add the heat that a range had when an earlier mount ended. The range touched latest comes first."""
        entry = self._entries.get(record.key)
        if entry is None:
            self._ratings.recall_absent(record)
        else:
            self._ratings.recall(self._rate(record.key), record)

    def packs(self) -> list[PackRecord]:
        """The packs. O(files)."""
        return self._ratings.packs()

    def recall_pack(self, record: PackRecord) -> None:
        """A pack of an earlier mount. To be called before the ranges are recalled."""
        self._ratings.recall_pack(record)

    # ------------------------------------------------------------------ looking

    def keys(self) -> list[RangeKey]:
        """The ranges that are not absent, in no order. O(n), some milliseconds for half a million."""
        return list(self._entries)

    def resident_keys(self) -> Iterator[RangeKey]:
        """The resident ranges: those that may be evicted, coldest first, and then the pinned ones."""
        yield from (rating.key for rating in self._coldest())
        yield from (key for key in sorted(self._pins) if self.state(key) is State.RESIDENT)

    def heat(self, key: RangeKey) -> float:
        """log2 of the heat of a range now: 0 for one that was just touched once, -inf for one that never was."""
        return self._ratings.heat(self._rating_of(key))

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
            self._ratings.ghosts,
            self._ratings.packs_known,
            len(self._pins),
            self._pinned_bytes,
        )

    def _rating_of(self, key: RangeKey) -> Rating:
        entry = self._entries.get(key)
        return self._ratings.find(key) if entry is None or entry.rating is None else entry.rating

    def _rate(self, key: RangeKey) -> Rating:
        """The rating of a range. One that has none gets it, an entry of its own, and its place among the victims."""
        entry = self._entries[key]
        if entry.rating is None:
            rating = self._ratings.take(key)
            entry = self._entries[key] = Entry(entry.state, entry.charge, entry.version, rating)
            self._enlist(key, entry)
            return rating
        return entry.rating

    def _coldest(self) -> Iterator[Rating]:
        """Those that may be victims, coldest first: what was restored and never touched goes first."""
        entries, coldest = self._entries, self._ratings.coldest()
        untouched = self._common.keys(entries) if self._common.is_any(entries) else None
        return chain(map(self._ratings.find, untouched), coldest) if untouched else coldest

    def _enlist(self, key: RangeKey, entry: Entry) -> None:
        if key not in self._pins and entry.rating is not None:
            self._ratings.enlist(entry.rating)

    def _enter(self, key: RangeKey, entry: Entry) -> None:
        self._entries[key] = entry
        self._counts[entry.state] += 1
        self._pinned_bytes += entry.charge * (key in self._pins)

    def _next(self, entry: Entry | None, event: Event, key: RangeKey) -> State:
        state = State.ABSENT if entry is None else entry.state
        following = TRANSITIONS.get((state, event))
        if following is None:
            raise TransitionError(f"{event.value} of a range that is {state.value}: {key}")
        return following

    def _move(self, key: RangeKey, event: Event) -> Entry:
        entry = self._entries.get(key)
        following = self._next(entry, event, key)
        assert entry is not None, "what is absent is entered, not moved"
        self._counts[entry.state] -= 1
        if following is not State.ABSENT:
            self._counts[following] += 1
        entry.state = following
        return entry

    def _forget(self, key: RangeKey, entry: Entry) -> None:
        assert entry.rating is not None, "what is filled or evicted has an entry of its own"
        del self._entries[key]
        self._ratings.leave(entry.rating)

    def _check(self) -> None:
        """Assert every invariant. O(n log n): for tests."""
        check(self)
