"""The kill -9 loop: `python -m tests.hostile.crash_loop`, or `run` from a test.

One round: clients read a mount that has a store a third the size of the models, the daemon (or first a client) is
killed at a random moment, the mount is made anew over the dead one and over what the crash left of the store, and then
everything is looked at: every byte, the books, and that what was whole before is served from the store now. A run in
which no fill was in the air at any kill has proved nothing, and says so.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from xxhash import xxh3_128_digest

from mummufs.core.errors import RangeFileError
from mummufs.store.layout import HEADER_BYTES, RangeHeader
from tests.hostile.crash_client import WRONG
from tests.mounts.harness import Mounted, why_no_mounts
from tests.support.models import write_gguf, write_native, write_safetensors
from tests.support.waiting import wait_for

CLIENT = Path(__file__).with_name("crash_client.py")
CLIENTS = 3
JOIN_S = 15.0
"""A client that is still there this long after the daemon was killed hangs."""
LOAD_S = (0.05, 0.6)
"""The daemon dies this long after the first clients have read something."""
FILL_WAIT_S = 0.3
"""How long a kill waits for a range file that is being written, in the rounds that mean to hit one."""
SAMPLES = 3
"""Range files of before that are proved to be served after, each round."""


class CrashError(AssertionError):
    """A promise was broken; the message has the round and its seed."""


@dataclass
class Tally:
    """What a run has seen. `at_risk`: rounds with a fill in the air at the kill; `torn`: with a temporary left."""

    rounds: int = 0
    at_risk: int = 0
    torn: int = 0
    clients_killed: int = 0
    pieces: int = 0
    kept: int = 0
    hit_bytes: int = 0

    def line(self) -> str:
        """One line for a log."""
        return (
            f"{self.rounds} kills: 0 wrong bytes in {self.pieces} reads under load; a fill was in flight at"
            f" {self.at_risk} kills, half-written at {self.torn}; {self.clients_killed} clients killed;"
            f" {self.kept} range files outlived a kill, {self.hit_bytes >> 20} MiB of hits after it"
        )


def write_source(root: Path) -> dict[str, bytes]:
    """Models of three formats, some 13 MiB, as files of the root: their bytes."""
    root.mkdir(exist_ok=True)
    kib = 1 << 10
    for i in range(2):
        write_gguf(root / f"model{i}.gguf", seed=i, layers=(0, 1), dense_bytes=300 * kib, expert_bytes=70 * kib)
        write_safetensors(root / f"model{i}.safetensors", seed=10 + i, dense_bytes=200 * kib, expert_bytes=50 * kib)
        write_native(root / f"raw{i}.dat", seed=20 + i, sizes=(500 * kib, 90 * kib, 1 << 20, 5000) * 2)
    return {p.name: p.read_bytes() for p in sorted(root.iterdir()) if not p.name.endswith(".json")}


class Clients:
    """Processes that read a mount and compare, until it dies."""

    def __init__(self, m: Mounted, names: list[str], seed: int) -> None:
        rng = random.Random(seed)
        self.killed = 0
        self._outputs = [tempfile.TemporaryFile("w+") for _ in range(CLIENTS)]  # noqa: SIM115 - close() does
        self._processes = []
        for i, output in enumerate(self._outputs):
            arguments = [os.fspath(m.mountpoint), os.fspath(m.source), str(seed * CLIENTS + i)]
            command = [sys.executable, "-S", os.fspath(CLIENT), *arguments, *rng.sample(names, len(names))]
            self._processes.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT))

    def wait_busy(self) -> None:
        """Wait until one of them has read something."""
        wait_for(lambda: sum(os.fstat(o.fileno()).st_size for o in self._outputs), lambda size: size > 0)

    def kill_one(self) -> None:
        """kill -9 the first of them, in the middle of whatever it reads."""
        self._processes[0].kill()
        self._processes[0].wait(JOIN_S)
        self.killed += 1

    def join(self) -> int:
        """Wait for all; the pieces that they found right. Raises CrashError on a wrong byte or where one hangs."""
        pieces = 0
        for process, output in zip(self._processes, self._outputs, strict=True):
            try:
                code = process.wait(JOIN_S)
            except subprocess.TimeoutExpired:
                raise CrashError(f"a client still hangs {JOIN_S} s after the daemon was killed") from None
            output.seek(0)
            said = output.read()
            pieces += said.count(".")
            if code not in (0, -signal.SIGBUS, -signal.SIGKILL):
                what = "read wrong bytes" if code == WRONG else f"ended with {code}"
                raise CrashError(f"a client {what}: {said.lstrip('.').strip()}")
        return pieces

    def close(self) -> None:
        """End what is left of them."""
        for process, output in zip(self._processes, self._outputs, strict=True):
            if process.poll() is None:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(JOIN_S)
            output.close()


class Loop:
    """A mount that is killed again and again over one store."""

    def __init__(self, root: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        self.expected = write_source(root / "source")
        self.tally = Tally()
        budget = sum(map(len, self.expected.values())) // 3
        options = ("settle=0", "store_reserve=0", "policy=lru")  # lru, because it fills for as long as it is read
        self._m = Mounted(root / "source", store=root / "store", store_size=str(budget), options=options)

    @contextlib.contextmanager
    def mounted(self) -> Iterator[None]:
        """The first mount, and the end of the last."""
        with self._m:
            yield

    def round(self) -> None:
        """Load, kill, mount, look. Raises CrashError or AssertionError."""
        m, rng = self._m, self._rng
        clients = Clients(m, sorted(self.expected), rng.randrange(1 << 30))
        try:
            clients.wait_busy()
            threading.Event().wait(rng.uniform(*LOAD_S))
            if rng.random() < 0.2:
                clients.kill_one()
                threading.Event().wait(rng.uniform(0, 0.1))
                m.status()  # raises unless the daemon lives
            if rng.random() < 0.5:
                self._await_fill()
            filling = m.status()["store"]["filling"]
            m.kill()
            self.tally.pieces += clients.join()
            self.tally.clients_killed += clients.killed
        finally:
            clients.close()
        torn = list((m.store / "tmp").iterdir()) if m.store else []
        self.tally.torn += bool(torn)
        self.tally.at_risk += bool(torn or filling)
        whole = m.range_files()
        for path in whole:
            if not _is_whole(path):
                raise CrashError(f"{path.name} had its name at the kill, and is not whole")
        m.mount()
        self._look(whole)
        self.tally.rounds += 1

    def _await_fill(self) -> None:
        assert self._m.store is not None
        give_up = time.monotonic() + FILL_WAIT_S
        while time.monotonic() < give_up and not os.listdir(self._m.store / "tmp"):
            pass

    def _look(self, whole: list[Path]) -> None:
        """After the crash: what was whole is served, every byte is right, the books are in order."""
        m = self._m
        evicted = m.settle()["evictions"]["ranges"]  # down to the watermark, where the kill was above it
        kept = m.range_files()
        if not set(kept) <= set(whole) or len(kept) + evicted != len(whole) or (whole and not kept):
            raise CrashError(
                f"{len(whole)} range files were whole at the kill, {evicted} evicted, {len(kept)} are left"
            )
        names = {m.path(name).stat().st_ino: name for name in self.expected}
        for path in self._rng.sample(kept, min(SAMPLES, len(kept))):
            key = RangeHeader.unpack(path.read_bytes()[:HEADER_BYTES]).key
            name = names[key.file.inode]
            self._parsed(name)
            status = m.status()
            if status["evictions"]["ranges"] > evicted:
                break  # a range table had to be written anew, and took the room of a range file
            before = status["reads"]["hit_bytes"]
            with m.path(name).open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                data = os.pread(file.fileno(), key.size, key.offset)
            if data != self.expected[name][key.offset : key.offset + key.size]:
                raise CrashError(f"{name} at {key.offset}, {key.size} bytes: not the source's, from the store")
            hits = m.status()["reads"]["hit_bytes"] - before
            if hits < key.size:
                raise CrashError(f"{name} at {key.offset}, {key.size} bytes: only {hits} bytes of it are hits")
            self.tally.hit_bytes += hits
            m.drop_pages(name)
        self.tally.kept += len(kept)
        for name, data in self.expected.items():
            if m.read(name) != data:
                raise CrashError(f"{name} is not what the source has")
        m.drop_pages()
        m.check_books()

    def _parsed(self, name: str) -> None:
        """Have the mount know the ranges of a file, from its table in the store or by parsing it. Nothing is read, so
        nothing is filled, and what is stored stays.
        """
        with self._m.path(name).open("rb"):
            self._m.settle()
        self._m.drop_pages(name)


def _is_whole(path: Path) -> bool:
    data = path.read_bytes()
    try:
        header = RangeHeader.unpack(data[:HEADER_BYTES])
    except RangeFileError:
        return False
    return len(data) == header.file_bytes and xxh3_128_digest(data[HEADER_BYTES:]) == header.checksum


def run(root: Path, rounds: int, *, seed: int = 0, on_round: Callable[[Tally], None] = lambda _: None) -> Tally:
    """Kill a mount `rounds` times.

    Args:
        root: an empty directory for the source and the store.
        on_round: told after each round.

    Raises:
        CrashError: a promise was broken, or no fill was at risk in any round.
    """
    loop = Loop(root, seed)
    with loop.mounted():
        for number in range(rounds):
            try:
                loop.round()
            except Exception as error:
                raise CrashError(f"round {number + 1}, seed {seed}: {error}") from error
            on_round(loop.tally)
    tally = loop.tally
    if not tally.at_risk or not tally.kept or not tally.pieces:
        raise CrashError(f"this run has proved nothing, because nothing was at risk in it: {tally.line()}")
    return tally


@click.command()
@click.option("--rounds", default=300, show_default=True, help="Kills.")
@click.option("--seed", default=0, show_default=True, help="Another seed, other moments.")
def main(rounds: int, seed: int) -> None:
    """Kill a mount under load, again and again, and see that the next one heals itself."""
    reason = why_no_mounts()
    if reason is not None:
        raise click.ClickException(reason)
    columns = (
        TextColumn("kill -9"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[risk]}"),
    )
    with tempfile.TemporaryDirectory(prefix="crash-loop-") as root:
        try:
            with Progress(*columns, console=Console(stderr=True)) as progress:
                task = progress.add_task("", total=rounds, risk="")

                def on_round(tally: Tally) -> None:
                    progress.update(task, completed=tally.rounds, risk=f"{tally.at_risk} with a fill at risk")

                tally = run(Path(root), rounds, seed=seed, on_round=on_round)
        except CrashError as error:
            raise click.ClickException(str(error)) from None
    click.echo(tally.line())


if __name__ == "__main__":
    main()
