"""The disk model's time, to the digit: seeks, streams, ordering, and a time line that does not drift."""

from __future__ import annotations

import pytest

from scripts.bench.disk_model import MAX_WAIT_S, DiskModel, Job

SEEK_S = 0.01
RATE = 100e6
MB = 1_000_000


def model() -> DiskModel:
    """A disk with round numbers: 10 ms a seek, 10 ms a MB."""
    return DiskModel(SEEK_S, RATE)


def next_job(disk: DiskModel, now_s: float) -> Job:
    """The next job, which has to be there."""
    job = disk.begin(now_s)
    assert job is not None
    return job


def test_idle_disk_has_no_job() -> None:
    assert model().begin(0.0) is None


def test_first_request_seeks_and_a_following_one_does_not() -> None:
    disk = model()
    disk.submit(0, MB, 5.0)
    assert next_job(disk, 5.0).finish_s == pytest.approx(5.02)
    disk.submit(MB, MB, 5.02)
    assert next_job(disk, 5.02).finish_s == pytest.approx(5.03)
    disk.submit(5 * MB, MB, 5.03)
    assert next_job(disk, 5.03).finish_s == pytest.approx(5.05)
    assert (disk.counters.requests, disk.counters.seeks, disk.counters.bytes) == (3, 2, 3 * MB)
    assert disk.counters.busy_s == pytest.approx(0.05)


def test_reading_the_same_again_is_a_seek() -> None:
    disk = model()
    for now_s in (0.0, 1.0):
        disk.submit(0, MB, now_s)
        assert next_job(disk, now_s).finish_s == pytest.approx(now_s + 0.02)


def test_an_idle_gap_is_not_made_up_for() -> None:
    disk = model()
    disk.submit(0, MB, 0.0)
    next_job(disk, 0.0)
    disk.submit(MB, MB, 9.0)
    assert next_job(disk, 9.0).finish_s == pytest.approx(9.01)


def test_late_callers_do_not_slow_the_disk() -> None:
    disk = model()
    for i in range(10):
        disk.submit(i * MB, MB, 0.0)
    now_s = 0.0
    for i in range(10):
        job = next_job(disk, now_s)
        assert job.finish_s == pytest.approx(SEEK_S + (i + 1) * 0.01)
        now_s = job.finish_s + 0.004  # a timer that is always late


def test_head_takes_what_follows_then_what_is_ahead_then_goes_back() -> None:
    disk = model()
    disk.submit(10 * MB, MB, 0.0)
    next_job(disk, 0.0)
    numbers = {offset: disk.submit(offset * MB, MB, 0.01) for offset in (2, 30, 11, 20, 1)}
    order = [next_job(disk, 0.02).number for _ in numbers]
    assert order == [numbers[offset] for offset in (11, 20, 30, 1, 2)]
    # 11 follows 10, and 2 follows 1: three seeks for five requests, after the first one's.
    assert disk.counters.seeks == 1 + 3


def test_shuffled_neighbours_cost_one_seek() -> None:
    disk = model()
    for offset in (3, 1, 0, 2):
        disk.submit(offset * MB, MB, 0.0)
    finish_s = [next_job(disk, 0.0).finish_s for _ in range(4)]
    assert finish_s[-1] == pytest.approx(SEEK_S + 0.04)


def test_a_stream_starves_nobody() -> None:
    disk = model()
    disk.submit(0, MB, 0.0)
    next_job(disk, 0.0)
    far = disk.submit(900 * MB, MB, 0.0)
    disk.submit(MB, MB, 0.0)
    assert next_job(disk, MAX_WAIT_S).number != far
    disk.submit(2 * MB, MB, MAX_WAIT_S)
    assert next_job(disk, MAX_WAIT_S + 0.001).number == far


def test_a_cancelled_request_takes_no_time() -> None:
    disk = model()
    number = disk.submit(0, MB, 0.0)
    disk.cancel(number)
    disk.cancel(number)
    assert disk.begin(0.0) is None
    assert disk.counters.requests == 0


@pytest.mark.parametrize(("seek_s", "rate"), [(-0.001, 1.0), (0.0, 0.0), (0.0, -1.0)])
def test_impossible_disks_are_refused(seek_s: float, rate: float) -> None:
    with pytest.raises(ValueError, match="seek time"):
        DiskModel(seek_s, rate)
