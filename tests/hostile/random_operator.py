"""One file of a mount, used in every way at random: `python -m tests.hostile.random_operator`.

Read, written and mapped, past the page cache and through it, cut and made longer, renamed, while the store is too small
for it and another model is read besides, so that its ranges come, go and are stamped all the time. Every read is
compared; every so often all of it is, here and in the source.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

from tests.mounts.harness import Mounted, opened
from tests.support.models import write_native

KIB, PAGE = 1 << 10, 4096
RANGE_BYTES = 96 * KIB
RANGES = 12
STORE_BYTES = 2 << 20
PIECE_MAX = 200 * KIB


class OperatorError(AssertionError):
    """What was read is not what was written; the message has the seed and the steps."""


class Operator:
    """Uses one file."""

    def __init__(self, m: Mounted, name: str, other: str, seed: int) -> None:
        self._m = m
        self._path = m.path(name)
        self._name = name
        self._other = m.path(other)
        self._rng = random.Random(seed)
        self._data = bytearray((m.source / name).read_bytes())
        self._size = len(self._data)
        self._writer: int | None = None
        self._reader = os.open(self._path, os.O_RDONLY)
        self.steps: list[str] = []
        self.done: Counter[str] = Counter()

    def close(self) -> None:
        """Close what is open."""
        os.close(self._reader)
        self._close_writer()

    def step(self) -> None:
        """Do something."""
        steps = {
            self._read: 6,
            self._read_direct: 2,
            self._read_mapped: 2,
            self._write: 4,
            self._write_direct: 1,
            self._write_mapped: 2,
            self._resize: 1,
            self._open_writer: 2,
            self._close_writer: 5,
            self._touch: 1,
            self._read_other: 2,
            self._read_all: 3,
        }
        step = self._rng.choices(list(steps), list(steps.values()))[0]
        self.done[step.__name__] += 1
        self.steps.append(step.__name__)
        try:
            step()
        except AssertionError as error:
            raise OperatorError(f"{error} after {len(self.steps)} steps: {' '.join(self.steps[-30:])}") from None

    def _piece(self) -> tuple[int, int]:
        offset = self._rng.randrange(len(self._data))
        return offset, min(len(self._data) - offset, self._rng.choice((1, 100, PAGE, 20_000, PIECE_MAX)))

    def _check(self, found: bytes, offset: int, size: int) -> None:
        expected = bytes(self._data[offset : offset + size])
        if found == expected:
            return
        at = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), len(found))
        raise AssertionError(f"wrong at {offset + at}: {len(found)} of {len(expected)} bytes from {offset} on")

    # ------------------------------------------------------------------ reading

    def _read(self) -> None:
        offset, size = self._piece()
        fd = self._rng.choice([fd for fd in (self._reader, self._writer) if fd is not None])
        if self._rng.random() < 0.5:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self._check(os.pread(fd, size, offset), offset, size)

    def _read_direct(self) -> None:
        offset, size = self._piece()
        offset, size = offset // PAGE * PAGE, -(-size // PAGE) * PAGE
        with opened(self._path, os.O_RDONLY | os.O_DIRECT) as fd, mmap.mmap(-1, size) as buffer:
            n = os.preadv(fd, [buffer], offset)
            self._check(buffer[:n], offset, size)

    def _read_mapped(self) -> None:
        with opened(self._path) as fd, mmap.mmap(fd, 0, prot=mmap.PROT_READ) as memory:
            memory.madvise(mmap.MADV_RANDOM)
            offset, size = self._piece()
            self._check(memory[offset : offset + size], offset, size)

    def _read_all(self) -> None:
        with opened(self._path) as fd:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            self._check(os.pread(fd, len(self._data) + 1, 0), 0, len(self._data) + 1)
        if self._writer is None and self._rng.random() < 0.5:
            self._m.settle()
        self._check((self._m.source / self._name).read_bytes(), 0, len(self._data) + 1)

    def _read_other(self) -> None:
        with opened(self._other) as fd:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            while os.read(fd, PIECE_MAX):
                pass

    # ------------------------------------------------------------------ writing

    def _open_writer(self) -> None:
        if self._writer is None:
            self._writer = os.open(self._path, os.O_RDWR)

    def _close_writer(self) -> None:
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None

    @contextlib.contextmanager
    def _writable(self, flags: int = 0):  # type: ignore[no-untyped-def]
        if self._writer is not None and not flags:
            yield self._writer
            return
        with opened(self._path, os.O_RDWR | flags) as fd:
            yield fd

    def _write(self) -> None:
        offset, size = self._piece()
        new = self._rng.randbytes(size)
        with self._writable() as fd:
            assert os.pwrite(fd, new, offset) == size
        self._data[offset : offset + size] = new
        if self._rng.random() < 0.1:
            self._check(os.pread(self._reader, size, offset), offset, size)

    def _write_direct(self) -> None:
        offset, size = self._piece()
        offset, size = offset // PAGE * PAGE, max(PAGE, size // PAGE * PAGE)
        size = min(size, (len(self._data) - offset) // PAGE * PAGE)
        if size <= 0:
            return
        with self._writable(os.O_DIRECT) as fd, mmap.mmap(-1, size) as buffer:
            buffer[:] = new = self._rng.randbytes(size)
            assert os.pwritev(fd, [buffer], offset) == size
        self._data[offset : offset + size] = new

    def _write_mapped(self) -> None:
        offset, size = self._piece()
        new = self._rng.randbytes(size)
        with self._writable() as fd, mmap.mmap(fd, 0) as memory:
            memory[offset : offset + size] = new
        self._data[offset : offset + size] = new

    def _resize(self) -> None:
        """Cut, then as long as it was: its manifest is for that size."""
        size = self._rng.randrange(1, len(self._data))
        for to in (size, self._size):
            os.truncate(self._path, to)
            self._data[:] = self._data[:to].ljust(to, b"\0")
            offset = max(0, min(size, to) - 50)
            self._check(os.pread(self._reader, 100, offset), offset, 100)

    def _touch(self) -> None:
        away = self._path.with_name("away")
        self._path.chmod(self._rng.choice((0o600, 0o644)))
        os.utime(self._path)
        self._path.rename(away)
        away.rename(self._path)


def run(steps: int, seed: int, *options: str, seconds: float = 1e9) -> Counter[str]:
    """Do so many steps; what the mount has done meanwhile.

    Raises:
        OperatorError: a byte was wrong.
    """
    root = Path(tempfile.mkdtemp(prefix="operator-"))
    (root / "source").mkdir()
    for name in ("f", "other"):
        write_native(root / "source" / name, seed=seed, sizes=(RANGE_BYTES,) * RANGES, gap=100)
    end = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        m = stack.enter_context(
            Mounted(
                root / "source",
                store=root / "store",
                store_size=str(STORE_BYTES),
                options=("settle=0", "store_reserve=0", *options),
            )
        )
        operator = Operator(m, "f", "other", seed)
        try:
            for _ in range(steps):
                operator.step()
                if time.monotonic() > end:
                    break
        finally:
            operator.close()
        status = m.settle()
    return Counter(
        hits=status["reads"]["hits"],
        fills=status["fills"]["completed"],
        stamped=status["fills"]["stamped"],
        evictions=status["evictions"]["ranges"],
        written=status["source_writes"]["count"],
        **operator.done,
    )


@click.command()
@click.option("--seconds", default=600.0, show_default=True, help="How long.")
@click.option("--seed", default=0, show_default=True)
@click.option("--option", "options", multiple=True, help="For -o, e.g. lane=off.")
def main(seconds: float, seed: int, options: tuple[str, ...]) -> None:
    """Use a file at random until the time is over."""
    done = run(1 << 60, seed, *options, seconds=seconds)
    click.echo("  ".join(f"{name}: {count}" for name, count in sorted(done.items())))


if __name__ == "__main__":
    main()
