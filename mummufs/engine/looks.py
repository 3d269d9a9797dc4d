"""Looks at the source, as worker threads take them for the overlay."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from mummufs.engine.absent import ABSENT_ERRNOS
from mummufs.engine.nodes import Change, Node, change
from mummufs.source.base import Attributes, Place, Source, SourceFile, SourceObject
from mummufs.source.local import is_being_written

Result = TypeVar("Result")


def open_again(source: Source, path: bytes, known: SourceFile | None) -> tuple[SourceFile, Attributes, bool]:
    """The file that is open already, unless its source went away under it; whether somebody writes to it."""
    if known is not None:
        try:
            return known, known.attributes(), is_being_written(known)
        except OSError as error:
            if error.errno not in ABSENT_ERRNOS:
                raise
    file = source.open(path)
    return file, file.attributes(), is_being_written(file)


def may_be_late(node: Node, attributes: Attributes) -> bool:
    """Whether nothing can be said of these attributes without another look.

    Clocks are coarse: two changes of ours in one tick may have one ctime, and a look between them tells of contents
    that the file has no more.
    """
    what = change(node.attributes, attributes)
    if what is Change.UNCLEAR or is_older(node, attributes):
        return True
    return what is Change.CONTENTS and node.changes > 0


def is_older(node: Node, attributes: Attributes) -> bool:
    """Whether these attributes of a file come from a look before the last one that was taken in, by their ctime."""
    return node.attributes.is_file and attributes.ctime_ns < node.version.ctime_ns


def look_again(source: Source, look: Callable[[], Attributes], path: bytes) -> tuple[Attributes, bool]:
    """The attributes that a look finds now, and whether the file that it finds is not at that path any more."""
    attributes = look()  # first: a rename after it accounts for nothing that it has found
    try:
        return attributes, attributes.nlink > 0 and source.stat(path).file != attributes.file
    except OSError as error:
        if error.errno in ABSENT_ERRNOS:
            raise
        return attributes, True


def attributes_of(file: SourceFile, node: Node) -> Attributes:
    node.refreshing = True  # set and taken back in the thread: its caller may be long gone when the source answers
    try:
        return file.attributes()
    finally:
        node.refreshing = False


def place_of(node: Node) -> Place:
    """Where a node is, and which object is to be found there."""
    return Place(node.path, node.file)


def on_object(source: Source, file: SourceFile | None, place: Place, call: Callable[[SourceObject], Result]) -> Result:
    """Do something with an object: by its open file, if it has one, for its name may be another's by now."""
    if file is not None:
        return call(file)
    with contextlib.closing(source.object(place)) as target:
        return call(target)
