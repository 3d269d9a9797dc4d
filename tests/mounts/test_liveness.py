"""A hit is never slower than the source: hits, listings and status go on while misses hang."""

from __future__ import annotations

import mmap
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mummufs import control
from tests.faultfs.client import FaultFs
from tests.mounts.harness import Mounted, opened
from tests.mounts.test_filling import KIB, MIB, PAGE, pread_direct
from tests.support.models import write_native
from tests.support.waiting import wait_for

ROUNDS = 40
MEDIAN_S = 0.050
P99_S = 0.500


@pytest.mark.mount
@pytest.mark.alone
@pytest.mark.parametrize("misses", [16, 64])
def test_hits_while_misses_hang(tree: Path, store: Path, misses: int) -> None:
    write_native(tree / "hot", sizes=(256 * KIB,) * 8, gap=0)
    for i in range(4):
        write_native(tree / f"cold{i}", sizes=(64 * KIB,) * 32, gap=0)
    hot = (tree / "hot").read_bytes()
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store) as m:
        assert m.read("hot") == hot
        m.settle()
        for i in range(4):
            pread_direct(m.path(f"cold{i}"), 0, PAGE)
        m.settle()
        under.hang_reads()
        readers = [
            threading.Thread(
                target=pread_direct, args=(m.path(f"cold{i % 4}"), (i // 4 + 1) * 64 * KIB, 16 * KIB), daemon=True
            )
            for i in range(misses)
        ]
        for reader in readers:
            reader.start()
        wait_for(m.status, lambda s: s["gauges"]["reads_in_flight"] >= misses - 4)

        with opened(m.path("hot")) as fd:

            def read() -> None:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                assert os.pread(fd, 64 * KIB, 256 * KIB) == hot[256 * KIB : 320 * KIB]

            def mapped() -> None:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as pages:
                    assert pages[MIB : MIB + 9] == hot[MIB : MIB + 9]

            def direct() -> None:
                assert pread_direct(m.path("hot"), 512 * KIB, 64 * KIB) == hot[512 * KIB : 576 * KIB]

            calls: dict[str, Callable[[], object]] = {
                "read": read,
                "mmap": mapped,
                "O_DIRECT": direct,
                "ls": lambda: os.listdir(m.mountpoint),
                "stat": lambda: os.stat(m.path("hot")),
                "status": lambda: control.request(m.mountpoint, "status"),
            }
            took: dict[str, list[float]] = {name: [] for name in calls}
            for _ in range(ROUNDS):
                for name, call in calls.items():
                    begun = time.perf_counter()
                    call()
                    took[name].append(time.perf_counter() - begun)
        under.release_reads()
        for reader in readers:
            reader.join(60)
        assert not any(reader.is_alive() for reader in readers)
        for name, times in took.items():
            assert statistics.median(times) < MEDIAN_S, f"{name}: {sorted(times)}"
            assert sorted(times)[int(0.99 * len(times))] < P99_S, f"{name}: {sorted(times)}"
        status = m.status()
        assert status["backend"]["max_background"] > misses
        assert status["backend"]["max_tasks"] > misses
