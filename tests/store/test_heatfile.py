"""The heat file: what is saved comes back, what is damaged is told from it, and no fault leaves anything behind."""

from __future__ import annotations

import errno
import os
import struct
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from mummufs.core.errors import HeatFileError
from mummufs.core.ranges import FileId, RangeKey, page_ceil
from mummufs.core.ratings import HeatRecord, PackRecord
from mummufs.store import heatfile as module
from mummufs.store.heatfile import (
    HEAT_HEADER_BYTES,
    NOTHING_SPENT,
    RECORD_BYTES,
    RECORDS_MAX,
    SIZE_MAX,
    HeatImage,
    HeatPacker,
    Spent,
)
from mummufs.store.layout import HEAT_BAD_NAME, HEAT_NAME, TMP_DIR
from mummufs.store.rangestore import RangeStore
from mummufs.store.scan import scan
from mummufs.store.written import Purpose
from tests.store.faulty import FaultyOs, Loss
from tests.store.samples import KEY, Store

CALLS_MAX = 100
A, B = FileId(7, 8), FileId(7, 9)
RECORDS = [
    HeatRecord(RangeKey(A, 4096, 8192), 2.5, 11),
    HeatRecord(RangeKey(B, 0, 100), -3.25, -4),
    HeatRecord(RangeKey(A, 0, 4096), 0.0, 12),
]
PACKS = [PackRecord(b"models/a", 20.5, (B, A)), PackRecord(b"", -inf, ())]
SPENT = Spent(1 << 30, 10**18)


def pack(records: list[HeatRecord], packs: list[PackRecord] | None = None, spent: Spent = NOTHING_SPENT) -> bytes:
    return bytes(packer(records).finish(packs or [], spent))


def packer(records: list[HeatRecord]) -> HeatPacker:
    made = HeatPacker()
    for record in records:
        made.add(*record)
    return made


def records_of(image: HeatImage) -> list[HeatRecord]:
    """As they were saved: they come last one first."""
    return list(image.records(0, image.count))[::-1]


DATA = pack(RECORDS, PACKS, SPENT)

_U64 = st.integers(0, (1 << 64) - 1)
_FILES = st.builds(FileId, _U64, _U64)
_RECORDS = st.lists(
    st.builds(
        HeatRecord,
        st.builds(RangeKey, _FILES, _U64, st.integers(1, SIZE_MAX)),
        st.floats(allow_nan=False, allow_infinity=False),
        st.integers(-(1 << 63), (1 << 63) - 1),
    ),
    max_size=20,
)
_PACKS = st.lists(
    st.builds(
        PackRecord,
        st.binary(max_size=20),
        st.floats(max_value=1e300, allow_nan=False),
        st.lists(_FILES, max_size=4).map(tuple),
    ),
    max_size=5,
)


@given(_RECORDS, _PACKS, st.builds(Spent, _U64, _U64))
def test_what_is_packed_comes_back(records: list[HeatRecord], packs: list[PackRecord], spent: Spent) -> None:
    image = HeatImage(pack(records, packs, spent))
    assert records_of(image) == records
    assert list(image.packs) == packs
    assert image.spent == spent
    assert image.latest == max([0, *(record.seq for record in records)])


def test_it_is_as_the_documentation_says() -> None:
    magic, version, count, packs, files, size, spent, at_ns, latest, checksum = struct.unpack_from("<8s4I3QqQ", DATA)
    assert (magic, version, count, packs, files) == (b"MUMMUHOT", 1, 3, 2, 2)
    assert (size, spent, at_ns, latest) == (len(DATA), *SPENT, 12)
    assert checksum == xxh3_64_intdigest(DATA[:56] + DATA[64:])
    assert struct.unpack_from("<IIQdq", DATA, 64 + 32) == (1, 100, 0, -3.25, -4)
    assert struct.unpack_from("<IId8sII", DATA, 64 + 3 * 32) == (8, 2, 20.5, b"models/a", 1, 0)
    assert struct.unpack_from("<4Q", DATA, len(DATA) - 32) == (*A, *B)


def test_every_prefix_is_refused() -> None:
    for size in range(len(DATA)):
        with pytest.raises(HeatFileError):
            HeatImage(DATA[:size])
    with pytest.raises(HeatFileError):
        HeatImage(DATA + b"\0")


