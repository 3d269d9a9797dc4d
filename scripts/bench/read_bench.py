"""The read benchmark: a file on an NVMe's own file system, and the same file through a mummufs mount that has all of it
in its store, side by side in one run.

Every timed run starts with the page cache dropped, the store's pages included, and memory pre-touched; rows named
RAM-hot read the file once before. Native and mount take turns in each round. The table shows medians over the rounds.
Rows run with passthrough off, except those that are about it. "lane" is bytes answered by the fast lane over bytes
read. Rows named cold read a slow volume, directly and through a new mount with an empty store. Rows named "while
headers are parsed" are compared with themselves, on the same mount when it has nothing else to do.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from scripts.bench.bench_model import NAME, RANGE_BYTES, make_model
from scripts.bench.bench_mount import STORE_MARGIN_BYTES, BenchMount, Use, is_known
from scripts.bench.benchlib import SIZE, drop_caches, require_root, signals_raise
from scripts.bench.busy import Headers, make_headers, remove_headers
from scripts.bench.loads import Sample, read_through
from scripts.bench.places import MARGIN_BYTES, Mode, fast_volume, require_memory, slow_volume, work_directory
from scripts.bench.read_rows import BUSY, COLD, DEFAULT, PASSTHROUGH, QUICK_ROWS, ROWS, VARIANTS, Row, chosen
from scripts.bench.read_summary import MOUNT, summarise
from scripts.bench.results import NATIVE, Results, number, print_table, ratio_text, share_text
from scripts.bench.timing import timed, total

PLAIN_NAME = "no-ranges.bin"
MODEL_BYTES = 2 << 30
QUICK_MODEL_BYTES = 512 << 20
MODEL_BYTES_MIN = 64 * RANGE_BYTES
COLD_BYTES_MAX = 512 << 20
COPIES = 2.7
"""What the fast volume holds, in models: the model, the file without ranges (half of one), the store."""

SLOW_SHARE_MAX = 0.01
BUSY_RUNS = 5
"""Of a row beside headers: together they are longer than one header takes, from its first byte to its ranges."""


@dataclass(frozen=True)
class Settings:
    """What is run."""

    model_bytes: int
    rounds: int
    rows: Sequence[Row]
    options: tuple[str, ...]


@dataclass(frozen=True)
class Places:
    """Where it is run."""

    work: Path
    fast: Path
    slow: Path | None
    mode: Mode

    @property
    def source(self) -> Path:
        """The model's directory, on the fast volume: `native` reads the very same file."""
        return self.fast / "source"


