"""Every call of every operation fails in turn: an error or the right bytes, and nothing left behind."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from mummufs.core.errors import RangeFileError
from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.store.layout import HEADER_BYTES, TMP_DIR, range_name
from mummufs.store.rangestore import RangeStore
from tests.store.faulty import FaultyOs, Loss

FILE = FileId(7, 8)
KEY, OTHER = RangeKey(FILE, 4096, 5000), RangeKey(FILE, 16384, 300)
VERSION = Version(1 << 20, 5, 6)
DATA, OTHER_DATA = bytes(i * 7 % 251 for i in range(KEY.size)), b"z" * OTHER.size
TABLE, NEW_TABLE = b"t" * 700, b"n" * 300
FAULTS = [(errno.EIO, False), (errno.EIO, True), (errno.ENOSPC, False), (errno.EROFS, True), (errno.EMFILE, False)]
CALLS_MAX = 200


def read(store: RangeStore, key: RangeKey) -> bytes:
    buffer = bytearray(key.size)
    store.open_range(key, VERSION).read_into(memoryview(buffer), 0)
    return bytes(buffer)


def _write(store: RangeStore) -> None:
    store.write_range(OTHER, VERSION, memoryview(OTHER_DATA))


def _rewrite(store: RangeStore) -> None:
    store.write_range(KEY, VERSION, memoryview(DATA))


def _read(store: RangeStore) -> None:
    assert read(store, KEY) == DATA


def _remove(store: RangeStore) -> None:
    store.remove_range(KEY)


def _save(store: RangeStore) -> None:
    store.save_table(FILE, VERSION, NEW_TABLE)


def _load(store: RangeStore) -> None:
    assert store.load_table(FILE, VERSION) == TABLE


OPERATIONS: list[Callable[[RangeStore], None]] = [_write, _rewrite, _read, _remove, _save, _load]


def _filled(directory: Path) -> tuple[FaultyOs, RangeStore]:
    """A store with one range and one table."""
    directory.mkdir()
    fs = FaultyOs(directory)
    store = RangeStore(fs)
    store.write_range(KEY, VERSION, memoryview(DATA))
    store.save_table(FILE, VERSION, TABLE)
    return fs, store


def _tmp(directory: Path) -> list[Path]:
    return list((directory / TMP_DIR).iterdir())


def _right_or_an_error(store: RangeStore) -> None:
    """Whatever happened: no wrong byte is ever given out."""
    for key, data in ((KEY, DATA), (OTHER, OTHER_DATA)):
        try:
            assert read(store, key) == data
        except (OSError, RangeFileError):
            pass
    try:
        assert store.load_table(FILE, VERSION) in (TABLE, NEW_TABLE)
    except (OSError, RangeFileError):
        pass


def _usable(store: RangeStore) -> None:
    for key, data in ((KEY, DATA), (OTHER, OTHER_DATA)):
        store.write_range(key, VERSION, memoryview(data))
        assert read(store, key) == data
    store.save_table(FILE, VERSION, NEW_TABLE)
    assert store.load_table(FILE, VERSION) == NEW_TABLE


@pytest.mark.parametrize(("code", "forever"), FAULTS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_call_of_an_operation_may_fail(
    tmp_path: Path, operation: Callable[[RangeStore], None], code: int, forever: bool
) -> None:
    for nth in range(1, CALLS_MAX):
        directory = tmp_path / str(nth)
        fs, store = _filled(directory)
        fs.fail(nth, code, forever=forever)
        failed = False
        try:
            operation(store)
        except OSError as error:
            failed = True
            assert error.errno == code
        reached = fs.heal()
        assert fs.fds == {}, "no descriptor is left open"
        if not forever:
            assert _tmp(directory) == [], "one fault leaves nothing half-written"
        if failed and operation is _write:
            assert not (directory / range_name(OTHER)).exists(), "what failed has not happened"
        _right_or_an_error(store)
        store = RangeStore(fs)
        assert _tmp(directory) == []
        if operation is not _remove:
            assert read(store, KEY) == DATA
        _usable(store)
        assert fs.fds == {}
        if not reached:
            assert not failed and nth > 1
            return
    pytest.fail("the operation has no end")


@pytest.mark.parametrize(("code", "forever"), FAULTS)
def test_every_call_of_the_start_may_fail(tmp_path: Path, code: int, forever: bool) -> None:
    for nth in range(1, CALLS_MAX):
        directory = tmp_path / str(nth)
        fs, _ = _filled(directory)
        left = directory / TMP_DIR / f"{'0' * 32}.1.tmp"
        left.write_bytes(b"half-writ")
        fs.fail(nth, code, forever=forever)
        try:
            _right_or_an_error(RangeStore(fs))
        except OSError as error:
            assert error.errno == code
        reached = fs.heal()
        assert fs.fds == {}
        store = RangeStore(fs)
        assert not left.exists()
        assert read(store, KEY) == DATA and store.load_table(FILE, VERSION) == TABLE
        _usable(store)
        if not reached:
            return
    pytest.fail("the start has no end")


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_power_may_be_lost_at_every_call(tmp_path: Path, operation: Callable[[RangeStore], None], loss: Loss) -> None:
    for nth in range(1, CALLS_MAX):
        directory = tmp_path / str(nth)
        fs, store = _filled(directory)
        fs.fail(nth, errno.EIO, forever=True)
        try:
            operation(store)
        except OSError:
            pass
        reached = fs.heal()
        fs.lose_power(loss)
        store = RangeStore(fs)
        assert _tmp(directory) == []
        if operation is not _remove:
            assert read(store, KEY) == DATA, "what was synced before is still there"
        _right_or_an_error(store)
        if not reached and operation is _write:
            assert read(store, OTHER) == OTHER_DATA, "and so is what was written"
        _usable(store)
        if not reached:
            return
    pytest.fail("the operation has no end")


@pytest.mark.parametrize("loss", Loss)
def test_a_disk_that_lies_about_syncing_costs_entries_and_never_bytes(tmp_path: Path, loss: Loss) -> None:
    directory = tmp_path / "store"
    fs, store = _filled(directory)
    fs.lying = True
    store.write_range(OTHER, VERSION, memoryview(OTHER_DATA))
    store.save_table(FILE, VERSION, NEW_TABLE)
    fs.lose_power(loss)
    store = RangeStore(fs)
    assert (directory / range_name(OTHER)).exists(), "its name is there, which is what makes it dangerous"
    with pytest.raises(RangeFileError):
        read(store, OTHER)
    with pytest.raises(RangeFileError):
        store.load_table(FILE, VERSION)
    assert read(store, KEY) == DATA
    _usable(store)


@pytest.mark.parametrize("lost", [(HEADER_BYTES, HEADER_BYTES + 1), (HEADER_BYTES + KEY.size - 1, 1 << 20)])
def test_a_whole_header_over_lost_bytes_is_not_believed(tmp_path: Path, lost: tuple[int, int]) -> None:
    directory = tmp_path / "store"
    _, store = _filled(directory)
    path = directory / range_name(KEY)
    contents = bytearray(path.read_bytes())
    contents[slice(*lost)] = bytes(len(contents[slice(*lost)]))
    if contents == path.read_bytes():
        contents[lost[0]] ^= 1
    path.write_bytes(contents)
    with pytest.raises(RangeFileError, match="checksum"):
        read(store, KEY)


def test_one_byte_at_a_time(tmp_path: Path) -> None:
    fs, store = _filled(tmp_path / "store")
    fs.one_byte = True
    _usable(store)
    assert read(RangeStore(fs), KEY) == DATA


def test_a_write_that_writes_nothing_does_not_go_on_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs, store = _filled(tmp_path / "store")
    monkeypatch.setattr(fs, "write", lambda *_: 0)
    with pytest.raises(OSError):
        store.write_range(OTHER, VERSION, memoryview(OTHER_DATA))
    assert _tmp(tmp_path / "store") == [] and fs.fds == {}
