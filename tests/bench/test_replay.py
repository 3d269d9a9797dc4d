"""The compiled reader: what it reads, in which steps, and what it does at a limit and at a file's end."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click
import pytest

from scripts.bench.replay import Mode, Range, StepTime, program, replay, shuffled, whole_in_pieces
from scripts.bench.tokens_bench import token_seconds

SIZE = 3 * 4096 + 100
MODES = get_args(Mode)


@pytest.fixture(scope="module")
def executable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled."""
    return program(tmp_path_factory.mktemp("replay"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that ends inside a page."""
    path = tmp_path / "file, with a comma"
    path.write_bytes(bytes(SIZE))
    return path


@pytest.mark.parametrize("mode", MODES)
def test_each_step_is_read_whole(executable: Path, file: Path, mode: Mode) -> None:
    steps = [[Range(0, 10), Range(4090, 4100)], [Range(SIZE - 1, 1)], [Range(0, SIZE)]]
    times, command = replay(executable, file, mode, steps)
    assert [(time.wanted_bytes, time.done_bytes) for time in times] == [(4110, 4110), (1, 1), (SIZE, SIZE)]
    assert all(time.seconds > 0 for time in times)
    assert command[1:3] == [str(file), mode]


@pytest.mark.parametrize("mode", MODES)
def test_the_caller_is_asked_after_each_step(executable: Path, file: Path, mode: Mode) -> None:
    asked: list[None] = []
    times, _ = replay(executable, file, mode, [[Range(0, 10)]] * 3, between=lambda: asked.append(None))
    assert len(times) == len(asked) == 3


@pytest.mark.parametrize("mode", MODES)
def test_a_step_that_takes_too_long_is_cut_short(executable: Path, tmp_path: Path, mode: Mode) -> None:
    path = tmp_path / "large"
    size = 64 << 20
    path.write_bytes(b"")
    with path.open("r+b") as file:
        file.truncate(size)
    (time,), _ = replay(executable, path, mode, [whole_in_pieces(size, 1 << 20)], limit_s=1e-9)
    assert time.wanted_bytes == size
    assert time.done_bytes < size


@pytest.mark.parametrize("mode", ["pread", "direct"])
def test_a_range_beyond_the_end_is_refused(executable: Path, file: Path, mode: Mode) -> None:
    with pytest.raises(click.ClickException, match="the file ends inside a range"):
        replay(executable, file, mode, [[Range(0, SIZE + 1)]])


def test_a_file_that_is_not_there_is_named(executable: Path, tmp_path: Path) -> None:
    with pytest.raises(click.ClickException, match="missing: No such file"):
        replay(executable, tmp_path / "missing", "pread", [[Range(0, 1)]])


def test_pieces_cover_a_file_once() -> None:
    assert whole_in_pieces(10, 4) == [Range(0, 4), Range(4, 4), Range(8, 2)]


def test_a_shuffle_depends_on_its_seed_alone() -> None:
    ranges = whole_in_pieces(100, 1)
    assert shuffled(ranges, 1) == shuffled(ranges, 1) != shuffled(ranges, 2)
    assert sorted(shuffled(ranges, 1), key=lambda part: part.offset) == ranges


def test_a_time_is_extrapolated_by_bytes() -> None:
    assert token_seconds(StepTime(wanted_bytes=100, done_bytes=25, seconds=2.0)) == pytest.approx(8.0)
