"""The breaker: when it opens, when it is probed, when it closes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.breaker import FAULTS_MAX, PROBE_S, PROBE_S_MAX, QUIET_S, STALL_S, Breaker, StoreState, store_state


def test_single_faults_between_answers_do_not_open_it() -> None:
    b = Breaker()
    for i in range(100):
        b.failed(float(i), at_once=False)
        b.succeeded(i + 0.5)
    assert not b.is_open


def test_so_many_in_a_row_open_it() -> None:
    b = Breaker()
    for i in range(FAULTS_MAX - 1):
        b.failed(float(i), at_once=False)
    assert not b.is_open
    b.failed(FAULTS_MAX, at_once=False)
    assert b.is_open


def test_a_fault_that_was_counted_already_neither_opens_it_nor_mends_it() -> None:
    b = Breaker()
    for i in range(FAULTS_MAX):
        assert not b.is_open
        b.failed(float(i), at_once=False)
        b.came_back(i + 0.5)
    assert b.is_open
    b = Breaker()
    b.came_back(10.0)
    b.late(10.0 + STALL_S / 2)
    assert not b.is_open, "something has come back just now"


def test_a_fault_of_the_device_opens_it_at_once() -> None:
    b = Breaker()
    b.succeeded(0.0)
    b.failed(1.0, at_once=True)
    assert b.is_open
    assert b.opened == 1


@pytest.mark.parametrize(("answered_at", "opens"), [(10.0 - STALL_S / 2, False), (10.0 - STALL_S, True)])
def test_a_late_call_opens_it_only_where_nothing_else_is_answered(answered_at: float, opens: bool) -> None:
    b = Breaker()
    b.succeeded(answered_at)
    b.late(10.0)
    assert b.is_open == opens


def test_probes_back_off_and_a_good_one_closes_it() -> None:
    b = Breaker()
    b.failed(100.0, at_once=True)
    pauses = []
    now = 100.0
    for _ in range(8):
        at = b.next_probe()
        assert at is not None
        pauses.append(at - now)
        now = at
        b.probed(now, well=False)
    assert pauses[0] == PROBE_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == PROBE_S_MAX
    b.probed(now, well=True)
    assert not b.is_open
    assert b.next_probe() is None


def test_one_that_opens_again_soon_is_probed_later() -> None:
    b = Breaker()
    b.failed(0.0, at_once=True)
    b.probed(PROBE_S, well=True)
    b.failed(PROBE_S + 0.1, at_once=True)
    assert b.next_probe() == PROBE_S + 0.1 + 2 * PROBE_S
    b.probed(10.0, well=True)
    b.failed(10.0 + QUIET_S, at_once=True)
    assert b.next_probe() == 10.0 + QUIET_S + PROBE_S


def test_the_state_of_the_store() -> None:
    reads, writes = Breaker(), Breaker()
    assert store_state(reads, writes, 0.0) is StoreState.NORMAL
    writes.failed(1.0, at_once=True)
    assert store_state(reads, writes, 1.0) is StoreState.DEGRADED
    reads.failed(2.0, at_once=True)
    assert store_state(reads, writes, 2.0) is StoreState.OFF
    reads.probed(3.0, well=True)
    writes.probed(3.0, well=True)
    assert store_state(reads, writes, 3.0) is StoreState.DEGRADED
    assert store_state(reads, writes, 2.0 + QUIET_S) is StoreState.NORMAL


@given(st.lists(st.tuples(st.sampled_from(["ok", "fail", "at once", "late", "well", "ill"]), st.floats(0, 5))))
def test_whatever_happens_it_is_probed_while_open_and_only_then(events: list[tuple[str, float]]) -> None:
    b, now = Breaker(), 0.0
    for event, later in events:
        now += later
        match event:
            case "ok":
                b.succeeded(now)
            case "fail":
                b.failed(now, at_once=False)
            case "at once":
                b.failed(now, at_once=True)
                assert b.is_open
            case "late":
                b.late(now)
            case _:
                b.probed(now, well=event == "well")
        at = b.next_probe()
        assert (at is not None) == b.is_open
        assert at is None or at <= now + PROBE_S_MAX
