"""The child process: its answers, what it opens, and what a hostile header can make it take."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from mummufs.core.manifest import RANGES_MAX, RangeTable
from tests.manifests.subjects import run_child
from tests.support.models import write_gguf, write_native

HEADER_BYTES = 16 << 20
MEMORY_BYTES_MAX = 64 << 20

_PEAK_OF = """
import os, resource, sys
from mummufs.manifests.child import answer
def peak():
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
before = peak()
status, payload = answer(os.open(sys.argv[1], os.O_RDONLY), -1, b"file")
print(status.decode(), len(payload), peak() - before)
"""


def test_no_manifest(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("nothing to see")
    assert run_child(path) == b"N"


def test_explicit_manifest_wins(tmp_path: Path) -> None:
    path = tmp_path / "data.gguf"
    write_gguf(path)
    manifest = tmp_path / "elsewhere.json"
    ranges = [{"offset": 5, "length": 9000, "name": "mine"}]
    manifest.write_text(json.dumps({"version": 1, "file": path.name, "size": path.stat().st_size, "ranges": ranges}))
    answer = run_child(path, manifest)
    assert answer[:1] == b"T"
    (window,) = RangeTable.from_bytes(answer[1:])
    assert (window.name, window.span_offset, window.span_size) == ("mine", 5, 9000)


def test_siblings_are_plain_files_of_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_native(path)
    side = tmp_path / "a.bin.mummufs.json"
    assert run_child(path)[:1] == b"T"
    assert run_child(path, with_folder=False) == b"N"
    side.rename(tmp_path / "elsewhere")
    side.symlink_to("elsewhere")
    assert run_child(path) == b"N"
    side.unlink()
    os.mkfifo(side)
    assert run_child(path) == b"N"


def test_side_file_over_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_native(path)
    os.truncate(tmp_path / "a.bin.mummufs.json", (16 << 20) + 1)
    assert run_child(path)[:1] == b"E"


def test_unreadable_file_is_a_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mummufs.manifests.child", "999", "-1", b"x".hex()], capture_output=True, check=True
    )
    assert done.stdout.startswith(b"Eits header cannot be read: ")
    assert done.stderr == b""


def test_wrong_call_is_a_usage_line() -> None:
    done = subprocess.run([sys.executable, "-m", "mummufs.manifests.child", "x"], capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"usage: ")


def _write_header(path: Path, header: bytes, file_size: int) -> None:
    path.write_bytes(header)
    os.truncate(path, file_size)


def _gguf_of_tiny_tensors(path: Path) -> None:
    infos = b"".join(
        struct.pack("<Q", 6) + b"%06d" % i + struct.pack("<IQIQ", 1, 8, 24, 8 * i) for i in range(RANGES_MAX - 1)
    )
    header = struct.pack("<4sIQQ", b"GGUF", 3, RANGES_MAX - 1, 0) + infos
    _write_header(path, header, len(header) + 64 + 8 * RANGES_MAX)


def _gguf_of_many_experts(path: Path) -> None:
    name = b"blk.0.ffn_up_exps.weight"
    header = struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + struct.pack("<Q", len(name)) + name
    header += struct.pack("<IQQQIQ", 3, 70_000, 1, RANGES_MAX - 1, 24, 0)
    _write_header(path, header, 4096 + 70_000 * RANGES_MAX)


def _safetensors(path: Path, text: bytes, data_bytes: int) -> None:
    text = text.ljust(HEADER_BYTES)
    assert len(text) == HEADER_BYTES
    _write_header(path, struct.pack("<Q", len(text)) + text, 8 + len(text) + data_bytes)


def _safetensors_backwards(path: Path) -> None:
    entry = '"%x":{"dtype":"U8","shape":[8],"data_offsets":[%d,%d]}'
    count = RANGES_MAX - 1
    text = ",".join(entry % (i, 8 * i, 8 * i + 8) for i in reversed(range(count)))
    _safetensors(path, b"{" + text.encode() + b"}", 8 * count)


def _safetensors_far_apart(path: Path) -> None:
    entry = '"model.layers.%d.mlp":{"dtype":"U8","shape":[8],"data_offsets":[%d,%d]}'
    count = 180_000
    text = ",".join(entry % (i, 70_000 * i, 70_000 * i + 70_000) for i in range(count))
    _safetensors(path, b"{" + text.encode() + b"}", 70_000 * count)


def _safetensors_of_metadata(path: Path) -> None:
    members = b",".join(b'"%d":"b"' % i for i in range(1_100_000))
    _safetensors(path, b'{"__metadata__":{' + members + b'},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}', 8)


def _safetensors_deep(path: Path) -> None:
    _safetensors(path, b'{"a":' + b"[" * (HEADER_BYTES - 5), 8)


def _safetensors_wide_text(path: Path) -> None:
    _safetensors(path, b'{"' + "\N{PILE OF POO}".encode() * (HEADER_BYTES // 4 - 2), 8)


@pytest.mark.parametrize(
    "write",
    [
        _gguf_of_tiny_tensors,
        _gguf_of_many_experts,
        _safetensors_backwards,
        _safetensors_far_apart,
        _safetensors_of_metadata,
        _safetensors_deep,
        _safetensors_wide_text,
    ],
)
@pytest.mark.slow
def test_a_header_of_16_mib_takes_at_most_64_mib(write: object, tmp_path: Path) -> None:
    assert callable(write)
    path = tmp_path / "file"
    write(path)
    done = subprocess.run([sys.executable, "-c", _PEAK_OF, str(path)], capture_output=True, check=True, timeout=120)
    status, _, grown_bytes = done.stdout.split()
    assert status in (b"T", b"E")
    assert int(grown_bytes) <= MEMORY_BYTES_MAX
