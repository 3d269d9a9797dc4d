"""The read benchmark against the peers: native, mummufs, rclone, JuiceFS, mergerfs and bindfs, in one run.

The model is on one fast volume, which is what `native` reads; every cache is on another and warm. Everybody takes turns
in each round. The JSON has every round, every command line, and as proof that the caches answered: what each holds, and
what was read from the source's device meanwhile. mergerfs and bindfs have no cache and read the source.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from scripts.bench import peers
from scripts.bench.bench_model import NAME, RANGE_BYTES, make_model
from scripts.bench.bench_mount import STORE_MARGIN_BYTES, BenchMount, is_known
from scripts.bench.benchlib import SIZE, require_root, signals_raise
from scripts.bench.peers import CACHING, PEERS, Ground, Peer, device_read_bytes
from scripts.bench.places import MARGIN_BYTES, fast_volume, require_memory, work_directory
from scripts.bench.read_rows import DEFAULT, DIRECT, PEER_ROWS, VARIANTS, Row, chosen
from scripts.bench.results import NATIVE, Results, number, print_table, ratio_text
from scripts.bench.timing import timed

MUMMUFS = "mummufs"
MODEL_BYTES = 2 << 30
MODEL_BYTES_MIN = 64 * RANGE_BYTES
SOURCE_COPIES = 2.1
"""What the source's volume holds, in models: the model, and JuiceFS's objects."""

FAST_COPIES = 3.3
"""What the caches' volume holds: mummufs's store and two caches."""


@dataclass
class PeersBench:
    """One run of the benchmark."""

    ground: Ground
    model_bytes: int
    rounds: int
    rows: Sequence[Row]
    results: Results
    options: tuple[str, ...] = ()
    peers: list[Peer] = field(default_factory=list)

    def run(self, names: Sequence[str]) -> None:
        """Mount and warm everybody, and measure every round."""
        make_model(self.ground.source, self.model_bytes)
        with ExitStack() as stack:
            for name in names:
                self._start(name, stack)
            for turn in range(self.rounds):
                for variant in (DEFAULT, DIRECT):
                    rows = [row for row in self.rows if row.variant == variant]
                    if rows and all(map(is_known, VARIANTS[variant][1:])):
                        self._run_rows(rows, variant, turn)

    def _start(self, name: str, stack: ExitStack) -> None:
        click.echo(f"mounting and warming {name}", err=True)
        try:
            peer = stack.enter_context(PEERS[name](self.ground))
            if peer.cache is not None:
                peers.warm(peer, self.ground)
        except click.ClickException as error:
            self.results.note(f"{name} is left out: {error.message}")
            return
        self.peers.append(peer)
        about = {
            "version": peer.version,
            "commands": [shlex.join(command) for command in peer.commands],
            "proof": peer.proof,
        }
        self.results.facts["peers"][name] = about

    def _run_rows(self, rows: Sequence[Row], variant: str, turn: int) -> None:
        """One round of rows; mummufs is mounted for as long."""
        options = [*filter(is_known, VARIANTS[variant]), *self.options]
        store, mountpoint = self.ground.fast / "store", self.ground.work / MUMMUFS
        with BenchMount(self.ground.source, mountpoint, store, self.ground.cache_bytes, options) as mount:
            mount.warm(NAME)
            self.results.facts["peers"][f"{MUMMUFS} ({variant})"] = {"commands": [shlex.join(mount.command)]}
            for row in rows:
                click.echo(f"round {turn + 1} of {self.rounds}: {row.title}", err=True)
                with self.results.noting(row.title):
                    self._run_row(row, mount, turn)

    def _run_row(self, row: Row, mount: BenchMount, turn: int) -> None:
        """Everybody in turn; whoever begins changes with the round."""
        everybody = [NATIVE, MUMMUFS, *(peer.name for peer in self.peers)]
        first = turn % len(everybody)
        by_name = {peer.name: peer for peer in self.peers}
        result = self.results.row(row.name, row.title, row.wanted)
        for who in (*everybody[first:], *everybody[:first]):
            if who == NATIVE:
                sample = timed(row, self.ground.source / NAME, turn, self.ground.work)
                result.add(who, {"mb_s": sample.mb_s, **asdict(sample)})
            elif who == MUMMUFS:
                result.add(who, self._measure_mummufs(row, mount, turn))
            else:
                result.add(who, self._measure_peer(row, by_name[who], turn))

    def _measure_mummufs(self, row: Row, mount: BenchMount, turn: int) -> dict[str, Any]:
        before, device = mount.use(), device_read_bytes(self.ground.source)
        sample = timed(row, mount.mountpoint / NAME, turn, self.ground.work)
        use = mount.use().since(before)
        return {
            "mb_s": sample.mb_s,
            **asdict(sample),
            "source_read_bytes": device_read_bytes(self.ground.source) - device,
            "cpu_s": use.cpu_s,
            "counters": use.counters,
        }

    def _measure_peer(self, row: Row, peer: Peer, turn: int) -> dict[str, Any]:
        cpu_s, device = peer.cpu_seconds(), device_read_bytes(self.ground.source)
        sample = timed(row, peer.path, turn, self.ground.work)
        source_bytes = device_read_bytes(self.ground.source) - device
        if peer.cache is not None and source_bytes > peers.SOURCE_SHARE_MAX * self.model_bytes:
            self.results.note(f"{peer.name} read {source_bytes} bytes of the source: {row.title}")
        return {
            "mb_s": sample.mb_s,
            **asdict(sample),
            "source_read_bytes": source_bytes,
            "cpu_s": peer.cpu_seconds() - cpu_s,
        }


def faults(results: Results) -> list[str]:
    """Rows in which mummufs is not ahead of a caching peer; by a factor of two where blocks are of 4 KiB."""
    found = []
    for name, row in results.rows.items():
        mine = row.median(MUMMUFS)
        least = 2.0 if "4k" in name else 1.0
        for peer in CACHING:
            theirs = row.median(peer)
            if mine is not None and theirs is not None and not name.startswith("hot") and mine < least * theirs:
                found.append(f"{row.title}: {mine / theirs:.2f} x {peer}, wanted more than {least:g}")
    return found


def show(results: Results) -> None:
    """The table that people read."""
    everybody = [NATIVE, MUMMUFS, *(name for name in PEERS if name in results.facts["peers"])]
    rows = []
    for row in results.rows.values():
        ratios = [ratio_text(row.ratio(who)) for who in everybody[1:]]
        rows.append([row.title, number(row.median(NATIVE)), *ratios])
    title = f"peers, {results.facts['model_bytes'] >> 20} MiB, {results.facts['rounds']} rounds, medians over native"
    print_table(title, ("row", "native MB/s", *everybody[1:]), rows)
    for fault in faults(results):
        click.echo(f"MISSED {fault}")


@click.command(help=__doc__)
@click.option("--size", "size", type=SIZE, default=MODEL_BYTES, help="Of the model. Default: 2G.")
@click.option("--rounds", type=click.IntRange(1, 100), default=5, show_default=True)
@click.option(
    "--row",
    "patterns",
    multiple=True,
    help="Only the row of this name, or those with this in their name. Can be given again.",
)
@click.option("--peer", "names", type=click.Choice(tuple(PEERS)), multiple=True, help="Only these. Can be given again.")
@click.option(
    "--mount-option", "options", multiple=True, help="Handed to every `mummufs mount -o`. Can be given again."
)
@click.option(
    "--programs",
    type=click.Path(path_type=Path, resolve_path=True, file_okay=False),
    help="A virtual environment to install the peers from PyPI in, and to keep; a temporary one otherwise.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there.")
def main(
    size: int,
    rounds: int,
    patterns: tuple[str, ...],
    names: tuple[str, ...],
    options: tuple[str, ...],
    programs: Path | None,
    json_path: Path | None,
) -> None:
    """The command line."""
    require_root("the benchmark of peers")
    for tool in ("fio", "gcc"):
        if shutil.which(tool) is None:
            raise click.ClickException(f"{tool} is not installed: apt-get install {tool}")
    if size < MODEL_BYTES_MIN:
        raise click.UsageError(f"--size is at least {MODEL_BYTES_MIN >> 20} MiB, which is 64 ranges")
    rows = chosen(PEER_ROWS, patterns)
    source_bytes, fast_bytes = (int(copies * size) + 2 * MARGIN_BYTES for copies in (SOURCE_COPIES, FAST_COPIES))
    require_memory(source_bytes + fast_bytes + 2 * size)
    results = Results("peers", {"model_bytes": size, "rounds": rounds, "peers": {}})
    with signals_raise(), ExitStack() as stack:
        work = stack.enter_context(work_directory())
        source = stack.enter_context(fast_volume(work, "source", source_bytes))
        fast = stack.enter_context(fast_volume(work, "fast", fast_bytes))
        where = programs or fast / "programs"
        wanted = names or tuple(PEERS)
        for name, reason in peers.install(where, wanted).items():
            results.note(f"{name} could not be had from PyPI: {reason}")
        ground = Ground(source, fast, work, NAME, size + STORE_MARGIN_BYTES, where)
        PeersBench(ground, size, rounds, rows, results, options).run(wanted)
    show(results)
    results.finish(json_path)
