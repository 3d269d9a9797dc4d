"""Work for a mount's daemon while something is timed: large GGUF headers to parse, and their ranges to take in."""

from __future__ import annotations

import itertools
import os
import shutil
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.bench.bench_mount import BenchMount
from scripts.bench.benchlib import wait_until

TOKENS = 250_000
TENSORS = 100_000
TENSOR_FLOATS = 1 << 16
FILES = 4
"""Parsed in turn, each as a new version of itself."""

PERIOD_S = 0.1
TIMEOUT_S = 60.0
PREFIX = "vocabulary-"
PAGE_BYTES = 4096


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def make_headers(directory: Path) -> None:
    """GGUF files with a vocabulary of TOKENS and TENSORS tensors of 256 KiB each, whose data are holes."""
    pieces = [b"GGUF", struct.pack("<IQQ", 3, TENSORS, 1), _string("tokenizer.ggml.tokens")]
    pieces += [struct.pack("<IIQ", 9, 8, TOKENS), *(_string(f"token{i}") for i in range(TOKENS))]
    tensor_bytes = 4 * TENSOR_FLOATS
    pieces += [
        _string(f"blk.{i}.weight") + struct.pack("<IQIQ", 1, TENSOR_FLOATS, 0, i * tensor_bytes) for i in range(TENSORS)
    ]
    header = b"".join(pieces)
    first = directory / f"{PREFIX}0.gguf"
    with first.open("wb") as file:
        file.write(header)
    for number in range(1, FILES):
        shutil.copyfile(first, directory / f"{PREFIX}{number}.gguf")
    for number in range(FILES):
        with (directory / f"{PREFIX}{number}.gguf").open("r+b") as file:
            file.truncate(len(header) + PAGE_BYTES + TENSORS * tensor_bytes)


def remove_headers(directory: Path) -> None:
    """Remove what `make_headers` made."""
    for path in directory.glob(f"{PREFIX}*.gguf"):
        path.unlink()


class Headers:
    """Headers that the mount parses, one after the other, for as long as there is work to be had beside."""

    def __init__(self, mount: BenchMount, directory: Path) -> None:
        """Have the headers that `make_headers` made in the mount's source."""
        self._mount = mount
        self._directory = directory
        self._numbers = itertools.cycle(range(FILES))

    @property
    def parsed(self) -> int:
        """How many headers the daemon has parsed."""
        return self._gauge("parsed")

    @contextmanager
    def busy(self) -> Iterator[None]:
        """From before the block begins until it ends, a header is being parsed. Raises ClickException if none is."""
        ended = threading.Event()
        thread = threading.Thread(target=self._open_each, args=(ended,))
        before = self.parsed
        thread.start()
        try:
            wait_until(lambda: self._gauge("parsing") + self.parsed > before, "a header to be parsed", TIMEOUT_S)
            yield
        finally:
            ended.set()
            thread.join()

    def wait_idle(self) -> None:
        """Wait until nothing is being parsed. Raises ClickException if that takes too long."""
        wait_until(lambda: not self._gauge("parsing"), "the headers to be parsed", TIMEOUT_S)

    def _open_each(self, ended: threading.Event) -> None:
        """Open the next one as soon as the daemon has no other to parse."""
        for number in self._numbers:
            os.utime(self._directory / f"{PREFIX}{number}.gguf")  # another version: what is known of it is void
            with (self._mount.mountpoint / f"{PREFIX}{number}.gguf").open("rb", buffering=0) as file:
                file.read(PAGE_BYTES)
            while not ended.wait(PERIOD_S):
                if not self._gauge("parsing"):
                    break
            if ended.is_set():
                return

    def _gauge(self, name: str) -> int:
        return int(self._mount.status()["gauges"][name])