class ReadBench:
    """One run of the benchmark."""

    def __init__(self, settings: Settings, places: Places) -> None:
        self._settings = settings
        self._places = places
        self.results = Results("read", {"model_bytes": settings.model_bytes, "rounds": settings.rounds, "mounts": {}})

    def run(self) -> None:
        """Make the files, warm the store, and measure every round."""
        self._places.source.mkdir()
        model = make_model(self._places.source, self._settings.model_bytes)
        _copy_half(model, model.with_name(PLAIN_NAME))
        if self._places.slow is not None:
            self._places.mode("fast")
            make_model(self._places.slow, min(self._settings.model_bytes, COLD_BYTES_MAX))
            self._places.mode("slow")
        variants = [name for name in VARIANTS if self._is_available(name)]
        for turn in range(self._settings.rounds):
            for variant in variants:
                rows = [row for row in self._settings.rows if row.variant == variant]
                click.echo(f"round {turn + 1} of {self._settings.rounds}: {variant}, {len(rows)} rows", err=True)
                if variant == COLD:
                    self._run_cold(rows, turn)
                elif variant == BUSY:
                    self._run_busy(rows, turn)
                else:
                    self._run_warm(variant, rows, turn)

    def _is_available(self, variant: str) -> bool:
        """Whether this version can run a variant, and anyone wants it."""
        if not any(row.variant == variant for row in self._settings.rows):
            return False
        if variant in (COLD, BUSY):
            return True
        what = VARIANTS[variant][-1]
        if variant != DEFAULT and not is_known(what):
            self.results.note(f"rows of the mount with {what} are left out: this version has no such option")
            return False
        return True

    def _mount(self, variant: str, source: Path, store: str, stack: ExitStack) -> BenchMount:
        options = [option for option in VARIANTS[variant] if is_known(option)]
        store_bytes = self._settings.model_bytes + STORE_MARGIN_BYTES
        options += self._settings.options
        mount = BenchMount(source, self._places.work / "mount", self._places.fast / store, store_bytes, options)
        stack.enter_context(mount)
        self.results.facts["mounts"][variant] = shlex.join(mount.command)
        return mount

    def _run_warm(self, variant: str, rows: Sequence[Row], number: int) -> None:
        """One round of the rows of one warm mount. Every mount has the same store, one after the other."""
        with ExitStack() as stack:
            mount = self._mount(variant, self._places.source, "store", stack)
            if variant == PASSTHROUGH:
                mount.wait_parsed(PLAIN_NAME)
            else:
                mount.warm(NAME)
            if variant == DEFAULT:
                self._measure_cached(mount)
            for row in rows:
                path = self._places.source / (PLAIN_NAME if variant == PASSTHROUGH else NAME)
                with self.results.noting(row.title):
                    self._in_turn(row, number, path, mount)

    def _in_turn(self, row: Row, number: int, path: Path, mount: BenchMount) -> None:
        """Both columns of a row, in the order that the round's number gives."""
        for who in (NATIVE, MOUNT) if number % 2 == 0 else (MOUNT, NATIVE):
            if who == NATIVE:
                self._note(row, NATIVE, timed(row, path, number, self._places.work), {})
            else:
                self._measure_mount(row, mount, path.name, number)

    def _measure_mount(self, row: Row, mount: BenchMount, name: str, number: int) -> None:
        before = mount.use()
        sample = timed(row, mount.mountpoint / name, number, self._places.work)
        use = mount.use().since(before)
        self._check(row, use, sample.bytes)
        read_bytes = sample.bytes * (2 if row.hot else 1)
        self._note(
            row,
            MOUNT,
            sample,
            {
                "cpu_s": use.cpu_s,
                "cpu_s_per_gb": use.cpu_s / (read_bytes / 1e9),
                "lane_share": use.lane_hit_bytes / read_bytes if is_known("lane=on") else None,
                "pushed_share": use.pushed_bytes / read_bytes,
                "counters": use.counters,
            },
        )

    def _check(self, row: Row, use: Use, read_bytes: int) -> None:
        """That what was measured is what the row says. Raises ClickException if it is not."""
        if row.variant == COLD:
            if not use.slow_bytes:
                raise click.ClickException("no byte was a miss")
            return
        if row.variant == PASSTHROUGH:
            if use.slow_bytes:
                self.results.note(f"{use.slow_bytes} of {read_bytes} bytes were not passed through: {row.title}")
            return
        if not use.reached and not row.hot:
            raise click.ClickException("no read reached mummufs")
        if use.slow_bytes > SLOW_SHARE_MAX * read_bytes:
            raise click.ClickException(f"{use.slow_bytes} of {read_bytes} bytes did not come from the store")
        if use.slow_bytes:  # on a busy machine a hit can be late, and the source answers it
            self.results.note(f"{use.slow_bytes} of {read_bytes} bytes did not come from the store: {row.title}")

    def _note(self, row: Row, who: str, sample: Sample, more: dict[str, Any]) -> None:
        result = self.results.row(row.name, row.title, row.wanted)
        result.add(who, {"mb_s": sample.mb_s, **asdict(sample), **more})

    def _run_cold(self, rows: Sequence[Row], number: int) -> None:
        """One round of the rows of misses: each on a new mount with an empty store."""
        assert self._places.slow is not None
        store = self._places.fast / "cold-store"
        for row in rows:
            with self.results.noting(row.title), ExitStack() as stack:
                stack.callback(shutil.rmtree, store, ignore_errors=True)
                mount = self._mount(COLD, self._places.slow, store.name, stack)
                mount.wait_known(NAME)
                self._in_turn(row, number, self._places.slow / NAME, mount)

    def _run_busy(self, rows: Sequence[Row], number: int) -> None:
        """One round of rows that are compared with themselves: `native` is the same mount with nothing else to do."""
        with ExitStack() as stack:
            make_headers(self._places.source)
            stack.callback(remove_headers, self._places.source)
            mount = self._mount(BUSY, self._places.source, "store", stack)
            mount.warm(NAME)
            headers = Headers(mount, self._places.source)
            path, work = mount.mountpoint / NAME, self._places.work
            for row in rows:
                with self.results.noting(row.title):
                    alone = [timed(row, path, number, work) for _ in range(BUSY_RUNS)]
                    before = headers.parsed
                    with headers.busy():
                        beside = [timed(row, path, number, work) for _ in range(BUSY_RUNS)]
                    headers.wait_idle()
                    self._note(row, NATIVE, total(alone), {})
                    self._note(row, MOUNT, total(beside), {"headers_parsed": headers.parsed - before})

    def _measure_cached(self, mount: BenchMount) -> None:
        """How much the page cache grows when the whole model is read once through the warm mount."""
        drop_caches()
        before = page_cache_bytes()
        read_through(mount.mountpoint / NAME)
        grown = page_cache_bytes() - before
        self.results.facts.setdefault("cached_to_read", []).append(grown / self._settings.model_bytes)


