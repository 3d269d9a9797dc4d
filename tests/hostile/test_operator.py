"""A file that is read, written and mapped at random, its ranges coming and going meanwhile."""

from __future__ import annotations

import pytest

from tests.hostile.random_operator import run

pytestmark = [pytest.mark.mount, pytest.mark.slow]

STEPS = 250


@pytest.mark.parametrize("lane", ["auto", "off"])
def test_every_byte_is_the_last_one_written(lane: str) -> None:
    done = run(STEPS, 1, f"lane={lane}")
    idle = [name for name in ("hits", "fills", "stamped", "evictions", "written") if not done[name]]
    assert not idle, f"this run has put nothing to the test: {dict(done)}"
