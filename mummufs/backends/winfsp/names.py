"""Names as Windows has them: cut, compared, matched against a pattern, and judged. Pure.

A name of the source is bytes, in UTF-8; a half of a surrogate pair, which NTFS allows, is encoded as if it were a
character. Names compare as NTFS compares them, as near as Python's tables come to those that a volume has: each UTF-16
unit by its upper case.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

COMPONENT_UNITS_MAX = 255
"""The longest name, in UTF-16 units."""
_UNOPENABLE = frozenset('\\/:*?"<>|') | {chr(i) for i in range(32)}
"""Characters that the driver refuses in the name of a file to open."""
_RESERVED = frozenset(
    (
        "CON",
        "PRN",
        "AUX",
        "NUL",
        "CONIN$",
        "CONOUT$",
        *(f"{port}{n}" for port in ("COM", "LPT") for n in "0123456789¹²³"),
    )
)
_ANY = "*<"
_ONE = "?"
_ONE_OR_NONE = '>"'


class Component(NamedTuple):
    """A part of a path: the name, and where in the path it begins."""

    name: str
    at: int


def components(path: str) -> Iterator[Component]:
    r"""The names of a path like `\models\a.gguf`; none for the root."""
    at = 0
    for name in path.split("\\"):
        if name:
            yield Component(name, at)
        at += len(name) + 1


def encoded(name: str) -> bytes:
    """A name of Windows as the source has it."""
    return name.encode("utf-8", "surrogatepass")


def decoded(name: bytes) -> str | None:
    """A name of the source as Windows has it; None where no file on Windows can bear it."""
    try:
        text = name.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None
    if not text or units(text) > COMPONENT_UNITS_MAX or not _UNOPENABLE.isdisjoint(text):
        return None
    return text


def units(text: str) -> int:
    """How many UTF-16 units a text takes."""
    return len(text) + sum(char > "\uffff" for char in text)


def folded(name: str) -> str:
    """What names are compared by: two names are the same to Windows where this is."""
    return name.upper() if name.isascii() else "".join(map(_upper, name))


def _upper(char: str) -> str:
    """One unit becomes one unit, and only where it could come back: ß, dotless i and long s stay what they are."""
    upper = char.upper()
    return upper if len(upper) == 1 and char <= "\uffff" and upper.lower() == char else char


def is_creatable(name: str) -> bool:
    """Whether a new file may bear this name: no device's, and none that programs could not open again."""
    if decoded(encoded(name)) is None or name[-1] in ". ":
        return False
    return name.partition(".")[0].rstrip(" ").upper() not in _RESERVED


def matches(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern of a listing, as far as a file system has to say. O(pattern * name).

    `*` and `<` stand for any run, `?` for one character, `>` and `"` for one or none. The last three are a little wider
    here than to the driver, which looks once more at whatever it is given.
    """
    pattern, name = folded(pattern), folded(name)
    states = _closed({0}, pattern)
    for char in name:
        states = _closed({following for at in states for following in _step(pattern, at, char)}, pattern)
        if not states:
            return False
    return len(pattern) in states


def _step(pattern: str, at: int, char: str) -> Iterator[int]:
    """Where in a pattern one can be after this character."""
    if at == len(pattern):
        return
    wanted = pattern[at]
    if wanted in _ANY:
        yield at
    elif wanted == '"':
        if char == ".":
            yield at + 1
    elif wanted in _ONE or wanted == ">" or wanted == char:
        yield at + 1


def _closed(states: set[int], pattern: str) -> set[int]:
    """These places in a pattern, and those that can be reached from them by no character."""
    found = set(states)
    for at in sorted(states):
        while at < len(pattern) and pattern[at] in _ANY + _ONE_OR_NONE:
            at += 1
            found.add(at)
    return found
