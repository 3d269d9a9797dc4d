"""The columns of a block: what goes in comes out, and bytes that are none of ours are refused."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.ranges import FileId
from mummufs.core.trace import (
    BLOCK_READS_MAX,
    NAME_BYTES_MAX,
    BlockBuilder,
    BlockReader,
    TraceError,
    TraceFile,
    TraceReads,
    TraceWindow,
)

U64 = st.integers(0, (1 << 64) - 1)
FILES = st.lists(st.builds(TraceFile, st.builds(FileId, U64, U64), U64, st.binary(max_size=9), st.binary(max_size=9)))


@st.composite
def blocks(draw: st.DrawFn) -> list[tuple[list[TraceFile], list[TraceWindow], list[tuple[int, int, int, bool]]]]:
    """Blocks of one trace: the files and windows that each introduces, and its reads (ms, window, size, hit)."""
    made, files, windows, ms = [], 0, list[TraceWindow](), 0
    for _ in range(draw(st.integers(1, 3))):
        new_files = draw(FILES)
        files += len(new_files)
        new_windows, reads = [], []
        for _ in range(draw(st.integers(0, 5)) if files else 0):
            offset = draw(st.integers(0, (1 << 63) - 2))
            size = draw(st.integers(1, (1 << 63) - offset))
            new_windows.append(TraceWindow(draw(st.integers(0, files - 1)), offset, size))
        windows += new_windows
        for _ in range(draw(st.integers(0, 8)) if windows else 0):
            ms += draw(st.integers(0, (1 << 32) - 1))
            number = draw(st.integers(0, len(windows) - 1))
            reads.append((ms, number, draw(st.integers(1, (1 << 62))), draw(st.booleans())))
        made.append((new_files, new_windows, reads))
    return made


def payload(
    files: Sequence[TraceFile],
    windows: Sequence[TraceWindow],
    reads: Sequence[tuple[int, int, int, bool]],
    known: Sequence[TraceWindow] = (),
    dropped: int = 0,
) -> bytes:
    """A block after others, which have introduced the windows `known`."""
    builder, every = BlockBuilder(), [*known, *windows]
    for file in files:
        builder.add_file(file)
    for window in windows:
        builder.add_window(window)
    for ms, number, size, hit in reads:
        builder.add_read(ms, number, every[number].size - size, hit=hit)
    assert len(builder) == len(reads)
    return builder.to_bytes(dropped)


def as_reads(reads: Sequence[tuple[int, int, int, bool]], dropped: int) -> TraceReads:
    return TraceReads(
        [ms for ms, *_ in reads],
        [number for _, number, *_ in reads],
        [size for _, _, size, _ in reads],
        bytes(hit for *_, hit in reads),
        dropped,
    )


@given(trace=blocks(), dropped=U64)
def test_what_goes_in_comes_out(
    trace: list[tuple[list[TraceFile], list[TraceWindow], list[tuple[int, int, int, bool]]]], dropped: int
) -> None:
    reader = BlockReader()
    files, windows = list[TraceFile](), list[TraceWindow]()
    for new_files, new_windows, reads in trace:
        data = payload(new_files, new_windows, reads, windows, dropped)
        assert reader.read(data) == as_reads(reads, dropped)
        files += new_files
        windows += new_windows
        assert (reader.files, reader.windows) == (files, windows)


def one_block() -> bytes:
    return payload(
        [TraceFile(FileId(7, 9), 4096, b"d/m1", b"d/m")],
        [TraceWindow(0, 0, 4096), TraceWindow(0, 4096, 4096)],
        [(249, 0, 4096, False), (258, 1, 100, True)],
        dropped=3,
    )


def test_the_format_is_as_documented() -> None:
    """Counts, columns by planes (lowest bytes first), flags, names: the bytes written out by hand."""
    head = bytes.fromhex("01000000 02000000 02000000 07000000 f900000000000000 0300000000000000")
    files = bytes([7, *[0] * 7, 9, *[0] * 7, 0, 16, *[0] * 6, 4, 0, 0, 0, 3, 0, 0, 0])
    windows = bytes(8) + bytes([0, 0, 0, 16, *[0] * 12]) + bytes([0, 0, 16, 16, *[0] * 12])
    left = 4096 - 100
    reads = bytes([0, 9, *[0] * 6, 0, 1, *[0] * 6, 0, left & 255, 0, left >> 8, *[0] * 12, 0, 1])
    assert one_block() == head + files + windows + reads + b"d/m1d/m"


def test_bytes_are_added_to_a_read() -> None:
    builder = BlockBuilder()
    builder.add_file(TraceFile(FileId(1, 2), 3, b"", b""))
    builder.add_window(TraceWindow(0, 0, 8192))
    first = builder.add_read(5, 0, 8192 - 1000, hit=False)
    builder.add_read(5, 0, 0, hit=True)
    builder.add_bytes(first, 500)
    assert BlockReader().read(builder.to_bytes()).sizes == [1500, 8192]


def test_a_block_is_full_by_reads_or_by_names() -> None:
    builder = BlockBuilder()
    builder.add_window(TraceWindow(0, 0, 1))
    for _ in range(BLOCK_READS_MAX):
        assert not builder.is_full
        builder.add_read(0, 0, 0, hit=True)
    assert builder.is_full
    builder = BlockBuilder()
    while not builder.is_full:
        builder.add_file(TraceFile(FileId(0, 0), 0, b"n" * 2 * NAME_BYTES_MAX, b"n" * 2 * NAME_BYTES_MAX))
    assert len(builder.to_bytes()) < 2 << 20
    reader = BlockReader()
    reader.read(builder.to_bytes())
    assert {len(file.path) for file in reader.files} == {NAME_BYTES_MAX}


def test_a_long_pause_is_cut() -> None:
    reads = [(0, 0, 1, True), (1 << 40, 0, 1, True), ((1 << 40) + 5, 0, 1, True)]
    data = payload([TraceFile(FileId(0, 0), 0, b"", b"")], [TraceWindow(0, 0, 1)], reads)
    assert BlockReader().read(data).ms == [0, (1 << 32) - 1, (1 << 32) + 4]


def test_every_prefix_is_refused() -> None:
    data = one_block()
    for size in range(len(data)):
        reader = BlockReader()
        with pytest.raises(TraceError):
            reader.read(data[:size])
        assert (reader.files, reader.windows) == ([], [])
    with pytest.raises(TraceError):
        BlockReader().read(data + b"\0")


def test_every_changed_byte_is_refused_or_read_as_something_in_bounds() -> None:
    """Checksums are the file's. Here it is enough that nothing else than TraceError is raised and nothing is absurd."""
    for at in range(len(one_block())):
        for change in (1, 0x80, 0xFF):
            data = bytearray(one_block())
            data[at] ^= change
            reader = BlockReader()
            try:
                reads = reader.read(bytes(data))
            except TraceError:
                assert (reader.files, reader.windows) == ([], [])
                continue
            assert len({*map(len, reads[:4])}) == 1
            assert all(0 <= number < len(reader.windows) for number in reads.windows)
            assert all(size > 0 for size in reads.sizes)
            assert all(w.size > 0 and w.file < len(reader.files) for w in reader.windows)


