"""`mummufs residency`: how much of a model is in the store, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import click

from mummufs.commands.located import located, looked
from mummufs.commands.output import print_json, print_table, printable, tell_unreadable
from mummufs.core.errors import MummufsError
from mummufs.units import format_size

SCHEMA = 1
"""The version of the JSON form."""

SIZES = ("dense_bytes", "dense_resident_bytes", "expert_bytes", "expert_resident_bytes")


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; its sizes are bytes.")
def residency(paths: Sequence[str], as_json: bool) -> None:
    """Show how much of the models at PATH is in the store: files, folders, or patterns in quotes."""
    found = located(paths)
    pages = looked(found.mountpoint, "residency", paths=found.paths)
    layers = [layer for page in pages for layer in page["layers"]]
    tell_unreadable(pages[0])
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "mountpoint": str(found.mountpoint),
                "files": pages[0]["files"],
                "files_without_ranges": pages[0]["files_without_ranges"],
                "files_failed": pages[0]["files_failed"],
                "models": [
                    {"model": model, **total(rows), "layers": [{k: r[k] for k in ("layer", *SIZES)} for r in rows]}
                    for model, rows in by_model(layers)
                ],
                **total(layers),
            }
        )
        return
    if not layers:
        raise MummufsError("none of these files has ranges: they are passed through")
    for model, rows in by_model(layers):
        click.echo(f"{printable(model)}:")
        columns = ("layer", "dense", "resident", "%", "experts", "resident", "%")
        shown = [_row(row["layer"], row) for row in rows]
        print_table(columns, [*shown, _row("total", total(rows))], right=frozenset(columns[1:]))
    sums = total(layers)
    resident = sums["dense_resident_bytes"] + sums["expert_resident_bytes"]
    everything = sums["dense_bytes"] + sums["expert_bytes"]
    click.echo(f"{format_size(resident)} of {format_size(everything)} are in the store, {_share(resident, everything)}")


def by_model(layers: Iterable[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The layers of each model; they come in order."""
    return [(model, list(rows)) for model, rows in groupby(layers, key=lambda row: row["model"])]


def total(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
    """The sums of some layers."""
    rows = list(rows)
    return {name: sum(row[name] for row in rows) for name in SIZES}


def _row(name: str, sums: dict[str, Any]) -> tuple[str, ...]:
    cells = [name]
    for whole, part in ((sums[SIZES[0]], sums[SIZES[1]]), (sums[SIZES[2]], sums[SIZES[3]])):
        cells += [format_size(whole), format_size(part), _share(part, whole)] if whole else ["-", "-", "-"]
    return tuple(cells)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"
