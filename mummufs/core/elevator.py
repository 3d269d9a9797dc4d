"""The order of what nobody waits for: by place, in one direction, so that a head moves as little as it can."""

from __future__ import annotations

from sortedcontainers import SortedKeyList

from mummufs.core.ranges import FileId


class Turn:
    """A read that waits for its turn. Its place is a file and an offset in it."""

    __slots__ = ("file", "number", "offset")

    def __init__(self, file: FileId, offset: int, number: int) -> None:
        self.file = file
        self.offset = offset
        self.number = number


def _place(turn: Turn) -> tuple[FileId, int, int]:
    """With the number it has its place alone."""
    return turn.file, turn.offset, turn.number


class Elevator:
    """Turns in the order of their places, from where the last one was on; behind the last place it begins anew.

    O(log n) per call.
    """

    def __init__(self) -> None:
        self._turns: SortedKeyList = SortedKeyList(key=_place)
        self._at: tuple[FileId, int, int] = (FileId(0, 0), 0, 0)
        self._number = 0

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, file: FileId, offset: int) -> Turn:
        """Somebody waits for a turn."""
        self._number += 1
        turn = Turn(file, offset, self._number)
        self._turns.add(turn)
        return turn

    def remove(self, turn: Turn) -> None:
        """It waits no more; nothing if it has had its turn."""
        self._turns.discard(turn)

    def take(self) -> Turn | None:
        """Whose turn it is; it waits no more. None if nobody does."""
        if not self._turns:
            return None
        i = self._turns.bisect_key_left(self._at)
        turn: Turn = self._turns.pop(i if i < len(self._turns) else 0)
        self._at = _place(turn)
        return turn
