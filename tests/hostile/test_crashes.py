"""kill -9 at any moment, and a store that loses what was not synced: the next mount heals itself."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from xxhash import xxh3_128_digest

from mummufs.core.errors import RangeFileError
from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.store.layout import HEADER_BYTES, TMP_DIR, RangeHeader
from mummufs.store.rangestore import RangeStore
from mummufs.store.scan import scan
from tests.faultfs.client import FaultFs
from tests.hostile.crash_loop import run
from tests.mounts.harness import Mounted, opened
from tests.store.faulty import FaultyOs, Loss
from tests.support.models import write_native
from tests.support.waiting import wait_for

pytestmark = pytest.mark.mount

ROUNDS = 30
SEEDS = (1, 2, 3)
LOSSES = ("empty", "short", "zeros", "holes")
KIB, MIB = 1 << 10, 1 << 20
SIZES = (200 * KIB,) * 12


@pytest.mark.slow
def test_kill_9_under_load(tmp_path: Path) -> None:
    tally = run(tmp_path, ROUNDS)
    assert tally.rounds == ROUNDS
    assert tally.at_risk > 0
    assert tally.clients_killed > 0


# ---------------------------------------------------------------------- power cuts


@pytest.fixture
def volatile(tmp_path: Path) -> Iterator[FaultFs]:
    """A file system for the store that loses what was not synced."""
    back = tmp_path / "back"
    back.mkdir()
    with FaultFs(back, volatile=True) as layer:
        yield layer


@pytest.fixture
def models(tree: Path) -> dict[str, bytes]:
    """Files of ranges in the source: their bytes. Two have gaps so wide that each range is written by itself."""
    for i, (name, gap) in enumerate({"a": MIB, "b": MIB, "c": 3000}.items()):
        write_native(tree / name, seed=i, sizes=SIZES, gap=gap)
    return {name: (tree / name).read_bytes() for name in ("a", "b", "c")}


class Cold:
    """Threads that read each file once and compare; the mount may die meanwhile."""

    def __init__(self, m: Mounted, expected: dict[str, bytes]) -> None:
        self.wrong: list[str] = []
        self._m = m
        self._threads = [threading.Thread(target=self._read, args=item) for item in expected.items()]
        for thread in self._threads:
            thread.start()

    def _read(self, name: str, data: bytes) -> None:
        try:
            with opened(self._m.path(name)) as fd:
                for offset in range(0, len(data), 64 * KIB):
                    if os.pread(fd, 64 * KIB, offset) != data[offset : offset + 64 * KIB]:
                        self.wrong.append(f"{name} at {offset}")
        except OSError:
            pass  # the mount is dead

    def join(self) -> list[str]:
        """What was wrong; each thread ends within a limit."""
        for thread in self._threads:
            thread.join(15)
            assert not thread.is_alive(), "a reader hangs on a mount that is dead"
        return self.wrong


def zero_pages(data: bytes) -> list[int]:
    """Where pages of nothing but zeros are. The sources here have none."""
    return [i for i in range(0, len(data) - 4095, 4096) if not any(data[i : i + 4096])]


def served_right(m: Mounted, expected: dict[str, bytes]) -> None:
    """Every byte through the mount, cold."""
    m.drop_pages()
    for name, data in expected.items():
        found = m.read(name)
        assert not zero_pages(found), f"{name} has pages of zeros"
        assert found == data, name


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", SEEDS)
def test_power_cut_while_ranges_are_written(
    tree: Path, models: dict[str, bytes], volatile: FaultFs, loss: str, seed: int
) -> None:
    """Syncs are slow, so that there is always something to lose; what had its name by then is all there afterwards."""
    rng = random.Random(seed)
    store = volatile.mountpoint / "store"
    with Mounted(tree, store=store, options=("settle=0", "store_reserve=0")) as m:
        assert m.read("a") == models["a"]
        m.settle()
        early = {path: path.read_bytes() for path in m.range_files()}
        assert len(early) >= len(SIZES)
        volatile.delay_syncs(0.02)
        volatile.clear()
        m.drop_pages()
        readers = Cold(m, models)
        syncs = rng.randrange(1, len(SIZES))
        wait_for(lambda: volatile.op_counts().get("fsync", 0), lambda count: count >= syncs)
        volatile.delay_syncs(60)
        volatile.clear()
        # Not one alone: it could be a range table of a single page, and "holes" takes every second page.
        wait_for(lambda: volatile.op_counts().get("fsync", 0), lambda count: count >= 3)
        assert volatile.lose_power(loss) > 0, "nothing was at risk"
        m.kill()
        assert readers.join() == []
        volatile.reset()
        named = {path: path.read_bytes() for path in m.range_files()}
        for path, data in named.items():
            checksum = RangeHeader.unpack(data).checksum
            assert xxh3_128_digest(data[HEADER_BYTES:]) == checksum, f"{path} got its name before it was synced"
        assert early.items() <= named.items()
        m.mount()
        assert m.status()["store"]["ranges"] == len(named)
        assert list((store / TMP_DIR).iterdir()) == []
        m.drop_pages("a")
        assert m.read("a") == models["a"]
        reads = m.status()["reads"]
        assert reads["hit_bytes"] >= sum(SIZES), "what was synced is served"
        served_right(m, models)
        m.settle()
        assert m.status()["store"]["ranges"] > len(early)


@pytest.mark.parametrize("loss", LOSSES)
def test_power_cut_of_a_disk_that_lies_about_syncs(
    tree: Path, models: dict[str, bytes], volatile: FaultFs, loss: str
) -> None:
    """Names without their bytes, all of them: that is what was measured after a rename without a sync."""
    store = volatile.mountpoint / "store"
    with Mounted(tree, store=store, options=("settle=0", "store_reserve=0")) as m:
        assert m.read("a") == models["a"]
        m.settle()
        kept = {path: path.read_bytes() for path in m.range_files()}
        volatile.lie_on_syncs()
        served_right(m, models)
        m.settle()
        named = set(m.range_files())
        assert len(named) > len(kept)
        assert volatile.lose_power(loss) >= len(named) - len(kept)
        m.kill()
        volatile.reset()
        assert set(m.range_files()) == named, "the names are all there"
        m.mount()
        served_right(m, models)
        served_right(m, models)
        m.settle()
        assert {path: path.read_bytes() for path in m.range_files()}.items() >= kept.items()
        for path in m.range_files():
            assert not zero_pages(path.read_bytes()[HEADER_BYTES:])


@pytest.mark.parametrize("loss", list(Loss))
@pytest.mark.parametrize("lying", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_power_cut_at_every_rename(tmp_path: Path, loss: Loss, lying: bool, when: str) -> None:
    """In process: power fails before or after the rename of each range file and table; the store is opened anew."""
    directory = tmp_path / "store"
    directory.mkdir()
    version = Version(1 << 20, 5, 6)
    keys = [RangeKey(FileId(1, 10 + i), 4096 * i, 3000 + 7 * i) for i in range(6)]
    data = {key: random.Random(i).randbytes(key.size) for i, key in enumerate(keys)}
    fs = FaultyOs(directory)
    store = RangeStore(fs)
    for count, key in enumerate(keys, 1):
        fs.lying = lying

        done: list[str] = []

        def cut(call: str, done: list[str] = done) -> None:
            """Once the power is off no call does anything any more, the removal of a temporary included."""
            if call == "rename" or "rename" in done:
                done.append("rename")
                raise OSError(errno.EIO, "the power is off")

        fs.on_call = cut if when == "before" else lambda _: None
        try:
            store.write_range(key, version, memoryview(data[key]))
            store.save_table(key.file, version, data[key])
        except OSError:
            assert when == "before"
            assert list((directory / TMP_DIR).iterdir()), "a temporary is left"
        fs.on_call = lambda _: None
        fs.lose_power(loss)
        store = RangeStore(fs)
        assert fs.names(TMP_DIR) == []
        found = {header.key for header in scan(os.fspath(directory))}
        whole = when == "after" and not lying
        assert found == (set(keys[:count]) if whole else set())
        for written in keys[:count]:
            buffer = bytearray(written.size)
            try:
                store.open_range(written, version).read_into(memoryview(buffer), 0)
                assert buffer == data[written]
            except (OSError, RangeFileError):
                assert not whole, "what was synced is kept"
            try:
                assert store.load_table(written.file, version) == data[written]
            except (OSError, RangeFileError):
                assert not whole, "what was synced is kept"
