"""The file of pins: what is written is what is read, and anything else is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.errors import MummufsError, RangeFileError
from mummufs.core.ranges import FileId
from mummufs.store.osfs import RealOs
from mummufs.store.pins import (
    PATTERN_CHARS_MAX,
    PINS_ASIDE_NAME,
    PINS_BYTES_MAX,
    PINS_MAX,
    PINS_NAME,
    Pin,
    pack_pins,
    unpack_pins,
)
from mummufs.store.rangestore import RangeStore

NAMES = st.binary(min_size=1, max_size=20).filter(lambda b: b not in (b".", b"..") and not {0, ord("/")} & set(b))
U64 = st.integers(0, (1 << 64) - 1)
PINS = st.builds(
    Pin,
    st.builds(FileId, U64, U64),
    st.lists(NAMES, min_size=1, max_size=4).map(b"/".join),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30),
)


@given(st.lists(PINS, unique=True, max_size=20))
def test_what_is_written_is_read(pins: list[Pin]) -> None:
    assert unpack_pins(pack_pins(pins)) == pins


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        unpack_pins(data)
    except MummufsError as error:
        assert str(error)


GOOD: dict[str, object] = {"source": [1, 2], "path": "a/b", "ranges": "*"}


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_flipped_byte_is_another_pin_or_refused(at: int, byte: int) -> None:
    data = bytearray(pack_pins([Pin(FileId(1, 2), b"a/b", "*")] * 2))
    data[at % len(data)] = byte
    try:
        pins = unpack_pins(bytes(data))
    except MummufsError:
        return
    assert all(pin.path and not pin.path.startswith(b"/") and b".." not in pin.path.split(b"/") for pin in pins)


@pytest.mark.parametrize(
    "change",
    [
        {"source": [1]},
        {"source": [1, -1]},
        {"source": [1, 1 << 64]},
        {"source": [True, 1]},
        {"source": None},
        {"path": ""},
        {"path": "/etc"},
        {"path": "a//b"},
        {"path": "a/../b"},
        {"path": "."},
        {"path": "a\0"},
        {"path": "\ud800"},
        {"path": 5},
        {"ranges": ""},
        {"ranges": "x" * (PATTERN_CHARS_MAX + 1)},
        {"ranges": 5},
    ],
)
def test_a_pin_that_is_none(change: dict[str, object]) -> None:
    assert len(unpack_pins(_document([GOOD]))) == 1
    with pytest.raises(MummufsError):
        unpack_pins(_document([{**GOOD, **change}]))


@pytest.mark.parametrize("value", [[], 5, {}, {"mummufs_pins": 1}, {"mummufs_pins": True, "pins": []}])
def test_a_document_that_is_none(value: object) -> None:
    with pytest.raises(MummufsError):
        unpack_pins(json.dumps(value).encode())


def test_the_limits() -> None:
    with pytest.raises(MummufsError, match="list of at most"):
        unpack_pins(_document([GOOD] * (PINS_MAX + 1)))
    with pytest.raises(MummufsError, match="larger than the limit"):
        unpack_pins(b" " * (PINS_BYTES_MAX + 1))
    with pytest.raises(MummufsError, match="not JSON"):
        unpack_pins(b"[" * 100_000)


def test_the_store_keeps_it_and_sets_it_aside(tmp_path: Path) -> None:
    store = RangeStore(RealOs(tmp_path))
    assert store.load_pins() is None
    store.save_pins(b"first")
    store.save_pins(b"x" * (3 << 20))
    assert RangeStore(RealOs(tmp_path)).load_pins() == b"x" * (3 << 20)
    assert (tmp_path / PINS_NAME).stat().st_mode & 0o777 == 0o600
    store.set_pins_aside()
    assert store.load_pins() is None
    assert (tmp_path / PINS_ASIDE_NAME).stat().st_size == 3 << 20


@pytest.mark.parametrize("before", [False, True], ids=["", "beside a bad one"])
@pytest.mark.parametrize("kind", ["directory", "symlink", "fifo"])
def test_what_is_in_its_place_is_set_aside(tmp_path: Path, kind: str, before: bool) -> None:
    store = RangeStore(RealOs(tmp_path))
    path = tmp_path / PINS_NAME
    if before:
        (tmp_path / PINS_ASIDE_NAME).write_bytes(b"an earlier one")
    if kind == "directory":
        path.mkdir()
    elif kind == "symlink":
        path.symlink_to("/etc/passwd")
    else:
        os.mkfifo(path)
    with pytest.raises(RangeFileError):
        store.load_pins()
    store.set_pins_aside()
    store.save_pins(b"fresh")
    assert store.load_pins() == b"fresh"


def _document(pins: list[dict[str, object]]) -> bytes:
    return json.dumps({"mummufs_pins": 1, "pins": pins}).encode()
