"""The warmer: in order, last of all, within the budget, never at the cost of what is hot."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
import trio

from mummufs.core.errors import MummufsError
from mummufs.core.manifest import Manifest, ManifestRange, RangeTable
from mummufs.core.ratings import HeatRecord
from mummufs.core.states import State
from mummufs.engine.jobs import KEPT_MAX, WAITING_MAX, Job, JobState
from mummufs.engine.lately import LATELY_S, NOTES
from mummufs.engine.placement import Placement
from mummufs.engine.warmer import SETTLE_WAIT_S
from mummufs.engine.warmprogress import Reason, Tally, Target, WarmProgress
from mummufs.source.memory import MemorySource
from mummufs.store.layout import charge_of
from tests.engine.harness import KIB, WALL_NS, Engine, FakeParser, FaultyOs, contents, engine, make_table

WINDOW = 64 * KIB
COUNT = 24
DATA = contents(COUNT * WINDOW)
HEADROOM_SHARE = 0.99


def named_table(count: int = COUNT) -> RangeTable:
    """Windows of 64 KiB with the names of layers: two of each."""
    ranges = [ManifestRange(i * WINDOW, WINDOW, f"blk.{i // 2}.w{i % 2}") for i in range(count)]
    return RangeTable.from_manifest(Manifest("test", count * WINDOW, ranges))


def model(*names: bytes) -> tuple[MemorySource, FakeParser]:
    paths = names or (b"model",)
    return MemorySource(dict.fromkeys(paths, DATA)), FakeParser({path: named_table() for path in paths})


def budget_of(ranges: int) -> int:
    """A budget in which so many windows leave the headroom free, and one more does not."""
    return int((ranges + 0.5) * charge_of(WINDOW) / HEADROOM_SHARE)


def placement(e: Engine) -> Placement:
    assert e.service.placement is not None
    return e.service.placement


def start(e: Engine, *wanted: bytes, ranges: str = "*") -> Job[WarmProgress]:
    return placement(e).warmer.find_and_warm_nowait(wanted or [b"model"], ranges)


async def ended(e: Engine, job: Job[WarmProgress]) -> WarmProgress:
    await job.ended.wait()
    await e.idle()
    return job.progress


async def test_it_fills_in_order_of_offset_and_in_large_passes(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        done = await ended(e, start(e))
        assert (done.asked.ranges, done.resident.ranges, done.filled.bytes) == (COUNT, COUNT, len(DATA))
        assert done.declined == {}
        offsets = [read.offset for read in source.reads]
        assert offsets == sorted(offsets)
        assert e.counters.source_reads.merged == COUNT - 1, "one pass for all"
        before = source.read_bytes()
        assert await e.read(await e.open(b"model"), 0, len(DATA)) == DATA
        assert source.read_bytes() == before, "a hit"
        assert len(e.overlay.nodes) == 2
        e.check()


async def test_what_it_has_looked_up_is_forgotten_again(tmp_path: Path) -> None:
    source, parser = model(b"a/b/model", b"a/c/model")
    async with engine(source, tmp_path, parser) as e:
        done = await ended(e, start(e, b"a"))
        assert (done.files, done.files_done, done.resident.ranges) == (2, 2, 2 * COUNT)
        assert len(e.overlay.nodes) == 1
        assert e.overlay.open_files == 0


async def test_it_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        first = await ended(e, start(e, ranges="blk.[0-3].*"))
        assert first.filled.ranges == 8
        source.reads.clear()
        done = await ended(e, start(e))
        assert (done.resident.ranges, done.filled.ranges) == (COUNT, COUNT - 8)
        assert min(read.offset for read in source.reads) == 8 * WINDOW
        e.check()


async def test_a_stopped_one_leaves_what_is_filled_and_the_next_has_its_turn(tmp_path: Path) -> None:
    source, parser = model(b"model", b"other")
    async with engine(source, tmp_path, parser) as e:
        source.hold_reads()
        job, following = start(e), start(e, b"other")
        await e.wait_until(lambda: bool(source.reads))
        assert (job.state, following.state) == (JobState.RUNNING, JobState.WAITING)
        job.stop()
        await job.ended.wait()
        source.release_reads()
        assert (await ended(e, following)).filled.ranges == COUNT
        assert job.stopped
        assert e.index.statistics().resident == 2 * COUNT, "what was in the air has landed"
        e.check()


async def test_a_reader_goes_first(tmp_path: Path) -> None:
    """While readers wait for the source, a warm reads nothing but the piece that it has begun."""
    source, parser = model(b"model", b"other")
    async with engine(source, tmp_path, parser, source_reads=4) as e:
        handle = await e.open(b"other")
        source.hold_reads()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(e.read, handle, 0, KIB)
            await e.wait_until(lambda: len(source.reads) == 1)
            job = start(e)
            await e.wait_until(lambda: e.cache.filler.schedule.waiting == 1)
            assert [read.path for read in source.reads] == [b"other"]
            source.release_reads()
        assert (await ended(e, job)).filled.ranges == COUNT
        e.check()


async def test_it_reads_in_pieces_and_one_pass_after_the_other(tmp_path: Path) -> None:
    """So that a reader waits for a piece at most, and the head does not go to and fro between passes."""
    mib = 1 << 20
    spans = [(0, 6 * mib), (8 * mib, 6 * mib), (15 * mib, 6 * mib)]
    source = MemorySource({b"model": contents(21 * mib)})
    parser = FakeParser({b"model": make_table(21 * mib, spans)})
    async with engine(source, tmp_path, parser, budget_bytes=64 * mib) as e:
        assert (await ended(e, start(e))).filled.ranges == len(spans)
        found = [(read.offset // mib, read.size // mib) for read in source.reads]
        assert found == [(0, 4), (4, 2), (8, 4), (12, 2), (15, 4), (19, 2)]
        e.check()


async def test_what_a_reader_wants_while_it_is_in_the_air_comes_at_once(tmp_path: Path) -> None:
    source, parser = model(b"model", b"other")
    async with engine(source, tmp_path, parser) as e:
        handle, other = await e.open(b"model"), await e.open(b"other")
        source.hold_reads()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(e.read, other, 0, KIB)
            await e.wait_until(lambda: len(source.reads) == 1)
            job = start(e)
            await e.wait_until(lambda: e.cache.filler.schedule.waiting == 1)
            nursery.start_soon(e.read, handle, 5 * WINDOW, KIB)
            await e.wait_until(lambda: len(source.reads) == 2)
            assert source.reads[1].path == b"model"
            source.release_reads()
        assert (await ended(e, job)).filled.ranges == COUNT
        e.check()


async def test_it_stays_within_the_budget_and_says_what_did_not_fit(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser, budget_bytes=budget_of(10)) as e:
        done = await ended(e, start(e))
        assert done.resident.ranges == 10
        assert done.declined[Reason.BUDGET].ranges == COUNT - 10
        assert e.counters.evictions.ranges == 0
        e.check()


async def test_what_is_hot_stays_and_what_is_cold_makes_room(tmp_path: Path) -> None:
    source, parser = model(b"hot", b"model")
    async with engine(source, tmp_path, parser, budget_bytes=budget_of(12)) as e:
        handle = await e.open(b"hot")
        for i in range(12):
            await e.fill(handle, i)
        for _ in range(4):
            for i in range(6):
                await e.read(handle, i * WINDOW, WINDOW)
        assert e.index.statistics().resident == 12
        done = await ended(e, start(e))
        assert done.resident.ranges == 6
        assert done.declined[Reason.BUDGET].ranges == COUNT - 6
        assert all(e.state(handle, i) is State.RESIDENT for i in range(6))
        assert all(e.state(handle, i) is State.ABSENT for i in range(6, 12))
        e.check()


async def test_what_it_has_brought_is_no_victim_of_its_own_and_gives_way_to_readers(tmp_path: Path) -> None:
    source, parser = model(b"model", b"read")
    async with engine(source, tmp_path, parser, budget_bytes=budget_of(12)) as e:
        await ended(e, start(e))
        done = await ended(e, start(e))
        assert (done.resident.ranges, done.filled.ranges, e.counters.evictions.ranges) == (12, 0, 0)
        handle = await e.open(b"read")
        for i in range(4):
            await e.read(handle, i * WINDOW, WINDOW)
            await e.idle()
        assert all(e.state(handle, i) is State.RESIDENT for i in range(4))
        e.check()


async def test_single_windows(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        windows = array("Q", [5 * WINDOW, WINDOW, 2 * WINDOW, WINDOW, 7, 9])
        job = placement(e).warmer.warm_nowait([Target(b"model", windows)], "*")
        done = await ended(e, job)
        assert (done.filled.ranges, done.declined[Reason.UNKNOWN].ranges) == (2, 1)
        handle = await e.open(b"model")
        assert [i for i in range(COUNT) if e.state(handle, i) is State.RESIDENT] == [2, 5]


async def test_a_source_that_fails_is_a_reason(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        source.fail_nth = dict.fromkeys(range(1, 100), 5)
        done = await ended(e, start(e))
        assert done.declined[Reason.SOURCE].ranges == COUNT
        e.check()


async def test_a_store_that_fails_is_a_reason(tmp_path: Path) -> None:
    source, parser = model()
    fs = FaultyOs(tmp_path)
    async with engine(source, tmp_path, parser, fs=fs) as e:
        fs.fails = lambda name, _: name == "write"
        done = await ended(e, start(e))
        assert done.declined[Reason.STORE].ranges == COUNT


async def test_the_write_budget_is_a_reason(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser, write_budget_bytes=10 * charge_of(WINDOW)) as e:
        done = await ended(e, start(e))
        assert 0 < done.filled.ranges < COUNT
        assert done.declined == {Reason.WRITE_BUDGET: Tally(COUNT - done.filled.ranges, len(DATA) - done.filled.bytes)}
        assert e.counters.fills.budget_declined == 0, "none was offered in vain"
        e.check()


async def test_a_file_that_has_just_changed_is_waited_for(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    source, parser = model()
    changed_ns = source.stat(b"model").ctime_ns

    def wall_ns() -> int:
        return changed_ns + int(trio.current_time() * 1e9)

    async with engine(source, tmp_path, parser, settle_s=5.0, wall_ns=wall_ns) as e:
        job = start(e)
        await e.idle()
        assert (job.state, job.progress.counted, source.reads) == (JobState.RUNNING, True, [])
        mock_clock.jump(5.0)
        assert (await ended(e, job)).filled.ranges == COUNT
        assert e.counters.fills.unsettled == 0
        e.check()


async def test_a_file_that_never_settles_is_a_reason(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser, settle_s=WALL_NS / 1e9) as e:
        job = start(e)
        await e.idle()
        mock_clock.jump(SETTLE_WAIT_S)
        assert (await ended(e, job)).declined[Reason.SETTLING].ranges == COUNT
        assert source.reads == []


async def test_files_without_ranges_and_paths_that_are_none(tmp_path: Path) -> None:
    source, parser = model()
    source.write(b"notes", b"x" * 5000)
    async with engine(source, tmp_path, parser) as e:
        assert (await ended(e, start(e, b"notes"))).without_ranges == 1
        job = start(e, b"absent*")
        await ended(e, job)
        assert str(job.failure) == "no file matches 'absent*' in the mount"
        job = start(e, b"absent")
        await ended(e, job)
        assert str(job.failure) == "there is no file or folder 'absent' in the mount"


async def test_the_queue_has_a_limit(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        source.hold_reads()
        running = start(e)
        await e.wait_until(lambda: bool(source.reads))
        jobs = [start(e, ranges="blk.0.*") for _ in range(WAITING_MAX)]
        with pytest.raises(MummufsError, match="wait for their turn already"):
            start(e)
        warms = placement(e).warmer.jobs
        assert (warms.waiting, warms.refused, warms.current) == (WAITING_MAX, 1, running)
        source.release_reads()
        for job in jobs:
            await ended(e, job)
        for _ in range(KEPT_MAX + WAITING_MAX + 2):
            await ended(e, start(e, ranges="blk.0.*"))
        with pytest.raises(MummufsError, match="no such job"):
            warms.get(1)


async def test_what_it_has_brought_itself_makes_no_room_for_the_rest(tmp_path: Path) -> None:
    source, parser = model(b"a", b"b")
    async with engine(source, tmp_path, parser, budget_bytes=budget_of(30)) as e:
        done = await ended(e, start(e, b"*"))
        assert (done.resident.ranges, done.filled.ranges, e.counters.evictions.ranges) == (30, 30, 0)
        assert done.declined[Reason.BUDGET].ranges == 2 * COUNT - 30
        e.check()


async def test_a_model_that_nobody_has_read_in_this_mount_makes_room_however_hot_it_was(tmp_path: Path) -> None:
    source, parser = model(b"hot/model", b"read/model", b"model")
    async with engine(source, tmp_path, parser, budget_bytes=budget_of(20), scan=True) as e:
        for name in (b"hot/model", b"read/model"):
            windows = array("Q", [n for i in range(10) for n in (i * WINDOW, WINDOW)])
            await ended(e, placement(e).warmer.warm_nowait([Target(name, windows)], "*"))
        keys = {key: e.index.heat(key) for key in e.index.resident_keys()}
        assert len(keys) == 20
        async with placement(e)._places.opened(b"hot/model") as handle:
            hot = [e.key(handle, i) for i in range(10)]
        async with placement(e)._places.opened(b"read/model") as handle:
            read = [e.key(handle, i) for i in range(10)]
            for _ in range(4):
                for i in range(10):
                    await e.read(handle, i * WINDOW, WINDOW)
        for key in hot:
            e.index.recall(HeatRecord(key, 8.0, 0))
        done = await ended(e, start(e))
        assert done.resident.ranges == 10
        assert [e.index.state(key) for key in hot] == [State.ABSENT] * 10
        assert [e.index.state(key) for key in read] == [State.RESIDENT] * 10
        e.check()


async def test_a_model_that_was_read_long_ago_makes_room(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    source, parser = model(b"old/model", b"model")
    async with engine(source, tmp_path, parser, budget_bytes=budget_of(12)) as e:
        await ended(e, start(e, b"old"))
        async with placement(e)._places.opened(b"old/model") as handle:
            for _ in range(4):
                for i in range(12):
                    await e.read(handle, i * WINDOW, WINDOW)
        assert (await ended(e, start(e))).resident.ranges == 0
        for _ in range(NOTES + 1):
            mock_clock.jump(LATELY_S / NOTES)
            await e.idle()
        assert (await ended(e, start(e))).resident.ranges == 12
        e.check()
