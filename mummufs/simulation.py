"""From a trace to what other budgets and policies would have made of it: the figures behind `mummufs simulate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import TypeVar

from mummufs.core.index import HEADROOM_BYTES_MAX, HEADROOM_SHARE
from mummufs.core.policy import POLICIES
from mummufs.core.ranges import PAGE_SIZE, RangeKey
from mummufs.core.simulate import BELADY, Access, Result, cache_of, cycles, run, tally
from mummufs.core.trace import TraceError, TraceReads
from mummufs.store.layout import charge_of
from mummufs.tracefile import TraceHeader, TraceReader
from mummufs.units import format_size

READS_MAX = 5_000_000
"""Reads that are replayed: some 500 MB of memory. The rest of a longer trace is left out, and that is said."""
STEP = 4096
"""Reads between two calls of `advance`."""
SHARES = (16, 8, 4, 2, 1)
"""The budgets that are tried if none is named: what holds all ranges that were read, over these."""
NAMES = (*POLICIES, BELADY)
"""The policies, as `--policy` takes them ..."""
NAMES_DEFAULT = ("hotness", "lru", "lfu", BELADY)
"""... and those that are tried if none is named."""

Item = TypeVar("Item")
Advance = Callable[[int], None]


@dataclass
class Replayable:
    """A trace in memory.

    Attributes:
        accesses: its reads in order. Reads that are alike are one object.
        distinct_bytes: of the windows that were read.
        charged_bytes: what their range files take of a budget.
        read_bytes, hit_bytes: what was read, and what of it came from the store when it was recorded.
        dropped: reads that the mount could not record.
        is_cut: there are more reads than READS_MAX.
        fault: why the file could not be read to its end, or None.
    """

    header: TraceHeader
    accesses: list[Access] = field(default_factory=list)
    duration_ms: int = 0
    distinct_bytes: int = 0
    charged_bytes: int = 0
    read_bytes: int = 0
    hit_bytes: int = 0
    dropped: int = 0
    is_cut: bool = False
    fault: str | None = None


@dataclass(frozen=True)
class Token:
    """What is known of tokens: how many were read, of all models, and the bytes of one of the largest of them."""

    tokens: int
    token_bytes: int


@dataclass(frozen=True)
class Rates:
    """Bytes a second that the source and the store give, and seconds that the source takes to find a place."""

    source: int
    store: int
    seek_s: float = 0.0

    def seconds(self, result: Result) -> float:
        """How long the reads of a replay take, one after the other."""
        return result.miss_bytes / self.source + result.seeks * self.seek_s + result.hit_bytes / self.store


def load(path: Path, advance: Advance) -> Replayable:
    """Read a trace.

    Args:
        advance: told the bytes of the file that have been read since the last time.

    Raises:
        TraceError: there are no reads in it, or it is no trace.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        reader = TraceReader(file)
        trace = Replayable(reader.header)
        made = _Accesses(reader)
        at = 0
        for reads in reader:
            made.take(trace, reads)
            advance(file.tell() - at)
            at = file.tell()
            if trace.is_cut:
                break
        trace.fault = reader.fault
        sizes = [reader.blocks.windows[number].size for number in made.read]
        trace.distinct_bytes, trace.charged_bytes = sum(sizes), sum(map(charge_of, sizes))
    if not trace.accesses:
        raise TraceError("it has no reads" + (f": {trace.fault}" if trace.fault else ": nothing was read meanwhile"))
    return trace


class _Accesses:
    """Makes accesses of reads. One that reads less than half of a window grazes it, unless those before it add up."""

    def __init__(self, reader: TraceReader) -> None:
        self._blocks = reader.blocks
        self._made: dict[tuple[int, int, bool], Access] = {}
        self._grazed: dict[int, int] = {}
        self.read: set[int] = set()
        """The windows that were read."""

    def take(self, trace: Replayable, reads: TraceReads) -> None:
        room = READS_MAX - len(trace.accesses)
        trace.is_cut = len(reads.ms) > room
        trace.dropped += reads.dropped
        self.read.update(reads.windows[:room])
        for number, size, hit in islice(zip(reads.windows, reads.sizes, reads.hits, strict=True), room):
            trace.accesses.append(self._access(number, size))
            trace.read_bytes += size
            trace.hit_bytes += size * hit
        if reads.ms:
            trace.duration_ms = max(trace.duration_ms, reads.ms[-1])

    def _access(self, number: int, size: int) -> Access:
        window = self._blocks.windows[number]
        fills = 2 * size >= window.size
        if not fills:
            grazed = self._grazed.get(number, 0) + size
            fills = 2 * grazed >= window.size
            self._grazed[number] = 0 if fills else grazed
        if size == window.size:
            size = 0
        access = self._made.get((number, size, fills))
        if access is None:
            file = self._blocks.files[window.file]
            access = Access(RangeKey(file.file, window.offset, window.size), file.pack, size, fills)
            self._made[number, size, fills] = access
        return access


