"""A range file that is told of another version: its data stays, and its header is the old one, the new one, or none."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mummufs.core.errors import RangeFileError
from mummufs.core.ranges import RangeKey, Version
from mummufs.store.layout import HEADER_BYTES, HEADER_USED_BYTES, range_name
from mummufs.store.rangestore import RangeStore
from mummufs.store.scan import scan
from tests.store.faulty import Loss
from tests.store.samples import DATA, KEY, NO_FILES, OTHER_DATA, VERSION, Store, put, read

NEW = VERSION._replace(ctime_ns=99)
CALLS_MAX = 50


def restamp(store: Store, data: bytes = DATA, old: Version = VERSION) -> bool:
    return store.store.restamp_range(KEY, old, NEW, memoryview(data))


def versions(store: Store) -> set[Version]:
    """The versions by which the store gives the right bytes out. Wrong bytes are a failure."""
    found = set()
    for version in (VERSION, NEW):
        try:
            assert read(store.store.open_range(KEY, version)) == DATA
        except (RangeFileError, OSError):
            continue
        found.add(version)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_the_same_bytes_keep_their_file(store: Store) -> None:
    before, payload = store.path.stat(), store.path.read_bytes()[HEADER_BYTES:]
    calls = len(store.fs.calls)
    assert restamp(store)
    assert "sync" in store.fs.calls[calls:]
    assert store.path.stat().st_ino == before.st_ino
    assert store.path.stat().st_size == before.st_size
    assert store.path.read_bytes()[HEADER_BYTES:] == payload
    assert versions(store) == {NEW}
    assert [header.version for header in scan(os.fspath(store.directory))] == [NEW]
    assert store.fs.fds == {}


def test_it_is_proved_again_before_it_is_believed(store: Store) -> None:
    stored = store.open()
    assert read(stored) == DATA
    assert restamp(store)
    with pytest.raises(RangeFileError, match="another version"):
        read(stored)
    stored.restamped(NEW)
    read_before = store.fs.bytes_read
    assert read(stored) == DATA
    assert store.fs.bytes_read - read_before >= 2 * KEY.size
    store.write_at(HEADER_BYTES + 5, b"rot")
    with pytest.raises(RangeFileError, match="checksum"):
        read(stored)


@pytest.mark.parametrize("what", ["other bytes", "other version", "torn", "short", *NO_FILES])
def test_what_does_not_hold_these_bytes_is_left_as_it_is(store: Store, what: str) -> None:
    data, old = DATA, VERSION
    match what:
        case "other bytes":
            data = OTHER_DATA
        case "other version":
            old = VERSION._replace(mtime_ns=1)
        case "torn":
            store.write_at(20, b"junk")
        case "short":
            os.truncate(store.path, HEADER_BYTES + KEY.size - 1)
        case _:
            put(store.path, what)
    before = store.path.read_bytes() if store.path.is_file() else None
    assert not restamp(store, data, old)
    assert (store.path.read_bytes() if store.path.is_file() else None) == before
    assert store.fs.fds == {}


def test_one_that_is_gone_is_no_such_file(store: Store) -> None:
    store.path.unlink()
    with pytest.raises(FileNotFoundError):
        restamp(store)


@pytest.mark.parametrize("whole", range(HEADER_USED_BYTES + 1))
def test_a_torn_header_is_no_header(store: Store, whole: int) -> None:
    """Only so many of its bytes reached the disk, from the front or from the back."""
    old = store.path.read_bytes()
    assert restamp(store)
    new = store.path.read_bytes()
    for head in (new[:whole] + old[whole:], old[:whole] + new[whole:]):
        store.path.write_bytes(head)
        store.touch()
        expected = {new: {NEW}, old: {VERSION}}.get(head, set())
        assert versions(store) == expected
        assert [header.version for header in scan(os.fspath(store.directory))] == list(expected)
        store.path.write_bytes(new)  # the scan has removed a torn one


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("one_byte", [False, True])
def test_every_call_may_fail(tmp_path: Path, code: int, forever: bool, one_byte: bool) -> None:
    for nth in range(1, CALLS_MAX + 4 * HEADER_USED_BYTES):
        directory = tmp_path / str(nth)
        directory.mkdir()
        store = Store(directory)
        store.fs.one_byte = one_byte
        store.fs.fail(nth, code, forever=forever)
        done = failed = False
        try:
            done = restamp(store)
        except OSError as error:
            failed = True
            assert error.errno == code
        reached = store.fs.heal()
        store.fs.one_byte = False
        assert store.fs.fds == {}
        assert done or failed
        found = versions(store)
        assert not done or found == {NEW}
        if not one_byte:
            assert found, "a header is written at once: it is the old one or the new one"
        store.store.write_range(KEY, NEW, memoryview(DATA))
        assert versions(store) == {NEW}
        if not reached:
            return
    pytest.fail("it has no end")


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("lying", [False, True])
def test_power_may_be_lost_at_every_call(tmp_path: Path, loss: Loss, lying: bool) -> None:
    for nth in range(1, CALLS_MAX):
        directory = tmp_path / str(nth)
        directory.mkdir()
        store = Store(directory)
        store.fs.lying = lying
        store.fs.fail(nth, errno.EIO, forever=True)
        done = False
        try:
            done = restamp(store)
        except OSError:
            pass
        reached = store.fs.heal()
        store.fs.lose_power(loss)
        store.store = RangeStore(store.fs)
        found = versions(store)
        assert len(found) == 1, "what was synced before is still there, by one version or the other"
        if done:
            assert found == {VERSION if lying else NEW}
        if not reached:
            return
    pytest.fail("it has no end")


def test_ranges_side_by_side_are_not_mixed(store: Store) -> None:
    other = RangeKey(KEY.file, KEY.offset + KEY.size, len(OTHER_DATA))
    store.store.write_range(other, VERSION, memoryview(OTHER_DATA))
    before = (store.directory / range_name(other)).read_bytes()
    assert restamp(store)
    assert (store.directory / range_name(other)).read_bytes() == before
    assert read(store.store.open_range(other, VERSION), size=len(OTHER_DATA)) == OTHER_DATA


@pytest.mark.parametrize("loss", Loss)
def test_a_stamp_that_is_torn_or_lost_costs_the_range(tmp_path: Path, loss: Loss) -> None:
    """It is not synced, and nobody has compared the bytes: they are right by one version, or there is no range."""
    for whole in range(HEADER_USED_BYTES + 1):
        directory = tmp_path / str(whole)
        directory.mkdir()
        store = Store(directory)
        old = store.path.read_bytes()
        store.store.stamp_range(KEY, VERSION, NEW)
        assert versions(store) == {NEW} and store.fs.fds == {}
        new = store.path.read_bytes()
        store.path.write_bytes(new[:whole] + old[whole:])
        store.touch()
        assert len(versions(store)) <= 1
    (tmp_path / "lost").mkdir()
    store = Store(tmp_path / "lost")
    store.store.stamp_range(KEY, VERSION, NEW)
    store.fs.lose_power(loss)
    store.store = RangeStore(store.fs)
    assert len(versions(store)) == 1


def test_another_version_is_not_stamped(store: Store) -> None:
    before = store.path.read_bytes()
    with pytest.raises(RangeFileError):
        store.store.stamp_range(KEY, VERSION._replace(mtime_ns=1), NEW)
    assert store.path.read_bytes() == before and store.fs.fds == {}
    store.path.unlink()
    with pytest.raises(FileNotFoundError):
        store.store.stamp_range(KEY, VERSION, NEW)
