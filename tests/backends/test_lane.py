"""The lane's servers: what they answer, what they leave to the engine, and that every request has just one answer."""

from __future__ import annotations

import errno
import os
import random
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mummufs.backends.fuse import lane as lane_module
from mummufs.backends.fuse import laneserver, pipes, wire
from mummufs.backends.fuse.laneserver import Server
from mummufs.engine.views import FileView
from tests.backends.devices import NODEID, PAGE, Bench, bench, lane_threads
from tests.support.waiting import wait_for

WINDOWS = ((0, 5 * PAGE), (4 * PAGE, 30 * PAGE), (33 * PAGE, 20 * PAGE), (60 * PAGE, 20 * PAGE - 100))
SIZE = 80 * PAGE - 100
THREADS = 2 + 1 + 3
"""Two servers, the watchdog, the relay."""
WHOLE = ((0, 40 * PAGE), (40 * PAGE, 40 * PAGE))


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Bench]:
    """Two ranges side by side, and two servers."""
    with bench(tmp_path, WHOLE, size=80 * PAGE) as made:
        made.start(2)
        yield made


@pytest.fixture
def held(two: Bench) -> Iterator[threading.Event]:
    """The store hangs in each splice until this is set."""
    released = threading.Event()

    def hang(name: str) -> None:
        if name == "splice":
            assert released.wait(60)

    two.fs.hook = hang
    yield released
    two.fs.hook = None
    released.set()
    wait_for(lambda: two.lane.stuck, lambda stuck: stuck == 0)


