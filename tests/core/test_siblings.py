"""The other slices of an expert: which they are, and when the disks are told of them."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.core import manifest
from mummufs.core.manifest import Manifest, ManifestRange, RangeKind, RangeTable
from mummufs.core.ranges import FileId
from mummufs.core.siblings import CREDIT_MAX, EXPECTED_MAX, Siblings, siblings

FILE = FileId(1, 1)
SLICE = 1 << 20
EXPERTS = 40


def _constant(value: bool, _: int) -> bool:
    return value


def table(*tensors: str, experts: int = EXPERTS, size: int = SLICE) -> RangeTable:
    names = [f"{tensor}[{i}]" for tensor in tensors for i in range(experts)]
    ranges = [ManifestRange(i * size, size, name, RangeKind.EXPERT) for i, name in enumerate(names)]
    return RangeTable.from_manifest(Manifest("test", len(names) * size, ranges))


LAYER = table("blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight")
GATE, UP, DOWN = 0, EXPERTS, 2 * EXPERTS


@pytest.mark.parametrize(
    ("names", "projections"),
    [
        (("blk.0.ffn_{}_exps.weight", "blk.1.ffn_{}_exps.weight"), ("gate", "up", "down")),
        (("model.layers.0.mlp.experts.{}_proj",), ("gate_up", "down")),
        (("layers.0.experts.{}", "layers.1.experts.{}"), ("w1", "w2", "w3")),
    ],
)
def test_they_are_the_slices_of_the_same_expert_in_the_same_layer(
    names: tuple[str, ...], projections: tuple[str, ...]
) -> None:
    found = table(*(name.format(p) for name in names for p in projections))
    count = len(projections)
    for number in range(len(found)):
        tensor, expert = divmod(number, EXPERTS)
        first = tensor - tensor % count
        others = [other * EXPERTS + expert for other in range(first, first + count) if other != tensor]
        assert sorted(siblings(found, number)) == others


@pytest.mark.parametrize(
    "name",
    ["blk.0.ffn_gate_exps.weight", "expert 3", "token_upper[3]", "backup[0]", "layer3.expert7.gate", "gates[1]", "[1]"],
)
def test_other_names_have_none(name: str) -> None:
    ranges = [
        ManifestRange(0, SLICE, name),
        ManifestRange(SLICE, SLICE, "token_downer[3]"),
        ManifestRange(2 * SLICE, SLICE, "layer3.expert7.up"),
    ]
    assert siblings(RangeTable.from_manifest(Manifest("test", 3 * SLICE, ranges)), 0) == []


def test_slices_that_are_no_windows_of_their_own_are_left_out() -> None:
    """Joined, because they are small, or split, because they are large."""
    for size in (1 << 10, manifest.SPLIT_OVER_BYTES + (1 << 20)):
        found = table("a.gate", "a.up", experts=4, size=size)
        assert not any(siblings(found, number) for number in range(len(found)))


def test_a_name_within_another_is_not_taken_for_it() -> None:
    found = table("xa.up", "a.gate", "a.upper", "a.up")
    assert siblings(found, EXPERTS + 3) == [3 * EXPERTS + 3]


def test_many_names_that_only_look_like_it_are_not_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "FINDS_MAX", 3)
    decoys = [f"{'x' * i}a.up" for i in range(1, 5)]
    assert siblings(table(*decoys, "a.gate", "a.up"), len(decoys) * EXPERTS) == []


def test_the_first_slices_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "FIRSTS_MAX", 2)
    found = table(*(f"blk.{i}.{p}" for i in range(4) for p in ("gate", "up")))
    for number in (*range(0, len(found), EXPERTS), 0):
        assert len(siblings(found, number)) == 1
        assert len(found._firsts) <= 2


def test_when_the_first_slice_is_missed_the_disks_are_told_of_the_others_once() -> None:
    told = Siblings()
    assert told.missed(FILE, LAYER, GATE + 3, lambda _: True) == [UP + 3, DOWN + 3]
    assert told.missed(FILE, LAYER, UP + 3, lambda number: number == DOWN + 3) == []
    assert told.missed(FILE, LAYER, DOWN + 3, lambda _: False) == []
    assert (told.told, told.used) == (2, 2)


def test_what_is_in_the_store_is_not_told() -> None:
    assert Siblings().missed(FILE, LAYER, GATE + 3, lambda number: number == DOWN + 3) == [DOWN + 3]


def test_an_engine_that_does_not_read_them_has_them_told_for_a_bounded_number_of_times() -> None:
    told = Siblings()
    for layer in range(3):  # of as many files
        for expert in range(EXPERTS):
            told.missed(FileId(1, layer), LAYER, GATE + expert, lambda _: True)
            told._check()
    assert told.told == CREDIT_MAX


def test_one_that_begins_to_is_noticed() -> None:
    told = Siblings()
    for layer in range(3):
        for expert in range(EXPERTS):
            told.missed(FileId(1, layer), LAYER, GATE + expert, lambda _: True)
    late = FileId(1, 2)
    assert told.missed(late, LAYER, UP + 7, lambda number: number >= DOWN) == [], "it is expected, and paid for now"
    assert told.used == 0, "the disks had not been told of it"
    assert told.missed(FileId(1, 9), LAYER, GATE + 7, lambda _: True) == [UP + 7, DOWN + 7]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3 * EXPERTS - 1), st.booleans()), max_size=400))
def test_it_costs_no_more_than_twice_what_is_used_and_the_credit(reads: list[tuple[int, int, bool]]) -> None:
    told, noticed = Siblings(), 0
    expected: set[tuple[int, int]] = set()
    for inode, number, missing in reads:
        noticed += (inode, number) in expected
        expected.discard((inode, number))
        found = told.missed(FileId(1, inode), LAYER, number, partial(_constant, missing))
        expected |= {(inode, i) for i in siblings(LAYER, number)} if missing else set()
        told._check()
        assert all(i % EXPERTS == number % EXPERTS and i != number for i in found)
    assert told.told <= CREDIT_MAX + 2 * noticed


def test_what_is_expected_is_bounded() -> None:
    told = Siblings()
    for inode in range(EXPECTED_MAX):
        told.missed(FileId(1, inode), LAYER, 0, lambda _: True)
    told._check()
    assert len(told._expected) == EXPECTED_MAX
