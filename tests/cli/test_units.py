"""Sizes and durations, as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.errors import UsageError
from mummufs.units import (
    SIZE_BYTES_MAX,
    format_duration,
    format_size,
    gib,
    parse_count,
    parse_duration,
    parse_gib,
    parse_size,
)

FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4096B", 4096),
        ("64G", 64 << 30),
        ("64g", 64 << 30),
        ("64GiB", 64 << 30),
        ("64GB", 64 << 30),
        ("64 G", 64 << 30),
        ("1.5G", 3 << 29),
        (".5K", 512),
        ("2T", 2 << 40),
    ],
)
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_size("store_size", text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "G",
        "-1",
        "1.5",
        "1e9",
        "64X",
        "64Gi",
        "0x10",
        "1,5G",
        "inf",
        "nan",
        "64G 1",
        "1_000",
        "٣",
        "9" * 30,
    ],
)
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=r"^store_size: "):
        parse_size("store_size", text)


def test_a_size_over_the_largest_offset_is_refused() -> None:
    assert parse_size("x", str(SIZE_BYTES_MAX)) == SIZE_BYTES_MAX
    with pytest.raises(UsageError, match="more than any file can hold"):
        parse_size("x", str(SIZE_BYTES_MAX + 1))


@given(st.integers(0, 1 << 20), st.sampled_from("KMGT"))
def test_any_whole_number_of_a_unit_is_exact(number: int, unit: str) -> None:
    assert parse_size("x", f"{number}{unit}") == number * FACTORS[unit]


@pytest.mark.parametrize(("text", "size"), [("64", 64 << 30), ("0.5", 1 << 29)])
def test_gib_are_plain_numbers(text: str, size: int) -> None:
    assert parse_gib("store_gb", text) == size


@pytest.mark.parametrize("text", ["64G", "-1", "", "many"])
def test_gib_with_a_unit_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^store_gb: .* is not a number of GiB"):
        parse_gib("store_gb", text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60", 60.0), ("60s", 60.0), ("500ms", 0.5), ("1.5", 1.5), ("2m", 120.0), ("1h", 3600.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration("settle", text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "1d", "soon", "9000000h"])
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=r"^settle: "):
        parse_duration("settle", text)


@pytest.mark.parametrize("text", ["0", "17", "-1", "4.0", "four", ""])
def test_counts_keep_to_their_bounds(text: str) -> None:
    assert parse_count("source_reads", "16", 1, 16) == 16
    with pytest.raises(UsageError, match=r"^source_reads: .* from 1 to 16"):
        parse_count("source_reads", text, 1, 16)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 40, "5.0 TiB"),
        (5000 << 40, "5000.0 TiB"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0 s"), (200, "3 min 20 s"), (18180, "5 h 3 min"), (187200, "2 d 4 h")]
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(0, SIZE_BYTES_MAX))
def test_gib_is_read_as_the_same_size(size: int) -> None:
    assert parse_gib("x", gib(size)) == size
