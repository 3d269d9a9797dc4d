"""Which files are one model: those of a split set, a GGUF file by itself, and otherwise the files of a directory."""

from __future__ import annotations

_BETWEEN = b"-of-"
_WHOLE = (b".gguf",)
"""Formats whose files hold a whole model each, so that a directory of them is a collection."""


def pack_of(path: bytes) -> bytes:
    """The name of the pack of a file, from its path relative to the source. Never empty.

    A split set is what is called `NAME-00001-of-00004.gguf` and the like: the same name, and numbers.
    """
    directory, slash, name = path.rpartition(b"/")
    before, between, after = name.rpartition(_BETWEEN)
    count = after.partition(b".")[0]
    stem = before.rstrip(b"0123456789")
    if between and count.isdigit() and stem != before and stem.rstrip(b"-_."):
        return directory + slash + stem.rstrip(b"-_.")
    if name.lower().endswith(_WHOLE):
        return path
    return directory + b"/"
