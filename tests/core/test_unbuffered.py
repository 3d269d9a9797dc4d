"""The planner of unbuffered reads, held against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.ranges import PAGE_SIZE, ByteRange, page_floor
from mummufs.core.unbuffered import (
    BATCH_BYTES_MAX,
    BATCH_REQUESTS_MAX,
    GAP_BYTES_MAX,
    GRAIN_BYTES,
    REQUEST_BYTES_MAX,
    batches,
    plan_requests,
    reads_unbuffered,
)

MIB = 1 << 20
EDGES = [0, 1, PAGE_SIZE - 1, PAGE_SIZE, GRAIN_BYTES - 1, GRAIN_BYTES, GAP_BYTES_MAX - 1, GAP_BYTES_MAX]
EDGES += [GAP_BYTES_MAX + 1, GAP_BYTES_MAX + PAGE_SIZE, REQUEST_BYTES_MAX - 1, REQUEST_BYTES_MAX, 33 * MIB]
sizes = st.sampled_from(EDGES) | st.integers(0, 70 * MIB) | st.integers(0, 2 * PAGE_SIZE)


@st.composite
def scattered(draw: st.DrawFn) -> list[ByteRange]:
    """Ranges one behind the other, at distances about the limits, in any order, some of them twice."""
    at, parts = draw(st.integers(0, 1 << 50)), []
    for distance, size in draw(st.lists(st.tuples(sizes, sizes), max_size=12)):
        at += distance
        parts.append(ByteRange(at, size))
        at += size
    parts += draw(st.lists(st.sampled_from(parts), max_size=3)) if parts else []
    return draw(st.permutations(parts))


overlapping = st.lists(st.builds(ByteRange, st.integers(0, 80 * MIB), st.integers(0, 40 * MIB)), max_size=8)


def union(parts: Sequence[ByteRange]) -> list[tuple[int, int]]:
    """The bytes of these ranges, as runs that do not touch."""
    runs: list[tuple[int, int]] = []
    for part in sorted(parts):
        if part.size and runs and part.offset <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(runs[-1][1], part.end)
        elif part.size:
            runs.append((part.offset, part.end))
    return runs


def covered(start: int, end: int, requests: Sequence[ByteRange]) -> int:
    """How many bytes of `[start, end)` the requests have, each counted as often as it is read."""
    return sum(max(0, min(end, r.end) - max(start, r.offset)) for r in requests)


def check(wanted: Sequence[ByteRange]) -> None:
    requests = plan_requests(wanted)
    runs = union(wanted)
    for start, end in runs:
        assert covered(start, end, requests) == end - start
    for before, after in itertools.pairwise(requests):
        assert before.end <= after.offset, "no byte is read twice"
    for request in requests:
        assert request.offset % PAGE_SIZE == 0 and request.size % GRAIN_BYTES == 0
        assert 0 < request.size <= REQUEST_BYTES_MAX
        inside = [(max(s, request.offset), min(e, request.end)) for s, e in runs]
        inside = [(s, e) for s, e in inside if s < e]
        assert inside, "nothing is read for nobody"
        assert page_floor(inside[0][0]) == request.offset and request.end - inside[-1][1] < GRAIN_BYTES
        assert all(page_floor(b[0]) - a[1] < GAP_BYTES_MAX for a, b in itertools.pairwise(inside))


@given(scattered())
def test_what_is_wanted_is_read_once_by_requests_that_keep_the_limits(wanted: list[ByteRange]) -> None:
    check(wanted)


@given(overlapping)
def test_ranges_that_overlap(wanted: list[ByteRange]) -> None:
    check(wanted)


@given(scattered())
def test_nothing_nearer_than_a_gap_is_read_by_two_requests_that_one_could_have_read(wanted: list[ByteRange]) -> None:
    for before, after in itertools.pairwise(plan_requests(wanted)):
        last = max(end for start, end in union(wanted) if start < before.end)
        if after.offset - min(last, before.end) < GAP_BYTES_MAX:
            assert after.offset + PAGE_SIZE > before.offset + REQUEST_BYTES_MAX


@given(scattered())
def test_a_plan_of_a_plan_covers_as_much(wanted: list[ByteRange]) -> None:
    requests = plan_requests(wanted)
    again = plan_requests(requests)
    assert sum(r.size for r in again) >= sum(r.size for r in requests)
    check(requests)


@pytest.mark.parametrize(
    ("wanted", "requests"),
    [
        ([], []),
        ([(5, 0)], []),
        ([(0, 1)], [(0, GRAIN_BYTES)]),
        ([(4097, 4096)], [(4096, GRAIN_BYTES)]),
        ([(4096, GRAIN_BYTES)], [(4096, GRAIN_BYTES)]),
        ([(0, 4096), (4096 + MIB, 1)], [(0, GRAIN_BYTES), (4096 + MIB, GRAIN_BYTES)]),
        ([(0, 4096), (MIB, 1)], [(0, MIB + GRAIN_BYTES)]),
        ([(0, 40 * MIB)], [(0, 32 * MIB), (32 * MIB, 8 * MIB)]),
        ([(0, 32 * MIB - 4096), (32 * MIB + 4096, 1)], [(0, 32 * MIB), (32 * MIB + 4096, GRAIN_BYTES)]),
    ],
)
def test_by_example(wanted: list[tuple[int, int]], requests: list[tuple[int, int]]) -> None:
    assert plan_requests(ByteRange(*part) for part in wanted) == requests


@given(scattered())
def test_a_batch_is_as_large_as_the_limits_allow(wanted: list[ByteRange]) -> None:
    requests = plan_requests(wanted)
    cut = list(batches(requests))
    assert list(itertools.chain(*cut)) == requests
    for batch in cut:
        assert batch and len(batch) <= BATCH_REQUESTS_MAX
        assert len(batch) == 1 or sum(r.size for r in batch) <= BATCH_BYTES_MAX
    for batch, following in itertools.pairwise(cut):
        assert len(batch) == BATCH_REQUESTS_MAX or sum(r.size for r in batch) + following[0].size > BATCH_BYTES_MAX


@pytest.mark.parametrize(
    ("files", "memory", "budget", "speed", "unbuffered"),
    [
        (100, 101, 0, None, False),
        (100, 100, 1, None, True),
        (100, 300, 200, None, False),
        (100, 300, 201, None, True),
        (100, 10, 20, None, True),
        (100, 200, 0, 1e9, True),
        (100, 200, 0, 9e9, False),
        (300, 200, 0, 9e9, True),
    ],
)
def test_when_a_source_is_read_past_the_cache(
    files: int, memory: int, budget: int, speed: float | None, unbuffered: bool
) -> None:
    assert reads_unbuffered(files, memory, budget, speed) is unbuffered
