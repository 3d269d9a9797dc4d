"""A tree of everything a volume may hold: models in every format, odd names, odd types. Seeded."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np

from tests.support.models import (
    write_gguf,
    write_gguf_split,
    write_mummu_pack,
    write_native,
    write_safetensors,
    write_strata,
)

SPARSE_BYTES = 5 << 30


def write_models(root: Path) -> list[Path]:
    """Models in every format, in folders of their own: the files that have ranges, relative to the root."""
    found: list[Path] = []
    for name in ("gguf", "split with a space", "safetensors", "pack.mummu", "native", "strata"):
        (root / name).mkdir(parents=True)
    write_gguf(root / "gguf/model.gguf", layers=(0, 1), experts=4, dense_bytes=700 << 10, expert_bytes=200 << 10)
    found.append(Path("gguf/model.gguf"))
    found += [
        p.relative_to(root)
        for p in write_gguf_split(root / "split with a space", 3, layers=3, dense_bytes=300 << 10, expert_bytes=90_112)
    ]
    write_safetensors(root / "safetensors/model.safetensors", dense_bytes=900 << 10, expert_bytes=128 << 10)
    found.append(Path("safetensors/model.safetensors"))
    write_mummu_pack(root / "pack.mummu")
    found += sorted(p.relative_to(root) for p in (root / "pack.mummu").glob("*.bin"))
    write_native(root / "native/raw.dat", sizes=(200 << 10, 3 << 20, 65_000, 4 << 20), gap=5000)
    found.append(Path("native/raw.dat"))
    write_strata(root / "strata")
    found.append(Path("strata/experts.bin"))
    return found


def write_odd_things(root: Path) -> None:
    """Empty, sparse, random and linked files; names with spaces and bytes that are no UTF-8; fifos and sockets."""
    rng = np.random.default_rng(7)
    (root / "empty").write_bytes(b"")
    (root / "random").write_bytes(rng.bytes(3_333_333))
    (root / "small file").write_bytes(b"one line\n")
    with (root / "sparse").open("wb") as sparse:
        sparse.truncate(SPARSE_BYTES)
        for at in (0, (4 << 30) - 2000, SPARSE_BYTES - 5000):
            sparse.seek(at)
            sparse.write(rng.bytes(5000))
    Path(os.fsdecode(os.fsencode(root) + b"/no\xff\xfeutf8")).write_bytes(b"bytes")
    os.link(root / "random", root / "hard link")
    os.symlink("random", root / "soft link")
    os.symlink("/nowhere/at all", root / "dangling")
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        here = os.getcwd()
        os.chdir(root)  # a socket's path may not be longer than 107 bytes
        try:
            sock.bind("socket")
        finally:
            os.chdir(here)
    (root / "deep/er/still").mkdir(parents=True)
    (root / "deep/er/still/file").write_bytes(rng.bytes(70_000))
    (root / "private").write_bytes(b"secret")
    (root / "private").chmod(0o600)
    (root / "setuid").write_bytes(b"#!/bin/sh\n")
    (root / "setuid").chmod(0o4755)
