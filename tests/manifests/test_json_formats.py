"""safetensors, the mummu pack and the native manifest: what is accepted and what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from mummufs.core.manifest import ManifestRange, RangeKind
from mummufs.manifests.jsonstream import BLOCK_BYTES, ENTRY_CHARS_MAX
from mummufs.manifests.registry import read_manifest
from tests.manifests.subjects import as_ranges, found, load, ranges_of, reason, subject_of, table_or_reason
from tests.support.models import write_mummu_pack, write_safetensors


def _safetensors(text: bytes | dict[str, object], data_bytes: int = 4096) -> bytes:
    if isinstance(text, dict):
        text = json.dumps(text).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data_bytes)


def _tensor(start: object, end: object, shape: object = (8,)) -> dict[str, object]:
    return {"dtype": "U8", "shape": shape, "data_offsets": [start, end]}


def test_safetensors_fused_experts(tmp_path: Path) -> None:
    path = tmp_path / "m"
    written = write_safetensors(path, fused=True, experts=3, dense_bytes=1024, expert_bytes=1024)
    assert found(read_manifest(load(path).subject())) == as_ranges(written)
    assert sum(w.kind == "expert" for w in written) == 2 * 3 * 3


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("model.layers.0.mlp.experts.gate_up_proj", [4, 2, 8], 4),
        ("model.layers.0.mlp.experts.gate_up_proj_blocks", [4, 2, 4, 2], 4),
        ("experts.down_proj.weight", [4, 2, 8], 4),
        ("model.layers.0.mlp.experts.gate_up_proj_bias", [4, 16], 1),
        ("model.layers.0.mlp.shared_experts.up_proj", [4, 2, 8], 1),
        ("experts.up_proj", [3, 2, 8], 1),
    ],
)
def test_safetensors_fused_names(name: str, shape: list[int], count: int) -> None:
    data = _safetensors({name: _tensor(0, 64, shape)})
    assert len([r for r in ranges_of(subject_of(data)) if r.kind != RangeKind.HEADER]) == count


def test_safetensors_order_gaps_and_empty_tensors() -> None:
    data = _safetensors({"b": _tensor(100, 200), "none": _tensor(50, 50), "a": _tensor(0, 50)})
    start = len(data) - 4096
    assert sorted(r[:3] for r in ranges_of(subject_of(data)))[1:] == [(start, 50, "a"), (start + 100, 100, "b")]


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (_safetensors(b"{ "), "broken"),
        (_safetensors(b"{}}"), "after its end"),
        (_safetensors(b'{"a" 1}'), "in place of ':'"),
        (_safetensors(b'{"a":{}}'), "no data_offsets"),
        (_safetensors(b'{"a":[]}'), "no data_offsets"),
        (_safetensors(b'{"a":1}'), "no data_offsets"),
        (_safetensors(b"{1:2}"), "not a string"),
        (_safetensors(b'{"\xff":1}'), "not UTF-8"),
        (_safetensors(b'{"a":nope}'), "broken"),
        (_safetensors(b'{"__metadata__":{"a":"b"}'), "in place of"),
        (_safetensors(b'{"__metadata__":{"a":"b'), "cut short"),
        (_safetensors(b'{"a":' + b"[" * 5000), "RecursionError"),
        (_safetensors(b'{"a":{"data_offsets":[0,' + b"9" * 5000 + b"]}}"), "absurd"),
        (_safetensors(b'{"a":"' + b"x" * ENTRY_CHARS_MAX + b'"}'), "more than"),
        (_safetensors(b'{"a":"' + b"x" * 3 * BLOCK_BYTES + b'"}'), "too long"),
        (_safetensors(b'{"a":' + b"1" * 3 * BLOCK_BYTES + b"}"), "more than"),
        (_safetensors({"a": _tensor(0, 4097)}), "lies outside the file"),
        (_safetensors({"a": _tensor(0, 10 << 30)}), "lies outside the file"),
        (_safetensors({"a": _tensor(9, 8)}), "before its start"),
        (_safetensors({"a": _tensor(-1, 8)}), "negative"),
        (_safetensors({"a": _tensor(0, 2**63)}), "over 2^63"),
        (_safetensors({"a": _tensor(0, 8.0)}), "a float"),
        (_safetensors({"a": _tensor(False, True)}), "a bool"),
        (_safetensors({"a": _tensor(None, 8)}), "missing"),
        (_safetensors({"a": _tensor("0", 8)}), "a str"),
        (_safetensors({"experts.up_proj": _tensor(0, 8, [-1, 1, 1])}), "negative"),
        (_safetensors({"a": _tensor(0, 8), "b": _tensor(7, 9)}), "'a' and 'b' overlap"),
        (struct.pack("<Q", 90_000_000) + b"{}", "claims a header"),
    ],
)
def test_safetensors_absurd(data: bytes, part: str) -> None:
    assert part in reason(subject_of(data))


@pytest.mark.parametrize("shift", range(12))
def test_safetensors_entries_across_blocks(shift: int) -> None:
    """Names, escapes and numbers that a block ends in the middle of."""
    key, metadata = 'n\\"\\\\\N{SNOWMAN}', '"\\\\\\"\N{SNOWMAN}]}' * 40_000
    head = json.dumps({"__metadata__": {"k": metadata}}, ensure_ascii=False)[:-1]
    entries = [f'"{key}{i}":{json.dumps(_tensor(8 * i, 8 * i + 8))}' for i in range(9000)]
    text = (head + " " * shift + "," + ",".join(entries) + "}").encode()
    assert len(text) > 3 * BLOCK_BYTES
    ranges = ranges_of(subject_of(_safetensors(text, 8 * 9000)))
    assert len(ranges) == 9001
    assert ranges[-1][1:3] == (8, 'n"\\\N{SNOWMAN}8999')


def test_mummu_blobs_header_and_padding(tmp_path: Path) -> None:
    for padding in (0, 4095):
        pack = tmp_path / f"p{padding}.mummu"
        for path, written in write_mummu_pack(pack, padding=padding, dense_bytes=9000, expert_bytes=4000).items():
            assert found(read_manifest(load(path).subject())) == as_ranges(written), path.name


def test_mummu_scales_far_from_values_are_a_range_of_their_own() -> None:
    where = {"values_offset": 0, "values_len": 64, "scales_offset": 64 + 4096, "scales_len": 8}
    tensors = [{"name": "a", "role": {"kind": "expert"}, "precisions": {"q8": where, "q4": None}}]
    siblings = {b"manifest.json": json.dumps({"tensors": tensors}).encode()}
    assert ranges_of(subject_of(bytes(8192), b"q8.bin", siblings)) == [
        ManifestRange(0, 64, "a", RangeKind.EXPERT),
        ManifestRange(4160, 8, "a scales", RangeKind.EXPERT),
    ]
    assert ranges_of(subject_of(bytes(8192), b"q4.bin", siblings)) == []


@pytest.mark.parametrize(
    ("manifest", "part"),
    [
        ({}, "no 'tensors'"),
        ({"tensors": [1]}, "not an object"),
        ({"tensors": [{"precisions": {}}]}, "name of a tensor is missing"),
        ({"tensors": [{"name": "a"}]}, "no precisions"),
        ({"tensors": [{"name": "a", "precisions": {"q4": 1}}]}, "no offsets"),
        ({"tensors": [{"name": "a", "precisions": {"q4": {}}}]}, "values_offset of tensor 'a' is missing"),
        (
            {"tensors": [{"name": "a", "precisions": {"q4": {"values_offset": 0, "values_len": 101}}}]},
            "lies outside",
        ),
        ({"tensors": {}}, "in place of '['"),
    ],
)
def test_mummu_absurd(manifest: object, part: str) -> None:
    assert part in reason(subject_of(bytes(100), b"q4.bin", {b"manifest.json": json.dumps(manifest).encode()}))


def _native(ranges: object = (), **changes: object) -> bytes:
    return json.dumps({"version": 1, "file": "file", "size": 100, "ranges": ranges, **changes}).encode()


def test_native_wins_over_the_file_itself() -> None:
    data = _safetensors({"a": _tensor(0, 8)})
    mine = _native([{"offset": 3, "length": 9, "name": "mine", "kind": "expert"}], size=len(data), extra=[{}])
    assert ranges_of(subject_of(data, b"file", {b"file.mummufs.json": mine})) == [(3, 9, "mine", RangeKind.EXPERT)]
    assert ranges_of(subject_of(data), mine) == [(3, 9, "mine", RangeKind.EXPERT)]


def test_native_given_for_another_file_is_passed_over() -> None:
    assert table_or_reason(subject_of(bytes(100)), _native([{"offset": 0}], file="other", size=5)) is None
    assert ranges_of(subject_of(bytes(100)), _native(file="models/file")) == []


def test_native_names_that_are_no_utf8() -> None:
    side = _native([{"offset": 0, "length": 4, "name": "x"}], file="caf\udce9")
    assert len(ranges_of(subject_of(bytes(100), b"caf\xe9", {b"caf\xe9.mummufs.json": side}))) == 1
    assert "no file name" in reason(subject_of(bytes(100), b"x", {b"x.mummufs.json": _native(file="\ud800")}))


@pytest.mark.parametrize(
    ("side", "part"),
    [
        (b"", "in place of '{'"),
        (b"[]", "in place of '{'"),
        (_native(version=2), "version"),
        (_native(version=True), "version"),
        (_native(file="other"), "names another file"),
        (_native(file=3), "not a string"),
        (_native(size=99), "is for a file of 99 bytes"),
        (_native(size=100.0), "a float"),
        (b'{"version":1,"file":"file","size":100}', "no 'ranges'"),
        (_native([3]), "not an object"),
        (_native([{"offset": 0, "length": 1}]), "name of a range is missing"),
        (_native([{"offset": 0, "length": 1, "name": "a", "kind": "hot"}]), "a kind other than"),
        (_native([{"offset": 0, "length": 1, "name": "a", "kind": 1}]), "not a string"),
        (_native([{"offset": True, "length": 1, "name": "a"}]), "a bool"),
        (_native([{"offset": 0, "length": 101, "name": "a"}]), "lies outside"),
        (_native([{"offset": 0, "length": 9, "name": "a"}, {"offset": 8, "length": 9, "name": "b"}]), "overlap"),
    ],
)
def test_native_absurd(side: bytes, part: str) -> None:
    assert part in reason(subject_of(bytes(100), b"file", {b"file.mummufs.json": side}))
