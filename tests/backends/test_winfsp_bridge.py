"""The bridge from threads of others into trio."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import AsyncIterator

import pytest
import trio

from mummufs.backends.winfsp.bridge import Bridge


@contextlib.asynccontextmanager
async def running(limit_s: float = 20.0) -> AsyncIterator[Bridge]:
    bridge = Bridge(limit_s)
    async with trio.open_nursery() as nursery:
        await nursery.start(bridge.run)
        yield bridge
        nursery.cancel_scope.cancel()


async def test_results_and_errors_are_the_functions() -> None:
    async def double(number: int) -> int:
        await trio.lowlevel.checkpoint()
        return 2 * number

    async def fail(code: int) -> None:
        raise OSError(code, "for the test")

    async with running() as bridge:
        assert await trio.to_thread.run_sync(bridge.call, double, 21) == 42
        for code in (errno.EIO, errno.ESTALE):
            with pytest.raises(OSError) as caught:
                await trio.to_thread.run_sync(bridge.call, fail, code)
            assert caught.value.errno == code
        assert bridge.waiting == 0


async def test_a_fault_of_ours_is_its_callers_alone() -> None:
    async def fault() -> None:
        raise ZeroDivisionError

    async def well() -> str:
        return "well"

    async with running() as bridge:
        with pytest.raises(ZeroDivisionError):
            await trio.to_thread.run_sync(bridge.call, fault)
        assert await trio.to_thread.run_sync(bridge.call, well) == "well"


async def test_a_call_that_takes_too_long_is_given_up_and_cancelled() -> None:
    cancelled = trio.Event()

    async def hang() -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with running(limit_s=0.02) as bridge:
        with pytest.raises(OSError) as caught:
            await trio.to_thread.run_sync(bridge.call, hang)
        assert caught.value.errno == errno.ETIMEDOUT and bridge.late == 1
        with trio.fail_after(10):
            await cancelled.wait()
        assert bridge.waiting == 0


async def test_who_waits_when_it_ends_is_told() -> None:
    codes: list[int | None] = []
    begun = trio.Event()

    async def hang() -> None:
        begun.set()
        await trio.sleep_forever()

    def wait() -> None:
        try:
            bridge.call(hang)
        except OSError as error:
            codes.append(error.errno)

    async with running() as bridge:
        thread = threading.Thread(target=wait)
        thread.start()
        await begun.wait()
    await trio.to_thread.run_sync(thread.join)
    assert codes == [errno.ECANCELED]
    with pytest.raises(OSError) as caught:
        bridge.call(hang)
    assert caught.value.errno == errno.ECANCELED
    bridge.post(begun.set)  # nothing happens, and nothing is raised


async def test_many_threads_at_once() -> None:
    """While all of them wait, all are counted; each gets its own answer."""
    count, inside = 50, 0
    everybody = trio.Event()
    answers: dict[int, int] = {}

    async def meet(number: int) -> int:
        nonlocal inside
        inside += 1
        if inside == count:
            everybody.set()
        await everybody.wait()
        return -number

    async with running() as bridge:

        def call(number: int) -> None:
            answers[number] = bridge.call(meet, number)

        threads = [threading.Thread(target=call, args=(i,)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await trio.to_thread.run_sync(thread.join)
        assert answers == {i: -i for i in range(count)}
        assert (bridge.waiting, bridge.waiting_max) == (0, count)


async def test_a_call_after_trio_has_ended() -> None:
    async def never() -> None:
        raise AssertionError

    bridge = Bridge(1.0)
    with pytest.raises(OSError) as caught:
        bridge.call(never)
    assert caught.value.errno == errno.ECANCELED
