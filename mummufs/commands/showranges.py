"""The command `mummufs ranges`, but for how a header is read, which differs by system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from mummufs.commands.output import print_json, print_table
from mummufs.core.manifest import RangeTable
from mummufs.units import format_size

SCHEMA = 1
"""The version of the JSON form."""


ReadTable = Callable[[Path, Path | None], RangeTable | None]


def ranges_command(read: ReadTable) -> click.Command:
    """The command, where this is how the table of a file is read; the second path is that of a native manifest."""

    @click.command()
    @click.argument("file")
    @click.option("--manifest", metavar="FILE", help="A native manifest that names the ranges of FILE.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON; its sizes are bytes.")
    def ranges(file: str, manifest: str | None, as_json: bool) -> None:
        """Show the ranges recognised in FILE."""
        table = read(Path(file), Path(manifest) if manifest else None)
        windows = list(table) if table is not None else []
        total = sum(window.size for window in windows)
        if as_json:
            print_json(
                {
                    "schema": SCHEMA,
                    "file": file,
                    "size": table.file_size if table is not None else Path(file).stat().st_size,
                    "format": table.format if table is not None else None,
                    "bytes": total,
                    "ranges": [
                        {"offset": w.offset, "length": w.size, "name": w.name, "kind": w.kind.name.lower()}
                        for w in windows
                    ],
                }
            )
        elif table is None:
            click.echo("no ranges: no known format; the file is passed through")
        else:
            rows = [(str(w.offset), str(w.size), w.name, w.kind.name.lower()) for w in windows]
            print_table(("offset", "length", "name", "kind"), rows, right=frozenset({"offset", "length"}))
            click.echo(f"{len(rows)} ranges, {format_size(total)} of {format_size(table.file_size)} ({table.format})")

    return ranges
