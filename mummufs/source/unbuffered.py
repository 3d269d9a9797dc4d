"""Reads of an open file past the file cache: carries out what `core.unbuffered` plans.

Whatever is asked for, of any offset and size, is read by aligned requests, a batch of them in flight at once. Where a
request is just what is wanted, and the place for it begins on a page, it is read into its place; else beside it, and
what is wanted is copied.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from mummufs.core.ranges import PAGE_SIZE, ByteRange
from mummufs.core.unbuffered import GRAIN_BYTES, batches, plan_requests
from mummufs.source.base import Wanted

KEPT_BYTES = (4 << 20) + GRAIN_BYTES
"""A buffer of this size is kept by each thread that reads: making one costs as much as reading it."""

_of_thread = threading.local()


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
        requests = [Request(request.offset, _buffer(request, wanted, alone=len(batch) == 1)) for request in batch]
        for request, size in zip(requests, device.read_at_once(requests), strict=True):
            _deal_out(request, size, wanted, got)
    return got


def _buffer(request: ByteRange, wanted: Sequence[Wanted], *, alone: bool) -> memoryview:
    """Where to read a request to: the place itself where that is what is wanted."""
    for part in wanted:
        if part.range == request and _address(part.place) % PAGE_SIZE == 0:
            return part.place
    if not alone or request.size > KEPT_BYTES:
        return memoryview(mmap.mmap(-1, request.size))
    kept: memoryview | None = getattr(_of_thread, "buffer", None)
    if kept is None:
        kept = _of_thread.buffer = memoryview(mmap.mmap(-1, KEPT_BYTES))
    return kept[: request.size]


def _address(place: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(place)) if len(place) and not place.readonly else 1


def _deal_out(request: Request, size: int, wanted: Sequence[Wanted], got: list[int]) -> None:
    """Copy what a request has brought to where it is wanted."""
    has = ByteRange(request.offset, size)
    for i, part in enumerate(wanted):
        seen = has.intersection(part.range)
        if not seen.size:
            continue
        got[i] += seen.size
        if request.buffer is not part.place:
            at, start = seen.offset - part.offset, seen.offset - request.offset
            part.place[at : at + seen.size] = request.buffer[start : start + seen.size]
