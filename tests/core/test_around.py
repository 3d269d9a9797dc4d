"""What disks are asked for besides: a row in its order, what rows reach around their windows, and what walks follow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.around import (
    AHEAD,
    AHEAD_MAX_BYTES,
    FILES_MAX,
    GAP_MAX_BYTES,
    REACH_MAX_BYTES,
    REACHES,
    ROWS_MAX,
    SPILL_BYTES,
    WALK_BYTES,
    Along,
    Reach,
    ReadAround,
)
from mummufs.core.ranges import ByteRange, FileId

FILE = FileId(1, 1)
MIB = 1 << 20
SIZE = 2 << 30
WINDOW = 1 * MIB
FAR = 64 << 20
WALK_STARTS = WALK_BYTES + SPILL_BYTES
"""A row as long as this is a walk."""


def plan(around: ReadAround, offset: int, window: int = WINDOW, size: int = SIZE, *, from_start: bool = True) -> Along:
    along = around.plan(FILE, ByteRange(offset, window), size, used=window, from_start=from_start)
    around._check()
    return along


def begins(around: ReadAround, offset: int, size: int = SIZE) -> Reach | None:
    reach = around.begins(FILE, ByteRange(offset, WINDOW), size)
    around._check()
    return reach


def rows(around: ReadAround, count: int, at: int, before: int = 0, after: int = 0) -> None:
    """Rows that reach so far around a window that their reader came for."""
    for i in range(count):
        start = at + i * FAR
        if before:
            plan(around, start - before, before, from_start=False)
        plan(around, start)
        begins(around, start)
        if after:
            plan(around, start + WINDOW, after)


def test_a_row_is_asked_for_from_its_start_on_by_each_of_its_reads() -> None:
    around = ReadAround()
    assert plan(around, FAR) == Along([], [], again=False)
    assert plan(around, FAR + 2 * WINDOW) == Along([ByteRange(FAR, 2 * WINDOW)], [], again=True), "and what it skips"
    assert plan(around, FAR + 3 * WINDOW).before == [ByteRange(FAR + 3 * WINDOW - GAP_MAX_BYTES, GAP_MAX_BYTES)]
    assert plan(around, FAR + WINDOW).before == [ByteRange(FAR, WINDOW)], "those that come late too"
    assert plan(around, FAR - WINDOW) == Along([], [], again=True), "one that comes before all of it"
    assert around.asked_bytes == 0, "it would be read all the same"


def test_what_rows_reach_around_their_windows_is_asked_for_with_the_next() -> None:
    around = ReadAround()
    rows(around, ROWS_MAX, FAR, before=WINDOW, after=2 * WINDOW)
    assert plan(around, 30 * FAR).before == [], "none of them is certain to be over"
    assert begins(around, 30 * FAR) == Reach(WINDOW, 2 * WINDOW), "now the first is"
    assert plan(around, 40 * FAR) == Along([ByteRange(40 * FAR - WINDOW, WINDOW)], [], again=False)
    assert around.asked_bytes == 3 * WINDOW
    plan(around, 40 * FAR - WINDOW)
    assert around.used_bytes == WINDOW


def test_what_no_row_has_reached_lately_is_not_asked_for() -> None:
    around = ReadAround()
    rows(around, ROWS_MAX + 1, FAR, before=WINDOW, after=WINDOW)
    rows(around, REACHES, 20 * FAR)
    assert begins_far(around, 30 * FAR) == Reach(WINDOW, WINDOW)
    rows(around, REACHES + ROWS_MAX, 40 * FAR)
    assert begins_far(around, 60 * FAR) == Reach(0, 0)


def begins_far(around: ReadAround, offset: int) -> Reach | None:
    plan(around, offset)
    return begins(around, offset)


def test_a_row_that_begins_with_the_end_of_a_window_is_the_kernels_and_reaches_no_further() -> None:
    around = ReadAround()
    rows(around, ROWS_MAX + 1, FAR, before=WINDOW)
    assert plan(around, 20 * FAR, from_start=False).before == []


def test_a_walk_says_nothing_of_what_rows_reach() -> None:
    around = ReadAround()
    rows(around, ROWS_MAX + REACHES, FAR, after=REACH_MAX_BYTES + WINDOW)
    assert begins_far(around, 60 * FAR) == Reach(0, 0)


def test_reaches_end_with_the_file() -> None:
    around = ReadAround()
    rows(around, ROWS_MAX + 1, FAR, before=2 * WINDOW, after=2 * WINDOW)
    assert plan(around, WINDOW).before == [ByteRange(0, WINDOW)]
    assert Reach(2 * WINDOW, 2 * WINDOW).around(ByteRange(WINDOW, WINDOW), 3 * WINDOW) == ByteRange(0, 3 * WINDOW)
    assert Reach(0, WINDOW).around(ByteRange(WINDOW, WINDOW), WINDOW) == ByteRange(WINDOW, WINDOW), "or where it ended"


def test_the_reader_came_for_the_first_window_of_a_row_that_is_read_from_its_start() -> None:
    around = ReadAround()
    plan(around, FAR - WINDOW, from_start=False)
    plan(around, FAR)
    assert begins(around, FAR) is not None
    plan(around, FAR + WINDOW)
    assert begins(around, FAR + WINDOW) is None, "the kernel reads ahead"
    assert begins(around, 5 * FAR) is None, "nobody reads there"


def test_readers_side_by_side_have_a_row_each() -> None:
    around = ReadAround()
    for step in range(3):
        for reader in range(ROWS_MAX):
            along = plan(around, reader * FAR + step * WINDOW)
            assert along.again == (step > 0)
            assert (begins(around, reader * FAR + step * WINDOW) is not None) == (step == 0)


def test_who_walks_through_has_what_follows_asked_for_before_he_is_there() -> None:
    around = ReadAround()
    asked = 0
    for at in range(0, SIZE, WINDOW):
        walked = at + WINDOW
        for ahead in plan(around, at).ahead:
            assert ahead.offset == max(asked, walked) and ahead.end <= SIZE, "what was asked for is not asked for again"
            assert ahead.end <= walked + AHEAD * walked, "not more than a share of what has been read"
            assert ahead.size <= AHEAD_MAX_BYTES
            asked = ahead.end
        if walked >= 2 * AHEAD_MAX_BYTES and walked < SIZE:
            assert asked > walked, "the disks never stand still"
    assert asked == SIZE
    assert around.used_bytes / around.asked_bytes > 0.9


def test_the_kernels_read_ahead_is_no_walk() -> None:
    around = ReadAround()
    for i in range(60):
        for at in range(0, WALK_STARTS - WINDOW, WINDOW):
            assert not plan(around, i * FAR + at).ahead


def test_two_large_windows_are_no_walk() -> None:
    around = ReadAround()
    window = 2 * WALK_BYTES
    assert not plan(around, FAR, window).ahead
    assert not plan(around, FAR + window, window).ahead
    assert plan(around, FAR + 2 * window, window).ahead


def test_readers_ahead_side_by_side_are_one_walk() -> None:
    around = ReadAround()
    order = [i ^ 1 for i in range(64)]  # two at a time, backwards
    ahead = [run for i in order for run in plan(around, i * WINDOW).ahead]
    assert max(run.end for run in ahead) > 64 * WINDOW
    assert len(ahead) <= 12


READS = st.lists(st.tuples(st.integers(0, 255), st.booleans(), st.booleans()), max_size=300)


@given(READS)
def test_it_costs_a_known_factor_of_what_was_read(reads: list[tuple[int, bool, bool]]) -> None:
    """What a row reaches and what a walk has walked was read before. And nothing outside the file is asked for."""
    around = ReadAround()
    size = 256 * WINDOW
    for i, from_start, begin in reads:
        along = plan(around, i * WINDOW, size=size, from_start=from_start)
        for run in (*along.before, *along.ahead):
            assert run.size > 0
            assert 0 <= run.offset < run.end <= size
        assert all(run.end == i * WINDOW for run in along.before)
        reach = begins(around, i * WINDOW, size) if begin else None
        assert reach is None or max(reach) <= REACH_MAX_BYTES
    read_bytes = len(reads) * (WINDOW + GAP_MAX_BYTES)
    assert around.asked_bytes <= (AHEAD + 2 * REACHES) * read_bytes


def test_it_is_bounded() -> None:
    around = ReadAround()
    for inode in range(2 * FILES_MAX):
        around.plan(FileId(1, inode), ByteRange(0, WINDOW), SIZE, used=WINDOW, from_start=True)
    assert len(around._files) == FILES_MAX
    rows(around, 3 * ROWS_MAX, FAR)
    assert len(around._files[FILE].rows) == ROWS_MAX
