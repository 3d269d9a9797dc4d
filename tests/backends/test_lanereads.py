"""READs that the engine has: answered on the clone that they came from, and freed if their caller is killed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
import trio

from mummufs.backends.fuse import lanereads
from mummufs.backends.fuse.lanereads import LaneRead, LaneReads, is_being_killed
from mummufs.core.stats import Counters
from tests.backends.devices import Device


class Source:
    """What the reads are answered from: bytes, an error, or nothing until a gate opens."""

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.calls: list[tuple[int, int, int, bool]] = []
        self.cancelled = 0

    async def read(self, fh: int, offset: int, size: int, avoid_store: bool) -> bytes:
        self.calls.append((fh, offset, size, avoid_store))
        try:
            await self.gate.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return bytes([offset % 256]) * size


@asynccontextmanager
async def running(source: Source) -> AsyncIterator[tuple[LaneReads, Device, Counters]]:
    """Reads that are served, and the kernel's side."""
    device, counters = Device(), Counters()
    reads = LaneReads(source.read, counters)
    async with trio.open_nursery() as nursery:
        await nursery.start(reads.run)
        yield reads, device, counters
        nursery.cancel_scope.cancel()
    device.close()
    device.drop()


def request(
    device: Device, unique: int, offset: int = 0, size: int = 10, pid: int = 0, avoid: bool = False
) -> LaneRead:
    return LaneRead(unique, 3, offset, size, pid, device.fd, avoid)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another task does."""
    with trio.fail_after(20):
        while not condition():
            await trio.lowlevel.checkpoint()


async def test_each_is_answered_with_its_bytes() -> None:
    source = Source()
    async with running(source) as (reads, device, _):
        for i in range(1, 6):
            await trio.to_thread.run_sync(reads.submit, request(device, 2 * i, offset=i, avoid=i == 3))
        answers = [await trio.to_thread.run_sync(device.answer) for _ in range(5)]
        assert sorted(answers) == [(2 * i, 0, bytes([i]) * 10) for i in range(1, 6)]
        assert (3, 3, 10, True) in source.calls
        assert (3, 2, 10, False) in source.calls
        await until(lambda: reads.running == 0)
        assert 1 <= reads.running_max <= 5
        assert reads._pending == {}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ESTALE, "stale"), errno.ESTALE),
        (OSError("no number"), errno.EIO),
        (KeyError(3), errno.EIO),
        (MemoryError(), errno.EIO),
    ],
)
async def test_an_error_is_its_caller_s(error: Exception, code: int) -> None:
    source = Source()
    async with running(source) as (reads, device, counters):
        source.error = error
        reads.submit(request(device, 2))
        assert await trio.to_thread.run_sync(device.answer) == (2, code, b"")
        assert counters.errors.handler == (not isinstance(error, OSError))
        source.error = None
        reads.submit(request(device, 4))
        assert await trio.to_thread.run_sync(device.answer) == (4, 0, bytes(10))


async def test_reads_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for their turn, and get it."""
    monkeypatch.setattr(lanereads, "READS_MAX", 3)
    source = Source()
    source.gate = trio.Event()
    async with running(source) as (reads, device, _):
        for i in range(1, 11):
            reads.submit(request(device, 2 * i))
        await until(lambda: len(source.calls) == 3)
        assert (reads.running, reads.waiting) == (3, 7)
        source.gate.set()
        assert {(await trio.to_thread.run_sync(device.answer)).unique for _ in range(10)} == set(range(2, 21, 2))
        await until(lambda: reads.running == 0)
        assert (reads.running_max, reads.waiting) == (3, 0)


async def test_the_lane_takes_one_back() -> None:
    """Before its turn has come, while it is under way, and too late: it has one answer at most from here."""
    source = Source()
    source.gate = trio.Event()
    async with running(source) as (reads, device, _):
        early, late = request(device, 2), request(device, 4)
        reads.submit(early)
        assert reads.take_back(early)
        reads.submit(late)
        await until(lambda: len(source.calls) == 1)
        assert reads.take_back(late)
        assert not reads.take_back(late)
        await until(lambda: reads.running == 0)
        assert source.cancelled == 1
        source.gate.set()
        last = request(device, 6)
        reads.submit(last)
        assert await trio.to_thread.run_sync(device.answer) == (6, 0, bytes(10))
        assert not reads.take_back(last)
        assert len(source.calls) == 2
        assert reads.interrupted == 0


# ---------------------------------------------------------------------- interrupts


async def test_a_signal_that_does_not_kill_changes_nothing() -> None:
    source = Source()
    source.gate = trio.Event()
    async with running(source) as (reads, device, _):
        reads.submit(request(device, 2, pid=os.getpid()))
        await until(lambda: len(source.calls) == 1)
        assert reads.interrupt(2)
        await until(lambda: reads.running == 1)
        assert not device.has_answer
        source.gate.set()
        assert await trio.to_thread.run_sync(device.answer) == (2, 0, bytes(10))
        assert reads.interrupted == source.cancelled == 0


@pytest.fixture
def caller() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


async def test_a_caller_that_is_killed_is_freed(caller: subprocess.Popen[bytes]) -> None:
    source = Source()
    source.gate = trio.Event()
    async with running(source) as (reads, device, _):
        reads.submit(request(device, 2, pid=caller.pid))
        await until(lambda: len(source.calls) == 1)
        assert reads.interrupt(2)
        caller.kill()
        assert await trio.to_thread.run_sync(device.answer) == (2, errno.EINTR, b"")
        assert reads.interrupted == source.cancelled == 1
        assert not reads.interrupt(2), "the engine does not have it any more"
        await until(lambda: reads.running == 0)


async def test_an_interrupt_for_what_the_engine_does_not_have() -> None:
    async with running(Source()) as (reads, _, _):
        assert not reads.interrupt(2)


def test_who_is_being_killed(caller: subprocess.Popen[bytes]) -> None:
    assert not is_being_killed(0), "somebody in another namespace: nothing is known"
    assert not is_being_killed(os.getpid())
    caller.send_signal(signal.SIGSTOP)
    caller.send_signal(signal.SIGUSR1)
    assert not is_being_killed(caller.pid), "a pending signal of another kind"
    caller.kill()
    caller.wait()
    assert is_being_killed(caller.pid), "it is gone"
