"""What a benchmark leaves: every round of every row, the medians, a table to read and a JSON to keep."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

NATIVE = "native"
PUSHED_SHARE_SHOWN = 0.001

Round = dict[str, Any]
"""One timed run: at least "mb_s", "bytes", "seconds" and "command"."""


@dataclass
class RowResult:
    """The rounds of one row, by who was measured; `native` is what the others are compared with."""

    title: str
    wanted: float | None = None
    rounds: dict[str, list[Round]] = field(default_factory=dict)

    def add(self, who: str, one: Round) -> None:
        """Note a round."""
        self.rounds.setdefault(who, []).append(one)

    def median(self, who: str, key: str = "mb_s") -> float | None:
        """The median over the rounds that have that figure."""
        values = [one[key] for one in self.rounds.get(who, ()) if one.get(key) is not None]
        return statistics.median(values) if values else None

    def ratio(self, who: str) -> float | None:
        """The median rate over native's."""
        mine, native = self.median(who), self.median(NATIVE)
        return mine / native if mine is not None and native else None

    def as_json(self) -> dict[str, Any]:
        """Ratios and medians first, then every round."""
        others = [who for who in self.rounds if who != NATIVE]
        return {
            "title": self.title,
            "wanted": self.wanted,
            "ratio": {who: self.ratio(who) for who in others},
            "median_mb_s": {who: self.median(who) for who in self.rounds},
            "rounds": self.rounds,
        }


@dataclass
class Results:
    """One run of one benchmark. `facts` is what was run where, and what does not fit in a row."""

    bench: str
    facts: dict[str, Any]
    rows: dict[str, RowResult] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failed: bool = False

    def row(self, name: str, title: str, wanted: float | None = None) -> RowResult:
        """The row of that name, a new one the first time."""
        return self.rows.setdefault(name, RowResult(title, wanted))

    def note(self, text: str) -> None:
        """Say something that whoever reads the figures has to know, once."""
        if text not in self.notes:
            self.notes.append(text)
            click.echo(f"note: {text}", err=True)

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Make a note of a measurement that fails, and go on: one must not cost all the others."""
        try:
            yield
        except (click.ClickException, OSError) as error:
            self.failed = True
            self.note(f"{what}: {error.message if isinstance(error, click.ClickException) else error}")

    def finish(self, path: Path | None) -> None:
        """Write the JSON, if wanted. Raises ClickException if a measurement failed."""
        self.write(path)
        if self.failed:
            raise click.ClickException("not everything could be measured; the notes say what")

    def write(self, path: Path | None) -> None:
        """Write the JSON as it is so far, if wanted."""
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.as_json(), indent=1) + "\n")

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "bench": self.bench,
            "machine": machine(),
            **self.facts,
            "notes": self.notes,
            "rows": {name: row.as_json() for name, row in self.rows.items()},
        }


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {"kernel": platform.release(), "cpus": os.cpu_count(), "memory_bytes": pages * page_bytes}


def ratio_text(ratio: float | None, wanted: float | None = None) -> str:
    """A ratio for a table, with what was wanted of it and whether it is there."""
    if ratio is None:
        return ""
    text = f"{ratio:.3f}" if ratio < 1 else f"{ratio:.2f}"
    if wanted is None:
        return text
    return f"{text} {'ok' if ratio >= wanted else 'MISSED'}"


def number(value: float | None, digits: int = 0) -> str:
    """A figure for a table; nothing for none."""
    return "" if value is None else f"{value:,.{digits}f}"


def share_text(lane: float | None, pushed: float | None) -> str:
    """What the fast lane answered and, if any, what was pushed, of the bytes read."""
    if lane is None:
        return ""
    return f"{lane:.3f}" + (f" + {pushed:.3f} pushed" if pushed is not None and pushed >= PUSHED_SHARE_SHOWN else "")


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (columns, ["---"] * len(columns), *rows)]
    return "\n".join(lines)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on the terminal; never cut, where the output is not one."""
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, 160))
    console.print(table)
