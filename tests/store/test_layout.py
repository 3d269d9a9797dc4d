"""The format on disk, byte by byte. If a test fails here, existing stores would be misread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.errors import RangeFileError
from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.store.layout import (
    HEADER_BYTES,
    HEADER_USED_BYTES,
    RangeHeader,
    charge_of,
    digest_of,
    is_range_name,
    is_table_name,
    is_tmp_name,
    pack_table,
    range_dir,
    range_name,
    table_digest,
    table_name,
    tmp_name,
    unpack_table,
)

KEY = RangeKey(FileId(0x1122334455667788, 42), 0x2000, 5000)
VERSION = Version(1 << 33, 1_700_000_000_123_456_789, -5)
HEADER = RangeHeader(KEY, VERSION, bytes(range(16)))

GOLDEN_HEADER = bytes.fromhex(
    """
    4d 55 4d 4d 55 52 4e 47
    01 00 00 00  00 00 00 00
    88 77 66 55 44 33 22 11
    2a 00 00 00 00 00 00 00
    00 20 00 00 00 00 00 00
    88 13 00 00 00 00 00 00
    00 00 00 00 02 00 00 00
    15 cd 85 3d fe 9c 97 17
    fb ff ff ff ff ff ff ff
    00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f
    7e 94 e2 87 50 18 28 4b
    """
)
GOLDEN_TABLE = bytes.fromhex(
    """
    4d 55 4d 4d 55 54 42 46
    01 00 00 00  00 00 00 00
    88 77 66 55 44 33 22 11
    2a 00 00 00 00 00 00 00
    00 00 00 00 02 00 00 00
    15 cd 85 3d fe 9c 97 17
    fb ff ff ff ff ff ff ff
    07 00 00 00 00 00 00 00
    7b 8d 2d 5b f0 61 fe 32
    70 61 79 6c 6f 61 64
    """
)

_u64, _i64 = st.integers(0, (1 << 64) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
_keys = st.builds(RangeKey, st.builds(FileId, _u64, _u64), _u64, _u64)
_versions = st.builds(Version, _u64, _i64, _i64)


def test_the_header_is_what_it_was() -> None:
    assert HEADER.pack() == GOLDEN_HEADER + bytes(4096 - 96)
    assert (HEADER_BYTES, HEADER_USED_BYTES) == (4096, 96)
    assert RangeHeader.unpack(GOLDEN_HEADER) == HEADER


def test_a_table_file_is_what_it_was() -> None:
    assert pack_table(KEY.file, VERSION, b"payload") == GOLDEN_TABLE
    assert unpack_table(GOLDEN_TABLE, KEY.file, VERSION) == b"payload"


def test_names_are_what_they_were() -> None:
    assert digest_of(KEY) == "d7a9719095b20368b2d8703af47174c6"
    assert range_dir(KEY) == "ranges/d7"
    assert range_name(KEY) == "ranges/d7/a9719095b20368b2d8703af47174c6.rng"
    assert tmp_name(digest_of(KEY), 3) == "tmp/d7a9719095b20368b2d8703af47174c6.3.tmp"
    assert table_digest(KEY.file) == "e08033e6a0f135484ced98221e575eec"
    assert table_name(KEY.file) == "tables/e08033e6a0f135484ced98221e575eec.tbl"


@given(_keys, _versions, st.binary(min_size=16, max_size=16))
def test_a_header_is_read_as_it_was_written(key: RangeKey, version: Version, checksum: bytes) -> None:
    header = RangeHeader(key, version, checksum)
    packed = header.pack()
    assert len(packed) == HEADER_BYTES
    assert RangeHeader.unpack(memoryview(packed)) == header


@pytest.mark.parametrize("size", range(HEADER_USED_BYTES))
def test_a_header_cut_short_is_refused(size: int) -> None:
    with pytest.raises(RangeFileError, match=f"cut short at {size} bytes"):
        RangeHeader.unpack(GOLDEN_HEADER[:size])


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
@pytest.mark.parametrize("at", range(HEADER_USED_BYTES))
def test_a_flip_in_any_used_byte_is_refused(at: int, flip: int) -> None:
    damaged = bytearray(HEADER.pack())
    damaged[at] ^= flip
    with pytest.raises(RangeFileError):
        RangeHeader.unpack(bytes(damaged))


@pytest.mark.parametrize("data", [bytes(HEADER_BYTES), b"\xff" * HEADER_BYTES, b"GGUF" * 1024])
def test_what_is_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(RangeFileError, match="not a range file"):
        RangeHeader.unpack(data)


@pytest.mark.parametrize("size", range(len(GOLDEN_TABLE)))
def test_a_table_cut_short_is_refused(size: int) -> None:
    with pytest.raises(RangeFileError):
        unpack_table(GOLDEN_TABLE[:size], KEY.file, VERSION)


@pytest.mark.parametrize("at", [*range(12), *range(16, len(GOLDEN_TABLE))])
def test_a_flip_in_any_used_byte_of_a_table_is_refused(at: int) -> None:
    damaged = bytearray(GOLDEN_TABLE)
    damaged[at] ^= 0x10
    with pytest.raises(RangeFileError):
        unpack_table(bytes(damaged), KEY.file, VERSION)


def test_a_table_of_another_file_or_version_or_with_more_behind_it_is_refused() -> None:
    with pytest.raises(RangeFileError, match="not the one that its name says"):
        unpack_table(GOLDEN_TABLE, FileId(1, 42), VERSION)
    with pytest.raises(RangeFileError, match="another version"):
        unpack_table(GOLDEN_TABLE, KEY.file, VERSION._replace(ctime_ns=0))
    with pytest.raises(RangeFileError, match="checksum"):
        unpack_table(GOLDEN_TABLE + b"x", KEY.file, VERSION)


@given(_keys, _keys)
def test_every_key_has_a_name_of_its_own_that_is_recognised(a: RangeKey, b: RangeKey) -> None:
    directory, name = range_name(a).rsplit("/", 1)
    assert directory == range_dir(a) and is_range_name(name)
    assert is_tmp_name(tmp_name(digest_of(a), 17).removeprefix("tmp/"))
    assert is_table_name(table_name(a.file).removeprefix("tables/"))
    assert (range_name(a) == range_name(b)) == (a == b)


@pytest.mark.parametrize(
    "name",
    [
        *("", "lock", "x.rng", "0" * 30, "0" * 31 + ".rng", "0" * 30 + ".RNG", "A" * 30 + ".rng", "0" * 30 + ".rng\n"),
        *("0" * 32 + ".tmp", "0" * 32 + ".x.tmp", "0" * 32 + ".1.tmp\n", "0" * 31 + ".tbl", "a/" + "0" * 30 + ".rng"),
    ],
)
def test_other_names_are_nobody_of_ours(name: str) -> None:
    assert not is_range_name(name) and not is_tmp_name(name) and not is_table_name(name)


@pytest.mark.parametrize(("size", "charge"), [(0, 4096), (1, 8192), (4096, 8192), (4097, 12288)])
def test_a_range_costs_whole_blocks(size: int, charge: int) -> None:
    assert charge_of(size) == charge
