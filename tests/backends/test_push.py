"""Pushing: a walk page by page through a window brings its rest into the page cache, within limits."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mummufs.backends.fuse import pipes, push, wire
from mummufs.backends.fuse.push import Pusher
from tests.backends.devices import NODEID, PAGE, Answer, Bench, bench
from tests.support.waiting import wait_for

WINDOW = 40 * PAGE
TAIL = 100
SIZE = 2 * WINDOW - TAIL
BUFFERED = 0


@pytest.fixture
def b(tmp_path: Path) -> Iterator[Bench]:
    """Two windows, the second ending with the file; one server and a pusher. A test starts it."""
    with bench(tmp_path, ((0, WINDOW), (WINDOW, WINDOW - TAIL)), size=SIZE) as made:
        yield made


def start(b: Bench) -> Pusher:
    pusher = b.start(pusher=lambda fd: Pusher(fd, b.engine.submit)).pusher
    assert pusher is not None
    return pusher


def stored(answer: Answer) -> tuple[int, bytes]:
    """Where a notification puts which bytes."""
    assert (answer.unique, answer.error) == (0, wire.NOTIFY_STORE)
    nodeid, offset, size, _ = wire.STORE_OUT.unpack_from(answer.data)
    data = answer.data[wire.STORE_OUT.size :]
    assert (nodeid, size) == (NODEID, len(data))
    return offset, data


def until(b: Bench, unique: int) -> tuple[list[tuple[int, bytes]], Answer]:
    """What is pushed before a request is answered, and the answer."""
    pushed = []
    while (answer := b.devices[0].answer()).unique != unique:
        pushed.append(stored(answer))
    return pushed, answer


def walk(b: Bench, page: int) -> tuple[list[tuple[int, bytes]], Answer]:
    """Two pages in a row; what was pushed before the second was answered."""
    assert b.read(page * PAGE, PAGE, flags=BUFFERED) == b.data[page * PAGE : (page + 1) * PAGE]
    return until(b, b.ask((page + 1) * PAGE, PAGE))


def joined(pushed: list[tuple[int, bytes]]) -> tuple[int, bytes]:
    """The one run of bytes that these make."""
    offset, data = pushed[0][0], b""
    for at, part in pushed:
        assert at == offset + len(data)
        data += part
    return offset, data


@pytest.mark.parametrize("first", [0, 5, 38, 40, 77, 78])
def test_a_walk_brings_the_rest_of_its_window(b: Bench, first: int) -> None:
    """And no more than it, which is cut at the end of the file. Then the page that was asked for."""
    pusher = start(b)
    pushed, answer = walk(b, first)
    offset = (first + 2) * PAGE
    end = WINDOW if first < 40 else SIZE
    assert answer.data == b.data[offset - PAGE : min(offset, SIZE)]
    assert pushed == [] if offset >= end else joined(pushed) == (offset, b.data[offset:end])
    assert pusher.pushed_bytes == max(0, end - offset)
    assert pusher.held == bool(pushed)
    assert (b.lane.hits, b.engine.taken) == (2, [])
    wait_for(lambda: pusher.queued_bytes, lambda queued: queued == 0)
    assert pusher.queued_bytes_max == max(0, end - offset)


def test_a_window_that_is_walked_is_touched_once(b: Bench) -> None:
    """By two READs, and by what was pushed, which is no READ. It is handed on once."""
    pusher = start(b)
    walk(b, 0)
    wait_for(lambda: pusher.queued_bytes, lambda queued: queued == 0)
    hits, touched = b.lane.take_touched()
    pushed = b.lane.take_pushed()
    (stored_range,) = touched
    assert (hits, touched[stored_range]) == (2, 2 * PAGE)
    assert pushed == {stored_range: WINDOW - 2 * PAGE}
    assert (b.lane.take_touched(), b.lane.take_pushed()) == ((0, {}), {})
    assert len(b.news) == 1, "a batch is told of once"
    walk(b, 40)
    assert len(b.news) == 2


def test_what_is_noted_as_pushed_is_bounded(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "NOTED_MAX", 1)
    pusher = start(b)
    for page in (0, 40):
        walk(b, page)
        wait_for(lambda: pusher.queued_bytes, lambda queued: queued == 0)
    assert pusher.pushed_bytes > WINDOW
    assert list(b.lane.take_pushed().values()) == [WINDOW - 2 * PAGE]


@pytest.mark.parametrize(
    ("pages", "size", "flags"),
    [
        (range(40), PAGE, os.O_DIRECT),
        (range(39, -1, -1), PAGE, BUFFERED),
        (range(0, 40, 2), PAGE, BUFFERED),
        (random.Random(3).sample(range(0, 80, 2), 40), PAGE, BUFFERED),
        (range(0, 38, 2), 2 * PAGE, BUFFERED),
    ],
    ids=["O_DIRECT", "backwards", "every other", "random", "larger"],
)
def test_what_is_no_walk_brings_nothing(b: Bench, pages: list[int], size: int, flags: int) -> None:
    pusher = start(b)
    for page in pages:
        assert b.read(page * PAGE, size, flags=flags) == b.data[page * PAGE : min(page * PAGE + size, SIZE)]
    assert (pusher.pushed_bytes, pusher.held, pusher.queued_bytes_max) == (0, 0, 0)


def test_the_page_that_was_asked_for_does_not_wait_for_all(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "CHUNK_BYTES", 4 * PAGE)
    monkeypatch.setattr(push, "HELD_BYTES", 8 * PAGE)
    pusher = start(b)
    pushed, answer = walk(b, 0)
    assert answer.data == b.data[PAGE : 2 * PAGE]
    assert joined(pushed) == (2 * PAGE, b.data[2 * PAGE : 10 * PAGE])
    while sum(len(data) for _, data in pushed) < WINDOW - 2 * PAGE:
        pushed.append(stored(b.devices[0].answer()))
    assert joined(pushed) == (2 * PAGE, b.data[2 * PAGE : WINDOW])
    assert all(len(data) <= 4 * PAGE for _, data in pushed)
    assert pusher.held == 1


def test_a_message_fits_the_pipe(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "PIPE_BYTES_WANTED", 8 * PAGE)
    start(b)
    pushed, _ = walk(b, 0)
    assert {len(data) for _, data in pushed[:-1]} == {7 * PAGE}
    assert joined(pushed) == (2 * PAGE, b.data[2 * PAGE : WINDOW])


def test_a_pipe_of_one_page_pushes_nothing(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "PIPE_BYTES_WANTED", PAGE)
    pusher = start(b)
    assert walk(b, 0)[0] == []
    assert pusher.queued_bytes_max == 0


def test_pages_that_are_asked_for_all_the_same_are_counted(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were dropped, or the walk was quicker. A whole walk through them brings the rest again."""
    monkeypatch.setattr(push, "PAGES_BEFORE_AGAIN", 5)
    pusher = start(b)
    walk(b, 0)
    for page in range(2, 6):
        assert b.read(page * PAGE, PAGE, flags=BUFFERED) == b.data[page * PAGE : (page + 1) * PAGE]
    assert pusher.wasted_bytes == 4 * PAGE
    assert pusher.pushed_bytes == WINDOW - 2 * PAGE
    pushed, _ = until(b, b.ask(6 * PAGE, PAGE))
    assert joined(pushed) == (7 * PAGE, b.data[7 * PAGE : WINDOW])