@given(data=st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    """A block states its size in four counts, so bytes that agree with it by chance are next to impossible."""
    head = len(BlockBuilder().to_bytes())
    with pytest.raises(TraceError):
        BlockReader().read(data if data[:16] != bytes(16) or len(data) != head else data + b"\0")


@pytest.mark.parametrize(
    ("windows", "reads"),
    [
        ([TraceWindow(1, 0, 5)], []),
        ([TraceWindow(0, 0, 0)], []),
        ([TraceWindow(0, 1 << 62, 1 << 63)], []),
        ([TraceWindow(0, 0, 5)], [(0, 0, 0, True)]),
        ([TraceWindow(0, 0, 5)], [(0, 0, -1, True)]),
    ],
    ids=["no such file", "empty window", "beyond any file", "no bytes", "less than none"],
)
def test_what_cannot_be(windows: list[TraceWindow], reads: list[tuple[int, int, int, bool]]) -> None:
    reader = BlockReader()
    with pytest.raises(TraceError):
        reader.read(payload([TraceFile(FileId(0, 0), 9, b"", b"")], windows, reads))
    assert (reader.files, reader.windows) == ([], [])


def test_a_read_of_a_window_that_is_not_there() -> None:
    builder = BlockBuilder()
    builder.add_read(0, 0, 0, hit=True)
    with pytest.raises(TraceError):
        BlockReader().read(builder.to_bytes())


def test_a_read_takes_about_two_bytes() -> None:
    """A token's windows again and again, in order, some left out: about two bytes a read when deflated."""
    generator = random.Random(4)
    builder = BlockBuilder()
    builder.add_file(TraceFile(FileId(1, 2), 1 << 40, b"m.gguf", b""))
    for number in range(2000):
        builder.add_window(TraceWindow(0, number << 23, 1 << 23))
    number = ms = 0
    while not builder.is_full:
        number = (number + generator.randint(1, 16)) % 2000
        ms += generator.randint(0, 3)
        builder.add_read(ms, number, 0, hit=generator.random() < 0.5)
    assert len(zlib.compress(builder.to_bytes())) < 2.2 * BLOCK_READS_MAX
