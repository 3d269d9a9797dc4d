"""What every format promises, run for each of them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mummufs.core.manifest import RangeTable
from mummufs.manifests.base import SNIFF_BYTES
from mummufs.manifests.registry import FORMATS, may_have_manifest, read_manifest
from tests.manifests.subjects import FolderFiles, as_ranges, found, load, run_child, table_or_reason
from tests.support.models import WRITERS, Written

NAMES = tuple(WRITERS)


def _written_of(format_name: str) -> tuple[FolderFiles, list[Written]]:
    with tempfile.TemporaryDirectory() as folder:
        path, written = WRITERS[format_name](Path(folder))
        return load(path), written


FILES = {name: _written_of(name) for name in NAMES}


def test_every_format_has_a_writer() -> None:
    assert tuple(known.name for known in FORMATS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_only_its_own_format_recognises_it(name: str) -> None:
    files, _ = FILES[name]
    assert [known.name for known in FORMATS if known.recognises(files.subject())] == [name]


@pytest.mark.parametrize("name", NAMES)
def test_ranges_are_those_written_byte_for_byte(name: str) -> None:
    files, written = FILES[name]
    manifest = read_manifest(files.subject())
    assert manifest is not None
    assert manifest.format == name
    assert manifest.file_size == len(files.data)
    assert found(manifest) == as_ranges(written)
    by_offset = {w.offset: w for w in written}
    for r in manifest.ranges:
        assert by_offset[r.offset].matches(files.data[r.offset : r.offset + r.size])


@pytest.mark.parametrize("name", NAMES)
def test_sniff_agrees(name: str) -> None:
    files, _ = FILES[name]
    assert may_have_manifest(files.name, files.data[:SNIFF_BYTES], set(files.siblings))
    assert not may_have_manifest(b"readme.txt", b"just some text", {b"other.txt"})


def test_unknown_files_have_no_manifest() -> None:
    for data in (b"", b"G", b"GGU", b"plain text", bytes(100), b"\x10" + bytes(7) + b"[1,2]", b"PK\x03\x04" * 50):
        assert table_or_reason(FolderFiles(data, b"x", {}).subject()) is None


@pytest.mark.parametrize("name", NAMES)
def test_truncated_at_every_byte(name: str) -> None:
    """A file that is cut anywhere has no ranges: its header or its last range reaches past the end."""
    files, written = FILES[name]
    last = max(w.offset + w.size for w in written)
    for size in range(last):
        answer = table_or_reason(files.subject(files.data[:size]))
        assert not isinstance(answer, RangeTable), f"cut to {size} bytes"
        assert answer is not None or size < SNIFF_BYTES, f"cut to {size} bytes"


@pytest.mark.parametrize("name", ["native", "mummu", "strata"])
def test_side_file_truncated_at_every_byte(name: str) -> None:
    """A cut table is an error or, where it is cut between rows of text, a table of the rows that are left."""
    files, written = FILES[name]
    side = {"native": b"anything.dat.mummufs.json", "mummu": b"manifest.json", "strata": b"native_experts.txt"}[name]
    for size in range(len(files.siblings[side])):
        answer = table_or_reason(files.subject(siblings={**files.siblings, side: files.siblings[side][:size]}))
        if name != "strata":
            assert isinstance(answer, str), f"cut to {size} bytes"
        else:
            assert answer is not None
    assert written


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(data=st.data())
def test_corruption_never_escapes(name: str, data: st.DataObject) -> None:
    """Flipped, inserted, doubled and removed bytes in the header or the file beside it: a table, a reason, or None."""
    files, _ = FILES[name]
    side = next((n for n in files.siblings if n.endswith((b".json", b".txt"))), None)
    target = files.data if side is None else files.siblings[side]
    corrupt = bytearray(target)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(corrupt), 1200)))
        action = data.draw(st.sampled_from(["set", "insert", "remove", "double", "number"]))
        if action == "set":
            corrupt[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
        elif action == "insert":
            corrupt[at:at] = data.draw(st.binary(max_size=9))
        elif action == "remove":
            del corrupt[at : at + data.draw(st.integers(1, 16))]
        elif action == "double":
            corrupt[at:at] = corrupt[at : at + 64]
        else:
            corrupt[at : at + 8] = data.draw(st.integers(0, 2**64 - 1)).to_bytes(8, "little")
    if side is None:
        table_or_reason(files.subject(bytes(corrupt)))
    else:
        table_or_reason(files.subject(siblings={**files.siblings, side: bytes(corrupt)}))


@pytest.mark.parametrize("name", NAMES)
def test_child_answers_the_same_table(name: str, tmp_path: Path) -> None:
    path, _ = WRITERS[name](tmp_path)
    expected = table_or_reason(load(path).subject())
    assert isinstance(expected, RangeTable)
    answer = run_child(path)
    assert answer == b"T" + expected.to_bytes()
    assert list(RangeTable.from_bytes(answer[1:])) == list(expected)


@pytest.mark.parametrize("name", NAMES)
def test_child_gives_the_reason(name: str, tmp_path: Path) -> None:
    path, written = WRITERS[name](tmp_path)
    os.truncate(path, max(w.offset + w.size for w in written) - 1)
    expected = table_or_reason(load(path).subject())
    assert isinstance(expected, str)
    assert run_child(path) == b"E" + expected.encode()
