"""Siblings: the other slices of an expert. Who reads one of them is about to read the others.

Theory of operation. An expert is some slices of as many tensors, of gate, up and down as a rule, which lie far apart in
a file whose expert tensors are fused. On disks each is a seek of its own, and an engine asks for one after the other.
But a router chooses experts and not slices: so when the first slice is missed the disks can be told of the others, and
read them in one sweep while the engine waits for the first or works on it.

What is told and not read costs disk time, so it is paid from a credit: a slice that is told costs one, a slice that is
read after one of its siblings gives GAIN back, whether or not the disks had been told of it. An engine that does not
read this way is told for little, CREDIT_MAX slices, and one that begins to is noticed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from mummufs.core.manifest import RangeTable
from mummufs.core.ranges import FileId

EXPECTED_MAX = 1024
"""Slices that are expected to be read."""
CREDIT_MAX = 64
"""Slices. A token's experts of one layer may all be asked for by their first slices before any second one is."""
GAIN = 2
"""Half of what is told has to be read."""

_PROJECTIONS = (("gate", "up", "down", "gate_up"), ("w1", "w2", "w3"))


class Siblings:
    """What is expected to be read.

    Attributes:
        told: slices that the disks were to be told of, so far.
        used: how many of them were read then.
    """

    def __init__(self) -> None:
        self.told = 0
        self.used = 0
        self._credit = CREDIT_MAX
        self._expected: OrderedDict[tuple[FileId, int], bool] = OrderedDict()

    def missed(self, file: FileId, table: RangeTable, number: int, is_missing: Callable[[int], bool]) -> list[int]:
        """A window is read from the source. The numbers of those that the disks should be told of.

        Args:
            number: the window's.
            is_missing: whether a window has to be read from the source as well.
        """
        told = self._expected.pop((file, number), None)
        if told is not None:
            self._credit = min(CREDIT_MAX, self._credit + GAIN)
            self.used += told
        wanted = []
        for sibling in siblings(table, number):
            if (file, sibling) in self._expected or not is_missing(sibling):
                continue
            self._expected[file, sibling] = self._credit > 0
            if len(self._expected) > EXPECTED_MAX:
                self._expected.popitem(last=False)
            if self._credit > 0:
                self._credit -= 1
                self.told += 1
                wanted.append(sibling)
        return wanted

    def _check(self) -> None:
        assert 0 <= self._credit <= CREDIT_MAX
        assert len(self._expected) <= EXPECTED_MAX
        assert 0 <= self.used <= self.told


def siblings(table: RangeTable, number: int) -> list[int]:
    """The other slices of the expert that a window is a slice of; none where its name does not tell, or it has none.

    A slice is called `blk.3.ffn_up_exps.weight[17]`: a tensor with the name of a projection in it, and the expert.
    """
    tensor, _, expert = table.name(number).removesuffix("]").rpartition("[")
    if not expert.isdecimal():
        return []
    found = []
    for group in _PROJECTIONS:
        at, projection = _first_word(tensor, group)
        for other in group if projection else ():
            if other != projection:
                sibling = table.slice_number(tensor[:at] + other + tensor[at + len(projection) :], int(expert))
                found += [] if sibling is None else [sibling]
    return found


def _first_word(text: str, words: tuple[str, ...]) -> tuple[int, str]:
    """Where the first of these words is in a name, and which; the longest of those that begin there, or none."""
    places = [(at, -len(word), word) for word in words if (at := _find_word(text, word)) >= 0]
    at, _, word = min(places, default=(-1, 0, ""))
    return at, word


def _find_word(text: str, word: str) -> int:
    """Where a word is that no letter or digit stands beside; -1 for nowhere."""
    at = text.find(word)
    while at >= 0:
        end = at + len(word)
        if not (text[at - 1 : at].isalnum() or text[end : end + 1].isalnum()):
            return at
        at = text.find(word, at + 1)
    return -1
