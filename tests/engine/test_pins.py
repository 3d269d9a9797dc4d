"""Pins: never evicted, never more than may be, kept from mount to mount, and for what a file changes into."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from trio.testing import MockClock

from mummufs.core.errors import MummufsError
from mummufs.core.states import State
from mummufs.engine.jobs import Job, JobState
from mummufs.engine.pins import LOAD_RETRY_S, PINNED_SHARE_MAX, PinChange, TooMuchPinnedError
from mummufs.engine.placement import Evicted, Look, Residency
from mummufs.source.memory import MemoryFile, MemorySource
from mummufs.store.layout import charge_of
from mummufs.store.pins import PINS_ASIDE_NAME, PINS_NAME
from tests.engine.harness import KIB, Engine, FakeParser, FaultyOs, contents, engine
from tests.engine.test_warm import COUNT, DATA, WINDOW, budget_of, model, named_table, placement

SETTLE_S = 5.0


async def done(e: Engine, job: Job[Look]) -> Look:
    """What a request has come to, once the warm that it may have started has ended too."""
    await job.ended.wait()
    await warmed(e)
    if job.failure is not None:
        raise job.failure
    return job.progress


async def warmed(e: Engine) -> None:
    """Wait until no warm runs or waits."""
    jobs = placement(e).warmer.jobs
    for job in list(jobs._jobs.values()):
        await job.ended.wait()
    await e.idle()


async def pin(e: Engine, *wanted: bytes, ranges: str = "*") -> PinChange:
    change = await done(e, placement(e).pin_nowait(wanted or [b"model"], ranges))
    assert isinstance(change, PinChange)
    return change


async def unpin(e: Engine, *wanted: bytes, ranges: str | None = None) -> PinChange:
    change = await done(e, placement(e).unpin_nowait(wanted, ranges))
    assert isinstance(change, PinChange)
    return change


async def pinned(e: Engine, path: bytes = b"model") -> list[int]:
    """The windows of a file that are pinned."""
    handle = await e.open(path)
    found = [i for i in range(len(handle.node.ranges or ())) if e.index.is_pinned(e.key(handle, i))]
    e.overlay.close(handle)
    return found


async def pressure(e: Engine, path: bytes) -> None:
    """Read a file over and over until it has pushed out what it can."""
    handle = await e.open(path)
    for _ in range(3):
        for i in range(COUNT):
            await e.read(handle, i * WINDOW, WINDOW)
            await e.idle()
    e.overlay.close(handle)


async def resident(e: Engine, path: bytes) -> int:
    handle = await e.open(path)
    found = sum(e.state(handle, i) is State.RESIDENT for i in range(len(handle.node.ranges or ())))
    e.overlay.close(handle)
    return found


async def test_what_is_pinned_is_warmed_and_survives_pressure_and_a_remount(tmp_path: Path) -> None:
    source, parser = model(b"model", b"other")
    async with engine(source, tmp_path, parser, budget_bytes=budget_of(12)) as e:
        change = await pin(e, ranges="blk.[0-3].*")
        assert (change.files, change.ranges, change.absent_ranges) == (1, 8, 8)
        assert await resident(e, b"model") == 8
        await pressure(e, b"other")
        assert await resident(e, b"model") == 8
        assert e.index.pinned_bytes == 8 * charge_of(WINDOW)
        e.check()
    source, parser = _again(source), FakeParser(parser.tables)
    async with engine(source, tmp_path, parser, budget_bytes=budget_of(12), scan=True) as e:
        assert await pinned(e) == list(range(8))
        await pressure(e, b"other")
        assert await resident(e, b"model") == 8
        assert (await unpin(e, b"model")).ranges == 8
        await pressure(e, b"other")
        assert await resident(e, b"model") < 8
        e.check()


def _again(source: MemorySource) -> MemorySource:
    """The same files, for the next mount."""
    again = MemorySource()
    again._nodes = source._nodes
    return again


async def test_a_budget_is_never_pinned_whole(tmp_path: Path) -> None:
    source, parser = model(b"model", b"other")
    async with engine(source, tmp_path, parser, budget_bytes=budget_of(20)) as e:
        most = int(PINNED_SHARE_MAX * e.index.budget_bytes)
        await pin(e, ranges="blk.[0-7].*")
        with pytest.raises(TooMuchPinnedError) as caught:
            await pin(e, b"other")
        refused = caught.value
        assert (refused.pinned_bytes, refused.asked_bytes) == (16 * charge_of(WINDOW), COUNT * charge_of(WINDOW))
        assert refused.allowed_bytes == most
        assert await pinned(e, b"other") == []


async def test_patterns_of_one_file_add_up_and_are_taken_away_one_by_one(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        await pin(e, ranges="blk.0.*")
        await pin(e, ranges="*.w0")
        await pin(e, ranges="*.w0")
        assert await pinned(e) == sorted({0, 1, *range(0, COUNT, 2)})
        assert [pattern for _, pattern, _ in placement(e).pins.listed()] == ["blk.0.*", "*.w0"]
        assert (await unpin(e, b"m*", ranges="*.w0")).ranges == COUNT // 2 - 1
        assert await pinned(e) == [0, 1]
        with pytest.raises(MummufsError, match=r"there is no such pin that was made with '\*'"):
            await unpin(e, b"model", ranges="*")
        await unpin(e, b"")
        assert await pinned(e) == []
        assert (placement(e).pins.files, e.index.pinned_bytes) == (0, 0)
        assert json.loads((tmp_path / PINS_NAME).read_text())["pins"] == []
        with pytest.raises(MummufsError, match="there is no such pin: "):
            await unpin(e, b"model")


async def test_a_name_that_no_range_has(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        with pytest.raises(MummufsError, match=r"no range of these 1 files has a name that matches 'blk.99.\*'"):
            await pin(e, ranges="blk.99.*")
        assert not (tmp_path / PINS_NAME).exists()


async def test_a_file_that_changes_is_pinned_again_in_its_new_version(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        await pin(e, ranges="blk.0.*")
        other = contents(4 * WINDOW, 2)
        source.replace(b"model", other)
        parser.tables[b"model"] = named_table(4)
        handle = await e.open(b"model")
        assert await e.read(handle, 0, KIB) == other[:KIB]
        await warmed(e)
        assert await pinned(e) == [0, 1]
        assert await resident(e, b"model") == 2, "they were warmed"
        assert placement(e).pins.asked_bytes == 2 * charge_of(WINDOW)
        await warmed(e)
        e.check()


async def test_a_pinned_file_that_is_gone_holds_nothing_and_comes_back_pinned(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        await pin(e)
    gone = MemorySource({b"x": b"x"})
    async with engine(gone, tmp_path, FakeParser(parser.tables), scan=True) as e:
        [(path, _, found)] = placement(e).pins.listed()
        assert (path, found.file, e.index.pinned_bytes, placement(e).pins.asked_bytes) == (b"model", None, 0, 0)
        gone.write(b"model", DATA)
        await e.open(b"model")
        await warmed(e)
        assert await pinned(e) == list(range(COUNT))


async def test_a_smaller_budget_than_was_pinned(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        await pin(e)
    async with engine(_again(source), tmp_path, FakeParser(parser.tables), budget_bytes=budget_of(10), scan=True) as e:
        left = await pinned(e)
        assert left == list(range(9))
        assert placement(e).pins.left_out == COUNT - 9
        assert placement(e).pins.asked_bytes <= placement(e).pins.allowed_bytes


@pytest.mark.parametrize("damage", [b"", b"\xff\x00", b'{"mummufs_pins": 2, "pins": []}'])
async def test_a_corrupt_file_of_pins_is_set_aside(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    source, parser = model()
    (tmp_path / PINS_NAME).write_bytes(damage)
    async with engine(source, tmp_path, parser) as e:
        await e.idle()
        assert placement(e).pins.kept.set_aside == 1
        assert (tmp_path / PINS_ASIDE_NAME).read_bytes() == damage
        assert "set aside as 'pins.bad'" in caplog.text
        await pin(e)
        assert await pinned(e) == list(range(COUNT))


async def test_pins_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    source, parser = model()
    fs = FaultyOs(tmp_path)
    async with engine(source, tmp_path, parser, fs=fs) as e:
        fs.fails = lambda name, _: name == "sync"
        with pytest.raises(MummufsError, match="the pins cannot be written to the store"):
            await pin(e)
        assert await pinned(e) == []


async def test_pins_that_cannot_be_read_are_not_written_over(tmp_path: Path, mock_clock: MockClock) -> None:
    source, parser = model()
    pins = {"mummufs_pins": 1, "pins": [{"source": [1, 1], "path": "model", "ranges": "blk.0.*"}]}
    (tmp_path / PINS_NAME).write_text(json.dumps(pins))
    fs = FaultyOs(tmp_path)
    fs.fails = lambda name, _: name == "read"
    async with engine(source, tmp_path, parser, fs=fs) as e:
        with pytest.raises(MummufsError, match="the pins of earlier mounts cannot be read"):
            await pin(e)
        fs.fails = lambda *_: False
        mock_clock.jump(LOAD_RETRY_S)
        await warmed(e)
        assert await pinned(e) == [0, 1]


async def test_the_pins_of_another_source_are_kept(tmp_path: Path) -> None:
    source, parser = model()
    other = {"source": [77, 5], "path": "model", "ranges": "*"}
    (tmp_path / PINS_NAME).write_text(json.dumps({"mummufs_pins": 1, "pins": [other]}))
    async with engine(source, tmp_path, parser) as e:
        await e.idle()
        assert await pinned(e) == []
        await pin(e, ranges="blk.1.*")
    kept = json.loads((tmp_path / PINS_NAME).read_text())["pins"]
    assert kept == [other, {"source": [1, 1], "path": "model", "ranges": "blk.1.*"}]


async def test_a_file_with_two_names_stays_pinned_by_the_other(tmp_path: Path) -> None:
    source, parser = model()
    source.link(b"model", b"name")
    parser.tables[b"name"] = parser.tables[b"model"]
    async with engine(source, tmp_path, parser) as e:
        await pin(e, ranges="blk.0.*")
        await pin(e, b"name", ranges="blk.[01].*")
        await unpin(e, b"name")
        assert await pinned(e) == [0, 1]


async def test_evict_by_name(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        await e.fill(handle, *range(COUNT))
        await pin(e, ranges="blk.0.*")
        evicted = await done(e, placement(e).evict_nowait([b"model"], "blk.[01].*", force=False))
        assert isinstance(evicted, Evicted)
        assert (evicted.evicted.ranges, evicted.evicted.bytes) == (2, 2 * charge_of(WINDOW))
        assert evicted.pinned.ranges == 2
        assert [i for i in range(COUNT) if e.state(handle, i) is State.ABSENT] == [2, 3]
        await done(e, placement(e).evict_nowait([b""], "*", force=True))
        assert e.index.statistics().resident == 0
        assert await pinned(e) == [0, 1], "the pins stay"
        e.check()


async def test_residency_by_layer(tmp_path: Path) -> None:
    source, parser = model(b"d/m-00001-of-00002.gguf", b"d/m-00002-of-00002.gguf")
    source.write(b"d/notes", b"x")
    async with engine(source, tmp_path, parser) as e:
        node = await e.overlay.look_up(e.overlay.nodes.root, b"d")
        handle = await e.overlay.open(await e.overlay.look_up(node, b"m-00001-of-00002.gguf"))
        await e.idle()
        await e.fill(handle, 0, 1, 2)
        found = await done(e, placement(e).residency_nowait([b"d"]))
        assert isinstance(found, Residency)
        assert (found.files, found.without_ranges) == (3, 1)
        assert [row.layer for row in found.rows] == [str(i) for i in range(COUNT // 2)]
        assert {row.model for row in found.rows} == {"d/m"}
        assert [row.dense_resident_bytes // WINDOW for row in found.rows[:3]] == [2, 1, 0]
        assert {row.dense_bytes for row in found.rows} == {4 * WINDOW}


async def test_a_file_that_cannot_be_opened_is_passed_over_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, parser = model(b"d/a", b"d/b")
    opened = source.open

    def refuse(path: bytes) -> MemoryFile:
        if path == b"d/a":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path)

    monkeypatch.setattr(source, "open", refuse)
    said = "'d/a' cannot be read: Permission denied"
    async with engine(source, tmp_path, parser) as e:
        change = await pin(e, b"d")
        assert (change.files, change.unreadable.files, change.unreadable.error) == (1, 1, said)
        found = await done(e, placement(e).residency_nowait([b"d"]))
        assert isinstance(found, Residency)
        assert (found.files, found.unreadable.files, len(found.rows)) == (1, 1, COUNT // 2)
        evicted = await done(e, placement(e).evict_nowait([b"d"], "*", force=True))
        assert isinstance(evicted, Evicted)
        assert (evicted.evicted.ranges, evicted.unreadable.files) == (COUNT, 1)
        for job in (placement(e).evict_nowait([b"d/a"], "*", force=True), placement(e).residency_nowait([b"d/a"])):
            await job.ended.wait()
            assert str(job.failure) == said
        assert e.overlay.open_files == 0
        e.check()


async def test_what_is_being_written_is_told_in_plain_words(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        node = (await e.open(b"model")).node
        handle = await e.service.mirror.open(node, truncate=False, drop_privileges=False)
        said = "'model' is being written, or was a moment ago: ask again when that is over"
        asked = (
            placement(e).pin_nowait([b"model"], "*"),
            placement(e).residency_nowait([b"model"]),
            placement(e).evict_nowait([b"model"], "*", force=False),
            placement(e).warmer.find_and_warm_nowait([b"model"], "*"),
        )
        for job in asked:
            await job.ended.wait()
            assert str(job.failure) == said
        source.write(b"notes", b"x")
        with pytest.raises(MummufsError, match=f"none of these files has ranges: they are passed through; {said}"):
            await pin(e, b"model", b"notes")
        e.service.mirror.close(handle)
        assert (await pin(e)).ranges == COUNT


async def test_a_pin_outlives_what_is_written_through_the_mount(tmp_path: Path, mock_clock: MockClock) -> None:
    """Also where the file is looked at before it has settled, and then not until it has."""
    source, parser = model()
    wall = [source.stat(b"model").ctime_ns + 10 * 10**9]
    async with engine(source, tmp_path, parser, settle_s=SETTLE_S, wall_ns=lambda: wall[0]) as e:
        await pin(e)
        reader = await e.open(b"model")
        handle = await e.service.mirror.open(reader.node, truncate=False, drop_privileges=False)
        await e.service.mirror.write(handle, 0, b"new")
        wall[0] = reader.node.version.ctime_ns
        e.service.mirror.close(handle)
        e.overlay.close(reader)
        e.overlay.close(await e.open(b"model"))
        assert placement(e).pins.asked_bytes == COUNT * charge_of(WINDOW)
        more = placement(e).pin_nowait([b"model"], "blk.0.*")
        await e.idle()
        assert more.state is JobState.RUNNING, "it is known how long that takes"
        wall[0] += int(SETTLE_S * 1e9)
        mock_clock.jump(SETTLE_S)
        change = await done(e, more)
        assert isinstance(change, PinChange) and change.ranges == COUNT
        assert await pinned(e) == list(range(COUNT))
        await warmed(e)
        assert await resident(e, b"model") == COUNT, "what was overlapped is brought again"
        e.check()
