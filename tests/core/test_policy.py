"""What the policies promise, on streams of whole ranges run through the index."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import pytest

from mummufs.core import ratings as module
from mummufs.core.hotness import COLD
from mummufs.core.index import CacheIndex
from mummufs.core.packs import pack_of
from mummufs.core.policy import ACTIVITY_BUDGETS, MARGIN, POLICIES, TURN, HotnessPolicy, LruPolicy
from mummufs.core.ranges import PAGE_SIZE, FileId, RangeKey, Version
from mummufs.core.ratings import STRANGERS, HeatRecord, PackRecord
from mummufs.core.states import Decision

V = Version(1 << 40, 1, 1)
SIZE = 64 * PAGE_SIZE
BUDGET = 100 * SIZE


def _keys(count: int, file: int = 1) -> list[RangeKey]:
    return [RangeKey(FileId(1, file), i * SIZE, SIZE) for i in range(count)]


def _index(policy: str = "hotness", budget: int = BUDGET) -> CacheIndex:
    index = CacheIndex(budget, POLICIES[policy](budget))
    for file in range(4):
        index.join(FileId(1, file), b"model %d" % file)
    return index


def _read(index: CacheIndex, key: RangeKey, pieces: int = 1) -> tuple[bool, bool]:
    """Read a range as an engine does; whether it was a hit, and whether it was filled."""
    hit = index.is_resident(key, V)
    filled = False
    for _ in range(pieces):
        index.touch(key, key.size // pieces, hit=hit)
        if hit or filled:
            continue
        plan = index.plan_fill(key, key.size, V)
        for victim in plan.victims:
            index.begin_evict(victim)
            index.finish_evict(victim)
        if plan.decision in (Decision.READY, Decision.ROOM):
            index.begin_fill(key, key.size, V)
            filled = True
    if filled:
        index.commit_fill(key)
    return hit, filled


def _hits(index: CacheIndex, keys: Iterable[RangeKey], pieces: int = 1) -> int:
    return sum(_read(index, key, pieces)[0] for key in keys)


def _resident(index: CacheIndex, keys: Iterable[RangeKey]) -> int:
    return sum(index.is_resident(key, V) for key in keys)


@pytest.mark.parametrize("pieces", [1, 16])
def test_a_loop_of_half_as_much_again_as_the_budget_keeps_a_stable_part(pieces: int) -> None:
    """The dense weights of a model that is larger than the cache: hits are budget / bytes, as Belady has it; LRU 0."""
    loop = _keys(150)
    index, lru = _index(), _index("lru")
    for _ in range(3):
        _hits(index, loop, pieces)
        _hits(lru, loop, pieces)
    rounds = 6
    share = sum(_hits(index, loop, pieces) for _ in range(rounds)) / (rounds * len(loop))
    assert share == pytest.approx(BUDGET / (150 * SIZE), abs=0.02)
    assert _hits(lru, loop, pieces) == 0


@pytest.mark.parametrize("pieces", [1, 8])
def test_a_cold_burst_of_ten_budgets_leaves_the_hot_set_alone(pieces: int) -> None:
    index, hot = _index(), _keys(50)
    for _ in range(4):
        _hits(index, hot, pieces)
    assert _resident(index, hot) == 50
    _hits(index, _keys(1000, file=2), pieces)
    assert _resident(index, hot) == 50


def test_a_burst_within_the_model_leaves_its_hot_experts_alone() -> None:
    index, all_of_it = _index(), _keys(1100)
    hot = all_of_it[:50]
    for _ in range(4):
        _hits(index, hot)
    _hits(index, all_of_it[50:])
    assert _resident(index, hot) == 50


def test_a_model_that_is_read_no_more_gives_way_and_is_remembered() -> None:
    index, old, new = _index(), _keys(80), _keys(90, file=2)
    for _ in range(20):
        _hits(index, old)
    assert _resident(index, old) == 80
    for _ in range(4):
        _hits(index, new)
    assert _resident(index, new) == 90, "though each of the old ones is hotter"
    assert index.heat(old[0]) > index.heat(new[0])


def test_without_packs_the_same_would_take_much_longer() -> None:
    """That the test before shows what packs are for."""
    index, old, new = _index(), _keys(80), _keys(90, file=2)
    index.join(FileId(1, 2), b"model 1")
    for _ in range(20):
        _hits(index, old)
    for _ in range(4):
        _hits(index, new)
    assert _resident(index, new) < 30


def test_declined_ranges_keep_their_heat_and_come_in_when_they_are_hot() -> None:
    index, hot = _index(), _keys(99)
    for _ in range(3):
        _hits(index, hot)
    newcomer = _keys(1, file=2)[0]
    index.join(newcomer.file, b"model 1")
    filled = [_read(index, newcomer)[1] for _ in range(8)]
    first = filled.index(True)
    assert 2 <= first <= 6, "hotter than three touches by half a doubling"
    assert index.heat(newcomer) > index.heat(hot[50]) + MARGIN


def test_a_first_piece_is_weighed_as_if_the_pass_were_over() -> None:
    index, others = _index(), _keys(100)
    _hits(index, others)
    newcomer = _keys(1, file=2)[0]
    index.join(newcomer.file, b"model 1")
    index.touch(newcomer, SIZE // 16, hit=False)
    plan = index.plan_fill(newcomer, SIZE, V)
    assert plan.decision in (Decision.READY, Decision.ROOM) and len(plan.victims) == 1
    for _ in range(7):
        index.touch(newcomer, SIZE // 16, hit=False)
    assert index.heat(newcomer) == pytest.approx(-1.0)


def test_a_half_life_is_two_budgets_of_hits_and_misses_do_not_age() -> None:
    index, (kept, other, missed) = _index(), _keys(3)
    for key in (kept, other):
        _read(index, key)
    before = index.heat(kept)
    index.touch(missed, 10 * BUDGET, hit=False)
    assert index.heat(kept) == before
    index.touch(other, round(BUDGET / TURN), hit=True)
    assert index.heat(kept) == pytest.approx(before - 1)


def test_margin_covers_what_one_turn_of_a_loop_makes_of_a_difference() -> None:
    assert MARGIN >= TURN


def test_activity_is_the_bytes_read_lately() -> None:
    index, (a, b) = _index(), (_keys(1)[0], _keys(1, file=2)[0])

    def activity() -> dict[bytes, float]:
        return {pack.name: pack.activity for pack in index.packs()}

    index.touch(a, SIZE, hit=False)
    index.touch(b, 100 * BUDGET, hit=False)
    assert activity()[b"model 1"] == 0.0, "a first read is none"
    index.touch(a, SIZE, hit=False)
    assert activity()[b"model 1"] == 0.0, "nor one so long after it"
    index.touch(a, SIZE, hit=False)
    assert activity()[b"model 1"] == pytest.approx(18.0, abs=0.1) and SIZE == 1 << 18
    before = activity()[b"model 1"]
    index.touch(b, SIZE, hit=False)
    index.touch(b, int(ACTIVITY_BUDGETS * BUDGET), hit=False)
    assert activity()[b"model 1"] == pytest.approx(before - 1.0)


@pytest.mark.parametrize("nights", [1, 2, 3])
def test_a_backup_that_comes_every_night_leaves_the_hot_set_alone(nights: int) -> None:
    index, hot, everything = _index(), _keys(60), _keys(1000, file=2)
    for _ in range(nights):
        for _ in range(6):
            _hits(index, hot)
        _hits(index, everything)
    assert _resident(index, hot) == 60


def test_heat_and_activity_of_an_earlier_mount_with_another_budget() -> None:
    before, keys = _index(), _keys(30)
    for i, key in enumerate(keys):
        for _ in range(i + 1):
            _read(before, key)
    _read(before, _keys(1, file=2)[0])
    heats = {record.key: record.heat for step in before.hot_steps(256) for record in step}
    records = sorted(chain.from_iterable(before.hot_steps(256)), key=lambda record: -record.seq)
    after = CacheIndex(5 * BUDGET, HotnessPolicy(5 * BUDGET))
    for key in keys[:10]:
        after.restore(key, SIZE, V)
    for pack in before.packs():
        after.recall_pack(pack)
    for rank, record in enumerate(records):
        after.recall(record._replace(seq=len(records) - rank))
    after._check()
    recalled = {record.key: record.heat for step in after.hot_steps(256) for record in step}
    assert recalled == pytest.approx(heats)
    assert list(after.resident_keys()) == keys[:10], "coldest first"
    then, now = ({pack.name: pack.activity for pack in index.packs()} for index in (before, after))
    assert now[b"model 1"] == pytest.approx(then[b"model 1"])
    assert max(now[b"model 2"], now[b"model 3"]) < 1.0 < now[b"model 1"]


def test_what_is_recalled_is_older_than_what_was_touched_since() -> None:
    index, (old, new) = _index("lru"), _keys(2)
    for key in (old, new):
        index.restore(key, SIZE, V)
    index.touch(new, SIZE, hit=True)
    index.recall(HeatRecord(old, 3.0, 1_000_000))
    assert list(index.resident_keys()) == [old, new]


def test_the_number_of_packs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACKS_MAX", 4)
    index = CacheIndex(BUDGET, HotnessPolicy(BUDGET))
    keys = [_keys(1, file=i)[0] for i in range(6)]
    for i in (0, 1, 2):
        index.join(keys[i].file, b"%d" % i)
        index.touch(keys[i], (i + 1) * SIZE, hit=False)
    index.restore(keys[0], SIZE, V)
    index.join(keys[3].file, b"3")
    assert {pack.name for pack in index.packs()} == {b"0", b"2", b"3"}, "the quietest that had nothing has gone"
    for i in (1, 2, 3):
        index.touch(keys[i], SIZE, hit=False)
        index.restore(keys[i], SIZE, V)
        index._check()
    index.join(keys[4].file, b"4")
    index.touch(keys[4], SIZE, hit=False)
    index.restore(keys[4], SIZE, V)
    index._check()
    packs = {pack.name: pack.files for pack in index.packs()}
    assert len(packs) == 4 and STRANGERS in packs and b"4" not in packs


def test_the_number_of_files_with_a_pack_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILES_MAX", 2)
    index = CacheIndex(BUDGET, HotnessPolicy(BUDGET))
    for i in (0, 1, 0, 2):
        index.join(FileId(1, i), b"all")
    assert index.packs() == [PackRecord(b"all", 0.0, (FileId(1, 0), FileId(1, 2)))]
    index._check()


def test_the_other_policies_are_what_their_names_say() -> None:
    for name, expected in (("lru", [1, 2, 0]), ("lfu", [2, 1, 0]), ("decay", [2, 1, 0])):
        index, keys = _index(name), _keys(3)
        for i in (0, 0, 0, 1, 1, 2, 0):
            _read(index, keys[i])
        if name == "lru":
            expected = [1, 2, 0]
        assert list(index.resident_keys()) == [keys[i] for i in expected], name
    forgets = {}
    for name in ("lfu", "decay"):
        index, key = _index(name), _keys(1)[0]
        for _ in range(4):
            _read(index, key)
        index.begin_evict(key)
        index.finish_evict(key)
        forgets[name] = index.heat(key) == COLD
    assert forgets == {"lfu": False, "decay": True}
    assert LruPolicy.remembers


@pytest.mark.parametrize(
    ("path", "pack"),
    [
        (b"q/model-00001-of-00004.gguf", b"q/model"),
        (b"q/model-00004-of-00004.gguf", b"q/model"),
        (b"q/other-00001-of-00004.gguf", b"q/other"),
        (b"hf/model-00001-of-000163.safetensors", b"hf/model"),
        (b"flat/a.gguf", b"flat/a.gguf"),
        (b"flat/B.GGUF", b"flat/B.GGUF"),
        (b"hf/model.safetensors", b"hf/"),
        (b"hf/tokenizer.json", b"hf/"),
        (b"alone.onnx", b"/"),
        (b"00001-of-00002.gguf", b"00001-of-00002.gguf"),
        (b"d/x-1-of-2.gguf", b"d/x"),
        (b"d/best-of-breed.gguf", b"d/best-of-breed.gguf"),
    ],
)
def test_which_files_are_one_model(path: bytes, pack: bytes) -> None:
    assert pack_of(path) == pack
