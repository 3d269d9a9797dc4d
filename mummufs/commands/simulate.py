"""`mummufs simulate`: what other budgets and policies would have made of a trace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from mummufs import plotting
from mummufs.commands.output import print_json, print_table, printable
from mummufs.core.errors import MummufsError, UsageError
from mummufs.core.simulate import Result
from mummufs.core.trace import TraceError
from mummufs.paths import existing_file
from mummufs.simulation import (
    NAMES,
    NAMES_DEFAULT,
    Rates,
    Replayable,
    Token,
    default_budgets,
    load,
    notes,
    replayed,
    tokens_of,
)
from mummufs.units import format_size, parse_size

SCHEMA = 1
"""The version of the JSON form."""
SOURCE_RATE = "100M"
"""What one spinning disk gives, seeks between large ranges included."""
STORE_RATE = "3G"
"""What an NVMe gives through the mount."""
CELLS_MAX = 256
"""Budgets times policies."""


@click.command()
@click.argument("trace")
@click.option("--budget", metavar="SIZE,...", help="Such as 16G,32G,64G. Default: a sixteenth of what was read to all.")
@click.option("--policy", "policies", metavar="NAME,...", default=",".join(NAMES_DEFAULT), show_default=True)
@click.option("--warmup", type=click.IntRange(0, 99), default=0, metavar="PERCENT", help="Reads that are not counted.")
@click.option("--source-rate", metavar="SIZE", default=SOURCE_RATE, show_default=True, help="A second, of misses.")
@click.option(
    *("--source-seek", "seek_ms"),
    type=click.FloatRange(0, 10_000),
    default=0.0,
    show_default=True,
    metavar="MS",
    help="For each miss that does not follow the one before it.",
)
@click.option("--store-rate", metavar="SIZE", default=STORE_RATE, show_default=True, help="A second, of hits.")
@click.option("--plot", "plots", metavar="FILE", multiple=True, help="Draw the miss-ratio curve: .png or .svg.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; its sizes are bytes.")
def simulate(
    trace: str,
    budget: str | None,
    policies: str,
    warmup: int,
    source_rate: str,
    seek_ms: float,
    store_rate: str,
    plots: tuple[str, ...],
    as_json: bool,
) -> None:
    """Replay a TRACE of `mummufs trace` with other budgets and policies.

    `belady` is no policy but the optimum, which knows the future. Seconds per token are those of the reads alone, one
    after the other, at the rates given. Disks that spin can be told by their rate without seeks (180M for each of
    them) and --source-seek (8.3, or twice that where checksums are found first, as by btrfs).
    """
    path = existing_file("the trace", trace)
    budgets = None if budget is None else _budgets(budget)
    names = _policies(policies)
    rates = Rates(_rate("--source-rate", source_rate), _rate("--store-rate", store_rate), seek_ms / 1e3)
    pictures = [Path(name) for name in plots]
    plotting.require(pictures)
    try:
        with _shown("reading", path.stat().st_size, quiet=as_json) as advance:
            loaded = load(path, advance)
    except TraceError as error:
        raise MummufsError(f"'{trace}': {error}") from error
    if budgets is None:
        budgets = default_budgets(loaded.charged_bytes)
    if len(budgets) * len(names) > CELLS_MAX:
        raise UsageError(f"{len(budgets)} budgets times {len(names)} policies are more than {CELLS_MAX}")
    skipped = len(loaded.accesses) * warmup // 100
    token = tokens_of(loaded.accesses[skipped:])
    with _shown("replaying", len(loaded.accesses) * len(budgets) * len(names), quiet=as_json) as advance:
        results = [replayed(loaded.accesses, size, name, skipped, advance) for name in names for size in budgets]
    said = notes(loaded, results, token, names[0])
    for picture in pictures:
        plotting.draw(results, picture, None if token is None else token.token_bytes)
    if as_json:
        print_json(_as_json(loaded, results, token, rates, said))
        return
    _print(loaded, results, token, rates)
    for sentence in said:
        click.echo(printable(sentence))


def _budgets(text: str) -> list[int]:
    sizes = [parse_size("--budget", word) for word in text.split(",")]
    if min(sizes) < 1:
        raise UsageError("--budget: a budget of 0 bytes holds nothing")
    return sorted(set(sizes))


def _policies(text: str) -> list[str]:
    names = list(dict.fromkeys(word.strip() for word in text.split(",")))
    for name in names:
        if name not in NAMES:
            raise UsageError(f"--policy: {name!r} is none of {', '.join(NAMES)}")
    return names


def _rate(what: str, text: str) -> int:
    rate = parse_size(what, text)
    if rate < 1:
        raise UsageError(f"{what}: at 0 bytes a second nothing ever arrives")
    return rate


def _print(trace: Replayable, results: Sequence[Result], token: Token | None, rates: Rates) -> None:
    click.echo(
        f"{len(trace.accesses):,} reads of {format_size(trace.read_bytes)} in {trace.duration_ms / 1000:.0f} s,"
        f" {format_size(trace.distinct_bytes)} of them distinct"
        + ("" if token is None else f"; about {token.tokens:,} tokens of {format_size(token.token_bytes)}")
    )
    rows = [
        (
            result.policy,
            format_size(result.budget_bytes),
            f"{100 * result.hit_ratio:.1f} %",
            format_size(result.miss_bytes),
            format_size(result.written_bytes),
            "-" if token is None else f"{rates.seconds(result) / token.tokens:.3f}",
        )
        for result in results
    ]
    columns = ("policy", "budget", "hits", "missed", "written", "s/token")
    print_table(columns, rows, right=frozenset(columns[1:]))


def _as_json(
    trace: Replayable, results: Sequence[Result], token: Token | None, rates: Rates, said: Sequence[str]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "trace": {
            "started_ms": trace.header.started_ms,
            "duration_ms": trace.duration_ms,
            "budget_bytes": trace.header.budget_bytes,
            "reads": len(trace.accesses),
            "read_bytes": trace.read_bytes,
            "hit_bytes": trace.hit_bytes,
            "distinct_bytes": trace.distinct_bytes,
            "dropped": trace.dropped,
            "fault": trace.fault,
            "tokens": None if token is None else token.tokens,
            "token_bytes": None if token is None else token.token_bytes,
        },
        "rates": vars(rates),
        "results": [
            {
                "policy": result.policy,
                "budget_bytes": result.budget_bytes,
                "requests": result.requests,
                "hits": result.hits,
                "read_bytes": result.read_bytes,
                "hit_bytes": result.hit_bytes,
                "miss_bytes": result.miss_bytes,
                "hit_ratio": result.hit_ratio,
                "written_bytes": result.written_bytes,
                "seeks": result.seeks,
                "token_s": None if token is None else rates.seconds(result) / token.tokens,
            }
            for result in results
        ],
        "notes": list(said),
    }


@contextmanager
def _shown(what: str, total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, where that is a terminal."""
    columns = (TextColumn(what), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=quiet or not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda step: bar.advance(task, step)