def room_of(budget_bytes: int) -> int:
    """What of a budget a mount fills with ranges: the rest is kept free."""
    return budget_bytes - min(HEADROOM_BYTES_MAX, int(HEADROOM_SHARE * budget_bytes))


def default_budgets(charged_bytes: int) -> list[int]:
    """Budgets from a sixteenth of what all that was read takes to one that holds the whole of it."""
    headroom_bytes = min(HEADROOM_BYTES_MAX, int(charged_bytes * HEADROOM_SHARE / (1 - HEADROOM_SHARE))) + PAGE_SIZE
    return sorted({max(1, (charged_bytes + headroom_bytes) // share) for share in SHARES})


def tokens_of(accesses: Sequence[Access]) -> Token | None:
    """How many tokens were read, and the bytes of one; None where nothing was read twice."""
    found = cycles(accesses).values()
    tokens = sum(cycle.cycles for cycle in found)
    return Token(tokens, max(cycle.cycle_bytes for cycle in found)) if tokens else None


def replayed(accesses: Sequence[Access], budget_bytes: int, policy: str, warmup: int, advance: Advance) -> Result:
    """One replay with the room that a mount of this budget has, where each range takes what its range file takes.

    Args:
        advance: told how many reads it has come on since the last time.
    """
    outcomes = _counted(run(cache_of(accesses, room_of(budget_bytes), policy, charge_of), accesses), advance)
    return tally(policy, budget_bytes, accesses, outcomes, warmup)


def _counted(items: Iterable[Item], advance: Advance) -> Iterator[Item]:
    count = 0
    for count, item in enumerate(items, 1):
        if count % STEP == 0:
            advance(STEP)
        yield item
    advance(count % STEP)


def notes(trace: Replayable, results: Sequence[Result], token: Token | None, policy: str) -> list[str]:
    """What there is to say besides the figures: of the trace, of budgets too small, and what more budget brings.

    Args:
        policy: whose results are spoken of.
    """
    said = []
    if trace.fault is not None:
        said.append(f"The trace is replayed up to where {trace.fault}.")
    if trace.is_cut:
        said.append(f"The trace is longer than {READS_MAX:,} reads: the rest is left out.")
    if trace.dropped:
        said.append(f"{trace.dropped:,} reads were not recorded: the mount had no place for them.")
    share = 100 * trace.hit_bytes / trace.read_bytes
    had = format_size(trace.header.budget_bytes)
    said.append(f"When it was recorded, the mount had {had} and hit {share:.0f} % of the bytes.")
    budgets = sorted({result.budget_bytes for result in results})
    if token is None:
        said.append("Nothing was read twice, so nothing is known of tokens.")
    else:
        said += [
            f"{format_size(budget)} has less room than the {format_size(token.token_bytes)} that one token reads:"
            " some of every token comes from the source."
            for budget in budgets
            if room_of(budget) < token.token_bytes
        ]
    of_policy = sorted((r for r in results if r.policy == policy), key=lambda r: r.budget_bytes)
    said += [_step(less, more) for less, more in pairwise(of_policy)]
    return said


def _step(less: Result, more: Result) -> str:
    """What going from one budget to the next brings."""
    before, after = round(100 * less.hit_ratio), round(100 * more.hit_ratio)
    sizes = _sizes(less.budget_bytes, more.budget_bytes)
    if after > before:
        return f"{sizes} lifts hits from {before} to {after} % ({more.policy})."
    return f"{sizes} brings nothing: hits stay at {before} %." if after == before else f"{sizes} loses hits."


def _sizes(less: int, more: int) -> str:
    before, after = format_size(less), format_size(more)
    return f"{before.split()[0] if before.split()[1] == after.split()[1] else before} -> {after}"
