"""Which paths files have: a source knows files by name only, so its folders are gone through."""

from __future__ import annotations

from mummufs.core.ranges import FileId
from mummufs.source.base import Source

DEPTH_MAX = 64
"""Folders below one another that the search goes into."""


def find_files(source: Source, wanted: set[FileId]) -> dict[FileId, bytes]:
    """The paths of these files; of one with several names any. What cannot be looked at is passed over. Blocks."""
    found: dict[FileId, bytes] = {}
    folders = [(b"", 0)]
    while folders and len(found) < len(wanted):
        folder, depth = folders.pop()
        try:
            for name, attributes in source.entries(folder):
                path = folder + b"/" + name if folder else name
                if attributes.is_directory and depth < DEPTH_MAX:
                    folders.append((path, depth + 1))
                elif attributes.file in wanted:
                    found.setdefault(attributes.file, path)
        except OSError:
            continue
    return found
