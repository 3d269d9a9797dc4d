"""What is always true of the index. For tests: nothing else calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mummufs.core.states import State

if TYPE_CHECKING:
    from mummufs.core.index import CacheIndex


def check(index: CacheIndex) -> None:
    """Assert every invariant, one sentence each. O(n log n)."""
    entries = index._entries.values()

    def charged(*states: State) -> int:
        return sum(e.charge for e in entries if e.state in states)

    assert all(e.state is not State.ABSENT for e in entries), "an absent range has no entry"
    assert not index._entries.keys() & set(index._ratings.ghost_keys()), "a range is an entry or a ghost, not both"
    assert index._used == charged(State.RESIDENT, State.EVICTING), "used bytes are those of what is on the store"
    assert index._evicting_bytes == charged(State.EVICTING), "evicting bytes are part of them"
    assert index._filling_bytes == charged(State.FILLING), "filling bytes are those promised to fills"
    rated = [(e, e.rating) for e in entries if e.rating is not None]
    assert all(key == e.rating.key for key, e in index._entries.items() if e.rating), "a rating is that of its key"
    listed = [r for e, r in rated if e.state is State.RESIDENT and r.key not in index._pins]
    index._ratings._check(listed, [r for _, r in rated if r not in listed])
    untouched = [key for key, e in index._entries.items() if e.rating is None]
    assert sorted(index._common.keys(index._entries)) == sorted(untouched), "what has no rating is known"
    assert all(index.version(key) and key not in index._pins for key in untouched), "and may be a victim"
    assert all(index._entries[key].state is State.RESIDENT for key in untouched), "what is common is resident"
    pinned = [e.charge for key, e in index._entries.items() if key in index._pins and e.state is not State.EVICTING]
    assert index._pinned_bytes == sum(pinned), "pinned bytes are those that stay or will stay"
    for state, count in index._counts.items():
        assert count == sum(e.state is state for e in entries), f"the count of {state.value} is right"
