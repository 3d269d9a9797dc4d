"""What is recorded of reads: by the hooks of an engine, joined by pass, within limits, and not when it is off."""

from __future__ import annotations

from pathlib import Path

import pytest

from mummufs.core.errors import MummufsError
from mummufs.core.ranges import FileId, RangeKey
from mummufs.core.trace import BLOCK_READS_MAX, BlockReader, TraceFile, TraceWindow
from mummufs.engine import tracing as module
from mummufs.engine.tracing import JOIN_MS, LEASE_NS, PASS_MS, PASSES_MAX, Tracing
from mummufs.source.memory import MemorySource
from tests.engine.harness import KIB, FakeParser, contents, engine, make_table

FILE = FileId(3, 4)
SIZE = 64 * KIB
Read = tuple[int, int, int, bool]


class Clock:
    def __init__(self) -> None:
        self.now_ns = 10**12 + 1

    def __call__(self) -> int:
        return self.now_ns


class Recorded:
    """A recorder with a clock of the test's, and what it has given."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.tracing = Tracing(lambda file: (b"d/m-00001-of-00002.gguf", 99) if file == FILE else None, self.clock)
        self.ticket = self.tracing.start()
        self.reader = BlockReader()
        self.dropped = 0

    def touch(self, number: int, size: int = SIZE, *, hit: bool = False, after_ms: int = 0) -> None:
        self.clock.now_ns += after_ms * 10**6
        self.tracing.touched(RangeKey(FILE, number * SIZE, SIZE), size, hit=hit)

    def take(self) -> list[Read]:
        """Everything recorded since the last time: ms, window, size, hit."""
        return taken(self.tracing, self.ticket, self.reader)


def taken(tracing: Tracing, ticket: int, reader: BlockReader) -> list[Read]:
    found = []
    while block := tracing.take(ticket):
        reads = reader.read(block)
        found += list(zip(reads.ms, reads.windows, reads.sizes, map(bool, reads.hits), strict=True))
    return found


def test_files_and_windows_are_introduced_once() -> None:
    r = Recorded()
    r.touch(5)
    r.touch(2, hit=True, after_ms=40)
    assert r.take() == [(0, 0, SIZE, False), (40, 1, SIZE, True)]
    r.touch(5, after_ms=2)
    r.tracing.touched(RangeKey(FileId(9, 9), 0, 10), 10, hit=True)
    assert r.take() == [(42, 0, SIZE, False), (42, 2, 10, True)]
    assert r.take() == []
    assert r.reader.files == [
        TraceFile(FILE, 99, b"d/m-00001-of-00002.gguf", b"d/m"),
        TraceFile(FileId(9, 9), 0, b"", b"/"),
    ]
    assert r.reader.windows == [TraceWindow(0, 5 * SIZE, SIZE), TraceWindow(0, 2 * SIZE, SIZE), TraceWindow(1, 0, 10)]


def test_the_requests_of_a_pass_are_one_read() -> None:
    r = Recorded()
    for _ in range(4):
        r.touch(0, SIZE // 4, after_ms=50)
        r.touch(1, SIZE // 8, hit=True)
    assert r.take() == [(50, 0, SIZE, False), (50, 1, SIZE // 2, True)]


def test_two_passes_are_two_reads() -> None:
    r = Recorded()
    for _ in range(4):
        r.touch(0, SIZE // 2)
    r.touch(1, SIZE - 1)
    r.touch(1, 2)  # more than the first pass has left
    assert [size for _, _, size, _ in r.take()] == [SIZE, SIZE, SIZE - 1, 2]


def test_hits_and_misses_are_not_joined() -> None:
    r = Recorded()
    r.touch(0, SIZE // 2)
    r.touch(0, SIZE // 2, hit=True)
    assert r.take() == [(0, 0, SIZE // 2, False), (0, 0, SIZE // 2, True)]


def test_a_pass_of_hits_is_short_and_one_of_misses_goes_on_while_it_goes_on() -> None:
    r = Recorded()
    for _ in range(3):
        r.touch(0, 1, hit=True, after_ms=JOIN_MS // 2 + 1)
    assert [size for _, _, size, _ in r.take()] == [2, 1]
    for _ in range(4):
        r.touch(0, 1, after_ms=JOIN_MS)
    r.touch(0, 1, after_ms=JOIN_MS + 1)
    assert [size for _, _, size, _ in r.take()] == [4, 1]
    for _ in range(PASS_MS // JOIN_MS + 2):
        r.touch(0, 1, after_ms=JOIN_MS)
    assert [size for _, _, size, _ in r.take()] == [PASS_MS // JOIN_MS + 1, 1]


def test_a_block_ends_every_pass() -> None:
    r = Recorded()
    r.touch(0, 1)
    assert r.take() == [(0, 0, 1, False)]
    r.touch(0, 1)
    assert r.take() == [(0, 0, 1, False)]


def test_open_passes_are_bounded() -> None:
    r = Recorded()
    for number in range(PASSES_MAX + 1):
        r.touch(number, 1)
    assert len(r.tracing._passes) == PASSES_MAX
    r.touch(0, 1)  # the first was forgotten
    assert len(r.take()) == PASSES_MAX + 2


def test_what_nobody_fetches_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCKS_MAX", 2)
    r = Recorded()
    for number in range(3 * BLOCK_READS_MAX + 7):
        r.touch(number % 5)
    r.touch(77)  # what is dropped introduces nothing
    counters = r.tracing.counters
    assert (counters.reads, counters.dropped, counters.blocks_max) == (3 * BLOCK_READS_MAX, 8, 2)
    assert len(r.take()) == 3 * BLOCK_READS_MAX
    assert (counters.blocks, counters.dropped) == (0, 8)
    r.touch(78)
    block = r.tracing.take(r.ticket)
    assert (r.reader.read(block).windows, r.reader.windows[-1].offset) == ([5], 78 * SIZE)


def test_a_block_says_how_many_were_dropped_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCKS_MAX", 0)
    r = Recorded()
    for _ in range(BLOCK_READS_MAX + 3):
        r.touch(0)
    assert r.reader.read(r.tracing.take(r.ticket)).dropped == 3


def test_windows_and_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOWS_MAX", 2)
    monkeypatch.setattr(module, "FILES_MAX", 1)
    r = Recorded()
    r.touch(0)
    r.tracing.touched(RangeKey(FileId(9, 9), 0, 10), 10, hit=True)
    for number in (1, 2, 0):
        r.touch(number)
    assert [number for _, number, _, _ in r.take()] == [0, 1, 0]
    assert r.tracing.counters.dropped == 2


def test_one_at_a_time_and_by_its_number() -> None:
    r = Recorded()
    with pytest.raises(MummufsError, match="already"):
        r.tracing.start()
    r.tracing.stop(r.ticket)
    assert not r.tracing.on
    for call in (r.tracing.take, r.tracing.stop):
        with pytest.raises(MummufsError, match="ended"):
            call(r.ticket)
    second = r.tracing.start()
    with pytest.raises(MummufsError, match="ended"):
        r.tracing.take(r.ticket)
    assert r.tracing.take(second) == b""


def test_who_stops_fetching_has_died() -> None:
    r = Recorded()
    r.touch(0, after_ms=LEASE_NS // 10**6 - 1)
    assert len(r.take()) == 1
    r.touch(0, after_ms=LEASE_NS // 10**6 - 1)
    before = r.tracing.on
    r.touch(0, after_ms=2)
    assert (before, r.tracing.on) == (True, False)
    assert not (r.tracing._windows or r.tracing._files or len(r.tracing._block))
    r.tracing.start()
    r.clock.now_ns += LEASE_NS + 1
    assert r.tracing.start() == r.ticket + 2


async def test_an_engine_records_what_it_counts(tmp_path: Path) -> None:
    source = MemorySource()
    source.write(b"m.gguf", contents(4 * SIZE + 100))
    parser = FakeParser({b"m.gguf": make_table(4 * SIZE + 100, [(i * SIZE, SIZE) for i in range(4)])})
    async with engine(source, tmp_path, parser) as e:
        tracing, reader = e.cache.tracing, BlockReader()
        handle = await e.open(b"m.gguf")
        await e.read(handle, 0, SIZE)  # not recorded: it is off
        await e.idle()
        ticket = tracing.start()
        before = vars(e.counters.reads).copy()
        await e.read(handle, 0, SIZE)
        await e.read(handle, SIZE, SIZE)
        await e.idle()
        await e.read(handle, SIZE + 5, 2 * SIZE)  # over the end of one into the next
        await e.idle()
        await e.read(handle, 4 * SIZE, 100)  # in no window
        reads = [(number, size, hit) for _, number, size, hit in taken(tracing, ticket, reader)]
        assert reads == [(0, SIZE, True), (1, SIZE, False), (1, SIZE - 5, True), (2, SIZE, False), (3, 5, False)]
        assert [w.offset for w in reader.windows] == [0, SIZE, 2 * SIZE, 3 * SIZE]
        assert [(f.file, f.size, f.path) for f in reader.files] == [(handle.node.file, 4 * SIZE + 100, b"m.gguf")]
        after = e.counters.reads
        assert sum(size for _, size, hit in reads if hit) == after.hit_bytes - before["hit_bytes"]
        assert sum(size for _, size, hit in reads if not hit) == after.miss_bytes - before["miss_bytes"]
        assert tracing.counters.hit_bytes == after.hit_bytes - before["hit_bytes"]
        tracing.stop(ticket)
        await e.read(handle, 0, SIZE)
        assert tracing.counters.reads == 5


async def test_what_a_backend_served_by_views_is_recorded(tmp_path: Path) -> None:
    source = MemorySource()
    source.write(b"m.gguf", contents(2 * SIZE))
    parser = FakeParser({b"m.gguf": make_table(2 * SIZE, [(0, SIZE), (SIZE, SIZE)])})
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"m.gguf")
        await e.fill(handle, 0, 1)
        reports, view = e.service.reports, handle.node.view
        assert reports is not None and view is not None
        pieces = view.pieces(100, SIZE + 300)
        assert pieces is not None
        touched = {stored: size for stored, _, _, size in pieces}
        reports.take(1, touched)
        ticket = e.cache.tracing.start()
        reports.take(1, touched)
        reads = taken(e.cache.tracing, ticket, BlockReader())
        assert [(number, size, hit) for _, number, size, hit in reads] == [(0, SIZE - 100, True), (1, 300, True)]