@pytest.mark.parametrize("stored", [range(4), (0, 2, 3), (1,), ()], ids=str)
def test_any_read(tmp_path: Path, stored: tuple[int, ...]) -> None:
    """It has its bytes, and the lane has answered just what lies wholly in open ranges."""
    rng = random.Random(2)
    has = [any(WINDOWS[i][0] <= at * PAGE < sum(WINDOWS[i]) for i in stored) for at in range(80)]
    with bench(tmp_path, WINDOWS, size=SIZE, stored=stored) as b:
        lane = b.start()
        for _ in range(400):
            offset = rng.choice((rng.randrange(SIZE), rng.randrange(80) * PAGE))
            size = rng.choice((rng.randrange(1, 20 * PAGE), rng.randrange(1, 20) * PAGE))
            end = min(offset + size, SIZE)
            before = lane.hits
            b.engine.taken.clear()
            assert b.read(offset, size) == b.data[offset:end]
            assert lane.hits - before + len(b.engine.taken) == 1
            assert lane.hits - before == all(has[offset // PAGE : (end + PAGE - 1) // PAGE]), (offset, size)
        assert b.read(SIZE, PAGE) == b""
        assert lane.faults == lane.replaced == 0


def test_the_counts_are_those_of_what_was_read(two: Bench) -> None:
    first, second = two.open_ranges.values()
    assert two.lane.take_touched() == (0, {})
    two.read(0, PAGE)
    two.read(0, PAGE, device=1)
    two.read(39 * PAGE, 3 * PAGE)
    assert two.lane.take_touched() == (3, {first: 3 * PAGE, second: 2 * PAGE})
    assert two.lane.take_touched() == (0, {})
    assert (two.lane.hits, two.lane.hit_bytes) == (3, 5 * PAGE)
    assert two.news, "and somebody was told that there is something to fetch"


def test_what_a_server_notes_is_bounded(two: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laneserver, "TOUCHED_MAX", 1)
    assert two.read(0, PAGE) + two.read(40 * PAGE, PAGE) == two.data[:PAGE] + two.data[40 * PAGE : 41 * PAGE]
    requests, touched = two.lane.take_touched()
    assert requests == 2
    assert len(touched) == 1


# ---------------------------------------------------------------------- the store fails


def cut(path: Path) -> None:
    os.truncate(path, PAGE + 10 * PAGE)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def change(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(PAGE)
        file.write(b"not what it was")


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("fault", [cut, empty, change, remove])
def test_a_range_file_that_is_not_what_it_was(two: Bench, fault: Callable[[Path], None]) -> None:
    """The engine answers, and what was in the pipe is in no later answer."""
    assert two.read(0, 20 * PAGE) == two.data[: 20 * PAGE]
    fault(two.path(0))
    for _ in range(3):
        assert two.read(0, 20 * PAGE) == two.data[: 20 * PAGE]
        assert two.read(50 * PAGE, 20 * PAGE) == two.data[50 * PAGE : 70 * PAGE]
        assert two.read(30 * PAGE, 20 * PAGE) == two.data[30 * PAGE : 50 * PAGE]
    assert len(two.engine.taken) == 6
    assert not any(request.avoid_store for request in two.engine.taken)
    assert two.lane.hits == 4
    assert two.lane.faults == 0


@pytest.mark.parametrize("kind", [OSError, RuntimeError, KeyError, MemoryError])
@pytest.mark.parametrize("at", [1, 2])
def test_a_splice_that_fails(two: Bench, kind: type[Exception], at: int) -> None:
    """The first of the two that an answer is made of, or the second, when half an answer is in the pipe."""
    calls = []

    def fail(name: str) -> None:
        calls.extend([name] * (name == "splice"))
        if len(calls) == at and name == "splice":
            raise kind(errno.EIO, "planted")

    two.fs.hook = fail
    assert two.read(30 * PAGE, 20 * PAGE) == two.data[30 * PAGE : 50 * PAGE]
    assert len(two.engine.taken) == 1
    assert two.read(30 * PAGE, 20 * PAGE) == two.data[30 * PAGE : 50 * PAGE]
    assert two.lane.hits == 1
    assert two.lane.faults == (kind is not OSError)


# ---------------------------------------------------------------------- faults of ours


def raising(*_: Any) -> Any:
    raise RuntimeError("planted")


@pytest.mark.parametrize(
    ("owner", "name"),
    [(FileView, "pieces"), (Server, "_hit"), (Server, "_is_held"), (Server, "_fill"), (Server, "_note")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_an_exception_before_the_answer_is_out(
    two: Bench, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """The engine has it, whatever is in the pipe; the next one is a hit again."""
    with monkeypatch.context() as planted:
        planted.setattr(owner, name, raising)
        assert two.read(0, PAGE) == two.data[:PAGE]
        assert len(two.engine.taken) == two.lane.faults == 1
    assert two.read(PAGE, PAGE) == two.data[PAGE : 2 * PAGE]
    assert len(two.engine.taken) == 1


def test_an_exception_where_only_an_error_is_left(two: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO for who waits, nothing for who does not."""
    with monkeypatch.context() as planted:
        planted.setattr(two.relay, "forward", raising)
        two.devices[0].send(wire.GETATTR, bytes(16), 100)
        assert two.devices[0].answer() == (100, errno.EIO, b"")
        two.devices[0].send(wire.FORGET, struct.pack("=Q", 1), 102)
        planted.setattr(two.engine, "submit", raising)
        wait_for(lambda: two.lane.faults, lambda faults: faults == 2)
        two.ask(0, 60 * PAGE, device=1)
        assert two.devices[1].answer().error == 0
    assert two.read(PAGE, PAGE) == two.data[PAGE : 2 * PAGE]


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EINVAL, errno.ENOENT])
def test_a_device_that_does_not_take_the_answer(two: Bench, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """It has not been answered, so the engine does it; but with ENOENT nobody waits any more."""
    real = os.splice

    def refusing(source: int, target: int, count: int, **options: Any) -> int:
        if target == two.devices[0].fd:
            raise OSError(code, "planted")
        return real(source, target, count, **options)

    with monkeypatch.context() as planted:
        planted.setattr(os, "splice", refusing)
        two.ask(0, 20 * PAGE)
        if code == errno.ENOENT:
            wait_for(lambda: two.lane.hits, lambda hits: hits == 1)
        else:
            assert two.devices[0].answer().data == two.data[: 20 * PAGE]
        assert len(two.engine.taken) == (code != errno.ENOENT)
        two.devices[0].send(wire.GETATTR, bytes(16), 100)
        assert two.libfuse.recv(100)[8:16] == struct.pack("=Q", 100), "so the server has come back from the READ"
    assert two.read(7 * PAGE, PAGE) == two.data[7 * PAGE : 8 * PAGE]


# ---------------------------------------------------------------------- a store that hangs


def test_a_hit_that_hangs_is_the_engine_s_and_answered_once(two: Bench, held: threading.Event) -> None:
    unique = two.ask(0, 8 * PAGE)
    assert two.devices[0].answer() == (unique, 0, two.data[: 8 * PAGE])
    assert [(r.unique, r.avoid_store, r.fd) for r in two.engine.taken] == [(unique, True, two.devices[0].fd)]
    wait_for(lambda: len(lane_threads()), lambda count: count == THREADS + 1)
    assert (two.lane.stuck, two.lane.replaced, two.lane.paused) == (1, 1, True)
    for device in (0, 1):  # the stand-in, and the other: they leave the store alone
        assert two.read(40 * PAGE, PAGE, device) == two.data[40 * PAGE : 41 * PAGE]
    assert [request.avoid_store for request in two.engine.taken] == [True, False, False]
    held.set()
    wait_for(lambda: two.lane.stuck, lambda stuck: stuck == 0)
    wait_for(lambda: len(lane_threads()), lambda count: count == THREADS)
    assert not two.lane.paused
    assert not two.devices[0].has_answer, "the late one was thrown away"
    for device in (0, 1):
        assert two.read(PAGE, 8 * PAGE, device) == two.data[PAGE : 9 * PAGE]
    assert two.lane.hits == 2
    assert two.lane.replaced == 1


def test_a_store_that_is_slow_for_a_moment(two: Bench, held: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that was given up answers, and the source is not troubled."""
    monkeypatch.setattr(lane_module, "SOURCE_S", 1000.0)  # or a machine that stands for a moment would be a slow store
    unique = two.ask(0, 8 * PAGE)
    wait_for(lambda: two.lane.stuck, lambda stuck: stuck == 1)
    interrupt(two, unique, device=1)
    held.set()
    assert two.devices[0].answer() == (unique, 0, two.data[: 8 * PAGE])
    wait_for(lambda: two.lane.stuck, lambda stuck: stuck == 0)
    assert two.engine.taken == []
    assert two.lane.take_touched() == (1, {two.open_ranges[0, 40 * PAGE]: 8 * PAGE})
    assert two.read(0, PAGE) == two.data[:PAGE]
    assert two.read(0, PAGE, device=1) == two.data[:PAGE]
    assert (two.lane.replaced, two.stalls) == (1, [])


def test_a_source_that_is_slower_than_a_slow_store(two: Bench, held: threading.Event) -> None:
    """The server that was given up has the bytes first: it answers, and it counts as a hit."""
    two.engine.hangs = True
    unique = two.ask(0, 8 * PAGE)
    wait_for(lambda: two.engine.hanging, lambda hanging: hanging == {unique})
    held.set()
    assert two.devices[0].answer() == (unique, 0, two.data[: 8 * PAGE])
    wait_for(lambda: two.lane.stuck, lambda stuck: stuck == 0)
    assert two.engine.hanging == set(), "the engine was told"
    assert two.lane.take_touched() == (1, {two.open_ranges[0, 40 * PAGE]: 8 * PAGE})
    assert two.lane.hits == 1


def test_servers_that_are_stuck_are_bounded(two: Bench, held: threading.Event) -> None:
    """However many reads come, no more servers are in the store than there were to begin with."""
    uniques = [two.ask(0, PAGE, device) for device in (0, 1)]
    assert [two.devices[device].answer().unique for device in (0, 1)] == uniques
    stuck = wait_for(lambda: two.lane.stuck, lambda _: two.lane.paused)
    for i in range(20):
        assert two.read(i * PAGE, PAGE, i % 2) == two.data[i * PAGE : (i + 1) * PAGE]
    assert stuck <= two.lane.stuck <= 2
    assert two.lane.replaced <= 2
    assert len(two.engine.taken) == 22


def test_the_engine_hears_of_a_server_that_stays_stuck(
    two: Bench, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, after the time that the engine itself gives the store; not of one that was slow for a moment."""
    two.read(0, PAGE)
    assert two.lane.stuck == 1
    assert two.stalls == []
    wait_for(lambda: two.stalls, bool)
    looks: list[object] = []
    real = two.lane._look

    def look(seen: Any) -> Any:
        looks.append(seen)
        return real(seen)

    monkeypatch.setattr(two.lane, "_look", look)
    wait_for(lambda: looks, lambda seen: len(seen) > 2)
    assert len(two.stalls) == 1


def test_a_slow_moment_is_not_told(two: Bench, held: threading.Event) -> None:
    two.read(0, PAGE)
    held.set()
    wait_for(lambda: two.lane.stuck, lambda stuck: stuck == 0)
    assert two.lane.replaced == 1
    assert two.stalls == []


def test_no_pipe_for_a_stand_in(two: Bench, held: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its READ is answered all the same, and the place is filled when there is one again."""

    def none_left() -> pipes.Pipe:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as planted:
        planted.setattr(laneserver, "Pipe", none_left)
        assert two.read(0, PAGE) == two.data[:PAGE]
        assert len(lane_threads()) == THREADS
    assert two.read(PAGE, PAGE) == two.data[PAGE : 2 * PAGE]
    assert len(lane_threads()) == THREADS + 1
    assert two.lane.faults == 0


def test_no_thread_for_a_stand_in(two: Bench, held: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as planted:
        planted.setattr(Server, "start", raising)
        assert two.read(0, PAGE) == two.data[:PAGE]
        assert len(os.listdir("/proc/self/fd")) <= opened + 2, "one may just be tried"
    assert two.read(PAGE, PAGE) == two.data[PAGE : 2 * PAGE]


def test_a_watchdog_that_fails_goes_on(two: Bench, monkeypatch: pytest.MonkeyPatch, held: threading.Event) -> None:
    with monkeypatch.context() as planted:
        planted.setattr(two.lane, "_look", raising)
        wait_for(lambda: two.lane.faults, lambda faults: faults > 2)
    assert two.read(0, PAGE) == two.data[:PAGE]
    assert two.lane.replaced == 1


# ---------------------------------------------------------------------- pipes


@pytest.mark.parametrize(("wanted", "largest"), [(1 << 20, 39), (16 * PAGE, 15), (PAGE, 0)])
def test_an_answer_fits_the_pipe_or_is_the_engine_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: int, largest: int
) -> None:
    """Whole pages beside the header's; bytes that begin elsewhere take parts of more pages."""
    monkeypatch.setattr(pipes, "PIPE_BYTES_WANTED", wanted)
    with bench(tmp_path, WHOLE, size=80 * PAGE) as b:
        lane = b.start()
        for pages in range(1, 40):
            before = lane.hits
            assert b.read(0, pages * PAGE) == b.data[: pages * PAGE]
            assert lane.hits - before == (pages <= largest)
            assert b.read(77, pages * PAGE - 77) == b.data[77 : pages * PAGE]
        assert lane.faults == lane.replaced == 0


def test_a_pipe_is_cleared_and_never_waited_for() -> None:
    pipe = pipes.Pipe()
    try:
        pipe.clear()
        with pytest.raises(BlockingIOError):
            while True:
                os.write(pipe.write_fd, bytes(PAGE))
        pipe.clear()
        with pytest.raises(BlockingIOError):
            os.read(pipe.read_fd, 1)
        assert os.write(pipe.write_fd, b"anew") == 4
        assert os.read(pipe.read_fd, 100) == b"anew"
    finally:
        pipe.close()


# ---------------------------------------------------------------------- interrupts and other requests


def interrupt(b: Bench, target: int, device: int = 0) -> None:
    b.devices[device].send(wire.INTERRUPT, wire.INTERRUPT_IN.pack(target), target | 1)


def test_an_interrupt_for_a_read_of_the_engine_s(two: Bench) -> None:
    two.engine.knows.add(500)
    interrupt(two, 500)
    wait_for(lambda: two.engine.interrupted_uniques, bool)
    assert two.read(0, PAGE) == two.data[:PAGE]
    assert not two.devices[1].has_answer


def test_an_interrupt_for_a_request_of_libfuse_s(two: Bench) -> None:
    two.devices[1].send(wire.GETATTR, bytes(16), 600)
    asked = two.libfuse.recv(1000)
    interrupt(two, 600)
    told = two.libfuse.recv(1000)
    assert struct.unpack_from("=IIQQ", asked) == (len(asked), wire.GETATTR, 600, NODEID)
    assert struct.unpack_from("=II", told) == (48, wire.INTERRUPT)
    assert told[40:] == struct.pack("=Q", 600)
    two.libfuse.send(wire.error_reply(600, errno.EINTR))
    assert two.devices[1].answer() == (600, errno.EINTR, b""), "on the clone that it came from"


def test_an_interrupt_for_a_request_that_nobody_has_yet_is_asked_again(two: Bench) -> None:
    interrupt(two, 700)
    assert two.devices[0].answer() == (701, errno.EAGAIN, b"")


def test_an_interrupt_for_a_hit_under_way_is_left_alone(two: Bench, held: threading.Event) -> None:
    unique = two.ask(0, PAGE)
    wait_for(lambda: two.lane._servers[0].pending, bool)
    interrupt(two, unique, device=1)
    answer = two.devices[0].answer()
    assert answer == (unique, 0, two.data[:PAGE])
    assert two.read(PAGE, PAGE, device=1) == two.data[PAGE : 2 * PAGE]


def test_the_connection_ends(tmp_path: Path) -> None:
    """It is told once, and every thread ends: `bench` looks."""
    with bench(tmp_path, WHOLE, size=80 * PAGE) as b:
        b.start(3)
        b.devices[0].close()
        assert b.gone.wait(20)
    assert lane_module.SERVERS == 4
