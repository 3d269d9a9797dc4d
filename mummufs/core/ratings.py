"""How hot each range is, whether it is resident or not, and who goes first.

Theory of operation. Each range that was ever touched has a `Rating`. That of a range that may be evicted is *listed*:
it stands in its pack's order. Those of absent ranges are kept as *ghosts*, so that heat outlives eviction.
Everything else (a range that is filling, going, or pinned) has a rating that stands nowhere.

A pack is named when one of its files is opened (`join`). Ranges that were rated before that, because their heat was
recalled, belong to the strangers; a range goes over to its file's pack, with its heat, when it is next touched or
listed. So no call has to walk the ranges of a file. What a scan has found and nobody touches has no rating at all: the
index has those go first, the one found last before the others.

The coldest of all are found by merging the packs' lists: O(packs) for the first, O(log packs) for each that follows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from math import inf, log2
from typing import NamedTuple

from mummufs.core.ghosts import Ghosts
from mummufs.core.hotness import COLD, log2_sum
from mummufs.core.order import Order, Place
from mummufs.core.policy import KNOWN, Pack, Policy
from mummufs.core.ranges import FileId, RangeKey

GHOSTS_MAX = 150_000
"""Absent ranges whose heat is remembered; the one touched longest ago is forgotten first. Each takes half a kilobyte:
so that memory is bounded, there are fewer by as many as have heat and are not absent,"""
GHOSTS_MIN = 100_000
"""but no fewer than this, a large model: what is not admitted at once has to be remembered until it is."""
PACKS_MAX = 64
"""Packs told apart. One more takes the place of the quietest that has nothing resident, or joins the strangers."""
SIZES_MAX = 4096
"""Sizes of ranges of which one number is shared."""
FILES_MAX = 16_384
"""Files whose pack is remembered; the one opened longest ago is forgotten first."""
STRANGERS = b""
"""The name of the pack of files whose pack is not known."""
REST = 1 / 8
DONE = 1 - REST
"""A pass is as good as over when so much of a window was read: a page that two windows share is read once for both."""
PASS_BYTES = 64 << 20
"""The small rest of a pass comes before so much was read of everything: requests run side by side, in any order."""
BEFORE = 1 << 50
"""Touches of earlier mounts are this much older than those of this one. As a date it is exact."""


class HeatRecord(NamedTuple):
    """The heat of one range, for a later mount.

    Attributes:
        heat: log2 of the heat at the time the record was made.
        seq: whose order tells which of two ranges was touched later; its value means nothing. To be recalled it is
            at most 0, so that each mount's touches come after those of all mounts before.
    """

    key: RangeKey
    heat: float
    seq: int


class PackRecord(NamedTuple):
    """A pack, for a later mount: log2 of the bytes that were read of it lately, and its files."""

    name: bytes
    activity: float
    files: tuple[FileId, ...]


class Rating(Place):
    """What is known of how a range is used.

    Attributes:
        date: as the policy has it; COLD if it was never touched.
        recent, lasting: what a policy of two memories makes the date of.
        seq: the number of its last touch.
        part: how much of its window the last pass has read; the pass is over at DONE, but for a small rest.
        read_at: the bytes that had been read of everything when its last pass began.
        again: whether that pass counts as activity of its pack: it came soon after another, or the range is well known.
    """

    __slots__ = ("again", "date", "key", "lasting", "listed", "pack", "part", "read_at", "recent", "seq")

    def __init__(self, key: RangeKey, pack: Pack) -> None:
        self.key = key
        self.pack = pack
        self.date = self.recent = self.lasting = COLD
        self.seq = 0
        self.part = 0.0
        self.read_at = -inf
        self.before = self.after = None
        self.again = False
        self.listed = False


class Ratings:
    """The ratings of all ranges. O(log n) per call, unless it says otherwise."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._strangers = self._new_pack(STRANGERS)
        self._packs = {STRANGERS: self._strangers}
        self._files: OrderedDict[FileId, Pack] = OrderedDict()
        self._ghosts = Ghosts()
        self._seq = 0
        self._sizes: dict[int, int] = {}
        self._rated = 0  # what is not absent and has a rating
        self._read_bytes = 0.0  # which takes less than an int of its size, and each rating keeps one

    @property
    def ghosts(self) -> int:
        """Absent ranges whose heat is known."""
        return len(self._ghosts)

    @property
    def touches(self) -> int:
        """Touches in this mount: the number of the last one."""
        return self._seq

    # ------------------------------------------------------------------ packs

    @property
    def packs_known(self) -> int:
        """Packs told apart, the strangers among them."""
        return len(self._packs)

    def join(self, file: FileId, name: bytes) -> None:
        """A file belongs to the pack of this name from now on, if the policy has packs."""
        if not self._policy.has_packs:
            return
        pack = self._pack(name)
        if self._files.get(file) is pack:
            self._files.move_to_end(file)
            return
        self._files.pop(file, None)
        if pack is not self._strangers:
            self._files[file] = pack
            if len(self._files) > FILES_MAX:
                self._files.popitem(last=False)

    def last_touch(self, file: FileId) -> int:
        """The number of the last touch of anything in this file's pack; 0 if nobody has read it in this mount."""
        return self._files.get(file, self._strangers).touched

    def packs(self) -> list[PackRecord]:
        """The packs that were read or have files. O(files)."""
        files: dict[bytes, list[FileId]] = {name: [] for name in self._packs}
        for file, pack in self._files.items():
            files[pack.name].append(file)
        return [
            PackRecord(name, self._policy.activity(pack), tuple(files[name]))
            for name, pack in self._packs.items()
            if files[name] or pack.activity
        ]

    def recall_pack(self, record: PackRecord) -> None:
        """A pack of an earlier mount."""
        pack = self._pack(record.name)
        self._policy.recall_activity(pack, record.activity)
        for file in record.files:
            if file not in self._files:  # else it has been opened since, and is known better
                self.join(file, record.name)

    def _new_pack(self, name: bytes) -> Pack:
        return Pack(name, Order(self._policy.steps))

    def _pack(self, name: bytes) -> Pack:
        pack = self._packs.get(name)
        if pack is not None:
            return pack
        if len(self._packs) >= PACKS_MAX:
            empty = [p for p in self._packs.values() if not p.order and p is not self._strangers]
            if not empty:
                return self._strangers
            quietest = min(empty, key=lambda p: p.activity)
            del self._packs[quietest.name]
            for file in [f for f, p in self._files.items() if p is quietest]:
                del self._files[file]
        pack = self._packs[name] = self._new_pack(name)
        return pack

    def _pack_of(self, key: RangeKey) -> Pack:
        return self._files.get(key.file, self._strangers)

    def _settle(self, rating: Rating) -> None:
        """Have a rating in its file's pack, listed there if it was listed."""
        pack = self._pack_of(rating.key)
        if rating.pack is pack:
            return
        heat, listed = self.heat(rating), rating.listed
        self.delist(rating)
        rating.pack = pack
        self._policy.recall(rating, heat)
        if listed:
            self._list(rating)

    def _list(self, rating: Rating) -> None:
        rating.pack.order.add(rating)
        rating.listed = True

    # ------------------------------------------------------------------ ratings

    def take(self, key: RangeKey) -> Rating:
        """The rating of a range that is absent no longer."""
        self._rated += 1
        rating = self._ghosts.pop(key)
        if rating is None:
            rating = self._new(key)
            self._limit_ghosts()
        return rating

    def _new(self, key: RangeKey) -> Rating:
        """One to be kept."""
        size = self._sizes.get(key.size)
        if size is None:
            if len(self._sizes) >= SIZES_MAX:
                self._sizes.clear()
            size = self._sizes[key.size] = key.size
        return Rating(key if size is key.size else RangeKey(key.file, key.offset, size), self._pack_of(key))

    def remembers(self, key: RangeKey) -> bool:
        """Whether the heat of an absent range is known."""
        return key in self._ghosts

    def leave(self, rating: Rating) -> None:
        """A range is absent again: its rating becomes a ghost."""
        self._rated -= 1
        if rating.date != COLD and self._policy.remembers:
            self._remember(rating)

    def find(self, key: RangeKey) -> Rating:
        """The rating of an absent range, to look at."""
        return self._ghosts.get(key) or Rating(key, self._pack_of(key))

    def enlist(self, rating: Rating) -> None:
        """From now on this range may be a victim."""
        self._settle(rating)
        self._list(rating)

    def delist(self, rating: Rating) -> None:
        """From now on it may not. Changes nothing for one that was not listed."""
        if rating.listed:
            rating.pack.order.remove(rating)
            rating.listed = False

    def touch(self, rating: Rating, size: int, hit: bool) -> None:
        """`size` bytes of a range were read."""
        policy, key = self._policy, rating.key
        if rating.pack is not self._files.get(key.file, self._strangers):
            self._settle(rating)
        pack, part = rating.pack, rating.part
        weight = size / key.size if size < key.size else 1.0
        if part >= DONE and (weight > REST or self._read_bytes - rating.read_at > PASS_BYTES):
            part = 0.0  # else it is the rest of the pass before
        if not part:
            soon = self._read_bytes - rating.read_at <= policy.again_bytes
            rating.again = soon or policy.heat(pack, rating.date) >= KNOWN
            rating.read_at = self._read_bytes
        self._read_bytes += size
        rating.seq = self._seq = pack.touched = self._seq + 1
        policy.touch(rating, size, weight, hit)
        part += weight
        rating.part = min(1.0, part)
        if rating.listed:
            pack.order.move(rating)

    def touch_absent(self, key: RangeKey, size: int, hit: bool) -> None:
        """The same for a range that is absent."""
        rating = self._ghosts.pop(key) or self._new(key)
        self.touch(rating, size, hit)
        self._remember(rating)

    def coldest(self) -> Iterator[Rating]:
        """The listed ratings, coldest first. Not to be gone on with after a change."""
        score = self._policy.score
        orders = [pack.order for pack in self._packs.values() if pack.order]
        if len(orders) == 1:
            return iter(orders[0])
        return merge(*orders, key=lambda r: score(r.pack, r.pack.order.date(r)))

    def admits(self, rating: Rating, victim: Rating) -> bool:
        """Whether a range may take the place of another.

        A range is asked for at the first piece of a pass, so it is compared as if the pass were over, or it would be
        declined for ever; and one that was never touched as if it had been just now.
        """
        heat = self.heat(rating)
        if heat == COLD:
            heat = 0.0
        elif 0.0 < rating.part < DONE:
            heat = log2_sum(heat, log2(1.0 - rating.part))
        return self._policy.admits(self._pack_of(rating.key), heat, victim)

    def heat(self, rating: Rating) -> float:
        """log2 of its heat now, or COLD."""
        return self._policy.heat(rating.pack, rating.date)

    # ------------------------------------------------------------------ for a later mount

    def ghost_keys(self) -> list[RangeKey]:
        """The absent ranges whose heat is known, in no order. O(n), some milliseconds."""
        return self._ghosts.keys()

    def record(self, rating: Rating) -> HeatRecord | None:
        """Its heat; None if it has none. What was recalled comes before what was touched since."""
        if rating.date == COLD:
            return None
        return HeatRecord(rating.key, self.heat(rating), rating.seq if rating.seq >= 0 else rating.seq + BEFORE)

    def recall(self, rating: Rating, record: HeatRecord) -> None:
        """Add the heat that a range had when an earlier mount ended."""
        self._settle(rating)
        heat = log2_sum(self.heat(rating), record.heat)
        rating.seq = rating.seq or record.seq - BEFORE
        self._policy.recall(rating, heat)
        if rating.listed:
            rating.pack.order.move(rating)

    def recall_absent(self, record: HeatRecord) -> None:
        """The same for a range that is absent. It is forgotten before those that were touched in this mount."""
        rating = self._ghosts.get(record.key)
        if rating is None:
            if len(self._ghosts) >= self._ghosts_max:
                return
            rating = self._new(record.key)
            self._ghosts.add_first(rating)
        self.recall(rating, record)

    def _remember(self, rating: Rating) -> None:
        self._ghosts.add(rating)
        self._limit_ghosts()

    @property
    def _ghosts_max(self) -> int:
        return max(GHOSTS_MIN, GHOSTS_MAX - self._rated)

    def _limit_ghosts(self) -> None:
        count = len(self._ghosts)
        if count > GHOSTS_MIN and count > GHOSTS_MAX - self._rated:  # by one: each call that adds a rating comes here
            self._ghosts.forget()

    def _check(self, listed: Iterable[Rating], others: Iterable[Rating]) -> None:
        """Assert every invariant, given the ratings of all ranges that are not absent. O(n log n): for tests."""
        standing = {id(rating): pack for pack in self._packs.values() for rating in pack.order}
        wanted = list(listed)
        assert len(standing) == len(wanted), "the lists have those that may be victims, and nobody else"
        for rating in wanted:
            assert rating.listed and standing[id(rating)] is rating.pack, "each stands in its own pack"
        for pack in self._packs.values():
            pack.order._check()
        unlisted = list(others)
        assert not any(r.listed or r.before or r.after for r in unlisted), "what may not be a victim is not listed"
        assert not any(ghost.listed for ghost in self._ghosts), "a ghost is not listed"
        assert all(0.0 <= r.part <= 1.0 for r in (*wanted, *islice(self._ghosts, 1000))), "a pass ends at one"
        assert all(self._packs.get(pack.name) is pack for pack in self._files.values()), "a file's pack is one of ours"
        self._ghosts._check()
        assert len(self._packs) <= PACKS_MAX, "the number of packs is bounded"
        assert len(self._files) <= FILES_MAX, "the number of files is bounded"
        assert self._rated == len(wanted) + len(unlisted), "what is not absent is counted"
        assert len(self._ghosts) <= self._ghosts_max, "the number of ghosts is bounded"
