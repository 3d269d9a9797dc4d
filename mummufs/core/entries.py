"""What the index knows of each range that is not absent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mummufs.core.ranges import RangeKey, Version
from mummufs.core.ratings import Rating
from mummufs.core.states import State

COMMON_MAX = 16_384
"""Pairs of charge and version of which the entry is remembered."""


@dataclass(slots=True, eq=False)
class Entry:
    """A range that is not absent.

    Attributes:
        charge: bytes that its range file takes on the store.
        rating: None of a range that was found in the store and not touched since. Such an entry is *common*.
    """

    state: State
    charge: int
    version: Version
    rating: Rating | None


class CommonEntries:
    """The entries of ranges that were found and not touched: all of one charge and version share one.

    Half a million ranges are found in a second, and most of them are not touched for long. So a common entry is never
    changed: who changes a range gives it an entry of its own first.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[int, Version], Entry] = {}
        self._keys: list[RangeKey] = []  # what was found, some of it touched since

    def entry(self, charge: int, version: Version) -> Entry:
        """The entry of resident ranges of this charge and version."""
        entry = self._entries.get((charge, version))
        if entry is None:
            if len(self._entries) >= COMMON_MAX:
                self._entries.clear()
            entry = self._entries[charge, version] = Entry(State.RESIDENT, charge, version, None)
        return entry

    def found(self, key: RangeKey) -> None:
        """A range has been given a common entry."""
        self._keys.append(key)

    def is_any(self, entries: Mapping[RangeKey, Entry]) -> bool:
        """Whether a range has a common entry still."""
        while self._keys and not _is_common(entries.get(self._keys[-1])):
            self._keys.pop()
        return bool(self._keys)

    def keys(self, entries: Mapping[RangeKey, Entry]) -> Iterator[RangeKey]:
        """The ranges that have common entries still, the one found last before the others."""
        seen: set[RangeKey] = set()  # what has gone and been found again is listed twice
        for key in reversed(self._keys):
            if _is_common(entries.get(key)) and key not in seen:
                seen.add(key)
                yield key


def _is_common(entry: Entry | None) -> bool:
    return entry is not None and entry.rating is None
