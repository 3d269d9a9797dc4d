"""What the lane does not answer: handed to libfuse over a socket pair, and libfuse's replies handed back to the kernel.

libfuse takes its end of the pair for the device (`/dev/fd/N` as the mountpoint). One message is one request or one
reply, so it has to fit the socket's buffer: requests are small but for WRITE, whose size INIT states, and replies are
small but for READDIR, whose size is cut on its way in. READ never passes here.

A reply goes to the clone of the device that its request was read from. Notifications may block in the kernel on
locked pages, so they have a thread of their own, but for those that are about attributes alone: these pass at once,
so that the kernel has them before the reply that comes next.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from mummufs.backends.fuse import wire

SOCKET_BYTES_WANTED = 4 << 20
MESSAGE_OVERHEAD_BYTES = 4096
"""Room for the headers in front of a WRITE's data."""
MAX_WRITE_BYTES = 1 << 20
NOTIFICATIONS_MAX = 1024
"""Notifications that wait for their thread; more are dropped, as the kernel may drop what it caches any time."""
WAITING_MAX = 1 << 16
"""Requests that wait for libfuse to read; beyond that the thread that brought the next one waits."""

_SO_SNDBUFFORCE = 32

log = logging.getLogger(__name__)


class _Owner(NamedTuple):
    """Where a request came from."""

    fd: int
    opcode: int


class Relay:
    """The way to libfuse and back. `forward` is called by any thread."""

    def __init__(self, device_fd: int, wishes: wire.Wishes) -> None:
        """Make the pair; nothing runs until `start`.

        Args:
            wishes: its max_write_bytes is lowered to what the pair carries.
        """
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.message_bytes = min(_largest_message(self._ours), _largest_message(theirs))
        self.libfuse_fd = theirs.detach()
        self._device_fd = device_fd
        self._wishes = wire.Wishes(
            wishes.max_pages,
            min(wishes.max_write_bytes, self.message_bytes - MESSAGE_OVERHEAD_BYTES),
            wishes.max_background,
            wishes.passthrough,
            wishes.masked,
        )
        self._owners: dict[int, _Owner] = {}
        self._offer: wire.Offer | None = None
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._notifications: queue.Queue[bytes] = queue.Queue(NOTIFICATIONS_MAX)
        self._closed = False
        self.negotiated: wire.Negotiated | None = None
        self.backing: dict[int, int] = {}
        """File handle -> backing id, for opens that are passed through; taken out when the reply passes."""
        self.forwarded = 0
        self.waiting_max = 0
        self.dropped_notifications = 0
        self.lost_replies = 0

    def start(self) -> None:
        """Begin to relay."""
        _thread("relay replies", self._replies)
        _thread("relay requests", self._send_waiting)
        _thread("relay notifications", self._notify)

    def shut(self) -> None:
        """Tell libfuse that the kernel has gone."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with contextlib.suppress(queue.Full):
            self._notifications.put_nowait(b"")
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_WR)

    def owns(self, unique: int) -> bool:
        """Whether libfuse has this request and has not answered it yet."""
        return unique in self._owners

    def init(self, request: bytearray, unique: int, fd: int) -> None:
        """Forward the kernel's INIT, rewritten."""
        self._offer = wire.offer_to_libfuse(request, self._wishes)
        self.forward(memoryview(request), wire.INIT, unique, fd)

    def forward(self, message: memoryview, opcode: int, unique: int, fd: int) -> None:
        """Hand a request to libfuse.

        Args:
            fd: the clone that it was read from.

        Raises:
            OSError: it cannot be handed over, and its reply is the caller's to give.
        """
        if opcode in (wire.READDIR, wire.READDIRPLUS):
            _cut_readdir(message, self.message_bytes - MESSAGE_OVERHEAD_BYTES)
        if opcode not in wire.UNANSWERED:
            self._owners[unique] = _Owner(fd, opcode)
        self.forwarded += 1
        try:
            with self._changed:
                if not self._waiting:
                    with contextlib.suppress(BlockingIOError):
                        self._ours.send(message, socket.MSG_DONTWAIT)
                        return
                self._changed.wait_for(lambda: len(self._waiting) < WAITING_MAX or self._closed)
                self._waiting.append(bytes(message))
                self.waiting_max = max(self.waiting_max, len(self._waiting))
                self._changed.notify_all()
        except OSError:
            self._owners.pop(unique, None)
            raise

    def _send_waiting(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) or self._closed)
                if self._closed:
                    return
                message = self._waiting[0]
            try:
                self._ours.send(message)
            except OSError as error:
                self._refuse(message, error)
            with self._changed:
                self._waiting.popleft()
                self._changed.notify_all()

    def _refuse(self, message: bytes, error: OSError) -> None:
        _, opcode, unique, *_ = wire.IN_HEADER.unpack_from(message)
        owner = self._owners.pop(unique, None)
        if owner is not None and not self._closed:
            log.warning("a request (opcode %d) cannot be handed to libfuse: %s", opcode, error)
            reply(owner.fd, unique, errno.EIO)

    def _replies(self) -> None:
        buffer = bytearray(self.message_bytes + MESSAGE_OVERHEAD_BYTES)
        view = memoryview(buffer)
        while True:
            try:
                size = self._ours.recv_into(buffer)
            except OSError:
                return
            if size == 0:
                return
            try:
                self._reply(view[:size])
            except Exception:  # the thread must not be lost
                self.lost_replies += 1
                log.exception("a reply of libfuse could not be handed on, on a fault of ours")

    def _reply(self, message: memoryview) -> None:
        _, error, unique = wire.OUT_HEADER.unpack_from(message)
        if unique == 0:
            if _is_of_attributes(message):
                self._tell(message)
                return
            try:
                self._notifications.put_nowait(bytes(message))
            except queue.Full:
                self.dropped_notifications += 1
            return
        if unique & wire.INTERRUPT_BIT:  # libfuse has not found what it was to interrupt: is it to look again?
            interrupted = self._owners.get(unique ^ wire.INTERRUPT_BIT)
            if interrupted is not None:
                with contextlib.suppress(OSError):  # ENOENT: answered meanwhile
                    os.write(interrupted.fd, message)
            return
        owner = self._owners.pop(unique, None)
        if owner is None:
            self.lost_replies += 1
            log.debug("libfuse has answered what nobody asked: %d, errno %d, %d bytes", unique, -error, len(message))
            return
        try:
            if owner.opcode == wire.INIT and self._offer is not None:
                answer = bytearray(message)
                self.negotiated = wire.answer_to_kernel(answer, self._offer, self._wishes)
                message = memoryview(answer)
            elif owner.opcode == wire.OPEN and error == 0:
                message = self._opened(message)
        except Exception:
            self.lost_replies += 1
            log.exception("a reply of libfuse could not be rewritten, on a fault of ours; its caller got EIO")
            reply(owner.fd, unique, errno.EIO)
            return
        try:
            os.write(owner.fd, message)
        except OSError as failure:
            if failure.errno != errno.ENOENT:  # that is a caller who does not wait any more
                reply(owner.fd, unique, errno.EIO)

    def _opened(self, message: memoryview) -> memoryview:
        """The reply to an OPEN, turned into one that passes reads through if that is wanted of it."""
        fh, _, _ = wire.OPEN_OUT.unpack_from(message, wire.OUT_HEADER.size)
        backing_id = self.backing.pop(fh, None)
        if backing_id is None:
            return message
        answer = bytearray(message)
        wire.OPEN_OUT.pack_into(answer, wire.OUT_HEADER.size, fh, wire.FOPEN_PASSTHROUGH, backing_id)
        return memoryview(answer)

    def _notify(self) -> None:
        while (message := self._notifications.get()) and not self._closed:
            self._tell(message)

    def _tell(self, message: bytes | memoryview) -> None:
        with contextlib.suppress(OSError):  # ENOENT: the kernel does not know the inode any more
            os.write(self._device_fd, message)


