"""Bytes of a range file into a pipe: as many as were asked for and as they were proved, or it is said."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mummufs.store.layout import HEADER_BYTES
from mummufs.store.storedrange import StoredRange
from tests.store.samples import DATA, KEY, OTHER_DATA, VERSION, Store


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe2(os.O_NONBLOCK)
    yield ends
    for fd in ends:
        os.close(fd)


def test_nothing_is_given_out_unproved(store: Store, pipe: tuple[int, int]) -> None:
    stored = store.open()
    assert not stored.splice_proved(pipe[1], 0, 100)
    stored.prove()
    assert stored.splice_proved(pipe[1], 0, 100)
    assert os.read(pipe[0], 1000) == DATA[:100]


@pytest.mark.parametrize("direct", [True, False])
def test_any_part_of_it(store: Store, pipe: tuple[int, int], direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole pages past the page cache, the rest by way of it; where a file system knows no such thing, all of it."""
    if not direct:

        def none(_: int) -> int:
            raise OSError(22, "no O_DIRECT here")

        monkeypatch.setattr(store.fs, "open_direct", none)
    stored = store.open()
    stored.prove()
    rng = random.Random(6)
    parts = [(rng.randrange(len(DATA)), rng.randrange(1, len(DATA))) for _ in range(100)]
    for offset, size in [*parts, (0, len(DATA)), (4096, 4096), (8192, len(DATA) - 8192), (len(DATA) - 1, 1)]:
        size = min(size, len(DATA) - offset)
        assert stored.splice_proved(pipe[1], offset, size), (offset, size)
        assert os.read(pipe[0], 1 << 16) == DATA[offset : offset + size], (offset, size)


def cut(store: Store, stored: StoredRange) -> None:
    os.truncate(store.path, HEADER_BYTES + 4096)


def change(store: Store, stored: StoredRange) -> None:
    store.write_at(HEADER_BYTES, OTHER_DATA)


def remove(store: Store, stored: StoredRange) -> None:
    store.path.unlink()


@pytest.mark.parametrize("fault", [cut, change, remove])
@pytest.mark.parametrize("proved_before", [True, False])
def test_a_file_that_is_not_what_it_was(
    store: Store, pipe: tuple[int, int], fault: Callable[[Store, StoredRange], None], proved_before: bool
) -> None:
    stored = store.open()
    stored.prove()
    if proved_before:
        assert stored.splice_proved(pipe[1], 0, len(DATA))
        os.read(pipe[0], 1 << 16)
    fault(store, stored)
    for offset in (0, 100, 4096):
        assert not stored.splice_proved(pipe[1], offset, 4096)


def test_a_pipe_without_room_is_an_error(store: Store, pipe: tuple[int, int]) -> None:
    """Nobody waits for a reader."""
    stored = store.open()
    stored.prove()
    with pytest.raises(BlockingIOError):
        for _ in range(100):
            stored.splice_proved(pipe[1], 0, len(DATA))


def test_the_test_has_a_range(store: Store, tmp_path: Path) -> None:
    assert store.open().key == KEY
    assert store.open().version == VERSION
