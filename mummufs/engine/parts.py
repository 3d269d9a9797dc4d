"""Where the bytes of a read come from: its segments become parts, and the flights that they call for begin.

- HIT: from the range file.
- MISS with a flight: from the flight that brings the window.
- everything else: from the source, neighbouring segments in one part. A window that such a part covers whole is given
  to a flight afterwards, so that it costs the source nothing more.

A source that has several reads under way together is asked otherwise, since there it is the number of requests that
costs: all windows that the read makes wanted are offered together, those that it covers among them, and begin as
flights that are read in one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mummufs.core.grazes import Grazes
from mummufs.core.plan import ReadPlan, Segment, SegmentKind, is_wanted
from mummufs.core.ranges import ByteRange, RangeKey
from mummufs.engine.cache import Cache
from mummufs.engine.flight import Flight
from mummufs.engine.hinting import Ask, asked_by_flight, asked_when_declined
from mummufs.source.base import SourceFile


@dataclass
class Part:
    """A run of the buffer and where it comes from: a range file, a flight, or (neither) the source.

    Attributes:
        wanted: the window of which a flight is to begin, together with others of the read.
        gifts: flights that get the bytes which are read for this part.
        asks: what the source reads because of it, as far as this read has begun it.
        hints: what a source of disks is told before the part is read from it.
    """

    offset: int
    end: int
    segments: list[Segment]
    hit: RangeKey | None = None
    flight: Flight | None = None
    wanted: RangeKey | None = None
    gifts: list[Flight] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    hints: Sequence[ByteRange] = ()

    @property
    def is_of_source(self) -> bool:
        """Whether it is read from the source, as far as is known by now."""
        return self.hit is None and self.flight is None and self.wanted is None


class Placing:
    """Places the segments of reads, and remembers how much of which missing window has been read."""

    def __init__(self) -> None:
        self.grazes = Grazes()

    def parts(self, cache: Cache, plan: ReadPlan, file: SourceFile) -> list[Part]:
        """Decide where each segment's bytes come from, start the flights, and count the touches."""
        parts: list[Part] = []
        request = ByteRange(plan.offset, plan.size)
        for segment in plan.segments:
            part = Part(segment.offset, segment.end, [segment])
            if segment.kind is not SegmentKind.BYPASS:
                key = plan.key(segment)
                cache.index.touch(key, segment.size, hit=segment.kind is SegmentKind.HIT)
                if cache.tracing.on:
                    cache.tracing.touched(key, segment.size, hit=segment.kind is SegmentKind.HIT)
                if cache.prefetch is not None:
                    cache.prefetch.touched(plan, segment, file)
                if segment.kind is SegmentKind.HIT:
                    part.hit = key
                else:
                    self._place_miss(cache, plan, part, key, request, file)
            last = parts[-1] if parts else None
            if last is not None and last.is_of_source and part.is_of_source:
                last.end = part.end
                last.segments += part.segments
                last.gifts += part.gifts
                last.asks += part.asks
            else:
                parts.append(part)
        if file.reads_at_once:
            self._offer_together(cache, plan, parts, request, file)
        elif plan.table is not None:
            _tell(cache, plan, parts, file)
        return parts

    def _place_miss(
        self, cache: Cache, plan: ReadPlan, part: Part, key: RangeKey, request: ByteRange, file: SourceFile
    ) -> None:
        """Join the flight for a missing window, or start one if this read makes it wanted."""
        part.flight = cache.filler.flight(key, plan.version)
        if part.flight is not None:
            return
        window = ByteRange(key.offset, key.size)
        seen = window.intersection(request)
        distinct = self.grazes.add(key, seen.offset, seen.end)
        if not is_wanted(window, request, distinct):
            part.asks.append(Ask(seen, seen))
            return
        if file.reads_at_once:
            part.wanted = key
            return
        covered = request.contains(window)
        first = ByteRange(part.offset, part.end - part.offset)
        flight = cache.filler.offer_nowait(key, plan.version, file, first, reads=not covered)
        if flight is None:
            part.asks.append(asked_when_declined(window, first))
            return
        part.asks.append(asked_by_flight(window, first))
        self.grazes.forget(key)
        if covered:
            part.gifts.append(flight)
        else:
            part.flight = flight

    def _offer_together(
        self, cache: Cache, plan: ReadPlan, parts: list[Part], request: ByteRange, file: SourceFile
    ) -> None:
        """Start the flights for what this read makes wanted. What gets none is read from the source."""
        wanted = {part.wanted: None for part in parts if part.wanted is not None}
        if not wanted:
            return
        cache.filler.offer_together_nowait(list(wanted), plan.version, file, request)
        for part in parts:
            if part.wanted is not None:
                key, part.wanted = part.wanted, None
                part.flight = cache.filler.flight(key, plan.version)
                if part.flight is not None:
                    self.grazes.forget(key)


def _tell(cache: Cache, plan: ReadPlan, parts: Sequence[Part], file: SourceFile) -> None:
    """Have disks told of all that this read has them read, whichever part of it is read first."""
    hinter = cache.filler.hinter
    if hinter is None:
        return
    asking = [part for part in parts if part.asks]
    asks = [ask for part in asking for ask in part.asks]
    hints = hinter.hints_nowait(plan, file, asks)
    if hints == [ByteRange(part.offset, part.end - part.offset) for part in asking if part.flight is None]:
        return  # to read it tells as much
    for part in asking:
        part.hints = hints
        if part.flight is not None:
            part.flight.hints = hints