def test_every_flipped_bit_is_found() -> None:
    for at in range(len(DATA)):
        for bit in range(8):
            data = bytearray(DATA)
            data[at] ^= 1 << bit
            with pytest.raises(HeatFileError):
                HeatImage(data)


def sealed(data: bytearray) -> bytearray:
    """With the right checksum, so that what is wrong must be seen for what it is."""
    struct.pack_into("<Q", data, 56, xxh3_64_intdigest(bytes(data[:56] + data[64:])))
    return data


@given(st.integers(0, len(DATA) - 1), st.integers(0, 255))
def test_nonsense_with_a_right_checksum_is_an_error_or_makes_sense(at: int, value: int) -> None:
    data = bytearray(DATA)
    data[at] = value
    try:
        image = HeatImage(sealed(data))
        found = records_of(image)
    except HeatFileError:
        return
    assert len(found) == image.count
    assert all(-inf < record.heat < inf and record.key.size > 0 for record in found)


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [
        (8, "<I", 2),
        (12, "<I", 4),
        (12, "<I", (1 << 32) - 1),
        (16, "<I", 3),
        (20, "<I", (1 << 32) - 1),
        (64, "<I", 2),
        (64 + 4, "<I", 0),
        (64 + 16, "<d", inf),
        (64 + 16, "<d", float("nan")),
        (64 + 96, "<I", 1 << 31),
        (64 + 96 + 4, "<I", 1 << 31),
        (64 + 96 + 8, "<d", float("nan")),
    ],
)
def test_what_does_not_fit_is_refused(at: int, form: str, value: float) -> None:
    data = bytearray(DATA)
    struct.pack_into(form, data, at, value)
    with pytest.raises(HeatFileError):
        records_of(HeatImage(sealed(data)))


def test_what_has_no_heat_or_no_place_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORDS_MAX", 2)
    monkeypatch.setattr(module, "PACKS_MAX", 2)
    monkeypatch.setattr(module, "PACK_FILES_MAX", 1)
    unusable = [
        HeatRecord(KEY, -inf, 1),
        HeatRecord(KEY, float("nan"), 1),
        HeatRecord(RangeKey(A, 0, SIZE_MAX + 1), 1.0, 1),
    ]
    packs = [PackRecord(b"x" * 5000, 1.0, ()), PackRecord(b"two", 1.0, (A, B)), PackRecord(b"three", 1.0, (A,))]
    image = HeatImage(pack([*unusable, *RECORDS], packs))
    assert records_of(image) == RECORDS[:2]
    assert image.packs == (), "the first two have no place, and more than two are not looked at"
    assert HeatImage(pack([], packs[2:])).packs == tuple(packs[2:])


def test_the_largest_file_is_some_megabytes() -> None:
    assert HEAT_HEADER_BYTES + RECORDS_MAX * RECORD_BYTES < 7 << 20


# ---------------------------------------------------------------------- in the store


def test_it_survives_a_restart_and_counts(store: Store) -> None:
    before = store.store.overhead_bytes
    assert store.store.heat.load() is None
    store.store.heat.save(packer(RECORDS), PACKS, SPENT)
    assert store.store.overhead_bytes == before + page_ceil(len(DATA))
    assert store.store.written.of(Purpose.HEAT) == len(DATA)
    again = RangeStore(FaultyOs(store.directory))
    assert again.overhead_bytes == before + page_ceil(len(DATA))
    image = again.heat.load()
    assert image is not None and records_of(image) == RECORDS
    assert [header.key for header in scan(str(store.directory))] == [KEY]
    assert (store.directory / HEAT_NAME).read_bytes() == DATA, "what cleans the store leaves it alone"


def test_a_bad_one_is_set_aside_and_at_most_one_is_kept(store: Store) -> None:
    for contents in (b"first", b"second"):
        (store.directory / HEAT_NAME).write_bytes(contents)
        fresh = RangeStore(store.fs)
        with pytest.raises(HeatFileError):
            fresh.heat.load()
        fresh.heat.set_aside()
        assert fresh.heat.load() is None
        assert (store.directory / HEAT_BAD_NAME).read_bytes() == contents
        assert fresh.heat.bytes == 4096, "it takes room, so it counts"


