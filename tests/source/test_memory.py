"""The faults that a memory source can be given."""

from __future__ import annotations

import errno
import threading

import pytest

from mummufs.source.memory import MemoryFile, MemorySource, ReadRecord


def _read(file: MemoryFile, offset: int, size: int) -> bytes:
    buffer = bytearray(size)
    return bytes(buffer[: file.read_into(memoryview(buffer), offset)])


def test_every_read_is_recorded() -> None:
    source = MemorySource({b"a": b"0123", b"d/b": b"4567"})
    _read(source.open(b"a"), 1, 2)
    _read(source.open(b"d/b"), 0, 9)
    assert source.reads == [ReadRecord(b"a", 1, 2), ReadRecord(b"d/b", 0, 9)]
    assert source.read_bytes() == 11 and source.read_bytes(b"a") == 2


def test_the_nth_read_from_now_fails_once() -> None:
    source = MemorySource({b"a": b"0123"})
    file = source.open(b"a")
    assert _read(file, 0, 4) == b"0123"
    source.fail_read(2, errno.ESTALE)
    assert _read(file, 0, 4) == b"0123"
    with pytest.raises(OSError) as caught:
        _read(file, 0, 4)
    assert caught.value.errno == errno.ESTALE
    assert _read(file, 0, 4) == b"0123"


def test_short_reads() -> None:
    source = MemorySource({b"a": b"0123"})
    source.short = 1
    assert _read(source.open(b"a"), 1, 3) == b"1"


def test_held_reads_wait_until_they_are_let_go() -> None:
    source = MemorySource({b"a": b"0123"})
    source.hold_reads()
    results: list[bytes] = []
    thread = threading.Thread(target=lambda: results.append(_read(source.open(b"a"), 0, 4)))
    thread.start()
    while not source.reads:
        thread.join(0.001)
    assert results == []
    source.release_reads()
    thread.join(10)
    assert results == [b"0123"]


def test_a_write_that_keeps_its_mtime_shows_in_ctime_only() -> None:
    source = MemorySource({b"a": b"0123"})
    before = source.stat(b"a").version
    source.write(b"a", b"4567", keep_mtime=True)
    after = source.stat(b"a").version
    assert after != before and not after.differs_in_contents(before)


def test_extended_attributes() -> None:
    source = MemorySource({b"a": b""})
    source.set_xattr(b"a", b"user.x", b"1")
    file = source.open(b"a")
    assert file.listxattr() == [b"user.x"] and file.getxattr(b"user.x") == b"1"
