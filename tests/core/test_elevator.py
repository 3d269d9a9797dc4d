"""Turns come in the order of their places, in one direction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.elevator import Elevator
from mummufs.core.ranges import FileId

A, B = FileId(1, 1), FileId(1, 2)


def test_it_goes_up_and_begins_anew_behind_the_last() -> None:
    elevator = Elevator()
    for file, offset in ((B, 10), (A, 50), (A, 20), (B, 5)):
        elevator.add(file, offset)
    first = elevator.take()
    assert first is not None and (first.file, first.offset) == (A, 20)
    elevator.add(A, 10)
    elevator.add(A, 30)
    taken = [elevator.take() for _ in range(5)]
    assert [(turn.file, turn.offset) for turn in taken if turn] == [(A, 30), (A, 50), (B, 5), (B, 10), (A, 10)]
    assert elevator.take() is None


def test_equal_places_go_in_the_order_of_arrival() -> None:
    elevator = Elevator()
    turns = [elevator.add(A, 7) for _ in range(3)]
    assert [elevator.take() for _ in range(3)] == turns


def test_one_that_waits_no_more_has_no_turn() -> None:
    elevator = Elevator()
    gone, stays = elevator.add(A, 1), elevator.add(A, 2)
    elevator.remove(gone)
    elevator.remove(gone)
    assert len(elevator) == 1
    assert elevator.take() is stays
    elevator.remove(stays)
    assert len(elevator) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1000)), max_size=30))
def test_what_waits_at_once_is_one_sweep(places: list[tuple[int, int]]) -> None:
    elevator = Elevator()
    for inode, offset in places:
        elevator.add(FileId(1, inode), offset)
    taken = []
    while (turn := elevator.take()) is not None:
        taken.append((turn.file.inode, turn.offset))
    assert taken == sorted(places)
