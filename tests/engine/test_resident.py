"""The open range files: shared, limited in number, closed with the last reference."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.engine.resident import Resident
from mummufs.store.layout import RANGES_DIR
from mummufs.store.rangestore import RangeStore
from tests.engine.harness import PAGE, FaultyOs, contents

VERSION = Version(1, 2, 3)
THREADS = 4


class _MeetingOs(FaultyOs):
    """Threads that open a range file wait for one another."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.meeting = threading.Barrier(THREADS, timeout=30)
        self.open_fds: set[int] = set()

    def open(self, name: str) -> int:
        if name.startswith(RANGES_DIR):
            self.meeting.wait()
        fd = super().open(name)
        self.open_fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.open_fds.discard(fd)
        super().close(fd)


def _key(i: int) -> RangeKey:
    return RangeKey(FileId(1, 2), i * PAGE, PAGE)


def test_threads_that_open_a_range_at_once_share_one_file_and_one_proof(tmp_path: Path) -> None:
    fs = _MeetingOs(tmp_path)
    store = RangeStore(fs)
    data = contents(PAGE)
    store.write_range(_key(0), VERSION, memoryview(data))
    resident = Resident(store, {_key(0): VERSION}.get)
    with ThreadPoolExecutor(THREADS) as pool:
        stored = list(pool.map(lambda _: resident.acquire(_key(0), VERSION), range(THREADS)))
    assert len({id(s) for s in stored}) == 1
    assert stored[0] is not None
    assert len(fs.open_fds) == 1
    reads = fs.log.count("read")
    for _ in range(3):
        buffer = memoryview(bytearray(PAGE))
        stored[0].read_into(buffer, 0)
        assert buffer == data
    assert fs.log.count("read") == reads + 2 + 3  # header and bytes to prove it, and then each read
    assert resident.open_files == 1


def test_at_most_so_many_are_kept_open_and_the_one_in_hand_stays_readable(tmp_path: Path) -> None:
    store = RangeStore(FaultyOs(tmp_path))
    resident = Resident(store, {_key(i): VERSION for i in range(5)}.get, open_max=2)
    for i in range(5):
        resident.add(_key(i), VERSION, store.write_range(_key(i), VERSION, memoryview(contents(PAGE, i))))
    first = resident.acquire(_key(0), VERSION)
    assert first is not None
    for i in range(5):
        assert resident.acquire(_key(i), VERSION) is not None
        assert resident.open_files <= 2
    closed: list[int] = []
    first.when_closed(lambda: closed.append(0))
    assert resident.remove(_key(4)) is not None
    buffer = memoryview(bytearray(10))
    first.read_into(buffer, 0)
    assert buffer == contents(PAGE, 0)[:10]
    assert closed == []
    del first
    assert closed == [0]


def test_a_range_of_another_version_or_that_was_removed_is_not_there(tmp_path: Path) -> None:
    store = RangeStore(FaultyOs(tmp_path))
    known = {_key(0): VERSION}
    resident = Resident(store, known.get)
    resident.add(_key(0), VERSION, store.write_range(_key(0), VERSION, memoryview(contents(PAGE))))
    assert resident.acquire(_key(0), Version(1, 2, 4)) is None
    assert resident.acquire(_key(1), VERSION) is None
    known.clear()
    assert resident.remove(_key(0)) is not None
    assert resident.remove(_key(0)) is None
    assert resident.acquire(_key(0), VERSION) is None
    assert resident.open_files == 0


def test_a_range_that_nobody_has_opened_goes_as_it_came(tmp_path: Path) -> None:
    store = RangeStore(FaultyOs(tmp_path))
    known: dict[RangeKey, Version] = {}
    resident = Resident(store, known.get)
    store.write_range(_key(0), VERSION, memoryview(contents(PAGE)))
    for _ in range(2):
        known[_key(0)] = VERSION
        del known[_key(0)]
        assert resident.remove(_key(0)) is None
        assert resident.acquire(_key(0), VERSION) is None
    known[_key(0)] = VERSION
    assert resident.acquire(_key(0), VERSION) is not None
    assert resident.remove(_key(0)) is not None


def test_what_is_being_stamped_is_out_of_sight_until_it_is_added_again(tmp_path: Path) -> None:
    """The index has its new version already, and its file the old one still."""
    store = RangeStore(FaultyOs(tmp_path))
    later = VERSION._replace(ctime_ns=4)
    known = {_key(0): VERSION}
    resident = Resident(store, known.get)
    store.write_range(_key(0), VERSION, memoryview(contents(PAGE)))
    for opened in (False, True):
        assert not opened or resident.acquire(_key(0), VERSION) is not None
        known[_key(0)] = later
        resident.remove(_key(0))
        assert resident.acquire(_key(0), later) is None
        assert resident.acquire(_key(0), VERSION) is None
        known[_key(0)] = VERSION
        resident.add(_key(0), VERSION)
        assert resident.acquire(_key(0), VERSION) is not None
