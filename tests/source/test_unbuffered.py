"""Planned reads, over a device that insists on what NTFS insists on, and over O_DIRECT."""

from __future__ import annotations

import ctypes
import errno
import mmap
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mummufs.core.ranges import PAGE_SIZE
from mummufs.core.unbuffered import GRAIN_BYTES, REQUEST_BYTES_MAX
from mummufs.source.base import Wanted
from mummufs.source.direct import DirectFile, DirectTreeSource
from mummufs.source.unbuffered import Buffers, Device, Request, read_planned

MIB = 1 << 20
DATA = random.Random(7).randbytes(3 * MIB + 12345)


class Strict:
    """A device in memory. Attributes: batches: of each call the offsets and sizes asked for."""

    def __init__(self, data: bytes = DATA) -> None:
        self.data = data
        self.batches: list[list[tuple[int, int]]] = []
        self.fails = False

    def read_at_once(self, requests: Sequence[Request]) -> list[int]:
        self.batches.append([(r.offset, len(r.buffer)) for r in requests])
        got = []
        for offset, buffer in requests:
            address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
            assert not (offset % PAGE_SIZE or len(buffer) % GRAIN_BYTES or address % PAGE_SIZE)
            part = self.data[offset : offset + len(buffer)]
            buffer[: len(part)] = part
            got.append(len(part))
        if self.fails:
            raise OSError(errno.EIO, "for the test")
        return got


@pytest.fixture(params=["strict", "direct"])
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Device]:
    if request.param == "strict":
        yield Strict()
        return
    path = tmp_path / "file"
    path.write_bytes(DATA)
    with path.open("rb") as file:
        try:
            direct = DirectFile(file.fileno())
        except OSError:
            pytest.skip("this file system has no O_DIRECT")
        yield direct
        direct.close()


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        *((0, 1), (0, 4096), (4095, 2), (0, len(DATA)), (17, 70_000), (len(DATA) - 3, 3), (len(DATA) - 3, 100)),
        *((len(DATA), 5), (len(DATA) + 10 * MIB, 5), (MIB, 0), (4096, 2 * GRAIN_BYTES)),
    ],
)
def test_one_read_of_any_offset_and_size(device: Device, offset: int, size: int) -> None:
    place = bytearray(b"\xaa" * size)
    (got,) = read_planned(device, [Wanted(offset, memoryview(place))])
    expected = DATA[offset : offset + size]
    assert got == len(expected) and place[:got] == expected
    assert place[got:] == b"\xaa" * (size - got), "what is not there is left as it was"


def test_many_reads_at_once(device: Device) -> None:
    rng = random.Random(3)
    for _ in range(30):
        spans = [(rng.randrange(len(DATA)), rng.randrange(200_000)) for _ in range(rng.randrange(1, 9))]
        wanted = [Wanted(offset, memoryview(bytearray(size))) for offset, size in spans]
        got = read_planned(device, wanted)
        for (offset, size), part, n in zip(spans, wanted, got, strict=True):
            assert part.place[:n] == DATA[offset : offset + size]


def test_what_is_aligned_is_read_into_its_place() -> None:
    device, place = Strict(), memoryview(mmap.mmap(-1, 2 * GRAIN_BYTES))
    asked: list[memoryview] = []
    read = device.read_at_once
    device.read_at_once = lambda requests: [asked.extend(r.buffer for r in requests), read(requests)][1]  # type: ignore
    read_planned(device, [Wanted(4096, place)])
    (buffer,) = asked
    assert address(buffer) == address(place) and place == DATA[4096 : 4096 + 2 * GRAIN_BYTES]


def address(place: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(place))


@pytest.mark.parametrize("beyond", [PAGE_SIZE, GRAIN_BYTES - 1, 1])
def test_a_large_place_is_read_into_up_to_its_last_grain(beyond: int) -> None:
    device, place = Strict(), memoryview(mmap.mmap(-1, 2 * MIB + beyond))
    assert read_planned(device, [Wanted(8192, place)]) == [len(place)]
    assert place == DATA[8192 : 8192 + len(place)]
    assert device.batches == [[(8192, 2 * MIB), (8192 + 2 * MIB, GRAIN_BYTES)]]


