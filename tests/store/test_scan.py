"""The scan for accounting: what it reports, what it removes and what it leaves alone."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.store.layout import RangeHeader, range_name
from mummufs.store.osfs import RealOs
from mummufs.store.rangestore import RangeStore
from mummufs.store.scan import RECORD, Records, pack_record, scan
from tests.support.descriptors import descriptors

ROOT = Path(__file__).resolve().parents[2]
VERSION = Version(1 << 20, 5, -6)
KEYS = [RangeKey(FileId(1, i), 4096 * i, 100 + i) for i in range(6)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the ranges KEYS."""
    ranges = RangeStore(RealOs(tmp_path))
    for key in KEYS:
        ranges.write_range(key, VERSION, memoryview(bytes(key.size)))
    return tmp_path


def found(directory: Path) -> set[RangeKey]:
    return {header.key for header in scan(str(directory))}


def _old_version(whole: bytes) -> bytes:
    """The same file as a version 0 would have written it, its own checksum right."""
    body = whole[:8] + struct.pack("<I", 0) + whole[12:88]
    return body + struct.pack("<Q", xxh3_64_intdigest(body)) + whole[96:]


_u64, _i64 = st.integers(0, (1 << 64) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
_headers = st.builds(
    RangeHeader,
    st.builds(RangeKey, st.builds(FileId, _u64, _u64), _u64, _u64),
    st.builds(Version, _u64, _i64, _i64),
    st.just(bytes(16)),
)


@given(st.lists(_headers, max_size=5))
def test_records_are_read_as_they_were_written(headers: list[RangeHeader]) -> None:
    data = b"".join(map(pack_record, headers))
    assert len(data) == len(headers) * RECORD.size
    assert list(Records().unpack(data)) == [(header.key, header.version) for header in headers]


def test_ranges_of_one_file_share_what_they_have_in_common() -> None:
    headers = [RangeHeader(_large_key(offset), Version(1 << 40, 1 << 60, 1 << 60), bytes(16)) for offset in (0, 4096)]
    (first, version), (second, same) = Records().unpack(b"".join(map(pack_record, headers)))
    assert first != second
    assert first.file is second.file and first.size is second.size and version is same


def _large_key(offset: int) -> RangeKey:
    return RangeKey(FileId(1 << 50, 1 << 40), offset, 1 << 20)


def test_every_range_file_is_reported(store: Path) -> None:
    headers = list(scan(str(store)))
    assert sorted(header.key for header in headers) == KEYS
    assert {header.version for header in headers} == {VERSION}


_BROKEN = {
    "zero-length": lambda _: b"",
    "cut in the header": lambda whole: whole[:50],
    "cut in the bytes": lambda whole: whole[:-1],
    "extended": lambda whole: whole + b"x",
    "zeros": lambda whole: bytes(len(whole)),
    "foreign": lambda _: b"GGUF" * 3000,
    "old version": _old_version,
}


@pytest.mark.parametrize("name", _BROKEN)
def test_what_a_crash_leaves_under_a_name_of_ours_is_removed(store: Path, name: str) -> None:
    path = store / range_name(KEYS[2])
    path.write_bytes(_BROKEN[name](path.read_bytes()))
    assert found(store) == set(KEYS) - {KEYS[2]}
    assert not path.exists()
    assert all((store / range_name(key)).exists() for key in KEYS if key != KEYS[2])


def test_a_file_under_another_name_is_removed(store: Path) -> None:
    path = store / range_name(KEYS[0])
    copies = [path.parent / f"{'0' * 30}.rng", store / "ranges" / "zz" / path.name]
    other = store / "ranges" / ("00" if path.parent.name != "00" else "01")
    other.mkdir(exist_ok=True)
    copies[1] = other / path.name
    for copy in copies:
        copy.write_bytes(path.read_bytes())
    assert found(store) == set(KEYS)
    assert not any(copy.exists() for copy in copies) and path.exists()


def test_what_is_not_ours_is_left_alone(store: Path) -> None:
    directory = (store / range_name(KEYS[0])).parent
    (directory / "notes.txt").write_bytes(b"mine")
    (directory / f"{'1' * 30}.rng").mkdir()
    (directory / f"{'2' * 30}.rng").symlink_to(store / range_name(KEYS[1]))
    os.mkfifo(directory / f"{'3' * 30}.rng")
    (store / "ranges/extra").mkdir()
    (store / "ranges/extra" / f"{'4' * 30}.rng").write_bytes(b"")
    before = set(store.rglob("*"))
    assert found(store) == set(KEYS)
    assert set(store.rglob("*")) == before


def test_a_directory_of_ranges_that_is_a_symlink_is_not_followed(store: Path, tmp_path: Path) -> None:
    free = next(f"{i:02x}" for i in range(256) if not (store / f"ranges/{i:02x}").exists())
    outside = tmp_path / "outside"
    outside.mkdir()
    victim = outside / f"{'0' * 30}.rng"
    victim.write_bytes(b"")
    (store / "ranges" / free).symlink_to(outside)
    assert found(store) == set(KEYS)
    assert victim.exists()


def test_a_scan_leaves_no_descriptor(store: Path) -> None:
    before = descriptors()
    (store / range_name(KEYS[1])).write_bytes(b"")
    assert len(found(store)) == len(KEYS) - 1
    assert not descriptors() - before


def test_a_file_that_vanishes_is_left_out(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = os.listdir
    gone = Path(range_name(KEYS[3]))

    def listdir(fd: int) -> list[str]:
        names = listed(fd)
        if gone.name in names:
            (store / gone).unlink()
        return names

    monkeypatch.setattr(os, "listdir", listdir)
    assert found(store) == set(KEYS) - {KEYS[3]}


def test_an_empty_store_and_none(tmp_path: Path) -> None:
    assert found(tmp_path) == set()
    with pytest.raises(FileNotFoundError):
        found(tmp_path / "none")


def test_the_child_process_writes_the_records(store: Path) -> None:
    (store / range_name(KEYS[5])).write_bytes(b"")
    command = [sys.executable, "-m", "mummufs.store.scan", str(store)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60)
    assert sorted(Records().unpack(done.stdout)) == [(key, VERSION) for key in KEYS[:5]]
    assert done.stderr == b""
