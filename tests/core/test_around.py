"""What disks are asked for besides: a block for the seeks that it has cost, and what follows for who walks through."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.around import (
    AHEAD,
    BLOCK_BYTES,
    BLOCKS_MAX,
    GAP_MAX_BYTES,
    PATIENCE,
    ROWS_MAX,
    SEEK_BYTES,
    WALK_BYTES,
    ReadAround,
)
from mummufs.core.ranges import ByteRange, FileId

FILE = FileId(1, 1)
MIB = 1 << 20
SIZE = 64 * BLOCK_BYTES
WINDOW = 1 * MIB
FAR = WINDOW + GAP_MAX_BYTES
"""So far from a window's start the next one is a seek."""
DUE = -int(-PATIENCE * BLOCK_BYTES // SEEK_BYTES)
"""The seek that has the block asked for."""


def plan(
    around: ReadAround, offset: int, window: int = WINDOW, size: int = SIZE, *, quiet: bool = True
) -> list[ByteRange]:
    runs = around.plan(FILE, ByteRange(offset, window), size, used=window, quiet=quiet)
    around._check()
    return runs


def seeks(around: ReadAround, count: int, at: int = 0, *, quiet: bool = True) -> list[list[ByteRange]]:
    """Windows of the block at `at`, each of which costs a seek: from the last to the first."""
    return [plan(around, at + i * FAR, quiet=quiet) for i in reversed(range(1, count + 1))]


def test_a_block_is_asked_for_when_its_seeks_have_cost_a_part_of_it() -> None:
    around = ReadAround()
    *before, last = seeks(around, DUE, BLOCK_BYTES)
    assert before == [[]] * (DUE - 1)
    assert last == [
        ByteRange(BLOCK_BYTES + FAR, BLOCK_BYTES - FAR),
        ByteRange(BLOCK_BYTES, FAR),
    ], "what a reader waits for first"
    assert around.asked_bytes == BLOCK_BYTES - WINDOW


def test_it_is_asked_for_once_and_what_is_used_of_it_is_counted() -> None:
    around = ReadAround()
    seeks(around, DUE)
    assert around.used_bytes == 0
    assert seeks(around, DUE) == [[]] * DUE
    assert around.used_bytes == DUE * WINDOW


def test_seeks_of_other_blocks_do_not_count() -> None:
    around = ReadAround()
    assert not any(plan(around, block * BLOCK_BYTES) for block in reversed(range(60)))


def test_it_ends_with_the_file() -> None:
    around = ReadAround()
    size = DUE * FAR + WINDOW
    runs = [plan(around, i * FAR, size=size) for i in reversed(range(1, DUE + 1))][-1]
    assert max(run.end for run in runs) == size


def test_not_while_others_wait() -> None:
    around = ReadAround()
    assert not any(seeks(around, DUE + 2, quiet=False))
    assert plan(around, (DUE + 4) * FAR), "the seeks have counted"


def test_a_window_as_large_as_a_block_is_worth_its_seeks_by_itself() -> None:
    around = ReadAround()
    assert not any(plan(around, at, BLOCK_BYTES) for _ in range(DUE) for at in (0, 40 * BLOCK_BYTES))


def test_windows_in_a_row_cost_no_seek() -> None:
    around = ReadAround()
    for _ in range(2):
        assert not any(plan(around, at) for at in range(0, WALK_BYTES - WINDOW, WINDOW))
    assert not any(plan(around, at, quiet=False) for at in (8 * MIB, 12 * MIB, 16 * MIB)), "two jumps are not due"


def test_who_walks_through_has_what_follows_asked_for_before_it_is_there() -> None:
    around = ReadAround()
    asked = 0
    for at in range(0, SIZE, WINDOW):
        runs = plan(around, at, quiet=False)
        walked = at + WINDOW
        if runs:
            window, ahead = runs
            assert window == ByteRange(at, WINDOW)
            assert ahead.offset == max(asked, walked) and ahead.end <= SIZE, "what was asked for is not asked for again"
            assert ahead.end <= walked + AHEAD * walked, "not more than a multiple of what has been read"
            assert ahead.size <= BLOCK_BYTES
            asked = ahead.end
        if walked >= 2 * BLOCK_BYTES and walked < SIZE:
            assert asked > walked, "the disks never stand still"
    assert asked == SIZE


def test_readers_ahead_side_by_side_are_one_walk() -> None:
    around = ReadAround()
    order = [i ^ 3 for i in range(64)]  # four at a time, backwards
    runs = [run for i in order for run in plan(around, i * WINDOW, quiet=False)]
    assert max(run.end for run in runs) > 64 * WINDOW
    assert len(runs) <= 2 * 12


def test_the_kernels_read_ahead_is_no_walk() -> None:
    around = ReadAround()
    for block in reversed(range(20)):
        assert not plan(around, block * BLOCK_BYTES, quiet=False)
        assert not plan(around, block * BLOCK_BYTES + WINDOW, quiet=False)


WINDOWS = st.lists(st.tuples(st.integers(0, 3 * BLOCK_BYTES // WINDOW - 1), st.booleans()), max_size=300)


@given(WINDOWS)
def test_it_costs_a_known_factor_of_what_was_read(windows: list[tuple[int, bool]]) -> None:
    """Blocks cost seeks beforehand, and walks bytes."""
    around = ReadAround()
    size = 3 * BLOCK_BYTES
    for i, quiet in windows:
        for run in plan(around, i * WINDOW, size=size, quiet=quiet):
            assert run.size > 0
            assert 0 <= run.offset < run.end <= size
    by_seeks = len(windows) * SEEK_BYTES / PATIENCE
    by_walks = AHEAD * len(windows) * WINDOW
    assert around.asked_bytes <= by_seeks + by_walks


def test_it_is_bounded() -> None:
    around = ReadAround()
    for inode in range(2 * BLOCKS_MAX):
        around.plan(FileId(1, inode), ByteRange(0, WINDOW), SIZE, used=WINDOW, quiet=True)
    assert len(around._seeks) == BLOCKS_MAX
    assert len(around._rows) == ROWS_MAX
