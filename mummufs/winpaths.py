r"""The checks of the paths that a mount on Windows is made of; as `paths`, which it replaces there."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mummufs.core.errors import UsageError
from mummufs.paths import check_places, existing_file, source_directory, writable_place

__all__ = ["check_places", "existing_file", "source_directory", "usable_mountpoint", "writable_place"]

_DRIVE = re.compile(r"([A-Za-z]):[\\/]?")


def usable_mountpoint(text: str) -> Path:
    """A drive that is free, or a directory that does not exist yet, in one that does.

    Raises:
        UsageError: it is neither.
    """
    drive = _DRIVE.fullmatch(text)
    if drive:
        name = drive[1].upper() + ":"
        if os.path.exists(name + "\\"):
            raise UsageError(f"the drive {name} is in use: name another one")
        return Path(name)
    if not text:
        raise UsageError("the mountpoint has no name: give a drive such as M:")
    path = Path(os.path.abspath(text))
    if os.path.lexists(path):
        raise UsageError(
            f"the mountpoint '{path}' exists: WinFsp makes the directory itself, or give a drive such as M:"
        )
    if not path.parent.is_dir():
        raise UsageError(f"the mountpoint '{path}' cannot be made: there is no directory '{path.parent}'")
    return path
