"""Reads past the file cache, planned: which requests bring the bytes that are wanted.

Theory of operation. Such a read begins at a multiple of PAGE_SIZE, and is fast only where its size is a multiple of
GRAIN_BYTES (NTFS gave 831 MB/s for other sizes, 2,900 for these). A large request is worth more than a small one:
where somebody else has the file cached, NTFS reads it in one request at a time. So runs that lie less than
GAP_BYTES_MAX apart become one run, gaps included, and a run is cut into requests of at most REQUEST_BYTES_MAX from its
beginning. What is read of a gap at either end of a request is left out again.

    wanted      ..####..##....#..............................####..
    runs        [ ##############]                            [####]      bytes in one run are less than a gap apart
    requests    [  32 MiB  ][ 64 KiB x n ]                   [ 64 KiB x n ]

No two requests overlap: only the end of one is moved out to the grain, by less than a grain, and what follows it is
either the next request of its run, which begins behind 32 MiB, a multiple of the grain, or a run that is a gap away.
A request may reach beyond the end of the file, where there is nothing to read.

Also the decision whether a source is read so at all (`reads_unbuffered`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mummufs.core.ranges import PAGE_SIZE, ByteRange, page_floor

GRAIN_BYTES = 64 << 10
"""The size of a request is a multiple of this."""
GAP_BYTES_MAX = 1 << 20
"""What lies this far apart, or farther, is not read by one request."""
REQUEST_BYTES_MAX = 32 << 20
"""The largest request."""
BATCH_BYTES_MAX = 128 << 20
"""Bytes asked for at once: each needs memory until it is used."""
BATCH_REQUESTS_MAX = 64
"""Requests asked for at once. NTFS takes more, but no disk gets faster by it."""

CACHED_BYTES_PER_S = 3e9
"""A second read of the same bytes that is faster than this came from the file cache, and from no disk."""


def plan_requests(wanted: Iterable[ByteRange]) -> list[ByteRange]:
    """The requests that bring these bytes, in the order of their offsets. O(n log n + requests).

    Args:
        wanted: in any order; they may overlap. Empty ones are left out.

    Returns:
        requests without overlap: page-aligned, their sizes multiples of GRAIN_BYTES, REQUEST_BYTES_MAX at most.
    """
    return [request for run in _runs(wanted) for request in _cut(run)]


def batches(
    requests: Iterable[ByteRange], bytes_max: int = BATCH_BYTES_MAX, requests_max: int = BATCH_REQUESTS_MAX
) -> Iterator[list[ByteRange]]:
    """Cut requests into batches, each to be in flight at once: as large as the limits allow, one request at least."""
    batch: list[ByteRange] = []
    size = 0
    for request in requests:
        if batch and (size + request.size > bytes_max or len(batch) == requests_max):
            yield batch
            batch, size = [], 0
        batch.append(request)
        size += request.size
    if batch:
        yield batch


def reads_unbuffered(files_bytes: int, memory_bytes: int, budget_bytes: int, cached_bytes_per_s: float | None) -> bool:
    """Whether a source is better read past the file cache: its files could not be kept there.

    Args:
        files_bytes: what the files of the source take.
        memory_bytes: RAM of the machine.
        budget_bytes: RAM that whoever uses the files takes for himself (`ram_budget`).
        cached_bytes_per_s: how fast bytes that had just been read were read again; None where that was not tried.
    """
    if files_bytes > memory_bytes - budget_bytes:
        return True
    return cached_bytes_per_s is not None and cached_bytes_per_s < CACHED_BYTES_PER_S


def _runs(wanted: Iterable[ByteRange]) -> Iterator[list[ByteRange]]:
    """What is wanted, in order and without overlap, in groups that lie a gap apart."""
    run: list[ByteRange] = []
    end = 0
    for part in sorted(part for part in wanted if part.size):
        if run and page_floor(part.offset) - end >= GAP_BYTES_MAX:
            yield run
            run = []
        if run and part.offset <= end:
            end = max(end, part.end)
            run[-1] = ByteRange(run[-1].offset, end - run[-1].offset)
        else:
            run.append(part)
            end = part.end
    if run:
        yield run


def _cut(run: Sequence[ByteRange]) -> Iterator[ByteRange]:
    """The requests of one run."""
    start = limit = used = 0  # the request begins at `start`, may reach to `limit`, and is wanted up to `used`
    for part in run:
        at = part.offset
        while at < part.end:
            if at >= limit:
                if limit:
                    yield _grown(start, used)
                start = page_floor(at)
                limit = start + REQUEST_BYTES_MAX
            at = used = min(part.end, limit)
    yield _grown(start, used)


def _grown(start: int, end: int) -> ByteRange:
    assert start % PAGE_SIZE == 0, "a request begins on a page"
    return ByteRange(start, -(-(end - start) // GRAIN_BYTES) * GRAIN_BYTES)
