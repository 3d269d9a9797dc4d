"""Stores, heat files and models as large as they get, made in seconds: sparse, with headers that are right."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.store.heatfile import HeatPacker
from mummufs.store.layout import (
    CHECKSUM_BYTES,
    DIR_MODE,
    HEADER_BYTES,
    HEADER_USED_BYTES,
    HEAT_NAME,
    RANGES_DIR,
    RangeHeader,
    range_name,
)

WINDOW_BYTES = 64 << 10
FILE_RANGES = 1000
"""Ranges of each file that the store has something of."""
FILESYSTEM = 0x6D756D6D75667301
VERSION = Version(1 << 40, 1_700_000_000_123_456_789, 1_700_000_000_123_456_789)


def keys(count: int, start: int = 0) -> Iterator[RangeKey]:
    """Ranges of many files that no source has."""
    for i in range(start, start + count):
        file, at = divmod(i, FILE_RANGES)
        yield RangeKey(FileId(FILESYSTEM, 1000 + file), at * WINDOW_BYTES, WINDOW_BYTES)


def write_store(directory: Path, count: int) -> None:
    """A store of so many range files: whole headers, and bytes that are holes."""
    directory.mkdir(mode=DIR_MODE)
    for i in range(256):
        (directory / RANGES_DIR / f"{i:02x}").mkdir(mode=DIR_MODE, parents=True)
    root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for key in keys(count):
            fd = os.open(range_name(key), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=root)
            os.write(fd, RangeHeader(key, VERSION, bytes(CHECKSUM_BYTES)).pack()[:HEADER_USED_BYTES])
            os.ftruncate(fd, HEADER_BYTES + key.size)
            os.close(fd)
    finally:
        os.close(root)


def write_heat(directory: Path, resident: int, absent: int, stored: int) -> None:
    """A heat file that knows `resident` of the store's ranges and `absent` others.

    Args:
        stored: range files of the store.
    """
    packer = HeatPacker()
    for seq, key in enumerate((*keys(resident), *keys(absent, stored))):
        packer.add(key, seq % 37 / 3, seq)
    (directory / HEAT_NAME).write_bytes(packer.finish())


def write_model(path: Path, ranges: int) -> None:
    """A sparse model file, and a native manifest of so many ranges beside it. None of them is joined to another."""
    size = ranges * WINDOW_BYTES
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
    os.truncate(path, size)
    listed = [
        {"offset": i * WINDOW_BYTES, "length": WINDOW_BYTES, "name": f"blk.{i // 500}.w{i}", "kind": "expert"}
        for i in range(ranges)
    ]
    manifest = {"version": 1, "file": path.name, "size": size, "ranges": listed}
    path.with_name(path.name + ".mummufs.json").write_text(json.dumps(manifest))
