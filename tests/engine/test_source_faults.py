"""A fault of the source is the answer to the read that met it, and to no other. A source that hangs holds up misses
alone."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path

import pytest
import trio

from mummufs.core.states import State
from mummufs.source.memory import MemorySource
from tests.engine.harness import KIB, PAGE, FakeParser, contents, empty, engine, gather, make_table

WINDOW = 1 << 20
DATA = contents(3 * WINDOW)
WINDOWS = [(0, WINDOW), (WINDOW, WINDOW)]  # and a third part that is in none


def source_and_parser() -> tuple[MemorySource, FakeParser]:
    return MemorySource({b"model": DATA}), FakeParser({b"model": make_table(len(DATA), WINDOWS)})


@pytest.mark.parametrize("offset", [0, WINDOW + 5, 2 * WINDOW + 5])
async def test_an_error_of_the_only_read(tmp_path: Path, offset: int) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        attempts = 1 if offset >= 2 * WINDOW else 2  # a reader whose flight has failed asks the source itself
        for nth in range(1, attempts + 1):
            source.fail_read(nth)
        with pytest.raises(OSError) as raised:
            await e.read(handle, offset, PAGE)
        assert raised.value.errno == errno.EIO
        await e.idle()
        assert e.counters.errors.source == 1
        assert e.index.statistics().resident == 0
        e.check()
        assert await e.read(handle, offset, PAGE) == DATA[offset : offset + PAGE]
        await e.idle()
        e.check()


@pytest.mark.parametrize("nth", range(1, 8))
async def test_the_nth_read_of_a_pass_fails(tmp_path: Path, nth: int) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 1)
        source.fail_read(nth)
        requests = [(offset, 64 * KIB) for offset in range(0, 2 * WINDOW, 64 * KIB)]
        results = await gather(*(partial(e.read, handle, *request) for request in requests))
        await e.idle()
        failed = [result for result in results if isinstance(result, OSError)]
        assert len(failed) <= 1
        assert all(error.errno == errno.EIO for error in failed)
        assert e.counters.errors.source == len(failed)
        for (offset, size), result in zip(requests, results, strict=True):
            assert isinstance(result, OSError) or result == DATA[offset : offset + size]
        assert e.state(handle, 1) is State.RESIDENT
        e.check()
        assert await e.read(handle, 0, 100) == DATA[:100]
        await e.idle()
        assert e.state(handle, 0) is State.RESIDENT
        e.check()


async def test_nothing_is_stored_of_a_failed_pass(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        source.fail_read(2)  # the reader has its page by then
        assert await e.read(handle, 0, PAGE) == DATA[:PAGE]
        await e.idle()
        assert len(source.reads) == 2
        assert e.state(handle, 0) is State.ABSENT
        assert (e.counters.fills.aborted, e.counters.errors.source) == (1, 0)
        e.check()


async def test_an_error_of_a_read_that_was_to_be_given_to_a_flight(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        source.fail_read(1)
        with pytest.raises(OSError) as raised:
            await e.read(handle, 0, 2 * WINDOW)
        assert raised.value.errno == errno.EIO
        await e.idle()
        assert e.counters.fills.aborted == 2
        e.check()


@pytest.mark.parametrize("offset", [0, 2 * WINDOW])
async def test_short_data_is_an_error(tmp_path: Path, offset: int) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        source.short = 100
        with pytest.raises(OSError) as raised:
            await e.read(handle, offset, PAGE)
        assert raised.value.errno == errno.EIO
        source.short = None
        await e.idle()
        assert e.index.statistics().resident == 0
        e.check()


async def test_a_source_that_hangs_holds_up_misses_alone(tmp_path: Path) -> None:
    source, parser = source_and_parser()
    many = 64
    data = contents(many * 64 * KIB, seed=2)
    source.write(b"many", data)
    parser.tables[b"many"] = make_table(len(data), [(i * 64 * KIB, 64 * KIB) for i in range(many)])
    async with engine(source, tmp_path, parser, source_reads=4) as e, trio.open_nursery() as nursery:
        handle, cold = await e.open(b"model"), await e.open(b"many")
        await e.fill(handle, 0)
        got: list[int] = []

        async def miss(i: int) -> None:
            offset = i * 64 * KIB + i
            assert await e.read(cold, offset, 100) == data[offset : offset + 100]
            got.append(i)

        source.hold_reads()
        before = len(source.reads)
        for i in range(many):
            nursery.start_soon(miss, i)
        await e.wait_until(lambda: len(source.reads) == before + 4)  # as many as the source is asked at once
        assert e.service.reader.reads_in_flight == many

        assert await e.read(handle, 7, WINDOW - 7) == DATA[7:WINDOW]
        root = e.overlay.nodes.root
        assert {entry.name for entry in await e.overlay.entries(root)} == {b"model", b"many"}
        assert (await e.overlay.look_up(root, b"many")) is cold.node
        assert (await e.overlay.attributes(cold.node)).size == len(data)
        assert (await e.overlay.open(handle.node)).file is handle.file
        assert (await e.overlay.statfs()).f_bsize == 4096
        e.cache.evictor.evict_nowait([e.key(handle, 0)])
        await e.wait_until(lambda: e.state(handle, 0) is State.ABSENT)
        assert (got, len(source.reads)) == ([], before + 4)

        source.release_reads()
        await e.idle()
        assert sorted(got) == list(range(many))
        assert source.read_bytes(b"many") == len(data)
        e.check()


async def test_attributes_of_an_open_file_are_answered_from_memory_where_the_source_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, parser = source_and_parser()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, 0)
        file = handle.file
        real = file.attributes

        def hanging() -> object:
            source._open_gate.wait(30.0)
            return real()

        monkeypatch.setattr(file, "attributes", hanging)
        source.hold_reads()
        for _ in range(3 * e.pools.metadata.threads):  # no more than one thread of the pool is taken
            assert (await e.overlay.attributes(handle.node)).size == len(DATA)
        assert e.pools.metadata.busy == 1
        assert await e.read(handle, 0, WINDOW) == DATA[:WINDOW]
        assert e.overlay.nodes.root is not None
        source.release_reads()
        await empty(e.pools.metadata)
        assert not handle.node.refreshing
        monkeypatch.undo()
        assert (await e.overlay.attributes(handle.node)).size == len(DATA)
        await e.idle()
        e.check()
