"""`mummufs pin`, `unpin` and `evict`: what is to stay in the store, and what is to go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mummufs.commands.located import checked_pattern, located, looked
from mummufs.commands.output import print_json, print_table, tell_unreadable
from mummufs.core.errors import MummufsError, UsageError
from mummufs.units import format_size

SCHEMA = 1
"""The version of the JSON form."""


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--ranges", "pattern", metavar="GLOB", default="*", help="Only ranges with such a name.")
@click.option("--list", "as_list", is_flag=True, help="List the pins of the mount that PATH is in.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print JSON; its sizes are bytes.")
def pin(paths: Sequence[str], pattern: str, as_list: bool, as_json: bool) -> None:
    """Keep the ranges of the files at PATH in the store: files, folders, or patterns in quotes.

    What is absent is brought in the background. Pins hold in later mounts too, and for what a file changes into.
    """
    if as_list:
        _list(paths, as_json)
        return
    if as_json:
        raise UsageError("--json goes with --list")
    found = located(paths)
    done = looked(found.mountpoint, "pin", paths=found.paths, ranges=checked_pattern(pattern))[0]
    line = f"pinned {_what(done)}"
    if done["absent_ranges"]:
        line += f"; {format_size(done['absent_bytes'])} of it are absent"
        line += f": {done['note']}" if done["note"] else " and being brought in the background"
    click.echo(line)
    tell_unreadable(done)


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--ranges", "pattern", metavar="GLOB", help="Only the pins that were made with this very pattern.")
def unpin(paths: Sequence[str], pattern: str | None) -> None:
    """Let go of what is pinned of the files at PATH. It stays in the store until something hotter needs the room."""
    found = located(paths)
    ranges = None if pattern is None else checked_pattern(pattern)
    done = looked(found.mountpoint, "unpin", paths=found.paths, ranges=ranges)[0]
    click.echo(f"unpinned {_what(done)}")


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--ranges", "pattern", metavar="GLOB", default="*", help="Only ranges with such a name.")
@click.option("--force", is_flag=True, help="Pinned ones too; their pins stay.")
def evict(paths: Sequence[str], pattern: str, force: bool) -> None:
    """Drop the ranges of the files at PATH from the store: files, folders, or patterns in quotes."""
    found = located(paths)
    done = looked(found.mountpoint, "evict", paths=found.paths, ranges=checked_pattern(pattern), force=force)[0]
    click.echo(f"evicted {done['evicted_ranges']} ranges, {format_size(done['evicted_bytes'])}")
    if done["filling_ranges"]:
        click.echo(f"{done['filling_ranges']} ranges are just being filled, and stay")
    tell_unreadable(done)
    if done["pinned_ranges"]:
        raise MummufsError(
            f"{done['pinned_ranges']} ranges, {format_size(done['pinned_bytes'])}, are pinned and stay:"
            " `mummufs unpin` them first, or use --force"
        )


def _list(paths: Sequence[str], as_json: bool) -> None:
    if len(paths) != 1:
        raise UsageError("--list takes one path, such as the mountpoint")
    found = located(paths)
    pins, asked, allowed = _pins(found.mountpoint)
    if as_json:
        print_json({"schema": SCHEMA, "pins": pins, "asked_bytes": asked, "allowed_bytes": allowed})
        return
    if pins:
        columns = ("path", "ranges", "pinned of the file", "bytes")
        rows = [(p["path"], p["ranges"], _pinned_of(p), format_size(p["file_bytes"])) for p in pins]
        print_table(columns, rows, right=frozenset(columns[2:]))
    click.echo(f"{len(pins)} pins, {format_size(asked)} of the {format_size(allowed)} that may be pinned")


def _pins(mountpoint: Path) -> tuple[list[dict[str, Any]], int, int]:
    from mummufs import control

    pins: list[dict[str, Any]] = []
    following: int | None = 0
    while following is not None:
        answer = control.request(mountpoint, "pins", **{"from": following})
        pins += answer["pins"]
        following = answer["next"]
    return pins, answer["asked_bytes"], answer["allowed_bytes"]


def _pinned_of(one: dict[str, Any]) -> str:
    if not one["found"]:
        return "the file is not there"
    left_out = f", {one['file_ranges_left_out']} left out" if one["file_ranges_left_out"] else ""
    return f"{one['file_ranges']} ranges{left_out}"


def _what(done: dict[str, Any]) -> str:
    return f"{done['ranges']} ranges of {done['files']} files, {format_size(done['bytes'])} of the budget"
