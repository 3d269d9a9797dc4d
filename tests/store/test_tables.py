"""Table files: kept for the next mount, within a limit."""

from __future__ import annotations

import os

import pytest

from mummufs.core.errors import RangeFileError
from mummufs.core.ranges import PAGE_SIZE, FileId, Version
from mummufs.store import rangestore as module
from mummufs.store.layout import table_name
from mummufs.store.rangestore import RangeStore
from tests.store.faulty import FaultyOs
from tests.store.samples import NO_FILES, VERSION, Store, put


def _file(i: int) -> FileId:
    return FileId(1, i)


def test_tables_come_back_after_a_restart(store: Store) -> None:
    store.store.save_table(_file(1), VERSION, b"payload")
    store.store.save_table(_file(2), VERSION, b"")
    size = store.store.tables_bytes
    again = RangeStore(FaultyOs(store.directory))
    assert again.load_table(_file(1), VERSION) == b"payload"
    assert again.load_table(_file(2), VERSION) == b""
    assert again.tables_bytes == size == 2 * PAGE_SIZE, "they count in whole blocks, as the disk has them"
    with pytest.raises(FileNotFoundError):
        again.load_table(_file(3), VERSION)
    with pytest.raises(RangeFileError):
        again.load_table(_file(1), Version(1, 2, 3))


def test_a_table_saved_again_counts_once(store: Store) -> None:
    store.store.save_table(_file(1), VERSION, b"x" * 1000)
    store.store.save_table(_file(1), Version(1, 2, 3), b"y" * 10)
    assert store.store.tables_bytes == PAGE_SIZE
    assert store.store.load_table(_file(1), Version(1, 2, 3)) == b"y" * 10


@pytest.mark.parametrize("restart", [False, True])
def test_the_table_saved_longest_ago_makes_room(store: Store, restart: bool) -> None:
    limit = 4 * PAGE_SIZE
    tables = RangeStore(FaultyOs(store.directory), tables_bytes_max=limit)
    order = [3, 1, 4, 2]
    for age, i in enumerate(order):
        tables.save_table(_file(i), VERSION, b"x" * 100)
        os.utime(store.directory / table_name(_file(i)), (age, age))
    if restart:
        tables = RangeStore(FaultyOs(store.directory), tables_bytes_max=limit)
    for i in (8, 9):
        tables.save_table(_file(i), VERSION, b"x" * 100)
        assert tables.tables_bytes == limit
    there = {i for i in (*order, 8, 9) if (store.directory / table_name(_file(i))).exists()}
    assert there == {4, 2, 8, 9}


def test_a_smaller_limit_than_before_is_kept_from_the_start(store: Store) -> None:
    for i in range(8):
        store.store.save_table(_file(i), VERSION, b"x")
    assert RangeStore(FaultyOs(store.directory), tables_bytes_max=3 * PAGE_SIZE).tables_bytes == 3 * PAGE_SIZE
    assert len(list((store.directory / "tables").iterdir())) == 3


def test_a_table_over_the_limit_is_not_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    small = RangeStore(FaultyOs(store.directory), tables_bytes_max=PAGE_SIZE)
    with pytest.raises(RangeFileError, match="larger than the limit of 4096"):
        small.save_table(_file(1), VERSION, b"x" * PAGE_SIZE)
    monkeypatch.setattr(module, "TABLE_FILE_BYTES_MAX", 500)
    (store.directory / table_name(_file(1))).write_bytes(b"x" * 501)
    with pytest.raises(RangeFileError):
        store.store.load_table(_file(1), VERSION)
    assert store.fs.fds == {}


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_table_neither_serves_nor_stops_the_start(store: Store, kind: str) -> None:
    store.store.save_table(_file(1), VERSION, b"x")
    put(store.directory / table_name(_file(1)), kind)
    again = RangeStore(FaultyOs(store.directory))
    assert again.tables_bytes == 0
    with pytest.raises(RangeFileError):
        again.load_table(_file(1), VERSION)
    again.save_table(_file(2), VERSION, b"y")
    assert again.load_table(_file(2), VERSION) == b"y"
