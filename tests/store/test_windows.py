"""The store on Windows, over a Windows of the tests' own: the contract, and what is not so elsewhere."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from mummufs.core.errors import StoreBusyError
from mummufs.store.layout import HEADER_BYTES
from mummufs.store.rangestore import RangeStore
from mummufs.store.windowslock import WindowsStoreLock
from mummufs.store.windowsos import OWNER_ONLY, WindowsOs, make_store_directory
from tests.store import test_rangestore, test_restamp, test_tables
from tests.store.faulty import FaultyOs
from tests.store.samples import DATA, FILE, KEY, OTHER_DATA, VERSION, Store, read
from tests.support.fake_win32 import FakeWin32
from tests.support.watched_os import WatchedOs

NOT_SO = {
    "test_it_is_proved_again_when_somebody_may_have_touched_it",  # by a chmod, of which Windows knows nothing
    "test_a_file_that_lost_its_name_is_refused",  # it does not lose it while it is open
    "test_what_is_no_file_is_refused_at_once",  # fifos
    "test_what_is_no_file_is_replaced_by_a_fill",
    "test_what_is_no_table_neither_serves_nor_stops_the_start",
    "test_what_is_no_file_does_not_fail_a_probe",
    "test_what_is_no_mark_is_none",
}


class FaultyWindowsOs(FaultyOs):
    """`WindowsOs`, with the faults of `FaultyOs`; a power cut is that of another system."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.win32 = FakeWin32(directory)
        self._real = WindowsOs("C:\\", self.win32)

    def open_to_change(self, name: str) -> int:
        return self._opened(WatchedOs.open_to_change(self, name), name)

    def create(self, name: str) -> int:
        return self._opened(WatchedOs.create(self, name), name)

    def close(self, fd: int) -> None:
        self.fds.pop(fd, None)
        WatchedOs.close(self, fd)

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        return WatchedOs.write(self, fd, data[:1] if self.one_byte else data, offset)

    def sync(self, fd: int) -> None:
        WatchedOs.sync(self, fd)

    def publish(self, fd: int, old: str, new: str) -> int:
        del self.fds[fd]
        return self._opened(super().publish(fd, old, new), new)


class WindowsStore(Store):
    """A store of Windows with one range in it."""

    make_fs = FaultyWindowsOs

    @property
    def win32(self) -> FakeWin32:
        assert isinstance(self.fs, FaultyWindowsOs)
        return self.fs.win32


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WindowsStore]:
    found = WindowsStore(tmp_path)
    yield found


for _module in (test_rangestore, test_restamp, test_tables):
    for _name, _test in vars(_module).items():
        takes = _test.__code__.co_varnames[: _test.__code__.co_argcount] if _name.startswith("test_") else ()
        if "store" in takes and _name not in NOT_SO:
            globals()[_name] = _test


def errno_of(function: object, *arguments: object) -> int:
    assert callable(function)
    with pytest.raises(OSError) as caught:
        function(*arguments)
    return caught.value.errno or 0


def test_an_open_range_file_is_not_removed(store: WindowsStore) -> None:
    stored = store.open()
    assert errno_of(store.store.remove_range, KEY) == errno.EBUSY
    assert read(stored) == DATA
    del stored
    store.store.remove_range(KEY)
    assert not store.path.exists()


def test_an_open_range_file_is_not_replaced(store: WindowsStore) -> None:
    stored = store.open()
    assert errno_of(store.store.write_range, KEY, VERSION, memoryview(OTHER_DATA)) == errno.EBUSY
    assert read(stored) == DATA and not list((store.directory / "tmp").iterdir())
    del stored
    assert read(store.store.write_range(KEY, VERSION, memoryview(OTHER_DATA))) == OTHER_DATA


def test_a_new_file_is_closed_before_it_gets_its_name(store: WindowsStore) -> None:
    before = len(store.win32.calls)
    del store.path
    store.store.remove_range(KEY)
    stored = store.store.write_range(KEY, VERSION, memoryview(DATA))
    calls = store.win32.calls[before:]
    moved = calls.index("move")
    assert "close" in calls[:moved] and calls[moved + 1] == "open"
    assert read(stored, 5, 10) == DATA[5:15]


def test_a_name_that_is_a_directory_is_somebody_elses(store: WindowsStore) -> None:
    store.path.unlink()
    store.path.mkdir()
    store.store.remove_range(KEY)
    assert store.path.is_dir()
    with pytest.raises(IsADirectoryError):
        store.store.write_range(KEY, VERSION, memoryview(DATA))


def test_everything_is_the_owners_alone(store: WindowsStore) -> None:
    store.store.save_table(FILE, VERSION, b"table")
    created = store.win32.calls.count("make_directory")
    assert created and set(store.win32.sddl) == {OWNER_ONLY}


def test_a_descriptor_is_never_used_twice(store: WindowsStore) -> None:
    fs = store.fs._real
    first = fs.open(store.path.relative_to(store.directory).as_posix())
    fs.close(first)
    second = fs.open(store.path.relative_to(store.directory).as_posix())
    assert second != first and errno_of(fs.close, first) == errno.EBADF == errno_of(fs.state, first)
    data = memoryview(bytearray(4))
    assert fs.read(second, data, HEADER_BYTES) == 4 and data == DATA[:4]
    assert errno_of(fs.open_direct, second) == errno_of(fs.splice, second, 0, 1, 0) == errno.EOPNOTSUPP
    fs.close(second)


def test_free_space_and_the_file_system(tmp_path: Path) -> None:
    win32 = FakeWin32(tmp_path)
    make_store_directory("C:\\store", win32)
    make_store_directory("C:\\store", win32)
    fs = WindowsOs("C:\\store", win32)
    assert 0 < fs.free_bytes() <= fs.total_bytes()
    assert not fs.revive()
    fs.dispose()
    (tmp_path / "store").rmdir()
    assert fs.revive() and (tmp_path / "store").is_dir()
    win32.name = "exFAT"
    with pytest.raises(OSError, match=r"exFAT.*NTFS, ReFS"):
        make_store_directory("C:\\other", win32)


def test_the_lock(tmp_path: Path) -> None:
    win32 = FakeWin32(tmp_path)
    lock = WindowsStoreLock("C:\\", win32)
    with pytest.raises(StoreBusyError, match=r"in use by a mount of process \d+"):
        WindowsStoreLock("C:\\", win32, wait_s=0)
    with pytest.raises(OSError, match="in use") as caught:
        lock.renew()
    assert caught.value.errno == errno.EBUSY
    lock.release()
    lock.release()
    again = WindowsStoreLock("C:\\", win32, wait_s=0)
    again.release()
    assert win32.open_handles == 0


def test_a_store_that_is_opened_again(tmp_path: Path) -> None:
    store = WindowsStore(tmp_path)
    (tmp_path / "tmp" / ("0" * 32 + ".7.tmp")).write_bytes(b"left")
    again = RangeStore(FaultyWindowsOs(tmp_path))
    assert not list((tmp_path / "tmp").iterdir())
    assert read(again.open_range(KEY, VERSION)) == DATA
    del store
