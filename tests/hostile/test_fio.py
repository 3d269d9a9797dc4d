"""fio's own checksums through a cold, a warm and an evicting cache (a verification that fails with a cache only)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.mounts.harness import Mounted

MIB = 1 << 20
SIZE = 48 * MIB
BLOCK = "64k"


def fio(directory: Path, path: Path, *arguments: str) -> None:
    """Run fio on a file, in a directory for what it leaves; it fails on a checksum that is not right."""
    job = ["fio", "--name=job", f"--filename={path}", f"--size={SIZE}", f"--bs={BLOCK}", "--verify=crc32c", *arguments]
    done = subprocess.run(job, cwd=directory, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.mount
@pytest.mark.parametrize("direct", ["0", "1"])
def test_fio_verifies_cold_warm_and_evicting(tree: Path, tmp_path: Path, direct: str) -> None:
    if shutil.which("fio") is None:
        assert not os.environ.get("CI"), "fio has to be there in CI"
        pytest.skip("fio is not installed")
    fio(tmp_path, tree / "f", "--rw=write", "--do_verify=0", "--end_fsync=1")
    ranges = [{"offset": at + 321, "length": 3 * MIB - 654, "name": f"r{at}"} for at in range(0, SIZE, 3 * MIB)]
    manifest = {"version": 1, "file": "f", "size": SIZE, "ranges": ranges}
    (tree / "f.mummufs.json").write_text(json.dumps(manifest))
    for size in ("1G", str(SIZE // 3)):
        with Mounted(tree, store=tmp_path / f"store-{size}", store_size=size) as m:
            for _ in range(2):
                m.drop_pages("f")
                how = ("--numjobs=8", f"--direct={direct}", "--readonly", "--group_reporting")
                fio(tmp_path, m.path("f"), "--rw=randread", *how)
            status = m.settle()
            assert status["reads"]["hit_bytes"] > 0
            assert (status["evictions"]["ranges"] > 0) == (size != "1G")


@pytest.mark.mount
@pytest.mark.parametrize("how", [("--direct=0",), ("--direct=1",), ("--ioengine=mmap",)], ids=" ".join)
def test_fio_verifies_what_it_has_written(tree: Path, tmp_path: Path, how: tuple[str, ...]) -> None:
    """Into a file whose ranges are in the store."""
    if shutil.which("fio") is None:
        assert not os.environ.get("CI"), "fio has to be there in CI"
        pytest.skip("fio is not installed")
    size = 4 * MIB
    data = write_ranges(tree, size)
    with Mounted(tree, store=tmp_path / "store") as m:
        for _ in range(2):
            m.drop_pages("f")
            assert m.read("f") == data
            m.settle()
        assert m.status()["reads"]["hit_bytes"] > 0
        fio(tmp_path, m.path("f"), f"--size={size // 2}", "--rw=randwrite", "--io_size=1M", "--bs=16k", *how)
        m.settle()
        m.drop_pages("f")
        assert m.read("f") == (tree / "f").read_bytes() != data
        after = m.settle()
        assert after["fills"]["stamped"] > 0 and after["source_writes"]["bytes"] >= MIB


def write_ranges(tree: Path, size: int) -> bytes:
    """A file of ranges of 256 KiB."""
    data = os.urandom(size)
    (tree / "f").write_bytes(data)
    ranges = [{"offset": at, "length": MIB // 4, "name": f"r{at}"} for at in range(0, size, MIB // 4)]
    (tree / "f.mummufs.json").write_text(json.dumps({"version": 1, "file": "f", "size": size, "ranges": ranges}))
    return data
