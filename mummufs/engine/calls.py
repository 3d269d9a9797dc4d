"""Calls that change the source, as worker threads make them for the mirror."""

from __future__ import annotations

import contextlib
import errno
import stat
from collections.abc import Callable

from mummufs.source.base import Attributes, Creator, Place, Source, SourceDirectory, SourceFile, WritableFile

InDirectory = Callable[[SourceDirectory], None]

_PRIVILEGES = stat.S_ISUID | stat.S_ISGID


def write(writer: WritableFile, data: bytes, offset: int, *, drop_privileges: bool) -> int:
    """Write, as `WritableFile.write`.

    Args:
        drop_privileges: take setuid and setgid away before, if the file has any.
    """
    if drop_privileges and writer.attributes().mode & _PRIVILEGES:
        writer.drop_privileges()
    return writer.write(data, offset)


def create(
    source: Source, parent: Place, name: bytes, mode: int, creator: Creator
) -> tuple[SourceFile, WritableFile, Attributes]:
    """A new file: to read, to write, and what it is."""
    with contextlib.closing(source.directory(parent)) as directory:
        writer = directory.create(name, mode, creator)
    try:
        return writer.to_read(), writer, writer.attributes()
    except PermissionError:  # the mode lets its own creator write only
        return writer, writer, writer.attributes()


def reopen(source: Source, file: SourceFile, place: Place) -> WritableFile:
    """An open file, to be written: by its place, or by itself where that has gone."""
    try:
        return source.open_to_write(place)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
            raise
        return file.to_write()


def in_directory(source: Source, place: Place, call: InDirectory) -> None:
    """Do something in a directory."""
    with contextlib.closing(source.directory(place)) as directory:
        call(directory)


def made(source: Source, parent: Place, path: bytes, make: InDirectory) -> Attributes:
    """Have `make` create something in a directory; what is at that path then."""
    in_directory(source, parent, make)
    return source.stat(path)


def link(source: Source, place: Place, parent: Place, name: bytes) -> None:
    """Give what is at a place one more name."""
    with contextlib.closing(source.object(place)) as target:
        in_directory(source, parent, lambda directory: directory.link(target, name))


def rename(source: Source, parent: Place, name: bytes, to: Place, new_name: bytes, flags: int) -> None:
    """Move a name between directories."""
    with contextlib.closing(source.directory(parent)) as old, contextlib.closing(source.directory(to)) as new:
        old.rename(name, new, new_name, flags)
