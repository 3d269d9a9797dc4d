"""The file of pins: what is to stay in the store, by path, so that it holds in the next mount too.

    STORE/pins    JSON: {"mummufs_pins": 1, "pins": [{"source": [..., ...], "path": "...", "ranges": "*"}, ...]}

`source` is the identity of the source's root (file system and inode), because a store may serve one source after
another; `path` is a file's below it, with bytes that are no UTF-8 as Python's `surrogateescape` has them; `ranges` is
a pattern for the names of its ranges. Which windows that makes is found out anew in each mount. The file is written
under a temporary name, synced and renamed; one that is not as above is set aside as `pins.bad`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple, TypeGuard

from mummufs.core.errors import MummufsError
from mummufs.core.ranges import FileId

PINS_NAME = "pins"
PINS_ASIDE_NAME = "pins.bad"
"""What a file of pins is called that could not be read."""
PINS_VERSION = 1
PINS_MAX = 4096
"""Pins of one store. One is a file and a pattern, so this is thousands of files, not of ranges."""
PINS_BYTES_MAX = 16 << 20
PATTERN_CHARS_MAX = 512
_U64_MAX = (1 << 64) - 1


class Pin(NamedTuple):
    """The ranges of one file whose names match a pattern are to stay.

    Attributes:
        source: the identity of the root of the source that the file is in.
        path: of the file, below that root.
        ranges: a pattern as fnmatch has them; "*" for all.
    """

    source: FileId
    path: bytes
    ranges: str


def pack_pins(pins: Iterable[Pin]) -> bytes:
    """The contents of the file, in the order given."""
    entries = [
        {"source": list(pin.source), "path": pin.path.decode("utf-8", "surrogateescape"), "ranges": pin.ranges}
        for pin in pins
    ]
    return json.dumps({"mummufs_pins": PINS_VERSION, "pins": entries}).encode("ascii") + b"\n"


def unpack_pins(data: bytes) -> list[Pin]:
    """What `pack_pins` wrote.

    Raises:
        MummufsError: it is something else; with the reason.
    """
    if len(data) > PINS_BYTES_MAX:
        raise MummufsError(f"it is larger than the limit of {PINS_BYTES_MAX} bytes")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise MummufsError("it is not JSON") from None
    if not isinstance(value, dict) or "mummufs_pins" not in value:
        raise MummufsError("it does not say that it is a file of pins")
    if value["mummufs_pins"] != PINS_VERSION or isinstance(value["mummufs_pins"], bool):
        raise MummufsError(f"it has a format version that is not {PINS_VERSION}")
    entries = value.get("pins")
    if not isinstance(entries, list) or len(entries) > PINS_MAX:
        raise MummufsError(f"it has no list of at most {PINS_MAX} pins")
    return list(dict.fromkeys(map(_pin, entries)))


def _pin(entry: object) -> Pin:
    match entry:
        case {"source": [filesystem, inode], "path": str(path), "ranges": str(ranges)}:
            if _is_u64(filesystem) and _is_u64(inode) and 0 < len(ranges) <= PATTERN_CHARS_MAX:
                return Pin(FileId(filesystem, inode), _path(path), ranges)
    raise MummufsError(f"a pin has a source, a path and ranges, and this is none: {str(entry)[:60]!r}")


def _path(text: str) -> bytes:
    try:
        path = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise MummufsError(f"no file has the path {text[:60]!r}") from None
    if b"\0" in path or any(part in (b"", b".", b"..") for part in path.split(b"/")):
        raise MummufsError(f"the path {text[:60]!r} does not lead to a file below the source")
    return path


def _is_u64(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _U64_MAX