@pytest.mark.parametrize("before", ["nothing", "file", "directory"])
@pytest.mark.parametrize("kind", ["directory", "huge", "symlink"])
def test_what_is_no_heat_file_is_refused(store: Store, kind: str, before: str) -> None:
    path = store.directory / HEAT_NAME
    bad = store.directory / HEAT_BAD_NAME
    if before == "file":
        bad.write_bytes(b"an earlier one")
    elif before == "directory":
        (bad / "full").mkdir(parents=True)
    if kind == "directory":
        path.mkdir()
    elif kind == "symlink":
        path.symlink_to("lock")
    else:
        path.touch()
        with path.open("r+b") as file:
            file.truncate(1 << 40)
    with pytest.raises(HeatFileError):
        RangeStore(store.fs).heat.load()
    aside = f"{HEAT_BAD_NAME}.2" if before == "directory" else HEAT_BAD_NAME
    assert store.store.heat.set_aside() == aside and os.path.lexists(store.directory / aside)
    store.store.heat.save(packer(RECORDS))
    assert store.store.heat.load() is not None


def test_one_byte_at_a_time(store: Store) -> None:
    store.fs.one_byte = True
    store.store.heat.save(packer(RECORDS), PACKS, SPENT)
    image = store.store.heat.load()
    assert image is not None and records_of(image) == RECORDS


FAULTS = [(errno.EIO, False), (errno.EIO, True), (errno.ENOSPC, False), (errno.EROFS, True), (errno.EMFILE, False)]
NEW = RECORDS[:1]


def _with_heat(directory: Path) -> tuple[FaultyOs, RangeStore]:
    directory.mkdir()
    fs = FaultyOs(directory)
    store = RangeStore(fs)
    store.heat.save(packer(RECORDS), PACKS, SPENT)
    return fs, store


def _found(fs: FaultyOs) -> list[HeatRecord]:
    image = RangeStore(fs).heat.load()
    assert image is not None
    return records_of(image)


@pytest.mark.parametrize(("code", "forever"), FAULTS)
def test_every_call_of_a_save_may_fail(tmp_path: Path, code: int, forever: bool) -> None:
    for nth in range(1, CALLS_MAX):
        directory = tmp_path / str(nth)
        fs, store = _with_heat(directory)
        fs.fail(nth, code, forever=forever)
        failed = False
        try:
            store.heat.save(packer(NEW))
        except OSError as error:
            failed = True
            assert error.errno == code
        reached = fs.heal()
        assert fs.fds == {}
        if not forever:
            assert list((directory / TMP_DIR).iterdir()) == []
        assert _found(fs) in (RECORDS, NEW)
        store.heat.save(packer(NEW))
        assert _found(fs) == NEW
        if not reached:
            assert not failed and nth > 1
            return
    pytest.fail("a save has no end")


@pytest.mark.parametrize(("code", "forever"), FAULTS)
def test_every_call_of_a_load_may_fail(tmp_path: Path, code: int, forever: bool) -> None:
    fs, store = _with_heat(tmp_path / "store")
    for nth in range(1, CALLS_MAX):
        fs.fail(nth, code, forever=forever)
        try:
            image = store.heat.load()
            assert image is not None and records_of(image) == RECORDS
        except OSError as error:
            assert error.errno == code
        reached = fs.heal()
        assert fs.fds == {}
        assert _found(fs) == RECORDS
        if not reached:
            return
    pytest.fail("a load has no end")


@pytest.mark.parametrize("loss", Loss)
def test_power_may_be_lost_at_every_call(tmp_path: Path, loss: Loss) -> None:
    for nth in range(1, CALLS_MAX):
        fs, store = _with_heat(tmp_path / str(nth))
        fs.fail(nth, errno.EIO, forever=True)
        try:
            store.heat.save(packer(NEW))
        except OSError:
            pass
        reached = fs.heal()
        fs.lose_power(loss)
        assert _found(fs) in ([NEW] if not reached else [RECORDS, NEW])
        if not reached:
            return
    pytest.fail("a save has no end")


@pytest.mark.parametrize("loss", Loss)
def test_a_disk_that_lies_about_syncing_is_found_out(tmp_path: Path, loss: Loss) -> None:
    fs, store = _with_heat(tmp_path / "store")
    fs.lying = True
    store.heat.save(packer(NEW))
    fs.lose_power(loss)
    with pytest.raises(HeatFileError):
        RangeStore(fs).heat.load()
