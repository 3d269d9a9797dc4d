"""The way to libfuse and back: verbatim, in order, to the right clone, whatever the socket's buffer."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from mummufs.backends.fuse import relay as relay_module
from mummufs.backends.fuse import wire
from mummufs.backends.fuse.relay import MAX_WRITE_BYTES, MESSAGE_OVERHEAD_BYTES, Relay
from tests.backends.devices import ANSWER_S, PAGE, Device, lane_threads
from tests.support.waiting import wait_for

WMEM_DEFAULT_BYTES = 212_992
"""net.core.wmem_max as Linux has it; a message may take half of twice that."""
WISHES = wire.Wishes(max_pages=256, max_write_bytes=MAX_WRITE_BYTES, max_background=100, passthrough=True)
KEEP_CACHE = 1 << 1


class Between:
    """A relay between two clones and the end that libfuse has."""

    def __init__(self) -> None:
        self.devices = [Device(), Device()]
        self.relay = Relay(self.devices[0].fd, WISHES)
        self.libfuse = socket.socket(fileno=self.relay.libfuse_fd)
        self.libfuse.settimeout(ANSWER_S)

    def forward(self, opcode: int, unique: int, body: bytes = b"", device: int = 0) -> bytes:
        """Hand a request over; its bytes."""
        message = wire.IN_HEADER.pack(wire.IN_HEADER.size + len(body), opcode, unique, 1, 2, 3, 4, 0, 0) + body
        self.relay.forward(memoryview(bytearray(message)), opcode, unique, self.devices[device].fd)
        return message

    def reply(self, unique: int, body: bytes, error: int = 0) -> None:
        """libfuse answers."""
        self.libfuse.send(wire.OUT_HEADER.pack(wire.OUT_HEADER.size + len(body), -error, unique) + body)

    def close(self) -> None:
        self.relay.shut()
        self.libfuse.close()
        for thread in lane_threads():
            thread.join(ANSWER_S)
        assert not lane_threads()
        self.relay._ours.close()
        for device in self.devices:
            device.close()
            device.drop()


@pytest.fixture
def between() -> Iterator[Between]:
    made = Between()
    made.relay.start()
    yield made
    made.close()


def test_requests_and_replies_pass_as_they_are(between: Between) -> None:
    """A reply goes to the clone that its request came from, in whatever order they come."""
    asked = [between.forward(wire.GETATTR, 2 * i, bytes([i]) * 16, device=i % 2) for i in range(1, 9)]
    assert [between.libfuse.recv(1000) for _ in asked] == asked
    assert all(between.relay.owns(2 * i) for i in range(1, 9))
    for i in reversed(range(1, 9)):
        between.reply(2 * i, bytes([i]) * 50)
    assert [between.devices[0].answer() for _ in range(4)] == [(2 * i, 0, bytes([i]) * 50) for i in (8, 6, 4, 2)]
    assert [between.devices[1].answer() for _ in range(4)] == [(2 * i, 0, bytes([i]) * 50) for i in (7, 5, 3, 1)]
    assert not any(between.relay.owns(2 * i) for i in range(1, 9))
    assert between.relay.forwarded == 8
    assert between.relay.lost_replies == 0


def test_who_gets_no_reply_is_not_remembered(between: Between) -> None:
    for opcode in (wire.FORGET, wire.BATCH_FORGET, wire.INTERRUPT):
        between.forward(opcode, 0, bytes(8))
    assert between.relay._owners == {}


def test_a_reply_that_nobody_asked_for_is_counted(between: Between) -> None:
    between.reply(40, b"nobody")
    wait_for(lambda: between.relay.lost_replies, lambda lost: lost == 1)
    assert not between.devices[0].has_answer


def test_libfuse_is_slow(between: Between) -> None:
    """What does not fit the socket waits, in order, and nobody who brings a request waits with it."""
    between.forward(wire.WRITE, 2, b"x" * 200_000)
    count = 100
    asked = [between.forward(wire.WRITE, 2 * i, bytes([i % 256]) * 200_000) for i in range(2, count)]
    assert between.relay.waiting_max > 10
    assert len(between.libfuse.recv(1 << 21)) == wire.IN_HEADER.size + 200_000
    for message in asked:
        assert between.libfuse.recv(1 << 21) == message
    wait_for(lambda: len(between.relay._waiting), lambda waiting: waiting == 0)


def test_libfuse_is_gone(between: Between) -> None:
    """Who brings a request is told, and so is who waits for one that had to wait."""
    for i in range(1, 100):
        between.forward(wire.WRITE, 2 * i, b"x" * 200_000)
    between.libfuse.close()
    waited = between.relay.waiting_max
    answers = [between.devices[0].answer() for _ in range(waited)]
    assert {answer.error for answer in answers} == {errno.EIO}
    wait_for(lambda: len(between.relay._waiting), lambda waiting: waiting == 0)
    with pytest.raises(OSError, match="Broken pipe"):
        between.forward(wire.GETATTR, 1000)
    assert not between.relay.owns(1000)


@pytest.mark.parametrize("answered", [True, False])
def test_an_interrupt_that_came_too_early_or_too_late(between: Between, answered: bool) -> None:
    """libfuse says EAGAIN where it does not know the request: the kernel hears it while there is one to interrupt."""
    between.forward(wire.GETATTR, 8, bytes(16), device=1)
    if answered:
        between.reply(8, b"done")
        assert between.devices[1].answer().data == b"done"
    between.reply(8 | wire.INTERRUPT_BIT, b"", errno.EAGAIN)
    if not answered:
        assert between.devices[1].answer() == (9, errno.EAGAIN, b"")
        between.reply(8, b"done")
        assert between.devices[1].answer().data == b"done"
    between.forward(wire.GETATTR, 10, bytes(16))
    between.reply(10, b"next")
    assert between.devices[0].answer() == (10, 0, b"next")
    assert between.relay.lost_replies == 0


# ---------------------------------------------------------------------- INIT and OPEN


def test_init_is_rewritten_both_ways(between: Between) -> None:
    flags = wire.INIT_EXT | wire.MAX_PAGES | wire.ASYNC_DIO | wire.SPLICE_FLAGS
    body = wire.INIT_IN.pack(7, 45, 131_072, flags, 0xFFFFFFFF, *bytes(11))
    header = wire.IN_HEADER.pack(wire.IN_HEADER.size + len(body), wire.INIT, 2, 0, 0, 0, 0, 0, 0)
    between.relay.init(bytearray(header + body), 2, between.devices[1].fd)
    seen = wire.INIT_IN.unpack_from(between.libfuse.recv(1000), wire.IN_HEADER.size)
    assert seen[3] == flags & ~wire.SPLICE_FLAGS
    between.reply(2, wire.INIT_OUT.pack(7, 38, 131_072, wire.MAX_PAGES, 12, 9, 1 << 20, 1, 32, *bytes(9)))
    answer = between.devices[1].answer()
    told = wire.INIT_OUT.unpack(answer.data)
    assert told[8] == WISHES.max_pages
    assert told[10] == wire.DIRECT_IO_ALLOW_MMAP | wire.PASSTHROUGH
    negotiated = between.relay.negotiated
    assert negotiated is not None
    assert negotiated.passthrough
    assert negotiated.max_pages == WISHES.max_pages
    assert negotiated.max_write_bytes == told[6] <= between.relay.message_bytes


@pytest.mark.parametrize("passed", [True, False])
def test_an_open_that_is_passed_through(between: Between, passed: bool) -> None:
    """Once, and no other."""
    if passed:
        between.relay.backing[9] = 77
    for unique, flags, backing in ((2, wire.FOPEN_PASSTHROUGH, 77), (4, KEEP_CACHE, 0)):
        between.forward(wire.OPEN, unique, bytes(8))
        between.reply(unique, struct.pack("=QIi", 9, KEEP_CACHE, 0))
        expected = (9, flags, backing) if passed else (9, KEEP_CACHE, 0)
        assert wire.OPEN_OUT.unpack(between.devices[0].answer().data) == expected
    assert between.relay.backing == {}


def test_an_open_that_fails_takes_no_backing(between: Between) -> None:
    between.relay.backing[9] = 77
    between.forward(wire.OPEN, 2, bytes(8))
    between.reply(2, b"", errno.ENOENT)
    assert between.devices[0].answer() == (2, errno.ENOENT, b"")
    assert between.relay.backing == {9: 77}


def test_an_exception_while_a_reply_is_rewritten(between: Between, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO for that caller; the next reply passes."""

    def raising(*_: Any) -> Any:
        raise RuntimeError("planted")

    with monkeypatch.context() as planted:
        planted.setattr(between.relay, "_opened", raising)
        between.forward(wire.OPEN, 2, bytes(8))
        between.reply(2, bytes(16))
        assert between.devices[0].answer() == (2, errno.EIO, b"")
    between.forward(wire.OPEN, 4, bytes(8))
    between.reply(4, bytes(16))
    assert between.devices[0].answer() == (4, 0, bytes(16))
    assert between.relay.lost_replies == 1


