"""RangeTable against a model that is too simple to be wrong."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mummufs.core.errors import ManifestError
from mummufs.core.manifest import (
    JOIN_LIMIT_BYTES,
    JOIN_UNDER_BYTES,
    NAME_BYTES_MAX,
    RANGES_MAX,
    SPLIT_OVER_BYTES,
    SPLIT_STEP_BYTES,
    Manifest,
    ManifestRange,
    RangeKind,
    RangeTable,
    Window,
)
from mummufs.core.ranges import PAGE_SIZE, ByteRange

MIB = 1 << 20

_sizes = st.one_of(
    st.integers(0, 3),
    st.integers(1, 3 * PAGE_SIZE),
    st.sampled_from([PAGE_SIZE, JOIN_UNDER_BYTES - 1, JOIN_UNDER_BYTES, JOIN_LIMIT_BYTES, SPLIT_OVER_BYTES]),
    st.integers(JOIN_UNDER_BYTES, 3 * SPLIT_STEP_BYTES + 5),
)
_gaps = st.one_of(st.just(0), st.integers(0, 64), st.integers(0, 2 * PAGE_SIZE), st.just(5 * MIB + 1))
_spans = st.lists(st.tuples(_gaps, _sizes, st.sampled_from(RangeKind)), max_size=40)


@st.composite
def _manifests(draw: st.DrawFn) -> Manifest:
    ranges, end = [], 0
    for i, (gap, size, kind) in enumerate(draw(_spans)):
        ranges.append(ManifestRange(end + gap, size, f"t{i}", kind))
        end += gap + size
    return Manifest("test", end + draw(_gaps), draw(st.permutations(ranges)))


def _covered(ranges: Sequence[ByteRange]) -> list[tuple[int, int]]:
    """The bytes of ranges in order, as runs that do not touch."""
    runs: list[tuple[int, int]] = []
    for r in ranges:
        if runs and r.offset <= runs[-1][1]:
            runs[-1] = (runs[-1][0], max(runs[-1][1], r.end))
        else:
            runs.append((r.offset, r.end))
    return runs


def _rounded(r: ManifestRange, file_size: int) -> ByteRange:
    start = r.offset // PAGE_SIZE * PAGE_SIZE
    return ByteRange(start, min(-(-(r.offset + r.size) // PAGE_SIZE) * PAGE_SIZE, file_size) - start)


@given(_manifests())
def test_windows_are_the_pages_of_the_ranges(manifest: Manifest) -> None:
    """Exactly those: a gap that is joined is under a page, so no page lies wholly in it."""
    table = RangeTable.from_manifest(manifest)
    table._check()
    pages = _covered([_rounded(r, manifest.file_size) for r in sorted(manifest.ranges) if r.size])
    assert _covered([w.range for w in table]) == pages


@given(_manifests())
def test_spans_hold_every_range(manifest: Manifest) -> None:
    """Each range lies in the spans, in order, of windows next to each other; only long ones lie in several."""
    windows = list(RangeTable.from_manifest(manifest))
    for r in manifest.ranges:
        if r.size == 0:
            continue
        holders = [w for w in windows if w.span_offset < r.offset + r.size and r.offset < w.span_offset + w.span_size]
        assert holders[0].span_offset <= r.offset
        assert holders[-1].span_offset + holders[-1].span_size >= r.offset + r.size
        if r.size <= SPLIT_OVER_BYTES:
            assert any(w.span_offset <= r.offset and r.offset + r.size <= w.span_offset + w.span_size for w in holders)


@given(_manifests(), st.data())
def test_overlapping_is_a_scan_of_all_windows(manifest: Manifest, data: st.DataObject) -> None:
    table = RangeTable.from_manifest(manifest)
    edges = sorted({0, manifest.file_size, *table.starts, *table.ends})
    for _ in range(20):
        offset = max(0, data.draw(st.sampled_from(edges)) + data.draw(st.integers(-2, 2)))
        size = data.draw(st.one_of(st.integers(-1, 3), st.integers(0, 2 * MIB), st.just(1 << 62)))
        expected = [i for i, w in enumerate(table) if size > 0 and w.offset < offset + size and offset < w.range.end]
        assert list(table.overlapping(offset, size)) == expected


@given(_manifests())
def test_bytes_round_trip(manifest: Manifest) -> None:
    table = RangeTable.from_manifest(manifest)
    data = table.to_bytes()
    back = RangeTable.from_bytes(data)
    assert (back.format, back.file_size, list(back)) == (table.format, table.file_size, list(table))
    assert back.to_bytes() == data
    back._check()


@given(_manifests(), st.data())
def test_from_bytes_refuses_what_has_not_the_shape(manifest: Manifest, data: st.DataObject) -> None:
    whole = RangeTable.from_manifest(manifest).to_bytes()
    with pytest.raises(ManifestError):
        RangeTable.from_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ManifestError):
        RangeTable.from_bytes(whole + data.draw(st.binary(min_size=1, max_size=50)))
    at = data.draw(st.integers(0, 15))
    with pytest.raises(ManifestError):  # magic, version, length of the format's name
        RangeTable.from_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])


@given(st.binary(max_size=200))
def test_from_bytes_refuses_garbage(garbage: bytes) -> None:
    with pytest.raises(ManifestError):
        RangeTable.from_bytes(garbage)
    with pytest.raises(ManifestError):
        RangeTable.from_bytes(b"MUMMUTBL" + b"\x01\0\0\0" + b"\xff" * 28 + garbage)


@given(_manifests())
def test_order_does_not_matter(manifest: Manifest) -> None:
    in_order = Manifest("test", manifest.file_size, tuple(sorted(manifest.ranges)))
    assert RangeTable.from_manifest(in_order).to_bytes() == RangeTable.from_manifest(manifest).to_bytes()
    assert manifest.validated().ranges == tuple(r for r in in_order.ranges if r.size)


def _table(*ranges: tuple[int, int] | tuple[int, int, RangeKind], file_size: int = 1 << 30) -> list[Window]:
    named = [ManifestRange(r[0], r[1], chr(ord("a") + i), *r[2:]) for i, r in enumerate(ranges)]
    table = RangeTable.from_manifest(Manifest("test", file_size, named))
    table._check()
    return list(table)


def test_a_window_is_rounded_out_to_pages_and_ends_at_end_of_file() -> None:
    assert [w.range for w in _table((5000, 70_000), file_size=76_000)] == [ByteRange(4096, 71_904)]
    assert [w.range for w in _table((5000, 70_000), file_size=1 << 20)] == [ByteRange(4096, 73_728)]


def test_small_neighbours_are_joined_up_to_the_limit() -> None:
    small = JOIN_UNDER_BYTES - 64
    windows = _table(*((i * small, small) for i in range(20)))
    assert [w.span_size // small for w in windows] == [JOIN_LIMIT_BYTES // small, 20 - JOIN_LIMIT_BYTES // small]
    assert windows[0].name == "a .. p (16)"


def test_what_is_not_joined() -> None:
    small, big = 1000, JOIN_UNDER_BYTES
    assert len(_table((0, small), (small + PAGE_SIZE - 1, small))) == 1
    assert len(_table((0, small), (small + PAGE_SIZE, small))) == 2
    assert [w.name for w in _table((0, big), (big, big))] == ["a", "b"]
    header = _table((0, 5000, RangeKind.HEADER), (5000, 5000))
    assert [(w.name, w.kind) for w in header] == [("a", RangeKind.HEADER), ("b", RangeKind.DENSE)]


def test_joined_kinds() -> None:
    assert _table((0, 9, RangeKind.EXPERT), (9, 9, RangeKind.EXPERT))[0].kind == RangeKind.EXPERT
    assert _table((0, 9, RangeKind.EXPERT), (9, 9))[0].kind == RangeKind.DENSE


def test_large_ranges_are_split_from_their_own_start() -> None:
    size = 2 * SPLIT_STEP_BYTES + PAGE_SIZE
    assert [(w.name, w.span_offset, w.span_size) for w in _table((100, size))] == [
        ("a [1/3]", 100, SPLIT_STEP_BYTES),
        ("a [2/3]", 100 + SPLIT_STEP_BYTES, SPLIT_STEP_BYTES),
        ("a [3/3]", 100 + 2 * SPLIT_STEP_BYTES, PAGE_SIZE),
    ]
    assert [w.name for w in _table((0, SPLIT_OVER_BYTES))] == ["a"]


def test_a_last_part_on_the_page_of_the_part_before_is_given_up_to_it() -> None:
    windows = _table((100, 2 * SPLIT_STEP_BYTES + 1))
    assert [(w.name, w.span_offset, w.span_size) for w in windows] == [
        ("a [1/3]", 100, SPLIT_STEP_BYTES),
        ("a [2/3]", 100 + SPLIT_STEP_BYTES, SPLIT_STEP_BYTES + 1),
    ]


def test_a_window_inside_its_neighbour_is_given_up_to_it() -> None:
    """A norm of some bytes between two tensors on the same page."""
    big = 2 * JOIN_UNDER_BYTES
    windows = _table((0, big + 100), (big + 100, 50), (big + 150, big))
    assert [(w.name, w.span_offset, w.span_size) for w in windows] == [("a", 0, big + 150), ("c", big + 150, big)]


@pytest.mark.parametrize(
    ("ranges", "part"),
    [
        ([(0, 11)], "outside"),
        ([(-1, 2)], "outside"),
        ([(11, 1)], "outside"),
        ([(0, -1)], "outside"),
        ([(0, 5), (4, 2)], "overlap"),
        ([(4, 2), (0, 5)], "overlap"),
        ([(3, 1), (3, 1)], "overlap"),
    ],
)
def test_impossible_ranges_are_refused(ranges: list[tuple[int, int]], part: str) -> None:
    manifest = Manifest("test", 10, tuple(ManifestRange(*r, "x") for r in ranges))
    with pytest.raises(ManifestError, match=part):
        RangeTable.from_manifest(manifest)
    with pytest.raises(ManifestError, match=part):
        manifest.validated()


class _Many(Sequence[ManifestRange]):
    """As many one-page ranges as are asked for, made when they are looked at."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> ManifestRange:  # type: ignore[override]
        if not 0 <= i < self._count:
            raise IndexError(i)
        return ManifestRange(i * PAGE_SIZE, PAGE_SIZE, "x")


def test_absurdly_many_ranges_or_windows_are_refused() -> None:
    with pytest.raises(ManifestError, match=f"limit of {RANGES_MAX}"):
        RangeTable.from_manifest(Manifest("test", 1 << 62, _Many(RANGES_MAX + 1)))
    with pytest.raises(ManifestError, match="windows"):
        RangeTable.from_manifest(Manifest("test", 1 << 62, (ManifestRange(0, 1 << 61, "x"),)))


def test_a_long_name_is_cut() -> None:
    (window,) = RangeTable.from_manifest(Manifest("test", 10, (ManifestRange(0, 10, "\N{SNOWMAN}" * 1000),)))
    assert window.name.rstrip("\N{REPLACEMENT CHARACTER}") == "\N{SNOWMAN}" * (NAME_BYTES_MAX // 3)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 3))
def test_an_empty_manifest_has_no_windows(empty_ranges: int) -> None:
    table = RangeTable.from_manifest(Manifest("test", 0, tuple(ManifestRange(0, 0, "x") for _ in range(empty_ranges))))
    assert len(table) == 0
    assert list(table.overlapping(0, 100)) == []
    assert list(RangeTable.from_bytes(table.to_bytes())) == []
