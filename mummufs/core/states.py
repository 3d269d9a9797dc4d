"""The words of the index: states, events, the transition table, and what it answers."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from mummufs.core.ranges import RangeKey


class State(Enum):
    """The life of a range."""

    ABSENT = "absent"
    FILLING = "filling"
    RESIDENT = "resident"
    EVICTING = "evicting"

    __hash__ = object.__hash__  # an Enum's own is a Python function, and there is one of each


class Event(Enum):
    """What can happen to a range."""

    __hash__ = object.__hash__

    BEGIN_FILL = "begin_fill"
    COMMIT_FILL = "commit_fill"
    ABORT_FILL = "abort_fill"
    RESTORE = "restore"
    RESTAMP = "restamp"
    BEGIN_EVICT = "begin_evict"
    ABORT_EVICT = "abort_evict"
    FINISH_EVICT = "finish_evict"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.ABSENT, Event.BEGIN_FILL): State.FILLING,
    (State.FILLING, Event.COMMIT_FILL): State.RESIDENT,
    (State.FILLING, Event.ABORT_FILL): State.ABSENT,
    (State.ABSENT, Event.RESTORE): State.RESIDENT,
    (State.RESIDENT, Event.RESTAMP): State.RESIDENT,
    (State.RESIDENT, Event.BEGIN_EVICT): State.EVICTING,
    (State.EVICTING, Event.ABORT_EVICT): State.RESIDENT,
    (State.EVICTING, Event.FINISH_EVICT): State.ABSENT,
}
"""Anything else is a programmer's error."""


class Decision(Enum):
    """The answer to a wanted fill."""

    READY = "ready"
    """There is room: `begin_fill` will take it. Victims go all the same, to keep the headroom."""
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


COLDER = FillPlan(Decision.COLDER)


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
    packs: int
    pinned: int
    pinned_bytes: int
