"""The index as a state machine: every sequence of calls keeps the budget, the order and the transition table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import floor, log2

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mummufs.core.errors import TransitionError
from mummufs.core.hotness import COLD, log2_sum
from mummufs.core.index import CacheIndex
from mummufs.core.order import Order
from mummufs.core.policy import KNOWN, POLICIES, HotnessPolicy, Pack, Policy
from mummufs.core.ranges import PAGE_SIZE, FileId, RangeKey, Version
from mummufs.core.ratings import BEFORE, STRANGERS, HeatRecord, Rating
from mummufs.core.states import TRANSITIONS, Decision, Event, FillPlan, State

BUDGET = 24 * PAGE_SIZE
OLD, NEW = Version(1 << 20, 1, 1), Version(1 << 20, 2, 2)
MOVED = Version(1 << 20, 1, 3)
"""OLD after a chmod."""
VERSIONS = [OLD, NEW, MOVED]


def _key(i: int, pages: int = 3) -> RangeKey:
    return RangeKey(FileId(1, i), 0, pages * PAGE_SIZE)


KEYS = [_key(i, 1 + i % 5) for i in range(14)]


def _charge(key: RangeKey) -> int:
    return key.size + PAGE_SIZE


PACKS = [b"a", b"b", b"c"]


@dataclass
class _Known:
    """What the model knows of a range that is not absent."""

    state: State
    charge: int
    version: Version


class IndexMachine(RuleBasedStateMachine):
    """Random calls against plain dictionaries that remember everything."""

    policy_name = "hotness"

    def __init__(self) -> None:
        super().__init__()
        self.index = CacheIndex(BUDGET, POLICIES[self.policy_name](BUDGET))
        self.policy: Policy = POLICIES[self.policy_name](BUDGET)
        self.known: dict[RangeKey, _Known] = {}
        self.packs = {name: Pack(name, Order(self.policy.steps)) for name in (STRANGERS, *PACKS)}
        self.files: dict[FileId, Pack] = {}
        self.uses: dict[RangeKey, Rating] = {}  # as records that stand in no order
        self.untouched: list[RangeKey] = []  # since they were restored
        self.pins: set[RangeKey] = set()
        self.overhead = 0
        self.touches = 0
        self.read_bytes = 0
        self.made = {STRANGERS: None}
        self.listings = 0
        self.listed: dict[RangeKey, int] = {}

    # ------------------------------------------------------------------ the model

    def bytes_in(self, *states: State) -> int:
        return sum(known.charge for known in self.known.values() if known.state in states)

    @property
    def free(self) -> int:
        return BUDGET - self.overhead - self.bytes_in(State.RESIDENT, State.EVICTING, State.FILLING)

    def use(self, key: RangeKey) -> Rating:
        return self.uses.get(key) or Rating(key, self.files.get(key.file, self.packs[STRANGERS]))

    def list_now(self, key: RangeKey) -> None:
        """A range goes to the end of its step's queue."""
        known = self.known.get(key)
        if known is not None and known.state is State.RESIDENT and key not in self.pins:
            self.listings += 1
            self.listed[key] = self.listings

    def settle(self, key: RangeKey) -> Rating:
        """A range goes over to its file's pack."""
        use, pack = self.use(key), self.files.get(key.file, self.packs[STRANGERS])
        if use.pack is not pack:
            heat = self.policy.heat(use.pack, use.date)
            use.pack = pack
            self.policy.recall(use, heat)
        self.uses[key] = use
        return use

    def forget(self, key: RangeKey) -> None:
        """A range is absent again."""
        if not self.policy.remembers or self.uses[key].date == COLD:
            del self.uses[key]

    def coldest_first(self) -> list[RangeKey]:
        resident = [key for key, known in self.known.items() if known.state is State.RESIDENT and key not in self.pins]

        def place(key: RangeKey) -> tuple[float, int, float, int]:
            """By steps; of equal scores in the order of packs; in a step by who was listed first."""
            use, steps = self.use(key), self.policy.steps
            step = COLD if use.date == COLD else floor(use.date * steps) / steps
            number = list(self.made).index(use.pack.name)
            return self.policy.score(use.pack, step), number, step, self.listed[key]

        touched = [key for key in resident if key not in self.untouched]
        return [*reversed(self.untouched), *sorted(touched, key=place)]

    def touched(self, key: RangeKey) -> None:
        """It is not any more as it was restored."""
        if key in self.untouched:
            self.untouched.remove(key)

    def admitted(self, key: RangeKey, victim: RangeKey) -> bool:
        """As if the pass that is under way were over."""
        use, its = self.use(key), self.use(victim)
        pack = self.files.get(key.file, self.packs[STRANGERS])
        heat = self.policy.heat(use.pack, use.date)
        whole = log2_sum(heat, log2(1 - use.part)) if use.part or heat == COLD else heat
        return key in self.pins or self.policy.admits(pack, whole, its)

    def in_state(self, state: State) -> list[RangeKey]:
        return sorted(key for key, known in self.known.items() if known.state is state)

    def check_plan(self, key: RangeKey, version: Version, plan: FillPlan) -> None:
        """Every promise of `plan_fill`, from the model alone."""
        known, charge = self.known.get(key), _charge(key)
        stale = known is not None and known.state is State.RESIDENT and known.version != version
        if charge > BUDGET - self.overhead:
            assert plan == FillPlan(Decision.TOO_LARGE)
            return
        if known is not None and known.state is State.EVICTING:
            assert plan == FillPlan(Decision.ROOM)
            return
        if known is not None and stale and {known.version, version} == {OLD, MOVED}:
            assert plan == FillPlan(Decision.SUSPENDED)
            return
        if known is not None and not stale:
            assert plan == FillPlan(Decision.PRESENT)
            return
        others = [k for k in self.coldest_first() if k != key]
        first = [key] if stale else []
        victims = list(plan.victims)
        to_come = self.free + self.bytes_in(State.EVICTING)
        if plan.decision is Decision.COLDER:
            assert not victims
            assert any(not self.admitted(key, other) for other in others)
            return
        if plan.decision is Decision.NO_VICTIMS:
            assert not victims
            assert to_come + sum(self.known[k].charge for k in [*first, *others]) < charge
            return
        assert victims == first + others[: len(victims) - len(first)], "the stale file, then the coldest"
        assert all(self.admitted(key, victim) for victim in victims if victim != key), "each is worth less"
        room = to_come + sum(self.known[k].charge for k in victims)
        assert room >= charge, "with the victims gone there is room"
        if victims[len(first) :]:
            assert room - self.known[victims[-1]].charge < charge, "and none goes for nothing"
        ready = not stale and charge <= self.free
        assert plan.decision is (Decision.READY if ready else Decision.ROOM)

    # ------------------------------------------------------------------ the calls

    @rule(key=st.sampled_from(KEYS), version=st.sampled_from(VERSIONS))
    def fill(self, key: RangeKey, version: Version) -> None:
        plan = self.index.plan_fill(key, _charge(key), version)
        self.check_plan(key, version, plan)
        if plan.decision is Decision.READY:
            self.index.begin_fill(key, _charge(key), version)
            self.known[key] = _Known(State.FILLING, _charge(key), version)
            self.uses.setdefault(key, self.use(key))
            assert self.free >= 0, "a fill never passes the budget"
        for victim in plan.victims:
            self.begin_evict(victim)

    @precondition(lambda self: self.in_state(State.FILLING))
    @rule(data=st.data(), whole=st.booleans())
    def end_fill(self, data: st.DataObject, whole: bool) -> None:
        key = data.draw(st.sampled_from(self.in_state(State.FILLING)))
        if whole:
            self.index.commit_fill(key)
            self.known[key].state = State.RESIDENT
            self.list_again(key)
        else:
            self.index.abort_fill(key)
            del self.known[key]
            self.forget(key)

    def list_again(self, key: RangeKey) -> None:
        if key not in self.pins:
            self.settle(key)
            self.list_now(key)

    @rule(key=st.sampled_from(KEYS), size=st.integers(0, 8 * PAGE_SIZE), hit=st.booleans())
    def touch(self, key: RangeKey, size: int, hit: bool) -> None:
        self.index.touch(key, size, hit=hit)
        if size == 0:
            return
        self.touched(key)
        use, weight = self.settle(key), min(1.0, size / key.size)
        if not use.part:
            soon = self.read_bytes - use.read_at <= self.policy.again_bytes
            use.again = soon or self.policy.heat(use.pack, use.date) >= KNOWN
            use.read_at = self.read_bytes
        self.read_bytes += size
        self.touches += 1
        use.seq = self.touches
        self.policy.touch(use, size, weight, hit)
        use.part = use.part + weight if use.part + weight < 1 - 1e-9 else 0.0
        self.list_now(key)

    @rule(key=st.sampled_from(KEYS), name=st.sampled_from([STRANGERS, *PACKS]))
    def join(self, key: RangeKey, name: bytes) -> None:
        self.index.join(key.file, name)
        if self.policy.has_packs:
            self.files[key.file] = self.packs[name]
            self.made[name] = None

    @rule(key=st.sampled_from(KEYS), pinned=st.booleans())
    def pin(self, key: RangeKey, pinned: bool) -> None:
        was, known = key in self.pins, self.known.get(key)
        (self.index.pin if pinned else self.index.unpin)(key)
        (self.pins.add if pinned else self.pins.discard)(key)
        if pinned:
            self.touched(key)
        if was and not pinned and known is not None and known.state is State.RESIDENT:
            self.list_again(key)

    @rule(key=st.sampled_from(KEYS), heat=st.floats(-5, 20), seq=st.integers(0, 1000))
    def recall(self, key: RangeKey, heat: float, seq: int) -> None:
        self.index.recall(HeatRecord(key, heat, seq))
        self.touched(key)
        use = self.settle(key)
        use.seq = use.seq or seq - BEFORE
        total = log2_sum(self.policy.heat(use.pack, use.date), heat)
        self.policy.recall(use, total)
        self.list_now(key)

    @rule(key=st.sampled_from(KEYS), version=st.sampled_from(VERSIONS))
    def restore(self, key: RangeKey, version: Version) -> None:
        assert self.index.restore(key, _charge(key), version) == (key not in self.known)
        if key not in self.known:
            self.known[key] = _Known(State.RESIDENT, _charge(key), version)
            if key not in self.uses and key not in self.pins:
                self.untouched.append(key)
            self.uses.setdefault(key, self.use(key))
            self.list_again(key)

    @precondition(lambda self: self.in_state(State.RESIDENT))
    @rule(data=st.data(), version=st.sampled_from(VERSIONS))
    def restamp(self, data: st.DataObject, version: Version) -> None:
        key = data.draw(st.sampled_from(self.in_state(State.RESIDENT)))
        self.index.restamp(key, version)
        self.known[key].version = version

    @rule(pages=st.integers(0, 6))
    def set_overhead(self, pages: int) -> None:
        self.overhead = pages * PAGE_SIZE
        self.index.set_overhead(self.overhead)

    @rule()
    def evict_in_the_background(self) -> None:
        victims = list(self.index.plan_eviction())
        taken = BUDGET - self.free - self.bytes_in(State.EVICTING)
        assert victims == self.coldest_first()[: len(victims)]
        after = taken - sum(self.known[key].charge for key in victims)
        assert after <= BUDGET or victims == self.coldest_first()
        if victims:
            assert after + self.known[victims[-1]].charge > BUDGET, "and none goes for nothing"
        for key in victims:
            self.begin_evict(key)

    def begin_evict(self, key: RangeKey) -> None:
        assert self.index.begin_evict(key) == self.known[key].charge
        self.known[key].state = State.EVICTING
        self.touched(key)

    @precondition(lambda self: self.in_state(State.EVICTING))
    @rule(data=st.data())
    def finish_evict(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.in_state(State.EVICTING)))
        self.index.finish_evict(key)
        del self.known[key]
        self.forget(key)

    @precondition(lambda self: self.in_state(State.EVICTING))
    @rule(data=st.data())
    def abort_evict(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.in_state(State.EVICTING)))
        self.index.abort_evict(key)
        self.known[key].state = State.RESIDENT
        self.list_again(key)

    @rule(key=st.sampled_from(KEYS), event=st.sampled_from(Event))
    def a_transition_out_of_the_table_changes_nothing(self, key: RangeKey, event: Event) -> None:
        state = self.index.state(key)
        if (state, event) in TRANSITIONS or event is Event.RESTORE or (event is Event.BEGIN_FILL and self.free < 0):
            return
        with pytest.raises(TransitionError):
            _send(self.index, event, key, charge=0)

    # ------------------------------------------------------------------ after every call

    @invariant()
    def the_index_and_the_model_agree(self) -> None:
        self.index._check()
        statistics = self.index.statistics()
        assert statistics.used_bytes == self.bytes_in(State.RESIDENT, State.EVICTING)
        assert statistics.filling_bytes == self.bytes_in(State.FILLING)
        assert statistics.overhead_bytes == self.overhead
        assert self.index.free_bytes == self.free
        pinned = [key for key in self.in_state(State.RESIDENT) if key in self.pins]
        assert list(self.index.resident_keys()) == self.coldest_first() + pinned
        ghosts = self.uses.keys() - self.known.keys()
        assert statistics.ghosts == len(ghosts)
        staying = [k for k in self.known if k in self.pins and self.known[k].state is not State.EVICTING]
        assert self.index.pinned_bytes == sum(self.known[k].charge for k in staying)
        records = {record.key: record.heat for step in self.index.hot_steps(256) for record in step}
        heats = {key: self.policy.heat(use.pack, use.date) for key, use in self.uses.items() if use.date != COLD}
        assert records == heats
        assert all(self.index.heat(key) == heats.get(key, COLD) for key in KEYS)
        for key in KEYS:
            known = self.known.get(key)
            assert self.index.state(key) is (known.state if known else State.ABSENT)
            served = known.version if known is not None and known.state is State.RESIDENT else None
            for version in VERSIONS:
                assert self.index.is_resident(key, version) == (served == version)


