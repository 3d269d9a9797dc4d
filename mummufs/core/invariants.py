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

    assert all(key == e.key for key, e in index._entries.items()), "an entry is listed under its key"
    assert all(e.state is not State.ABSENT for e in entries), "an absent range has no entry"
    assert not index._entries.keys() & index._ratings._ghosts.keys(), "a range is an entry or a ghost, not both"
    assert index._used == charged(State.RESIDENT, State.EVICTING), "used bytes are those of what is on the store"
    assert index._evicting_bytes == charged(State.EVICTING), "evicting bytes are part of them"
    assert index._filling_bytes == charged(State.FILLING), "filling bytes are those promised to fills"
    rated = [(e, e.rating) for e in entries if e.rating is not None]
    listed = [r for e, r in rated if e.state is State.RESIDENT and e.key not in index._pins]
    index._ratings._check(listed, [r for _, r in rated if r not in listed])
    untouched = [e.key for e in index._untouched if e.rating is None]
    assert sorted(untouched) == sorted(e.key for e in entries if e.rating is None), "what has no rating is known"
    assert all(index.version(key) and key not in index._pins for key in untouched), "and may be a victim"
    pinned = [e.charge for e in entries if e.key in index._pins and e.state is not State.EVICTING]
    assert index._pinned_bytes == sum(pinned), "pinned bytes are those that stay or will stay"
    for state, count in index._counts.items():
        assert count == sum(e.state is state for e in entries), f"the count of {state.value} is right"
