"""What the hostile tests share: files with ranges, timed reads, and a look at processes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.mounts.harness import Mounted
from tests.mounts.test_filling import pread_direct
from tests.support.models import write_native

KIB, MIB = 1 << 10, 1 << 20
PAGE = 4096
RANGE_BYTES = 200 * KIB
RANGES = 10
LOG_LINES_A_MINUTE = 60
ROUND_UP_S = 0.5
"""What a loaded machine adds to a time that the product promises."""


def model(tree: Path, *names: str, ranges: int = RANGES) -> dict[str, bytes]:
    """Files of `ranges` ranges each: their bytes, by name."""
    for name in names:
        write_native(tree / name, seed=hash_of(name), sizes=(RANGE_BYTES,) * ranges, gap=100)
    return {name: (tree / name).read_bytes() for name in names}


def random_bytes(size: int, seed: int = 1) -> bytes:
    """Bytes without a pattern."""
    return random.Random(seed).randbytes(size)


def hash_of(name: str) -> int:
    """A seed of a name, the same in every process."""
    return int.from_bytes(name.encode(), "big") % 1_000_003


def read_all(m: Mounted, expected: dict[str, bytes]) -> None:
    """Read every file, past the page cache's old pages; each must be what it is in the source."""
    m.drop_pages(*expected)
    for name, data in expected.items():
        assert m.read(name) == data, name


def fill(m: Mounted, expected: dict[str, bytes]) -> int:
    """Read every file until its ranges are in the store; how many range files there are."""
    for _ in range(2):
        read_all(m, expected)
        m.settle()
    return len(m.range_files())


def timed_reads(m: Mounted, name: str, data: bytes, count: int, seed: int = 1) -> list[float]:
    """Direct reads at random pages; each must be right. The seconds that each took, in order."""
    rng = random.Random(seed)
    took = []
    for _ in range(count):
        offset = rng.randrange(len(data) - 64 * KIB) // PAGE * PAGE
        begun = time.monotonic()
        got = pread_direct(m.path(name), offset, 16 * KIB)
        took.append(time.monotonic() - begun)
        assert got == data[offset : offset + 16 * KIB], f"at {offset}"
    return took


def hits(m: Mounted) -> int:
    """Requests that the store has answered."""
    return int(m.status()["reads"]["hits"])


def errno_of(call: Callable[[], object]) -> int | None:
    """What a call fails with; None where it does not."""
    try:
        call()
    except OSError as error:
        return error.errno
    return None


def in_use(path: Path) -> int:
    """The bytes that are taken on a file system of its own, by files without a name too."""
    found = os.statvfs(path)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def children(pid: int) -> dict[int, str]:
    """The child processes of a process and their command lines."""
    found = {}
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                found[child] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
    return found


def states(pid: int) -> str:
    """The state letters of a process's threads."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            found.append(path.read_text().rsplit(")", 1)[1].split()[0])
    return "".join(found)


def threads(pid: int) -> int:
    """How many threads a process has."""
    return len(states(pid))


@contextlib.contextmanager
def changed(path: Path) -> Iterator[bytearray]:
    """A file's bytes, to be changed and written back in place."""
    data = bytearray(path.read_bytes())
    yield data
    path.write_bytes(data)


def write_plan(plan: Path, places: dict[str, str]) -> None:
    """Have these places raise from now on: all at once, so that no call sees half of a plan."""
    fresh = plan.with_suffix(".new")
    fresh.write_text(json.dumps(places))
    fresh.rename(plan)
