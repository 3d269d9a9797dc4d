"""One pass over the source for each window, however many readers it has; and what is reason enough for one."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.ranges import ByteRange, FileId, RangeKey, Version
from mummufs.core.states import State
from mummufs.engine.flight import PIECE_MAX_BYTES, Flight
from mummufs.source.memory import MemoryFile, MemorySource
from tests.engine.harness import KIB, PAGE, FakeParser, contents, engine, gather, make_table

REQUEST = 128 * KIB
WINDOW = 2 << 20
WINDOWS = ((0, WINDOW), (WINDOW, WINDOW))
DATA = contents(2 * WINDOW)


def source_and_parser() -> tuple[MemorySource, FakeParser]:
    return MemorySource({b"model": DATA}), FakeParser({b"model": make_table(len(DATA), WINDOWS)})


async def test_many_readers_at_once_cost_one_pass(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    rng = random.Random(3)
    requests = [(rng.randrange(0, WINDOW - REQUEST), rng.randrange(1, REQUEST)) for _ in range(32)]
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        results = await gather(*(partial(e.read, handle, *request) for request in requests))
        assert results == [DATA[offset : offset + size] for offset, size in requests]
        await e.idle()
        assert source.read_bytes() == WINDOW
        assert e.counters.fills.completed == 1
        assert e.state(handle, 0) is State.RESIDENT
        assert e.state(handle, 1) is State.ABSENT
        e.check()


@pytest.mark.parametrize("order", ["forwards", "backwards", "random"])
@pytest.mark.parametrize("idle", [True, False])
async def test_requests_in_any_order_cost_one_pass(tmp_path: Path, order: str, idle: bool) -> None:
    source, parser = source_and_parser()
    offsets = list(range(0, WINDOW, REQUEST))
    if order == "backwards":
        offsets.reverse()
    elif order == "random":
        random.Random(4).shuffle(offsets)
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        for offset in offsets:
            assert await e.read(handle, offset, REQUEST) == DATA[offset : offset + REQUEST]
            if idle:
                await e.idle()
        await e.idle()
        assert source.read_bytes() == WINDOW
        assert e.counters.fills.completed == 1
        e.check()


async def test_a_reader_that_comes_while_the_range_file_is_written_is_served_from_the_flight(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        places = e.pools.store_writes._limiter
        borrowers = [object() for _ in range(e.pools.store_writes.threads)]
        for borrower in borrowers:
            await places.acquire_on_behalf_of(borrower)  # no thread is left to write with
        assert await e.read(handle, 0, PAGE) == DATA[:PAGE]
        await e.wait_until(lambda: e.pools.store_writes.waiting == 1)
        assert await e.read(handle, WINDOW - PAGE, PAGE) == DATA[WINDOW - PAGE : WINDOW]
        assert e.state(handle, 0) is State.FILLING
        assert source.read_bytes() == WINDOW
        for borrower in borrowers:
            places.release_on_behalf_of(borrower)
        await e.idle()
        assert e.state(handle, 0) is State.RESIDENT
        e.check()


class _GatedSource(MemorySource):
    """Each read waits until the test lets it pass."""

    def hold_after(self, reads: int) -> None:
        self._passes = reads

    def _before_read(self, path: bytes, offset: int, size: int) -> None:
        if len(self.reads) >= self._passes:
            self.hold_reads()
        super()._before_read(path, offset, size)


async def test_readers_are_released_as_their_bytes_arrive(tmp_path: Path) -> None:
    source = _GatedSource({b"model": DATA})
    parser = FakeParser({b"model": make_table(len(DATA), WINDOWS)})
    source.hold_after(1)
    async with engine(source, tmp_path, parser) as e, trio.open_nursery() as nursery:
        handle = await e.open(b"model")
        middle = WINDOW // 2
        got: list[bytes] = []

        async def late() -> None:
            got.append(await e.read(handle, 0, REQUEST))

        assert await e.read(handle, middle, REQUEST) == DATA[middle : middle + REQUEST]
        nursery.start_soon(late)
        await e.wait_until(lambda: len(source.reads) == 2)
        assert await e.read(handle, middle + 4 * KIB, 100) == DATA[middle + 4 * KIB : middle + 4 * KIB + 100]
        assert not got
        source.hold_after(1000)
        source.release_reads()
        await e.idle()
        assert got == [DATA[:REQUEST]]
        assert [read.offset for read in source.reads][:2] == [middle, middle + REQUEST]
        assert source.read_bytes() == WINDOW
        e.check()


@given(
    size=st.integers(1, 9 << 20),
    first=st.tuples(st.integers(0, 9 << 20), st.integers(1, 1 << 20)),
    given_parts=st.lists(st.tuples(st.integers(0, 9 << 20), st.integers(1, 1 << 20)), max_size=6),
)
def test_a_pass_reads_every_byte_that_was_not_given_once(
    size: int, first: tuple[int, int], given_parts: list[tuple[int, int]]
) -> None:
    base = 12345 * PAGE
    window = ByteRange(base, size)

    def inside(part: tuple[int, int]) -> ByteRange:
        offset = base + part[0] % size
        return ByteRange(offset, min(part[1], window.end - offset))

    source = MemorySource({b"f": b""})
    file: MemoryFile = source.open(b"f")
    flight = Flight([RangeKey(FileId(1, 2), base, size)], Version(1, 2, 3), file, inside(first))
    covered: list[tuple[int, int]] = []
    for part in map(inside, given_parts):
        flight.arrived(part)
        covered.append((part.offset, part.end))
    pieces = []
    for piece in flight.pieces():
        assert window.contains(piece)
        assert 0 < piece.size <= PIECE_MAX_BYTES
        assert all(piece.end <= start or end <= piece.offset for start, end in covered), "a byte is read twice"
        pieces.append(piece)
        covered.append((piece.offset, piece.end))
        flight.arrived(piece)
    assert flight.is_complete
    assert flight.has(window.offset, window.end)
    if pieces and not given_parts:
        assert pieces[0].offset == inside(first).offset


# ---------------------------------------------------------------------- what makes a window wanted


async def test_a_graze_of_a_neighbour_does_not_fill_it(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.read(handle, WINDOW - REQUEST, 2 * REQUEST)
        await e.idle()
        assert source.read_bytes() == 2 * REQUEST
        await e.fill(handle, 1)
        await e.read(handle, WINDOW - PAGE, 2 * PAGE)  # over the start of a resident one
        await e.idle()
        assert e.state(handle, 0) is State.ABSENT
        assert e.counters.fills.completed == 1
        e.check()


async def test_a_graze_over_the_end_does_not_fill_it(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 0)
        await e.read(handle, WINDOW - REQUEST, 2 * REQUEST)
        await e.idle()
        assert e.state(handle, 1) is State.ABSENT
        assert source.read_bytes() == WINDOW + REQUEST
        e.check()


async def test_the_same_bytes_grazed_again_count_once_and_half_of_them_fill(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    gap = 64 * KIB
    size = gap + WINDOW + gap
    data = contents(size)
    source.write(b"gaps", data)
    parser.tables[b"gaps"] = make_table(size, [(gap, WINDOW)])
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"gaps")
        before, behind = WINDOW // 4, WINDOW // 4 - 1
        for _ in range(8):
            await e.read(handle, gap - 1, 1 + before)
            await e.idle()
        await e.read(handle, gap + WINDOW - behind, behind + 1)
        await e.idle()
        assert e.counters.fills.completed == 0
        read = source.read_bytes()
        await e.read(handle, gap + WINDOW - behind - 1, behind + 2)  # one byte more makes half
        await e.idle()
        assert e.state(handle, 0) is State.RESIDENT
        assert source.read_bytes() == read + WINDOW + 1
        e.check()


async def test_a_request_that_covers_a_window_fills_it_at_no_extra_byte(tmp_path: Path) -> None:
    source = MemorySource({b"model": DATA})
    windows = [(PAGE, 5 * PAGE), (5 * PAGE, 4 * PAGE), (12 * PAGE, PAGE)]  # the first two share a page
    parser = FakeParser({b"model": make_table(len(DATA), windows)})
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        assert await e.read(handle, 0, 14 * PAGE) == DATA[: 14 * PAGE]
        await e.idle()
        assert source.read_bytes() == 14 * PAGE
        assert len(source.reads) == 1
        assert [e.state(handle, i) for i in range(3)] == [State.RESIDENT] * 3
        for offset, size in windows:
            assert await e.read(handle, offset, size) == DATA[offset : offset + size]
        assert len(source.reads) == 1
        e.check()


async def test_read_ahead_over_small_tensors_fills_all_of_them(tmp_path: Path) -> None:
    tensor, request, count = 200 * KIB, 256 * KIB, 20
    data = contents(tensor * count)
    source = MemorySource({b"model": data})
    parser = FakeParser({b"model": make_table(len(data), [(i * tensor, tensor) for i in range(count)])})
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        for offset in range(0, len(data), request):
            assert await e.read(handle, offset, request) == data[offset : offset + request]
            await e.idle()
        assert [e.state(handle, i) for i in range(count)] == [State.RESIDENT] * count
        assert e.counters.fills.completed == count
        e.check()
