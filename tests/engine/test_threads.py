"""Pools of worker threads: limits of time, stand-ins, and a system that grants no more threads."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mummufs.engine import threads
from mummufs.engine.threads import Pool
from tests.engine.harness import empty


async def test_a_call_that_hangs_is_given_up_and_gets_a_stand_in(mock_clock: MockClock) -> None:
    pool, begun, gate = Pool(1, limit_s=5), threading.Event(), threading.Event()
    failed: list[int | None] = []

    def wait() -> None:
        begun.set()
        gate.wait(60)

    async def hang() -> None:
        try:
            await pool.run(wait)
        except OSError as error:
            failed.append(error.errno)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang)
        await trio.to_thread.run_sync(begun.wait, 60)
        mock_clock.jump(5)
    assert failed == [errno.EIO]
    assert (pool.late, pool.stuck, pool.waiting) == (1, 1, 0)
    assert await pool.run(lambda: 7) == 7, "another thread has its place"
    gate.set()
    await empty(pool)  # the stuck thread gives its place back once its call has returned
    while pool.stuck:
        await pool.run(lambda: None)
    await empty(pool)
    assert (pool.busy, pool.stuck) == (0, 0)


async def test_an_error_of_the_call_is_its_own() -> None:
    def fails() -> None:
        raise RuntimeError("mine")

    pool = Pool(1)
    with pytest.raises(RuntimeError, match="mine"):
        await pool.run(fails)
    assert pool.no_thread == 0


@pytest.mark.parametrize("refusals", [3, 10**6])
async def test_no_more_threads(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, refusals: int) -> None:
    real: Callable[..., Any] = trio.to_thread.run_sync
    refused = 0

    async def stingy(*args: Any, **kwargs: Any) -> Any:
        nonlocal refused
        if refused < refusals:
            refused += 1
            raise RuntimeError("can't start new thread")
        return await real(*args, **kwargs)

    monkeypatch.setattr(trio.to_thread, "run_sync", stingy)
    pool = Pool(1)
    if refusals == 3:
        assert await pool.run(lambda: 7) == 7
        assert pool.no_thread == 3
    else:
        with pytest.raises(OSError, match="grants no thread"):
            await pool.run(lambda: 7)
        assert pool.no_thread == threads.THREAD_TRIES
