"""A trace of a real mount has what was read of ranges, and its replay counts the hits that the mount counted."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from mummufs.cli import cli
from mummufs.commands.ranges import read_table
from mummufs.core.ranges import page_ceil
from mummufs.tracefile import TraceReader
from tests.mounts.harness import COMMAND, REPOSITORY, Mounted, opened
from tests.support.models import write_gguf
from tests.support.waiting import wait_for


@pytest.mark.mount
def test_a_trace_is_what_was_read_and_its_replay_what_was_hit(tree: Path, store: Path, tmp_path: Path) -> None:
    write_gguf(tree / "m.gguf")
    table = read_table(tree / "m.gguf", None)
    assert table is not None
    windows = [(w.offset, w.size) for w in table]
    trace = tmp_path / "trace"
    with Mounted(tree, store=store, store_size="1G") as m:
        arguments = [*COMMAND, "trace", os.fspath(m.mountpoint), "-o", os.fspath(trace)]
        with subprocess.Popen(arguments, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as tracing:
            try:
                wait_for(m.status, lambda s: s["trace"]["on"])
                with opened(m.path("m.gguf"), os.O_RDONLY | os.O_DIRECT) as fd, mmap.mmap(-1, 1 << 20) as buffer:
                    wait_for(m.status, lambda s: s["gauges"]["parsed"] == 1)  # what is read before is of no range
                    for number, (offset, size) in enumerate(windows * 3):
                        assert os.preadv(fd, [memoryview(buffer)[: page_ceil(size)]], offset) == size
                        if number < len(windows):
                            m.settle()
                status = m.status()
                tracing.send_signal(signal.SIGINT)
                said, _ = tracing.communicate(timeout=30)
            finally:
                tracing.kill()
        assert tracing.returncode == 0
        assert f"{status['trace']['reads']:,} reads" in said
        assert not m.status()["trace"]["on"]
    reads = status["reads"]
    assert status["trace"]["dropped"] == 0
    with trace.open("rb") as file:
        reader = TraceReader(file)
        blocks = list(reader)
    hits = sum(size for block in blocks for size, hit in zip(block.sizes, block.hits, strict=True) if hit)
    assert hits == reads["hit_bytes"] > 0
    assert sum(map(sum, (block.sizes for block in blocks))) == reads["hit_bytes"] + reads["miss_bytes"]
    assert [known.path for known in reader.blocks.files] == [b"m.gguf"]
    assert {(w.offset, w.size) for w in reader.blocks.windows} == set(windows)
    words = ["simulate", os.fspath(trace), "--budget", "1G", "--policy", "hotness", "--json"]
    (result,) = json.loads(CliRunner().invoke(cli, words).stdout)["results"]
    assert result["read_bytes"] == reads["hit_bytes"] + reads["miss_bytes"]
    assert result["hit_bytes"] == reads["hit_bytes"]
    assert result["written_bytes"] == status["fills"]["bytes"]