def reply(fd: int, unique: int, code: int) -> None:
    """Answer a request with an errno. A caller that is gone does not mind."""
    with contextlib.suppress(OSError):
        os.write(fd, wire.error_reply(unique, code))


def _is_of_attributes(notification: memoryview) -> bool:
    _, code, _ = wire.OUT_HEADER.unpack_from(notification)
    if code != wire.NOTIFY_INVAL_INODE or len(notification) < wire.OUT_HEADER.size + wire.INVAL_INODE_OUT.size:
        return False
    _, offset, _ = wire.INVAL_INODE_OUT.unpack_from(notification, wire.OUT_HEADER.size)
    return int(offset) < 0


def _cut_readdir(message: memoryview, limit: int) -> None:
    (size,) = struct.unpack_from("=I", message, wire.READDIR_SIZE_AT)
    struct.pack_into("=I", message, wire.READDIR_SIZE_AT, min(size, limit))


def _largest_message(end: socket.socket) -> int:
    """Make this end's buffer large, as far as allowed; the largest message that can be sent from it."""
    for option in (_SO_SNDBUFFORCE, socket.SO_SNDBUF):
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES_WANTED)
            break
    # The kernel counts its own overhead in the buffer's size; half of it is certain to be ours.
    return min(MAX_WRITE_BYTES + MESSAGE_OVERHEAD_BYTES, end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2)


def _thread(name: str, run: Callable[[], None]) -> None:
    threading.Thread(target=run, name=name, daemon=True).start()