# ---------------------------------------------------------------------- sizes


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    """As a user has it who may not pass wmem_max."""
    monkeypatch.setattr(relay_module, "SOCKET_BYTES_WANTED", WMEM_DEFAULT_BYTES)
    made = Between()
    made.relay.start()
    yield made
    made.close()


def test_a_user_who_may_not_force_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """SO_SNDBUFFORCE is refused, and SO_SNDBUF gives what it gives."""
    real = socket.socket.setsockopt
    asked = []

    def refusing(self: socket.socket, level: int, option: int, value: int) -> None:
        asked.append(option)
        if option == relay_module._SO_SNDBUFFORCE:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        real(self, level, option, min(value, WMEM_DEFAULT_BYTES))

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end, monkeypatch.context() as planted:
        planted.setattr(socket.socket, "setsockopt", refusing)
        assert relay_module._largest_message(end) == WMEM_DEFAULT_BYTES
    assert asked == [relay_module._SO_SNDBUFFORCE, socket.SO_SNDBUF]


def test_writes_are_cut_to_what_passes(small: Between) -> None:
    """The largest WRITE that INIT allows passes whole, in both directions' limits."""
    assert small.relay.message_bytes == WMEM_DEFAULT_BYTES
    largest = small.relay._wishes.max_write_bytes
    assert largest == WMEM_DEFAULT_BYTES - MESSAGE_OVERHEAD_BYTES
    message = small.forward(wire.WRITE, 2, b"x" * (largest + 40))
    assert small.libfuse.recv(1 << 21) == message
    small.reply(2, b"y" * largest)
    assert small.devices[0].answer().data == b"y" * largest


