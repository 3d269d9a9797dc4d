"""The loads of the read benchmark, run by fio, each over one file with cold caches."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.benchlib import drop_caches, pretouch, run


@dataclass(frozen=True)
class Load:
    """One way of reading a file: buffered, by one process, one request after the other."""

    name: str
    title: str
    arguments: tuple[str, ...]


LOADS = (
    Load("sequential_8m", "sequential 8 MiB", ("--ioengine=psync", "--rw=read", "--bs=8m")),
    Load("random_1m", "random 1 MiB", ("--ioengine=psync", "--rw=randread", "--bs=1m")),
    Load("random_4k", "random 4 KiB", ("--ioengine=psync", "--rw=randread", "--bs=4k")),
    Load("mmap", "mmap, sequential", ("--ioengine=mmap", "--rw=read", "--bs=1m")),
)


def measure(load: Load, path: Path, runtime_s: int, pretouch_bytes: int) -> float:
    """MB/s (10^6 bytes) of one run of at most `runtime_s` seconds over the file, its pages dropped before.

    Each block is read at most once, so nothing comes out of the page cache but what read-ahead brought.
    """
    drop_caches()
    pretouch(pretouch_bytes)
    # With --thread no other process is left reading if fio is killed.
    common = ["--name=load", f"--filename={path}", "--readonly", "--thread", "--randseed=1"]
    limits = [f"--runtime={runtime_s}", "--output-format=json"]
    output = run("fio", *common, *limits, *load.arguments, timeout_s=runtime_s * 2 + 120)
    result = json.loads(output[output.index("{") :])
    return float(result["jobs"][0]["read"]["bw_bytes"]) / 1e6
