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