def test_who_wants_the_same_bytes_gets_them_from_the_others_place() -> None:
    device = Strict()
    large, small = memoryview(mmap.mmap(-1, 2 * MIB)), memoryview(bytearray(10_000))
    assert read_planned(device, [Wanted(MIB - 5000, small), Wanted(0, large)]) == [10_000, 2 * MIB]
    assert large == DATA[: 2 * MIB] and small == DATA[MIB - 5000 : MIB + 5000]
    assert device.batches == [[(0, 2 * MIB)]]


def test_neighbours_are_one_request_and_others_are_in_flight_together() -> None:
    device = Strict(bytes(8 * MIB))
    spans = [(0, 4096), (64 << 10, 4096), (4 * MIB, 100), (7 * MIB, 100)]
    read_planned(device, [Wanted(offset, memoryview(bytearray(size))) for offset, size in spans])
    assert device.batches == [[(0, 2 * GRAIN_BYTES), (4 * MIB, GRAIN_BYTES), (7 * MIB, GRAIN_BYTES)]]


def test_more_than_a_request_holds() -> None:
    data = random.Random(9).randbytes(REQUEST_BYTES_MAX + MIB)
    device, place = Strict(data), bytearray(len(data) - 100)
    assert read_planned(device, [Wanted(50, memoryview(place))]) == [len(place)]
    assert place == data[50:-50]
    assert device.batches == [[(0, REQUEST_BYTES_MAX), (REQUEST_BYTES_MAX, MIB)]]


def test_buffers_are_lent_to_one_at_a_time_and_kept_within_a_limit() -> None:
    buffers = Buffers(5 * MIB)
    one, two, large = buffers.borrow(MIB - 5), buffers.borrow(MIB), buffers.borrow(3 * MIB)
    assert one is not two and (len(one), len(two), len(large)) == (MIB, MIB, 4 * MIB)
    buffers.give_back(large)
    buffers.give_back(one)
    buffers.give_back(two)
    assert buffers.kept_bytes == 5 * MIB, "one is too many"
    assert buffers.borrow(MIB) is one, "the smallest that will do"
    assert buffers.borrow(MIB) is large
    assert buffers.kept_bytes == 0


def test_a_buffer_is_not_shared_by_two_requests() -> None:
    device = Strict()
    size = MIB
    wanted = [Wanted(1, memoryview(bytearray(1000))), Wanted(size + MIB + 1, memoryview(bytearray(1000)))]
    read_planned(device, wanted)
    assert [bytes(part.place) for part in wanted] == [DATA[part.offset : part.offset + 1000] for part in wanted]


def test_a_failure_is_the_callers() -> None:
    device = Strict()
    device.fails = True
    with pytest.raises(OSError, match="for the test"):
        read_planned(device, [Wanted(0, memoryview(bytearray(10)))])


def test_a_closed_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    with (tmp_path / "file").open("rb") as file:
        direct = DirectFile(file.fileno())
    direct.close()
    direct.close()
    with pytest.raises(OSError) as caught:
        read_planned(direct, [Wanted(0, memoryview(bytearray(10)))])
    assert caught.value.errno == errno.EBADF


@pytest.mark.parametrize("direct", [True, False])
def test_a_tree_past_the_page_cache_where_there_is_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    (tmp_path / "file").write_bytes(DATA)
    if not direct:

        def refuse(_fd: int) -> DirectFile:
            raise OSError(errno.EINVAL, "for the test")

        monkeypatch.setattr("mummufs.source.direct.DirectFile", refuse)
    source = DirectTreeSource(tmp_path)
    file = source.open(b"file")
    places = [memoryview(bytearray(300)), memoryview(bytearray(70_000))]
    assert file.reads_at_once is direct
    assert file.read_many([Wanted(5, places[0]), Wanted(2 * MIB + 1, places[1])]) == [300, 70_000]
    assert file.read_into(places[0], len(DATA) - 7) == 7 and places[0][:7] == DATA[-7:]
    assert places[1] == DATA[2 * MIB + 1 : 2 * MIB + 70_001]
    file.close()
    source.close()
