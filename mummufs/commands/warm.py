"""`mummufs warm`: bring ranges into the store before anybody reads them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from mummufs.commands.located import Located, checked_pattern, located
from mummufs.commands.output import print_json, printable
from mummufs.core.errors import MummufsError
from mummufs.paths import existing_file
from mummufs.profile import ProfileRange, hottest_first, read_profile
from mummufs.units import format_size

POLL_S = 0.2
SCHEMA = 1
"""The version of the JSON form."""
WINDOWS_SENT = 1024
"""Windows of a profile in one request."""

REASONS = {
    "budget": (
        "there is no room: what is in the store is pinned, asked for too, or of a model that was read in the last ten"
        " minutes; `mummufs evict` or `unpin` what may go, or mount with a larger --store-size"
    ),
    "write_budget": "the write budget of the day is used up, or what is left of it is for what is hotter",
    "settling": "their files have only just changed, or are open for writing",
    "source": "the source failed, or the file changed meanwhile",
    "store": "the store is at fault, or its file system is full",
    "unknown": "their files have no such ranges: the profile is of another version of them",
}


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--ranges", "pattern", metavar="GLOB", default="*", help="Only ranges with such a name.")
@click.option("--profile", metavar="FILE", help="Only the ranges that were hot, as far as the budget goes.")
@click.option("--background", is_flag=True, help="Start it and return; `status` shows how far it is.")
@click.option("--stop", is_flag=True, help="Stop what is being warmed in the mount that PATH is in.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; its sizes are bytes.")
def warm(paths: Sequence[str], pattern: str, profile: str | None, background: bool, stop: bool, as_json: bool) -> None:
    """Bring the ranges of the files at PATH into the store: files, folders, or patterns in quotes."""
    from mummufs import control

    checked_pattern(pattern)
    hot = None if profile is None else read_profile(existing_file("the profile", profile))
    found = located(paths)
    if stop:
        control.request(found.mountpoint, "warm_stop")
        return
    if hot is None:
        started = control.request(found.mountpoint, "warm", paths=found.paths, ranges=pattern)
    else:
        started = _start_by_profile(found, hot, pattern)
    if background:
        click.echo(f"warming; `mummufs status '{printable(str(found.mountpoint))}'` shows how far it is")
        return
    try:
        ended = _watch(found.mountpoint, started["job"], quiet=as_json)
    except KeyboardInterrupt:
        control.request(found.mountpoint, "warm_stop", job=started["job"])
        raise MummufsError("stopped; what is filled stays, and the same command goes on from here") from None
    if as_json:
        print_json({"schema": SCHEMA, **ended})
    else:
        for line in _summary(ended):
            click.echo(line)
    if ended["failure"]:
        raise MummufsError(ended["failure"])
    if ended["stopped"]:
        raise MummufsError("somebody has stopped it; what is filled stays, and the same command goes on from here")
    if not ended["resident_ranges"]:
        raise MummufsError("nothing could be warmed")


def _watch(mountpoint: Path, job: int, *, quiet: bool) -> dict[str, Any]:
    from mummufs import control

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("warming", total=None)
        while True:
            found = control.request(mountpoint, "warm_progress", job=job)
            total = found["asked_bytes"] if found["counted"] else None
            what = "looking at the files" if total is None else "warming"
            if found["state"] == "waiting":
                what = "waiting for another warm"
            bar.update(task, description=what, completed=found["looked_at_bytes"], total=total)
            if found["state"] == "ended":
                return dict(found)
            time.sleep(POLL_S)


def _summary(ended: dict[str, Any]) -> Iterable[str]:
    """What people read at the end."""
    if ended["asked_ranges"]:
        yield (
            f"{format_size(ended['resident_bytes'])} of {format_size(ended['asked_bytes'])} are in the store:"
            f" {ended['resident_ranges']} of {ended['asked_ranges']} ranges, {format_size(ended['filled_bytes'])}"
            " of them new"
        )
    for reason, tally in ended["declined"].items():
        yield f"{tally['ranges']} ranges, {format_size(tally['bytes'])}, are not: {REASONS.get(reason, reason)}"
    if ended["files_without_ranges"]:
        yield f"{ended['files_without_ranges']} of {ended['files']} files have no range that is asked for"
    if ended["files_failed"]:
        yield f"{ended['files_failed']} files were passed over, the last one: {printable(ended['last_error'] or '')}"


# ---------------------------------------------------------------------- profiles


def _start_by_profile(found: Located, hot: Sequence[ProfileRange], pattern: str) -> dict[str, Any]:
    """Name the windows of a profile that are meant and that the budget has room for, file by file, and begin."""
    from mummufs import control

    meant = _meant(found, hot, pattern)
    draft = control.request(found.mountpoint, "warm_windows", path="", windows=[])
    chosen = choose(((r.path, r.offset, r.size) for r in meant), draft["room_bytes"])
    if not chosen:
        raise MummufsError("the profile has no range of these paths")
    for path, windows in chosen.items():
        for at in range(0, len(windows), WINDOWS_SENT):
            numbers = [number for window in windows[at : at + WINDOWS_SENT] for number in window]
            control.request(
                found.mountpoint, "warm_windows", draft=draft["draft"], path=os.fsdecode(path), windows=numbers
            )
    return control.request(found.mountpoint, "warm", draft=draft["draft"], ranges=pattern)


def _meant(found: Located, hot: Sequence[ProfileRange], pattern: str) -> list[ProfileRange]:
    """What of a profile is asked for and there: it alone is to share the room. The hottest come first."""
    from mummufs.engine.places import matches
    from mummufs.engine.selection import ALL

    wanted = [os.fsencode(path) for path in found.paths]
    by_file = dict[bytes, list[ProfileRange]]()
    for r in hot:
        by_file.setdefault(r.path, []).append(r)
    meant, gone = list[ProfileRange](), 0
    for path, ranges in by_file.items():
        if any(matches(one, path) for one in wanted):
            is_there = _is_as_in(found.mountpoint / os.fsdecode(path), ranges)
            gone += not is_there
            meant += ranges if is_there else ()
    if gone:
        click.echo(f"{gone} files of the profile are not in the mount, or have another size: left out", err=True)
    return hottest_first(meant if pattern == ALL else _of_names(found.mountpoint, meant, pattern))


def _is_as_in(path: Path, ranges: Sequence[ProfileRange]) -> bool:
    """Whether a file of the mount has the size that it has in a profile."""
    try:
        return path.lstat().st_size == ranges[0].file_size
    except OSError:
        return False


def _of_names(mountpoint: Path, ranges: Sequence[ProfileRange], pattern: str) -> Iterable[ProfileRange]:
    """Those whose names match a pattern. A profile has no names: the files say them."""
    from mummufs import control
    from mummufs.commands.ranges import read_table
    from mummufs.engine.selection import Selection

    named = control.request(mountpoint, "status")["options"]["manifest"]
    selection, manifest = Selection(pattern), Path(named) if named else None
    for path, group in groupby(ranges, key=lambda r: r.path):
        try:
            table = read_table(mountpoint / os.fsdecode(path), manifest)
        except MummufsError as error:
            click.echo(f"{error}: left out", err=True)
            continue
        numbers = range(0 if table is None else len(table))
        taken = {(table.starts[i], table.ends[i]) for i in numbers if table is not None and selection.takes(table, i)}
        yield from (r for r in group if (r.offset, r.offset + r.size) in taken)


def choose(hot: Iterable[tuple[bytes, int, int]], room_bytes: int) -> dict[bytes, list[tuple[int, int]]]:
    """The first of these windows that there is room for, by file and in order of offset.

    Args:
        hot: path, offset and size; the hottest first.
        room_bytes: of the budget.
    """
    from mummufs.store.layout import charge_of

    chosen: dict[bytes, list[tuple[int, int]]] = {}
    for path, offset, size in hot:
        room_bytes -= charge_of(size)
        if room_bytes < 0:
            break
        chosen.setdefault(path, []).append((offset, size))
    return {path: sorted(windows) for path, windows in sorted(chosen.items())}