class LruIndexMachine(IndexMachine):
    """The same under another policy."""

    policy_name = "lru"


class LfuIndexMachine(IndexMachine):
    """And another."""

    policy_name = "lfu"


class DecayIndexMachine(IndexMachine):
    """And one that forgets."""

    policy_name = "decay"


_SETTINGS = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHotnessIndex = IndexMachine.TestCase
TestHotnessIndex.settings = _SETTINGS
TestLruIndex = LruIndexMachine.TestCase
TestLruIndex.settings = _SETTINGS
TestLfuIndex = LfuIndexMachine.TestCase
TestLfuIndex.settings = _SETTINGS
TestDecayIndex = DecayIndexMachine.TestCase
TestDecayIndex.settings = _SETTINGS


# ---------------------------------------------------------------------- transitions


def _send(index: CacheIndex, event: Event, key: RangeKey, charge: int = PAGE_SIZE) -> object:
    calls: dict[Event, Callable[[], object]] = {
        Event.BEGIN_FILL: lambda: index.begin_fill(key, charge, OLD),
        Event.COMMIT_FILL: lambda: index.commit_fill(key),
        Event.ABORT_FILL: lambda: index.abort_fill(key),
        Event.RESTORE: lambda: index.restore(key, charge, OLD),
        Event.RESTAMP: lambda: index.restamp(key, NEW),
        Event.BEGIN_EVICT: lambda: index.begin_evict(key),
        Event.ABORT_EVICT: lambda: index.abort_evict(key),
        Event.FINISH_EVICT: lambda: index.finish_evict(key),
    }
    return calls[event]()


