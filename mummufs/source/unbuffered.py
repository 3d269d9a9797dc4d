"""Reads of an open file past the file cache: carries out what `core.unbuffered` plans.

Whatever is asked for, of any offset and size, is read by aligned requests, a batch of them in flight at once. Where all
of a request is wanted by one, and the place for it begins on a page, it is read into its place; else beside it, and
what is wanted is copied.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from mummufs.core.ranges import PAGE_SIZE, ByteRange
from mummufs.core.unbuffered import GRAIN_BYTES, batches, plan_requests
from mummufs.source.base import Wanted

IN_PLACE_BYTES_MIN = 1 << 20
"""Copying more than this costs more than a small request."""
KEPT_BYTES_MAX = 64 << 20
"""Buffers that are kept for the next batch, all together: taking memory anew costs as much as reading into it."""


class Request(NamedTuple):
    """An aligned read: its offset, and where its bytes go. The buffer begins on a page."""

    offset: int
    buffer: memoryview


class Device(Protocol):
    """An open file that can be read past the cache."""

    def read_at_once(self, requests: Sequence[Request]) -> list[int]:
        """Read all of these, none of them waiting for another; the bytes that each has got, short only at end of file.

        Raises:
            OSError: one of them has failed. None is under way any more.
        """
        ...


def read_planned(device: Device, wanted: Sequence[Wanted]) -> list[int]:
    """Fill these places; the bytes that each has got, short only at end of file.

    Raises:
        OSError: a read failed; what the places hold then is not defined.
    """
    got = [0] * len(wanted)
    for batch in batches(plan_requests(part.range for part in wanted)):
        borrowed: list[mmap.mmap] = []
        reads = [read for request in batch for read in _reads(request, wanted, borrowed)]
        sizes = device.read_at_once([read.request for read in reads])
        for read, size in zip(reads, sizes, strict=True):
            _deal_out(read, size, wanted, got)
        for buffer in borrowed:  # after a failure they are left to be collected
            _buffers.give_back(buffer)
    return got


class _Read(NamedTuple):
    """A request, and whose place it is read into; None where it is read beside."""

    request: Request
    part: Wanted | None


def _reads(request: ByteRange, wanted: Sequence[Wanted], borrowed: list[mmap.mmap]) -> Iterator[_Read]:
    """How a request is carried out: into the place of whoever wants all of it, else beside it.

    A place that ends within the last grain is read into up to there, and the rest beside it, by one request more: from
    IN_PLACE_BYTES_MIN on that costs less than copying.
    """
    for part in wanted:
        start, left = request.offset - part.offset, part.range.end - request.offset
        size = min(request.size, left // GRAIN_BYTES * GRAIN_BYTES)
        is_whole = size == request.size or (size >= IN_PLACE_BYTES_MIN and size + GRAIN_BYTES == request.size)
        if start >= 0 and is_whole and _address(part.place[start:]) % PAGE_SIZE == 0:
            yield _Read(Request(request.offset, part.place[start : start + size]), part)
            if size < request.size:
                yield _beside(request.offset + size, request.size - size, borrowed)
            return
    yield _beside(request.offset, request.size, borrowed)


def _beside(offset: int, size: int, borrowed: list[mmap.mmap]) -> _Read:
    borrowed.append(_buffers.borrow(size))
    return _Read(Request(offset, memoryview(borrowed[-1])[:size]), None)


class Buffers:
    """Memory that begins on a page, kept for whoever needs some next. For threads."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._kept: list[mmap.mmap] = []
        self.kept_bytes = 0

    def borrow(self, size: int) -> mmap.mmap:
        """At least so much, holding whatever it may; nobody else's until it is given back."""
        with self._lock:
            fits = [i for i, buffer in enumerate(self._kept) if len(buffer) >= size]
            if fits:
                found = self._kept.pop(min(fits, key=lambda i: len(self._kept[i])))
                self.kept_bytes -= len(found)
                return found
        return mmap.mmap(-1, 1 << max(1, size - 1).bit_length())

    def give_back(self, buffer: mmap.mmap) -> None:
        """It is needed no more."""
        with self._lock:
            if self.kept_bytes + len(buffer) <= self._bytes_max:
                self._kept.append(buffer)
                self.kept_bytes += len(buffer)


_buffers = Buffers()


def _address(place: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(place)) if len(place) and not place.readonly else 1


def _deal_out(read: _Read, size: int, wanted: Sequence[Wanted], got: list[int]) -> None:
    """Copy what a request has brought to where it is wanted."""
    offset, buffer = read.request
    has = ByteRange(offset, size)
    for i, part in enumerate(wanted):
        seen = has.intersection(part.range)
        if not seen.size:
            continue
        got[i] += seen.size
        if part is not read.part:
            at, start = seen.offset - part.offset, seen.offset - offset
            part.place[at : at + seen.size] = buffer[start : start + seen.size]
