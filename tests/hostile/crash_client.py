"""One client of the crash loop: `python tests/hostile/crash_client.py MOUNTPOINT SOURCE SEED NAME...`.

It reads the named files in random pieces, by read, mmap, O_DIRECT and whole, and compares every byte with the source.
Each piece that was right writes a "." to standard output. It ends with 0 when the mount is gone, with WRONG and a
sentence when a byte was not right; a mapping of a mount that died kills it with SIGBUS.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
from pathlib import Path

WRONG = 3
PAGE = 4096
PIECE_BYTES_MAX = 384 << 10


def read_piece(fd: int, how: str, offset: int, size: int) -> bytes:
    """Bytes of a file, read in one of the ways."""
    if how == "mmap":
        with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
            return mapped[offset : offset + size]
    if how == "direct":
        with mmap.mmap(-1, size) as buffer:
            return buffer[: os.preadv(fd, [buffer], offset)]
    return os.pread(fd, size, offset)


def one_read(path: str, data: bytes, rng: random.Random) -> str | None:
    """Read a piece and compare; what was wrong, or None. Raises OSError as the mount does."""
    how = rng.choice(("read", "read", "mmap", "direct", "whole"))
    offset = rng.randrange(0, len(data), PAGE if how == "direct" else 1)
    size = rng.randint(1, PIECE_BYTES_MAX)
    if how == "direct":
        size += -size % PAGE
    elif how == "whole":
        offset, size = 0, len(data)
    fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if how == "direct" else 0))
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        found = read_piece(fd, how, offset, size)
    finally:
        os.close(fd)
    expected = data[offset : offset + size]
    if found == expected:
        return None
    zero = " (a page of zeros)" if any(not any(found[i : i + PAGE]) for i in range(0, len(found), PAGE)) else ""
    return f"{path} by {how} at {offset}, {size} bytes: {len(found)} bytes, not those of the source{zero}"


def main(mountpoint: str, source: str, seed: str, *names: str) -> int:
    """Read until the mount is gone."""
    rng = random.Random(int(seed))
    expected = {}
    for name in names:
        expected[name] = Path(source, name).read_bytes()
    weights = [1 / (1 + i) for i in range(len(names))]  # some files are hot; which ones, the order of the names says
    while True:
        name = rng.choices(names, weights)[0]
        try:
            wrong = one_read(f"{mountpoint}/{name}", expected[name], rng)
        except OSError as error:
            print(f"\nended: {error}")
            return 0
        if wrong is not None:
            print(f"\n{wrong}")
            return WRONG
        os.write(1, b".")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