def test_walks_that_are_remembered_are_bounded(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "WALKS_MAX", 1)
    pusher = start(b)
    for page in (0, 40, 1, 41, 2):  # each makes the other forgotten
        b.read(page * PAGE, PAGE, flags=BUFFERED)
    assert len(pusher._walks) == 1
    assert pusher.pushed_bytes == 0


# ---------------------------------------------------------------------- limits and faults


def test_nothing_is_pushed_without_memory(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "available_bytes", lambda: push.MEMORY_LEFT_BYTES - 1)
    pusher = start(b)
    pushed, answer = walk(b, 0)
    assert pushed == []
    assert answer.data == b.data[PAGE : 2 * PAGE]
    assert (pusher.pushed_bytes, pusher.dropped) == (0, 1)


def test_available_memory_is_what_the_system_says() -> None:
    assert 0 < push.available_bytes() < 1 << 60


def test_what_waits_is_bounded(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "QUEUED_BYTES_MAX", WINDOW // 2)
    pusher = start(b)
    assert walk(b, 0)[0] == []
    assert (pusher.dropped, pusher.queued_bytes_max, pusher.held) == (1, 0, 0)
    assert walk(b, 30)[0] != []


def view_is_gone(b: Bench) -> None:
    b.node.view = None


def range_is_evicted(b: Bench) -> None:
    b.open_ranges.clear()


@pytest.mark.parametrize(("change", "chunks"), [(view_is_gone, 2), (range_is_evicted, 3)])
def test_what_changes_in_the_middle_is_pushed_no_further(
    b: Bench, monkeypatch: pytest.MonkeyPatch, change: Callable[[Bench], None], chunks: int
) -> None:
    """Not what is in the pipe already, if the version has changed; the READ that is held is answered all the same."""
    monkeypatch.setattr(push, "CHUNK_BYTES", 4 * PAGE)
    pusher = start(b)
    calls: list[str] = []

    def look(name: str) -> None:
        calls.extend([name] * (name == "splice"))
        if len(calls) == 1 + 3 and name == "splice":  # one for the first READ, then the third chunk
            change(b)

    b.fs.hook = look
    pushed, answer = walk(b, 0)
    assert answer.data == b.data[PAGE : 2 * PAGE]
    assert joined(pushed) == (2 * PAGE, b.data[2 * PAGE : (2 + 4 * chunks) * PAGE])
    assert (pusher.dropped, pusher.pushed_bytes) == (1, 4 * chunks * PAGE)


@pytest.mark.parametrize("kind", [OSError, RuntimeError, KeyError])
def test_a_push_that_fails(b: Bench, kind: type[Exception]) -> None:
    """The READ that is held is answered, nothing of the push is left in the pipe, and the next one works."""
    pusher = start(b)
    calls: list[str] = []

    def fail(name: str) -> None:
        calls.extend([name] * (name == "splice"))
        if len(calls) == 2 and name == "splice":
            raise kind(errno.EIO, "planted")

    b.fs.hook = fail
    pushed, answer = walk(b, 0)
    assert pushed == []
    assert answer.data == b.data[PAGE : 2 * PAGE]
    assert pusher.failed == 1
    assert joined(walk(b, 40)[0]) == (42 * PAGE, b.data[42 * PAGE : SIZE])


def test_every_step_of_a_push_fails(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The READ that is held is the engine's then."""

    def raising(*_: Any) -> Any:
        raise RuntimeError("planted")

    pusher = start(b)
    with monkeypatch.context() as planted:
        planted.setattr(pusher, "_fill", raising)
        pushed, answer = walk(b, 0)
        assert pushed == []
        assert answer.data == b.data[PAGE : 2 * PAGE]
        assert len(b.engine.taken) == 1
        wait_for(lambda: pusher.queued_bytes, lambda queued: queued == 0)
    assert joined(walk(b, 40)[0]) == (42 * PAGE, b.data[42 * PAGE : SIZE])


def test_an_inode_that_the_kernel_has_forgotten(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    pusher = start(b)
    real, refused = os.splice, []

    def refusing(source: int, target: int, count: int, **options: Any) -> int:
        if target == b.devices[0].fd and count > WINDOW // 2:
            refused.append(count)
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return real(source, target, count, **options)

    monkeypatch.setattr(os, "splice", refusing)
    pushed, answer = walk(b, 0)
    assert pushed == []
    assert answer.data == b.data[PAGE : 2 * PAGE]
    assert (len(refused), pusher.failed, pusher.pushed_bytes) == (1, 1, 0)


def test_a_store_that_hangs_holds_the_push_and_nobody_else(b: Bench) -> None:
    """The watchdog gives the READ that is held to the engine, once; others are not held meanwhile."""
    pusher = start(b)
    released = threading.Event()

    def hang(name: str) -> None:
        if name == "splice" and threading.current_thread().name == "lane pusher":
            assert released.wait(60)

    b.fs.hook = hang
    pushed, answer = walk(b, 0)
    assert pushed == []
    assert answer.data == b.data[PAGE : 2 * PAGE]
    assert [request.avoid_store for request in b.engine.taken] == [False], "its gate gives the store its time"
    pushed, answer = walk(b, 40)
    assert pushed == []
    assert answer.data == b.data[41 * PAGE : 42 * PAGE]
    assert pusher.held == 1
    assert len(b.engine.taken) == 1
    b.fs.hook = None
    released.set()
    assert joined([stored(b.devices[0].answer())]) == (2 * PAGE, b.data[2 * PAGE : WINDOW])
    assert joined([stored(b.devices[0].answer())]) == (42 * PAGE, b.data[42 * PAGE : SIZE])
    assert b.read(5 * PAGE, PAGE) == b.data[5 * PAGE : 6 * PAGE], "and no second answer was there before it"


def test_an_interrupt_for_a_read_that_is_held_is_left_alone(b: Bench) -> None:
    """It is answered in a moment, and asking the kernel to say it again would only be heard again at once."""
    start(b)
    interrupted: list[int] = []

    def interrupt(name: str) -> None:
        if name == "splice" and threading.current_thread().name == "lane pusher" and not interrupted:
            interrupted.append(b.lane.pusher.pending[0].unique if b.lane.pusher is not None else 0)
            b.lane.interrupt(interrupted[0], memoryview(b""))

    b.fs.hook = interrupt
    pushed, answer = walk(b, 0)
    assert interrupted == [answer.unique]
    assert joined(pushed) == (2 * PAGE, b.data[2 * PAGE : WINDOW])
    assert answer.data == b.data[PAGE : 2 * PAGE]


def test_the_end_while_a_read_is_held(b: Bench) -> None:
    """Nothing more is pushed, and the READ is answered."""
    pusher = start(b)

    def end(name: str) -> None:
        if name == "splice" and threading.current_thread().name == "lane pusher":
            pusher.end()

    b.fs.hook = end
    _, answer = walk(b, 0)
    assert answer.data == b.data[PAGE : 2 * PAGE]
    b.fs.hook = None
    assert walk(b, 40)[0] == []
    assert pusher.queued_bytes == 0
