"""The demonstration of scripts/quickstart: a small model on a simulated slow disk, read cold and warm through a mount.

Everything is made in a temporary directory and removed again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

LAYERS = 4
EXPERTS = 16
EXPERT_BYTES = 768 << 10
DENSE_BYTES = 2 << 20
TOKENS = 12
EXPERTS_PER_TOKEN = 4
START_S = 20.0
REPOSITORY = Path(__file__).resolve().parents[1]
MUMMUFS = [sys.executable, "-m", "mummufs"]


class Tensor(NamedTuple):
    """A tensor's place in the file."""

    offset: int
    size: int


def make_model(path: Path) -> dict[str, Tensor]:
    """Write a mixture-of-experts model of random weights, as safetensors. Returns its tensors by name."""
    names = ["model.embed_tokens.weight"]
    for layer in range(LAYERS):
        names.append(f"model.layers.{layer}.self_attn.qkv.weight")
        names += [f"model.layers.{layer}.mlp.experts.{expert}.weight" for expert in range(EXPERTS)]
    sizes = {name: EXPERT_BYTES if ".experts." in name else DENSE_BYTES for name in names}
    header: dict[str, object] = {}
    places: dict[str, Tensor] = {}
    end = 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        places[name] = Tensor(end, size)
        end += size
    text = json.dumps(header).encode()
    data_offset = 8 + len(text)
    rng = random.Random(1)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for size in sizes.values():
            file.write(rng.randbytes(size))
    return {name: Tensor(data_offset + place.offset, place.size) for name, place in places.items()}


def generate(model: Path, tensors: dict[str, Tensor], seed: int) -> tuple[int, float]:
    """Read what an engine reads for some tokens: all dense weights and the routed experts. Bytes and seconds."""
    rng = random.Random(seed)
    fd = os.open(model, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    done, begun = 0, time.perf_counter()
    try:
        for _ in range(TOKENS):
            for name in sorted(tensors):
                if ".experts." in name and rng.random() >= EXPERTS_PER_TOKEN / EXPERTS:
                    continue
                tensor = tensors[name]
                # What a machine with less memory than the model does: no page stays.
                os.posix_fadvise(fd, tensor.offset, tensor.size, os.POSIX_FADV_DONTNEED)
                done += len(os.pread(fd, tensor.size, tensor.offset))
    finally:
        took = time.perf_counter() - begun
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # nor does it stay for the next pass
        os.close(fd)
    return done, took


@contextlib.contextmanager
def slow_disk(back: Path, mountpoint: Path) -> Iterator[None]:
    """`back` at `mountpoint`, as if it lay on one spinning disk."""
    command = [sys.executable, os.fspath(REPOSITORY / "scripts/bench/slowfs"), os.fspath(back), os.fspath(mountpoint)]
    process = subprocess.Popen(command, cwd=REPOSITORY)
    try:
        give_up = time.monotonic() + START_S
        while not os.path.ismount(mountpoint):
            if process.poll() is not None or time.monotonic() > give_up:
                sys.exit("the simulated disk could not be mounted: is /dev/fuse there, and may you mount?")
            time.sleep(0.02)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_S)


def status(mountpoint: Path) -> dict[str, Any]:
    """The mount's counters, once nothing is being looked for or filled."""
    while True:
        done = subprocess.run(
            [*MUMMUFS, "status", mountpoint, "--json"], cwd=REPOSITORY, check=True, capture_output=True
        )
        found: dict[str, Any] = json.loads(done.stdout)
        if found["state"] != "scanning" and not found["store"]["filling"] and not found["gauges"]["parsing"]:
            return found
        time.sleep(0.05)


def cells(done: int, took: float) -> tuple[str, str, str]:
    """Bytes, seconds and speed, as the table shows them."""
    return f"{done >> 20} MiB", f"{took:.1f} s", f"{done / took / 1e6:.0f} MB/s"


def main() -> None:
    """Show it."""
    console = Console()
    table = Table(title="The same tokens, three times")
    for column in ("pass", "read", "time", "speed", "from NVMe", "from the slow disk"):
        table.add_column(column, justify="left" if column == "pass" else "right")
    with tempfile.TemporaryDirectory(prefix="mummufs-quickstart-") as name:
        top = Path(name).resolve()
        back, slow, store, mountpoint = (top / part for part in ("disk", "slow", "store", "mount"))
        for directory in (back, slow, mountpoint):
            directory.mkdir()
        tensors = make_model(back / "model.safetensors")
        size = (back / "model.safetensors").stat().st_size
        console.print(
            f"A model of {size >> 20} MiB, {LAYERS} layers of {EXPERTS} experts, on a simulated spinning disk."
        )
        with slow_disk(back, slow):
            mount: list[str | Path] = [
                *MUMMUFS,
                "mount",
                slow,
                mountpoint,
                "--store",
                store,
                "--store-size",
                "1G",
                "-o",
                "settle=0",
            ]
            subprocess.run(mount, cwd=REPOSITORY, check=True)
            try:
                done, took = generate(slow / "model.safetensors", tensors, 1)
                table.add_row("the disk itself", *cells(done, took), "", "all")
                for label in ("mount, cold", "mount, warm"):
                    before = status(mountpoint)["reads"]
                    done, took = generate(mountpoint / "model.safetensors", tensors, 1)
                    after = status(mountpoint)["reads"]
                    hit = after["hit_bytes"] - before["hit_bytes"]
                    rest = after["replied_bytes"] - before["replied_bytes"] - hit
                    table.add_row(label, *cells(done, took), f"{hit >> 20} MiB", f"{rest >> 20} MiB")
            finally:
                subprocess.run([*MUMMUFS, "umount", mountpoint], cwd=REPOSITORY, check=True)
    console.print(table)
    console.print("Mount your own: scripts/quickstart SOURCE MOUNTPOINT STORE")


if __name__ == "__main__":
    main()
