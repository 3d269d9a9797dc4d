"""How reads arrive: in requests as large as the kernel and the pipes allow, not in 128 KiB."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.hostile.support import MIB, PAGE, random_bytes
from tests.mounts.harness import Mounted
from tests.mounts.lanes import Served, ranges, warm

SIZE = 16 * MIB
PIPE_PAGES = 128
"""What fits a pipe of 1 MiB, which every user may have, beside a header."""


@pytest.mark.mount
@pytest.mark.parametrize("lane", ["auto", "off"])
@pytest.mark.parametrize("io", ["cached", "direct"])
@pytest.mark.parametrize("has_ranges", [True, False], ids=["ranges", "plain"])
def test_large_reads_arrive_in_large_requests(tree: Path, store: Path, lane: str, io: str, has_ranges: bool) -> None:
    data = ranges(tree, *(4 * MIB,) * 4) if has_ranges else random_bytes(SIZE)
    (tree / "f").write_bytes(data)
    with Mounted(tree, store=store, options=("settle=0", f"lane={lane}", "passthrough=off", f"io={io}")) as m:
        if has_ranges:
            warm(m, "f")
        with Served(m) as served:
            command = ["dd", f"if={m.path('f')}", "of=/dev/null", "bs=8M", "status=none"]
            subprocess.run(command, check=True, timeout=30)
        requests = sum(served[f"reads.{kind}"] for kind in ("hits", "misses", "bypasses"))
        assert served["reads.replied_bytes"] >= len(data)
        assert served["reads.replied_bytes"] / requests > PIPE_PAGES * PAGE / 2, requests
