"""What people read: tables, and text that is safe to print. `--json` prints the same facts for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

RICH_ROWS_MAX = 2000
"""Longer tables are printed plain: rich measures every cell before it prints the first."""


def printable(text: str) -> str:
    """The text with control characters and undecodable bytes escaped: names come from files that nobody vouches for."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def tell_unreadable(found: Mapping[str, Any]) -> None:
    """Say on standard error which files a request has passed over."""
    if found["files_failed"]:
        click.echo(
            f"{found['files_failed']} files were passed over, the last one: {printable(found['last_error'] or '')}",
            err=True,
        )


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(value, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[str] = frozenset()) -> None:
    """A table on stdout: drawn on a terminal, plain columns two spaces apart elsewhere.

    Args:
        right: the names of the columns of numbers.
    """
    safe = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty() or len(rows) > RICH_ROWS_MAX:
        _print_plain(columns, safe, right)
        return
    from rich.console import Console  # a third of what a command takes to start, and no daemon prints a table
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in safe:
        table.add_row(*map(Text, row))  # as text, because brackets in a name are no markup
    Console().print(table)


def _print_plain(columns: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[str]) -> None:
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(row, widths, columns, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())
