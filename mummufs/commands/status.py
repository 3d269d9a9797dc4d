"""`mummufs status`: what a mount does, or all of them. It never touches a mount, only its control socket."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import click

from mummufs.commands.output import print_json, print_table, printable
from mummufs.core.errors import MummufsError
from mummufs.mountinfo import FSTYPE, MountEntry, read_mountinfo
from mummufs.units import format_duration, format_size
from mummufs.unmount import mummufs_mount, resolved

ANSWER_S = 4.0
"""How long a daemon may take to answer; the rest of 5 s is for starting and printing."""

ASKED_AT_ONCE_MAX = 64
"""Daemons that are asked at the same time."""

SCHEMA = 1
"""The version of the list's JSON form."""

_USER_ID = re.compile(r"(?:^|,)user_id=(\d+)(?:,|$)")

Status = Mapping[str, object]


class Asked(NamedTuple):
    """One daemon: who it was (a mountpoint, else a socket), and its status or why there is none."""

    name: str
    status: Status | None
    error: str


@click.command()
@click.argument("mountpoint", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(mountpoint: str | None, as_json: bool) -> None:
    """Show what the mount at MOUNTPOINT does, or all mounts."""
    if mountpoint is None:
        _all(as_json)
        return
    from mummufs import control

    path = resolved(mountpoint)
    mummufs_mount(path)
    answer = control.request(path, "status", timeout_s=ANSWER_S)
    if as_json:
        print_json(answer)
    else:
        print_table(("what", "value"), _details(answer))


def _all(as_json: bool) -> None:
    asked = ask_all()
    if as_json:
        missing = [{"mountpoint": a.name, "state": "no answer", "error": a.error} for a in asked if a.status is None]
        print_json({"schema": SCHEMA, "mounts": [*(a.status for a in asked if a.status is not None), *missing]})
    elif not asked:
        click.echo("no mounts")
    else:
        columns = (
            "mountpoint",
            "source",
            "state",
            "used",
            "budget",
            "ranges",
            "hits",
            "misses",
            "bypasses",
            "hit bytes",
        )
        print_table(columns, [_row(a) for a in asked], right=frozenset(columns[3:]))
    failed = [a for a in asked if a.status is None]
    for a in failed:
        click.echo(f"mummufs: '{printable(a.name)}' does not answer: {printable(a.error)}", err=True)
    if failed:
        raise SystemExit(1)


def ask_all() -> list[Asked]:
    """Ask the daemon of every mount that this process sees, and of every socket beside, all at once.

    A mount of another user is only listed: its socket is that user's alone.
    """
    from mummufs import control

    entries = [entry for entry in read_mountinfo() if entry.fstype == FSTYPE]
    mine = [entry for entry in entries if _owner(entry) in (None, os.geteuid())]
    devices = {entry.mountpoint: entry.device for entry in mine}
    names = {control.socket_path(Path(mountpoint)): mountpoint for mountpoint in devices}
    sockets = dict.fromkeys([*control.sockets(), *names])

    def ask(socket: Path) -> Asked:
        name = names.get(socket, str(socket))
        try:
            return Asked(name, control.request_socket(socket, "status", timeout_s=ANSWER_S), "")
        except MummufsError as error:
            return Asked(name, None, str(error))
        except OSError:
            return Asked(name, None, "its daemon is gone; `mummufs umount` clears it away")

    with ThreadPoolExecutor(ASKED_AT_ONCE_MAX) as pool:
        asked = list(pool.map(ask, sockets))
    # A bind mount has no socket of its own: the mount that it shows has answered for it.
    answered = {devices.get(_text(a.status, "mountpoint")) for a in asked if a.status is not None} - {None}
    asked = [a for a in asked if a.status is not None or devices.get(a.name) not in answered]
    return sorted([*asked, *map(_foreign, (e for e in entries if e not in mine))], key=lambda a: a.name)


def _owner(entry: MountEntry) -> int | None:
    """The user who mounted, as the kernel tells it."""
    match = _USER_ID.search(entry.super_options)
    return int(match[1]) if match else None


def _foreign(entry: MountEntry) -> Asked:
    state = f"of user {_owner(entry)}"
    return Asked(entry.mountpoint, {"mountpoint": entry.mountpoint, "source": entry.source, "state": state}, "")


def _row(asked: Asked) -> tuple[str, ...]:
    if asked.status is None:
        return (asked.name, "-", "no answer", *["-"] * 7)
    store, reads = _part(asked.status, "store"), _part(asked.status, "reads")
    return (
        _text(asked.status, "mountpoint"),
        _text(asked.status, "source"),
        _text(asked.status, "state"),
        _size(store, "used_bytes"),
        _size(store, "budget_bytes"),
        _text(store, "ranges"),
        _text(reads, "hits"),
        _text(reads, "misses"),
        _text(reads, "bypasses"),
        _size(reads, "hit_bytes"),
    )


def _details(answer: Status) -> list[tuple[str, str]]:
    """Every value of a status, nested names joined by a space, sizes and times for people."""
    rows: list[tuple[str, str]] = []
    for key, value in answer.items():
        if isinstance(value, Mapping):
            rows.extend((f"{key} {name}".replace("_", " "), _readable(str(name), part)) for name, part in value.items())
        else:
            rows.append((key.replace("_", " "), _readable(key, value)))
    return [(name.removesuffix(" s"), text) for name, text in rows]


def _readable(key: str, value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and key.endswith("bytes"):
        return format_size(value)
    if isinstance(value, int | float) and key == "uptime_s":
        return format_duration(value)
    if isinstance(value, int | float) and key.endswith("_s"):
        return f"{value:g} s"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_readable(str(name), part)}" for name, part in value.items()) or "-"
    return str(value)


def _part(status: Status, key: str) -> Status:
    value = status.get(key)
    return value if isinstance(value, Mapping) else {}


def _text(part: Status, key: str) -> str:
    value = part.get(key)
    return "-" if value is None else str(value)


def _size(part: Status, key: str) -> str:
    value = part.get(key)
    return format_size(value) if isinstance(value, int) else "-"
