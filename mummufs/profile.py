"""The profile: which ranges of a source were hot, by path, so that another mount or machine can be warmed with it.

A profile is text, one JSON value a line, so that it can be looked at, filtered and sent on:

    {"mummufs_profile": 1}                            first line: the format's version
    {"path": "llama/x-00001-of-3.gguf", "size": 123}  a file: its path below the source, and its size in bytes
    [4096, 1048576, 2.25]                             a window of that file: offset and size in bytes, and heat
    ...                                               more windows, more files
    {"end": 2}                                        last line: how many windows there were

Heat is the log2 of the decayed sum of touches when the profile was saved: 0 is one whole read just now, 3 eight of
them, and a half-life costs 1. Bytes of a path that are no UTF-8 are written as Python's `surrogateescape` has them.
A file's size is there to tell whether it is still the same model; nothing of its contents is in a profile.

A profile is data from anywhere: what is not as above is refused with the number of its line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeGuard

from mummufs.core.errors import MummufsError

PROFILE_VERSION = 1
RANGES_MAX = 1_000_000
"""Windows of one profile: more than any index keeps heat of."""
PROFILE_BYTES_MAX = 256 << 20
SIZE_MAX = (1 << 63) - 1
"""The largest offset that a file has."""
HEAT_MAX = 64.0
"""Heat is no larger than this: 2^64 reads within a half-life are somebody's joke."""
_SHOWN_CHARS = 60
_BEGINS = b'{"mummufs_profile":'


class ProfileRange(NamedTuple):
    """The heat of one window.

    Attributes:
        path: of its file, below the source.
        offset, size: of the window, in bytes.
        heat: log2 of its heat when the profile was saved.
        file_size: of its file, in bytes.
    """

    path: bytes
    offset: int
    size: int
    heat: float
    file_size: int


def read_profile(path: Path) -> list[ProfileRange]:
    """The windows of a profile, as they stand in the file.

    Raises:
        MummufsError: it cannot be read, or is no profile.
    """
    try:
        with path.open("rb") as file:
            data = file.read(PROFILE_BYTES_MAX + 1)
    except OSError as error:
        raise MummufsError(f"the profile '{path}' cannot be read: {error.strerror}") from None
    try:
        return parse_profile(data)
    except MummufsError as error:
        raise MummufsError(f"'{path}' is no profile that can be used: {error}") from None


def is_profile(path: Path) -> bool:
    """Whether a file begins like one, of whatever version.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(_BEGINS)) == _BEGINS


def parse_profile(data: bytes) -> list[ProfileRange]:
    """The windows of a profile, as they stand in it. `hottest_first` sorts them.

    Raises:
        MummufsError: with the line that is wrong.
    """
    if len(data) > PROFILE_BYTES_MAX:
        raise MummufsError(f"it is larger than the limit of {PROFILE_BYTES_MAX} bytes")
    found: list[ProfileRange] = []
    file: tuple[bytes, int] | None = None
    ended = False
    for number, line in enumerate(data.splitlines(), 1):
        value = _value(number, line)
        if number == 1:
            _check_first(value)
        elif ended:
            raise _wrong(number, line, "nothing follows the last line")
        elif isinstance(value, dict) and value.keys() == {"end"}:
            if value["end"] != len(found):
                raise _wrong(number, line, f"there were {len(found)} windows")
            ended = True
        elif isinstance(value, dict):
            file = _file(number, line, value)
        elif file is None:
            raise _wrong(number, line, "a file comes first")
        else:
            found.append(_range(number, line, value, file))
            if len(found) > RANGES_MAX:
                raise MummufsError(f"it has more than the limit of {RANGES_MAX} windows")
    if not ended:
        raise MummufsError("it is cut short: its last line is missing")
    return found


def hottest_first(ranges: Iterable[ProfileRange]) -> list[ProfileRange]:
    """The windows, the hottest first; equals in the order of path and offset."""
    return sorted(ranges, key=lambda r: (-r.heat, r.path, r.offset))


def profile_lines(ranges: Iterable[ProfileRange]) -> Iterator[bytes]:
    """The lines of a profile. The windows of one file have to follow one another."""
    yield _line({"mummufs_profile": PROFILE_VERSION})
    file: tuple[bytes, int] | None = None
    count = 0
    for path, offset, size, heat, file_size in ranges:
        if file != (path, file_size):
            file = (path, file_size)
            yield _line({"path": path.decode("utf-8", "surrogateescape"), "size": file_size})
        yield _line([offset, size, round(min(heat, HEAT_MAX), 6)])
        count += 1
    yield _line({"end": count})


def _line(value: object) -> bytes:
    return json.dumps(value).encode("ascii") + b"\n"


def _value(number: int, line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):  # undecodable bytes are a ValueError too
        raise _wrong(number, line, "it is not JSON") from None


def _check_first(value: object) -> None:
    if not isinstance(value, dict) or "mummufs_profile" not in value:
        raise MummufsError("its first line does not say that it is one")
    version = value["mummufs_profile"]
    if version != PROFILE_VERSION or isinstance(version, bool):
        shown = repr(version)[:_SHOWN_CHARS]
        raise MummufsError(f"it has format version {shown}, and this mummufs reads version {PROFILE_VERSION}")


def _file(number: int, line: bytes, value: dict[str, object]) -> tuple[bytes, int]:
    path, size = value.get("path"), value.get("size")
    if not isinstance(path, str) or not _is_count(size):
        raise _wrong(number, line, "a file has a path and a size")
    try:
        name = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise _wrong(number, line, "its path cannot be that of a file") from None
    if b"\0" in name or any(part in (b"", b".", b"..") for part in name.split(b"/")):
        raise _wrong(number, line, "its path does not lead to a file below the source")
    return name, size


def _range(number: int, line: bytes, value: object, file: tuple[bytes, int]) -> ProfileRange:
    match value:
        case [offset, size, int() | float() as heat] if _is_count(offset) and _is_count(size):
            if isinstance(heat, bool) or not (abs(heat) <= SIZE_MAX and heat <= HEAT_MAX):
                raise _wrong(number, line, f"heat is a number of at most {HEAT_MAX:g}")
            if size == 0 or offset + size > file[1]:
                raise _wrong(number, line, "the window does not lie in its file")
            return ProfileRange(file[0], offset, size, float(heat), file[1])
    raise _wrong(number, line, "a window is [offset, size, heat]")


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= SIZE_MAX


def _wrong(number: int, line: bytes, why: str) -> MummufsError:
    shown = line.decode("utf-8", "replace")
    return MummufsError(f"line {number}, {shown[:_SHOWN_CHARS]!r}: {why}")
