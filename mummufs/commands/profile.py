"""`mummufs profile`: yesterday's heat, by path, in a file, for this mount or one of the same model elsewhere.

The daemon only hands out what it knows and adds what it is given. Paths, sizes and the layout of windows are looked up
here, in the source itself.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import click

from mummufs.commands.output import print_json, print_table, printable
from mummufs.commands.ranges import read_table
from mummufs.core.errors import MummufsError, UsageError
from mummufs.core.ranges import FileId
from mummufs.paths import existing_file
from mummufs.profile import ProfileRange, is_profile, profile_lines, read_profile
from mummufs.source.find import find_files
from mummufs.source.tree import TreeSource
from mummufs.unmount import mummufs_mount, resolved

SCHEMA = 1
"""The version of the JSON form."""


class _Mount(NamedTuple):
    """A mount, its source and where that is, and the manifest that it was given."""

    path: Path
    source: TreeSource
    root: Path
    manifest: Path | None


class _Skipped(NamedTuple):
    """What of a profile is not for this source."""

    path: bytes
    ranges: int
    reason: str


@click.group()
def profile() -> None:
    """Keep which ranges of a mount are hot, and give it to another mount."""


@profile.command()
@click.argument("mountpoint")
@click.argument("file")
def save(mountpoint: str, file: str) -> None:
    """Write the heat of the mount at MOUNTPOINT, range by range, to FILE."""
    from mummufs import control

    target = _target(file)
    mount = _mount(mountpoint)
    heat: dict[FileId, list[tuple[int, int, float]]] = {}
    answer: dict[str, Any] = {"walk": None, "more": True}
    while answer["more"]:
        answer = control.request(mount.path, "heat_page", walk=answer["walk"])
        for filesystem, inode, offset, size, warmth in answer["ranges"]:
            heat.setdefault(FileId(filesystem, inode), []).append((offset, size, warmth))
    ranges = list(_profile(mount.source, _paths(mount, list(heat)), heat))
    _write(target, b"".join(profile_lines(ranges)))
    files = len({r.path for r in ranges})
    click.echo(f"the heat of {len(ranges)} ranges of {files} files is in {printable(file)}")
    left_out = sum(map(len, heat.values())) - len(ranges)
    if left_out:
        click.echo(f"{left_out} ranges were left out: their files are not in the source any more", err=True)


@profile.command()
@click.argument("mountpoint")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def load(mountpoint: str, file: str, as_json: bool) -> None:
    """Add the heat in FILE to that of the mount at MOUNTPOINT.

    Files of another size or with other ranges than in the profile are left out. `mummufs warm --profile` fills what is
    hot in a profile; this only has the mount know of it.
    """
    from mummufs import control
    from mummufs.engine.heatpages import PAGE_RANGES

    wanted = read_profile(existing_file("the profile", file))
    mount = _mount(mountpoint)
    rows: list[list[float]] = []
    skipped: list[_Skipped] = []
    files = 0
    for name, group in groupby(sorted(wanted), key=lambda r: r.path):
        ranges = list(group)
        fitting, reason = _fitting(mount, name, ranges)
        if len(fitting) < len(ranges):
            skipped.append(_Skipped(name, len(ranges) - len(fitting), reason))
        rows += ([*file_id, r.offset, r.size, r.heat] for file_id, r in fitting)
        files += bool(fitting)
    rows.sort(key=lambda row: -row[4])
    for at in range(0, len(rows), PAGE_RANGES):
        control.request(mount.path, "heat_recall", ranges=rows[at : at + PAGE_RANGES])
    if as_json:
        left_out = [{"path": _text(s.path), "ranges": s.ranges, "reason": s.reason} for s in skipped]
        print_json({"schema": SCHEMA, "ranges": len(rows), "files": files, "skipped": left_out})
    else:
        click.echo(f"the heat of {len(rows)} ranges of {files} files was recalled")
        if skipped:
            table = [(_text(s.path), str(s.ranges), s.reason) for s in skipped]
            print_table(("left out", "ranges", "because"), table, right=frozenset({"ranges"}))
    if wanted and not rows:
        raise MummufsError(f"nothing in '{file}' is of the source of this mount: is it the same model?")


def _mount(mountpoint: str) -> _Mount:
    from mummufs import control

    path = resolved(mountpoint)
    mummufs_mount(path)
    status = control.request(path, "status")
    root, manifest = Path(status["source"]), status["options"]["manifest"]
    try:
        source = TreeSource(root)
    except OSError as error:
        raise MummufsError(f"the source '{root}' cannot be opened: {error.strerror}") from None
    click.get_current_context().call_on_close(source.close)
    return _Mount(path, source, root, Path(manifest) if manifest else None)


def _paths(mount: _Mount, files: Sequence[FileId]) -> dict[FileId, bytes]:
    """The paths of files: as the daemon knows them, and of the others by a search."""
    from mummufs import control
    from mummufs.engine.heatpages import PAGE_RANGES

    found: dict[FileId, bytes] = {}
    for at in range(0, len(files), PAGE_RANGES):
        asked = files[at : at + PAGE_RANGES]
        known = control.request(mount.path, "heat_paths", files=asked)["paths"]
        found |= {file: _bytes(path) for file, path in zip(asked, known, strict=True) if path is not None}
    return found | find_files(mount.source, set(files) - found.keys())


def _profile(
    source: TreeSource, paths: dict[FileId, bytes], heat: dict[FileId, list[tuple[int, int, float]]]
) -> Iterator[ProfileRange]:
    """What is still true of the heat, in order of path and offset."""
    for file, path in sorted(paths.items(), key=lambda item: item[1]):
        try:
            attributes = source.stat(path)
        except OSError:
            continue
        for offset, size, warmth in sorted(heat[file]):
            if attributes.file == file and attributes.is_file and offset + size <= attributes.size:
                yield ProfileRange(path, offset, size, warmth, attributes.size)


def _fitting(
    mount: _Mount, path: bytes, ranges: Sequence[ProfileRange]
) -> tuple[list[tuple[FileId, ProfileRange]], str]:
    """Those of a profile's ranges of one file that are windows of the source's file, and what is wrong with others."""
    try:
        attributes = mount.source.stat(path)
    except OSError as error:
        return [], f"it is not in the source: {error.strerror}"
    if not attributes.is_file:
        return [], "it is no regular file in the source"
    right = [r for r in ranges if r.file_size == attributes.size]
    if not right:
        return [], f"it has {attributes.size} bytes in the source, and {ranges[0].file_size} in the profile"
    try:
        table = read_table(mount.root / os.fsdecode(path), mount.manifest)
    except MummufsError as error:
        return [], str(error)
    if table is None:
        return [], "no ranges are known of it"
    windows = set(zip(table.starts, table.ends, strict=True))
    fitting = [(attributes.file, r) for r in right if (r.offset, r.offset + r.size) in windows]
    return fitting, "its ranges lie otherwise"


def _target(text: str) -> Path:
    """Where to write. Only a profile is replaced: yesterday's by today's, and nothing else by mistake.

    Raises:
        UsageError: it is no name for a file, or something else is there.
    """
    path = Path(text)
    if not path.name or "\0" in text:
        raise UsageError(f"'{text}' is no name for a file")
    try:
        is_free = (not path.stat().st_size or is_profile(path)) if path.is_file() else not os.path.lexists(path)
    except OSError as error:
        raise UsageError(f"the profile '{path}' cannot be written: {error.strerror}") from None
    if not is_free:
        raise UsageError(f"'{path}' is there and is no profile: name another file")
    if not path.parent.is_dir():
        raise UsageError(f"the profile '{path}' cannot be written: there is no folder '{path.parent}'")
    return Path(os.path.realpath(path))


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    beside = path.with_name(f".mummufs-{os.getpid()}.part")
    try:
        with beside.open("xb") as file:
            file.write(data)
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # such as: the folder cannot be written to at all
            beside.unlink()
        raise MummufsError(f"the profile '{path}' cannot be written: {error.strerror}") from None


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
