"""The collector of a daemon looks at what is new alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from math import inf

import pytest

from mummufs import collector


@pytest.fixture
def untamed() -> Iterator[None]:
    """The collector is as it was, afterwards."""
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def _watched() -> set[int]:
    """What a collection looks at: what is frozen is not among it. Counts of it change whenever something else dies."""
    return {id(one) for one in gc.get_objects()}


@pytest.mark.usefixtures("untamed")
def test_what_has_outlived_a_full_collection_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "PAUSE_S", 0)
    collector.tame()
    collector.tame()
    assert gc.callbacks.count(collector._freeze_survivors) == 1
    assert gc.get_threshold()[2] == collector.FULL_AFTER
    kept = [[i] for i in range(1000)]
    own = {id(one) for one in kept}
    gc.collect(1)
    assert own <= _watched()  # only what has outlived a full one is frozen
    gc.collect()
    assert not own & _watched()


@pytest.mark.usefixtures("untamed")
def test_not_while_collections_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "PAUSE_S", inf)
    collector.tame()
    cycle: list[object] = [[]]
    cycle.append(cycle)
    own = {id(cycle)}
    gc.collect()
    assert own <= _watched()
    del cycle
    assert gc.collect() >= 1, "what has outlived one is found by the next"


@pytest.mark.usefixtures("untamed")
def test_a_cycle_that_is_new_is_still_found() -> None:
    collector.tame()
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    assert gc.collect() >= 1
