"""What disks are asked for besides: a block for a seek, while that pays, and the next one for who walks through."""

from __future__ import annotations

import random

from mummufs.core.around import (
    BLOCK_BYTES,
    BLOCKS_MAX,
    PROBE_EVERY,
    SEEK_BYTES,
    STREAMS_MAX,
    ReadAround,
)
from mummufs.core.ranges import ByteRange, FileId

FILE = FileId(1, 1)
MIB = 1 << 20
SIZE = 64 * BLOCK_BYTES
HUGE = 100_000 * BLOCK_BYTES
WINDOW = 2 * MIB


def plan(
    around: ReadAround, offset: int, window: int = WINDOW, size: int = SIZE, *, quiet: bool = True
) -> list[ByteRange]:
    return around.plan(FILE, ByteRange(offset, window), size, used=window, quiet=quiet)


def test_the_first_window_of_a_block_has_it_asked_for_whole() -> None:
    for at in range(0, BLOCK_BYTES, WINDOW):
        around = ReadAround()
        runs = plan(around, BLOCK_BYTES + at)
        assert sum(run.size for run in runs) == BLOCK_BYTES
        assert min(run.offset for run in runs) == BLOCK_BYTES
        assert max(run.end for run in runs) == 2 * BLOCK_BYTES
        assert [run.offset for run in runs] == [BLOCK_BYTES + at, BLOCK_BYTES][: 2 if at else 1], "the window first"


def test_it_is_asked_for_once() -> None:
    around = ReadAround()
    assert plan(around, 10 * MIB)
    order = list(range(0, BLOCK_BYTES, 4 * MIB))
    random.Random(1).shuffle(order)
    assert [plan(around, at) for at in order] == [[]] * len(order)


def test_it_ends_with_the_file() -> None:
    (run,) = plan(ReadAround(), 0, size=5 * MIB)
    assert run == ByteRange(0, 5 * MIB)


def test_not_while_others_wait() -> None:
    around = ReadAround()
    assert plan(around, 0, quiet=False) == []
    assert plan(around, 0) != []


def test_a_window_that_reaches_into_the_next_block_is_asked_for_whole() -> None:
    around = ReadAround()
    runs = plan(around, BLOCK_BYTES - MIB)
    assert runs[0] == ByteRange(BLOCK_BYTES - MIB, WINDOW)


def test_a_window_as_large_as_a_block_is_worth_its_seek_by_itself() -> None:
    assert plan(ReadAround(), 0, BLOCK_BYTES) == []


def test_who_walks_through_has_the_next_block_asked_for_before_it_is_there() -> None:
    around = ReadAround()
    asked = [run for at in range(0, 3 * BLOCK_BYTES, WINDOW) for run in plan(around, at, quiet=False)]
    blocks = {run.offset // BLOCK_BYTES for run in asked if run.size == BLOCK_BYTES}
    assert blocks == {1, 2, 3}
    around = ReadAround()
    plan(around, 0)
    early = [at for at in range(WINDOW, BLOCK_BYTES, WINDOW) if plan(around, at)]
    assert early == [BLOCK_BYTES // 2], "once, half a block ahead"


def test_a_walk_is_told_from_jumps_and_from_standing_still() -> None:
    around = ReadAround()
    last = BLOCK_BYTES - WINDOW
    assert plan(around, last, quiet=False) == []
    assert plan(around, last, quiet=False) == [], "the same window again"
    assert plan(around, 40 * MIB, quiet=False) == []
    assert plan(around, last, quiet=False) == [], "a jump"


def test_the_walk_ends_with_the_file() -> None:
    around = ReadAround()
    asked = [run for at in range(0, 2 * BLOCK_BYTES, WINDOW) for run in plan(around, at, size=2 * BLOCK_BYTES)]
    assert max(run.end for run in asked) == 2 * BLOCK_BYTES


def test_it_stops_where_it_does_not_pay_and_goes_on_where_it_does() -> None:
    around = ReadAround()
    rng = random.Random(2)
    for _ in range(BLOCKS_MAX + 200):  # nothing of a block is ever used
        plan(around, rng.randrange(HUGE // BLOCK_BYTES) * BLOCK_BYTES, size=HUGE)
    assert around.share < WINDOW / (SEEK_BYTES + WINDOW)
    asked = [plan(around, rng.randrange(HUGE // BLOCK_BYTES) * BLOCK_BYTES, size=HUGE) for _ in range(10 * PROBE_EVERY)]
    assert sum(map(bool, asked)) == 10, "now and then it is tried"
    assert plan(around, 3 * BLOCK_BYTES, 64 << 10, size=HUGE), "for small windows a seek is dearer"
    for block in range(200 * PROBE_EVERY):  # all of every block is used
        for at in range(0, BLOCK_BYTES, 4 * MIB):
            plan(around, block * BLOCK_BYTES + at, 4 * MIB, size=HUGE)
    assert around.share > 0.5


def test_it_is_bounded() -> None:
    around = ReadAround()
    for inode in range(2000):
        around.plan(FileId(1, inode), ByteRange(0, WINDOW), SIZE, used=WINDOW, quiet=True)
    assert len(around._used) == BLOCKS_MAX
    assert len(around._streams) == STREAMS_MAX
    assert 0 <= around.share <= 1