@pytest.mark.parametrize("opcode", [wire.READDIR, wire.READDIRPLUS])
@pytest.mark.parametrize("size", [1000, 4 << 20])
def test_listings_are_cut_to_what_passes(small: Between, opcode: int, size: int) -> None:
    small.forward(opcode, 2, wire.READ_IN.pack(1, 0, size, 0, 0, 0, 0))
    asked = wire.READ_IN.unpack_from(small.libfuse.recv(1000), wire.IN_HEADER.size)
    assert asked[2] == min(size, WMEM_DEFAULT_BYTES - MESSAGE_OVERHEAD_BYTES)
    small.reply(2, b"e" * asked[2])
    assert small.devices[0].answer().data == b"e" * asked[2]


def test_a_message_that_is_too_large_is_refused(small: Between) -> None:
    with pytest.raises(OSError, match="Message too long"):
        small.forward(wire.WRITE, 2, bytes(1 << 20))
    assert not small.relay.owns(2)


# ---------------------------------------------------------------------- notifications


def test_notifications_have_a_thread_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that blocks in the kernel holds up no reply; beyond a number they are dropped."""
    monkeypatch.setattr(relay_module, "NOTIFICATIONS_MAX", 3)
    between = Between()
    assert between.relay._notifications.maxsize == 3
    between.relay.start()
    try:
        device = between.devices[0].fd
        os.set_blocking(device, False)
        with pytest.raises(BlockingIOError):
            while True:  # the device takes no more, so the thread will block there
                os.write(device, bytes(PAGE))
        os.set_blocking(device, True)
        for _ in range(10):
            between.libfuse.send(wire.OUT_HEADER.pack(wire.OUT_HEADER.size, 3, 0))
        between.forward(wire.GETATTR, 2, device=1)
        between.reply(2, b"there")
        assert between.devices[1].answer().data == b"there"
        assert between.relay.dropped_notifications >= 10 - 3 - 1
    finally:
        between.devices[0].close()
        between.close()


def test_a_notification_passes(between: Between) -> None:
    between.libfuse.send(wire.OUT_HEADER.pack(wire.OUT_HEADER.size + 5, 3, 0) + b"inode")
    assert between.devices[0].answer() == (0, 3, b"inode")


@pytest.mark.parametrize(("offset", "passes"), [(-1, True), (0, False)])
def test_what_is_told_of_attributes_alone_passes_before_the_reply_that_follows(offset: int, passes: bool) -> None:
    """Its thread does not even run."""
    between = Between()
    told = wire.INVAL_INODE_OUT.pack(7, offset, 0)
    try:
        between.relay._notify = lambda: None  # type: ignore[method-assign]
        between.relay.start()
        header = wire.OUT_HEADER.pack(wire.OUT_HEADER.size + len(told), wire.NOTIFY_INVAL_INODE, 0)
        between.libfuse.send(header + told)
        between.forward(wire.GETATTR, 2)
        between.reply(2, b"then")
        expected = [(0, wire.NOTIFY_INVAL_INODE, told)] if passes else []
        assert [between.devices[0].answer() for _ in range(1 + passes)] == [*expected, (2, 0, b"then")]
    finally:
        between.close()