def page_cache_bytes() -> int:
    """What the page cache holds, without shared memory and tmpfs."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return (int(fields["Cached"].split()[0]) - int(fields["Shmem"].split()[0])) << 10


def _copy_half(model: Path, path: Path) -> None:
    """The first half of the model as a file of its own, which no manifest names."""
    left = model.stat().st_size // 2
    with model.open("rb") as source, path.open("wb") as file:
        while left:
            left -= file.write(source.read(min(left, 8 << 20)))


def show(results: Results) -> None:
    """The table that people read."""
    rows = []
    for result in results.rows.values():
        ratio = result.ratio(MOUNT)
        cells = [number(result.median(who)) for who in (NATIVE, MOUNT)]
        wanted = "" if result.wanted is None else f"{result.wanted:g}"
        lane = share_text(result.median(MOUNT, "lane_share"), result.median(MOUNT, "pushed_share"))
        cpu = number(result.median(MOUNT, "cpu_s_per_gb"), 3)
        rows.append([result.title, *cells, ratio_text(ratio, result.wanted), wanted, lane, cpu])
    title = f"read, {results.facts['model_bytes'] >> 20} MiB, {results.facts['rounds']} rounds, medians"
    print_table(title, ("row", "native MB/s", "mount MB/s", "ratio", "wanted", "lane", "daemon CPU s/GB"), rows)
    for sentence in results.facts["summary"]:
        click.echo(sentence)


EXISTING = click.Path(path_type=Path, resolve_path=True, exists=True, file_okay=False)


@click.command(help=__doc__)
@click.option("--source", type=EXISTING, help="A directory on a slow volume, for the cold rows; simulated otherwise.")
@click.option("--store", type=EXISTING, help="A directory on an NVMe; simulated otherwise.")
@click.option("--size", "size", type=SIZE, default=None, help="Of the model: 2G by default, 512M with --quick.")
@click.option("--rounds", type=click.IntRange(1, 100), default=None, help="5 by default, 1 with --quick.")
@click.option("--quick", is_flag=True, help="A small model, one round, and only the rows that have a target.")
@click.option(
    "--row",
    "patterns",
    multiple=True,
    help="Only the row of this name, or those with this in their name. Can be given again.",
)
@click.option(
    "--mount-option", "options", multiple=True, help="Handed to every `mummufs mount -o`. Can be given again."
)
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there.")
def main(
    source: Path | None,
    store: Path | None,
    size: int | None,
    rounds: int | None,
    quick: bool,
    patterns: tuple[str, ...],
    options: tuple[str, ...],
    json_path: Path | None,
) -> None:
    """The command line."""
    require_root("the read benchmark")
    for tool in ("fio", "gcc"):
        if shutil.which(tool) is None:
            raise click.ClickException(f"{tool} is not installed: apt-get install {tool}")
    model_bytes = size or (QUICK_MODEL_BYTES if quick else MODEL_BYTES)
    if model_bytes < MODEL_BYTES_MIN:
        raise click.UsageError(f"--size is at least {MODEL_BYTES_MIN >> 20} MiB, which is 64 ranges")
    rows = chosen(QUICK_ROWS if quick else ROWS, patterns)
    settings = Settings(model_bytes, rounds or (1 if quick else 5), rows, options)
    with signals_raise(), ExitStack() as stack:
        cold = any(row.variant == COLD for row in rows)
        cold_bytes = min(model_bytes, COLD_BYTES_MAX) if cold else 0
        fast_bytes = int(COPIES * model_bytes) + cold_bytes + 2 * MARGIN_BYTES
        if store is None:
            require_memory(fast_bytes + 2 * cold_bytes + 2 * model_bytes)
        work = stack.enter_context(work_directory())
        fast = stack.enter_context(fast_volume(work, "fast", fast_bytes, store))
        slow: Path | None = None
        mode: Mode = lambda _mode: None  # noqa: E731
        if cold:
            slow, mode = stack.enter_context(slow_volume(work, "slow", cold_bytes, source))
        bench = ReadBench(settings, Places(work, fast, slow, mode))
        bench.run()
    bench.results.facts["summary"] = summarise(bench.results)
    show(bench.results)
    bench.results.finish(json_path)
