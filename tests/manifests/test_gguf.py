"""GGUF headers: what is accepted, what is refused, and how fast."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from mummufs.core.manifest import RangeKind
from mummufs.manifests.base import BLOCK_BYTES, SNIFF_BYTES
from mummufs.manifests.registry import read_manifest
from tests.manifests.subjects import as_ranges, found, load, ranges_of, reason, sparse_subject, subject_of
from tests.support.models import write_gguf, write_gguf_split

GIB = 1 << 30


def _string(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _gguf(tensors: int = 0, metadata: int = 0, rest: bytes = b"", version: int = 3) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, tensors, metadata) + rest


def _info(name: bytes, dimensions: tuple[int, ...], type_number: int, offset: int) -> bytes:
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return _string(name) + shape + struct.pack("<IQ", type_number, offset)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 40, 4096])
def test_versions_and_alignments(version: int, alignment: int, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    written = write_gguf(path, version=version, alignment=alignment, dense_bytes=1024, expert_bytes=1536)
    assert found(read_manifest(load(path).subject())) == as_ranges(written)


def test_every_shard_of_a_split_model_is_a_whole_file(tmp_path: Path) -> None:
    shards = write_gguf_split(tmp_path, 4, layers=3, dense_bytes=1024, expert_bytes=1024)
    assert [p.name for p in shards] == [f"model-0000{i}-of-00004.gguf" for i in (1, 2, 3, 4)]
    for path, written in shards.items():
        assert found(read_manifest(load(path).subject())) == as_ranges(written)
    assert [w.kind for w in list(shards.values())[-1]] == ["header"], "the last shard has no tensors"


def test_experts_are_slices_of_the_last_dimension() -> None:
    infos = _info(b"blk.3.ffn_gate_up_exps.weight", (32, 4, 5), 8, 0) + _info(b"x.weight", (2, 3, 4), 0, 704)
    header = _gguf(2, 0, infos)
    experts = [r for r in ranges_of(subject_of(header.ljust(160, b"\0") + bytes(800))) if r.kind == RangeKind.EXPERT]
    assert [r.size for r in experts] == [4 * 34] * 5
    assert experts[4].name == "blk.3.ffn_gate_up_exps.weight[4]"
    assert experts[4].offset == experts[0].offset + 4 * 4 * 34


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (_gguf(version=1), "version 1"),
        (_gguf(version=4), "version 4"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "big-endian"),
        (_gguf(tensors=2**63), "claims"),
        (_gguf(metadata=2**63), "claims"),
        (_gguf(tensors=1), "cut short"),
        (_gguf(0, 1, struct.pack("<Q", 2**64 - 1)), "a name of"),
        (_gguf(0, 1, _string(b"k") + struct.pack("<IQ", 8, 2**63)), "cut short or absurd"),
        (_gguf(0, 1, _string(b"k") + struct.pack("<IIQ", 9, 8, 2**63)), "cut short or absurd"),
        (_gguf(0, 1, _string(b"k") + struct.pack("<IIQ", 9, 4, 2**62)), "cut short or absurd"),
        (_gguf(0, 1, _string(b"k") + struct.pack("<IIQ", 9, 9, 1) + bytes(64)), "unsupported type 9"),
        (_gguf(0, 1, _string(b"k") + struct.pack("<I", 13)), "unsupported type 13"),
        (_gguf(0, 1, _string(b"general.alignment") + struct.pack("<II", 4, 0)), "general.alignment is 0"),
        (_gguf(0, 1, _string(b"general.alignment") + struct.pack("<II", 4, 12)), "general.alignment is 12"),
        (_gguf(0, 1, _string(b"general.alignment") + struct.pack("<II", 4, 1 << 30)), "general.alignment"),
        (_gguf(0, 1, _string(b"general.alignment") + struct.pack("<IQ", 8, 0)), "not an integer"),
        (_gguf(1, 0, _info(b"t", (32,), 99, 0)), "unknown ggml type 99"),
        (_gguf(1, 0, _info(b"t", (31,), 8, 0)), "rows of 31"),
        (_gguf(1, 0, _info(b"t", (2**62, 2**62, 2**62), 0, 0)), "claims"),
        (_gguf(1, 0, _info(b"t", (32,), 0, 2**64 - 1)), "lies outside the file"),
        (_gguf(1, 0, _info(b"t", (10 << 30,), 24, 0)), "lies outside the file"),
        (_gguf(1, 0, _string(b"t") + struct.pack("<I", 5) + bytes(60)), "5 dimensions"),
        (
            _gguf(2, 0, _info(b"a", (32,), 0, 0) + _info(b"b", (32,), 0, 64)) + bytes(400),
            "'a' and 'b' overlap",
        ),
    ],
)
def test_absurd_headers_give_a_reason(data: bytes, part: str) -> None:
    assert part in reason(subject_of(data))


def test_too_many_experts_and_too_many_windows() -> None:
    header = _gguf(1, 0, _info(b"blk.0.ffn_up_exps.weight", (8, 1, 2**40), 24, 0))
    assert "names more than" in reason(sparse_subject(header, 1 << 62))
    header = _gguf(1, 0, _info(b"huge", (1 << 60,), 24, 0))
    assert "windows" in reason(sparse_subject(header, 1 << 62))


def test_names_need_not_be_unique_or_utf8() -> None:
    infos = _info(b"\xff\xfe", (8,), 0, 0) + _info(b"same", (8,), 0, 32) + _info(b"same", (8,), 0, 64)
    names = [r.name for r in ranges_of(subject_of(_gguf(3, 0, infos).ljust(160, b"\0") + bytes(96)))]
    assert names == ["header", "\N{REPLACEMENT CHARACTER}" * 2, "same", "same"]


def test_long_metadata_is_skipped_and_a_vocabulary_walked_quickly() -> None:
    """Two arrays of 250,000 strings, 64 MiB of other metadata that is never read, and then a tensor."""
    tokens = b"".join(_string(b"token%d" % i) for i in range(250_000))
    words = _string(b"tokens") + struct.pack("<IIQ", 9, 8, 250_000) + tokens
    skipped = 64 << 20
    head = _gguf(1, 3, words + words + _string(b"blob") + struct.pack("<IQ", 8, skipped))
    tail = _info(b"t", (8,), 0, 0)
    read_bytes = 0

    def pread(offset: int, size: int) -> bytes:
        nonlocal read_bytes
        size = max(0, min(size, file_size - offset))
        read_bytes += size
        if offset >= len(head) + skipped:
            at = offset - len(head) - skipped
            return tail[at : at + size].ljust(size, b"\0")
        return head[offset : offset + size].ljust(size, b"\0")

    file_size = len(head) + skipped + len(tail) + 4096
    subject = sparse_subject(b"", file_size)
    started_s = time.process_time()
    ranges = ranges_of(type(subject)(subject.name, file_size, pread, subject.siblings))
    assert time.process_time() - started_s < 1
    assert ranges[1].name == "t"
    assert read_bytes < len(head) + 4 * BLOCK_BYTES + 8 * SNIFF_BYTES
