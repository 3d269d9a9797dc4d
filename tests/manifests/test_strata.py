"""Strata's table: both places that experts may be in, what may be left out, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from mummufs.manifests.registry import read_manifest
from tests.manifests.subjects import as_ranges, found, load, ranges_of, reason, subject_of, table_or_reason
from tests.support.models import write_gguf, write_strata_shard

ROLE_BYTES = 34  # one block of Q8_0
BLOB_BYTES = 3 * ROLE_BYTES


def _names(table: str, file_size: int, name: bytes = b"experts.bin") -> list[tuple[str, int]]:
    subject = subject_of(bytes(file_size), name, {b"native_experts.txt": table.encode()})
    return [(r.name, r.offset) for r in ranges_of(subject)]


def test_count_follows_from_the_next_offset_and_the_file() -> None:
    table = f"1 8 8 {2 * BLOB_BYTES} {BLOB_BYTES}\n\n0 8 8 0 {BLOB_BYTES}\n"
    assert _names(table, 5 * BLOB_BYTES) == [
        ("layer0.expert0", 0),
        ("layer0.expert1", BLOB_BYTES),
        ("layer1.expert0", 2 * BLOB_BYTES),
        ("layer1.expert1", 3 * BLOB_BYTES),
        ("layer1.expert2", 4 * BLOB_BYTES),
    ]


def test_a_row_for_each_expert() -> None:
    rows = "\n".join(f"{i // 2} 8 8 {i * BLOB_BYTES} {BLOB_BYTES} 0 34 68" for i in range(4))
    expected = [(f"layer{i // 2}.expert{i % 2}", i * BLOB_BYTES) for i in range(4)]
    assert _names(rows, 4 * BLOB_BYTES) == expected
    assert _names("# (n_expert 2, total 408)\n" + rows, 4 * BLOB_BYTES) == expected


def test_shard_that_is_a_plain_file(tmp_path: Path) -> None:
    written = write_strata_shard(tmp_path, name="experts of q8.bin", layers=3, experts=2, rows=2)
    path = tmp_path / "experts of q8.bin"
    assert found(read_manifest(load(path).subject())) == as_ranges(written)


def test_shards_by_role_and_by_default() -> None:
    table = (
        "# strata native experts v4: (n_expert 2, total 204; absolute offsets in one.bin, or in the named shard)\n"
        f"0 8 8 0 {BLOB_BYTES} 100 0 0 ,two.bin,three.bin\n"
    )
    assert _names(table, 500, b"one.bin") == [("layer0.expert0.gate", 100), ("layer0.expert1.gate", 134)]
    assert _names(table, 500, b"two.bin") == [("layer0.expert0.up", 0), ("layer0.expert1.up", 34)]
    assert table_or_reason(subject_of(b"x", b"four.bin", {b"native_experts.txt": table.encode()})) is None


def test_gate_and_down_of_different_types() -> None:
    """Gate and up Q8_0, down Q4_0: 34, 34 and 18 bytes for 32 weights each."""
    table = f"# n_expert 1\n0 8 2 0 {2 * (34 + 34 + 18)} 0 68 136 s.bin\n"
    ranges = ranges_of(subject_of(bytes(172), b"s.bin", {b"native_experts.txt": table.encode()}))
    assert [(r.offset, r.size) for r in ranges] == [(0, 68), (68, 68), (136, 36)]


def test_a_gguf_shard_is_left_to_its_own_header(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    written = write_gguf(path, dense_bytes=1024, expert_bytes=1024)
    (tmp_path / "native_experts.txt").write_text("# n_expert 4\n0 1 1 0 3072 5000 9096 13192 m.gguf\n")
    manifest = read_manifest(load(path).subject())
    assert manifest is not None
    assert manifest.format == "gguf"
    assert found(manifest) == as_ranges(written)


@pytest.mark.parametrize(
    ("table", "part"),
    [
        ("", "no rows"),
        ("# only a comment", "no rows"),
        ("0 8 8 0", "5 or 8 numbers"),
        ("0 8 8 0 102 1", "5 or 8 numbers"),
        ("0 8 8 -1 102", "5 or 8 numbers"),
        ("0 8 8 0x10 102", "5 or 8 numbers"),
        ("0 8 8 1.5 102", "5 or 8 numbers"),
        ("0 8 8 99999999999999999999 102", "5 or 8 numbers"),
        ("0 8 8 0 0", "0 bytes"),
        ("0 8 8 0 102\n1 8 8 101 102", "no room"),
        ("0 8 8 0 500", "no room"),
        ("# n_expert 5\n0 8 8 0 102", "lies outside"),
        ("# n_expert 999999999\n0 8 8 0 1", "lies outside"),
        ("\xff", "5 or 8 numbers"),
    ],
)
def test_absurd(table: str, part: str) -> None:
    siblings = {b"native_experts.txt": table.encode("latin-1")}
    assert part in reason(subject_of(bytes(408), b"experts.bin", siblings))


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ("0 99 8 0 102 0 34 68 s.bin", "unknown ggml types"),
        ("0 8 8 0 103 0 34 68 s.bin", "do not divide"),
        ("0 8 8 0 102 0 34 99999 s.bin", "lies outside"),
        ("0 8 8 0 102 0 0 0 s.bin", "overlap"),
        ("0 8 8 0 102 # s.bin", "5 or 8 numbers"),
        ("0 8 8 0 102 0 34 68 xs.bin", "gives no expert"),
    ],
)
def test_absurd_shards(row: str, part: str) -> None:
    siblings = {b"native_experts.txt": f"# n_expert 1\n{row}\n".encode()}
    assert part in reason(subject_of(bytes(408), b"s.bin", siblings))