_WAY_TO = {
    State.ABSENT: (),
    State.FILLING: (Event.BEGIN_FILL,),
    State.RESIDENT: (Event.BEGIN_FILL, Event.COMMIT_FILL),
    State.EVICTING: (Event.RESTORE, Event.BEGIN_EVICT),
}


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_only_the_transitions_of_the_table_exist(state: State, event: Event) -> None:
    index, key = CacheIndex(BUDGET, HotnessPolicy(BUDGET)), KEYS[0]
    for step in _WAY_TO[state]:
        _send(index, step, key)
    before = index.statistics()
    assert index.state(key) is state
    if (state, event) in TRANSITIONS:
        assert _send(index, event, key) is not False
        assert index.state(key) is TRANSITIONS[state, event]
    elif event is Event.RESTORE:  # a scan finds what is known already, and is told so
        assert _send(index, event, key) is False
        assert index.statistics() == before
    else:
        with pytest.raises(TransitionError, match=f"{event.value} of a range that is {state.value}"):
            _send(index, event, key)
        assert index.statistics() == before
    index._check()


def test_a_fill_without_room_is_a_programmers_error() -> None:
    index = CacheIndex(BUDGET, HotnessPolicy(BUDGET))
    with pytest.raises(AssertionError, match="plan_fill comes first"):
        index.begin_fill(KEYS[0], BUDGET + 1, OLD)
    assert index.state(KEYS[0]) is State.ABSENT
