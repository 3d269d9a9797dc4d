"""The lane without a mount: sockets in the place of /dev/fuse, an engine that answers from memory, a real store.

A device takes one request at a time: as a stream it would not keep two apart.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from mummufs.backends.fuse import relay, wire
from mummufs.backends.fuse.lane import Lane
from mummufs.backends.fuse.lanereads import LaneRead, LaneReads
from mummufs.backends.fuse.push import Pusher
from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.core.stats import Counters
from mummufs.engine.nodes import Node
from mummufs.engine.overlay import Handle
from mummufs.engine.views import FileView, OpenRanges
from mummufs.store.layout import range_name
from mummufs.store.rangestore import RangeStore
from tests.engine.harness import contents, make_table
from tests.support.watched_os import WatchedOs

PAGE = 4096
ANSWER_S = 20.0
FILE, FH, NODEID = FileId(7, 8), 3, 5


class Answer(NamedTuple):
    """A reply, or a notification (unique 0)."""

    unique: int
    error: int
    data: bytes


class Device:
    """Stands in for a clone of /dev/fuse: `fd` is the lane's end, the rest is the kernel's."""

    def __init__(self) -> None:
        self._kernel, lane = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._lane = lane
        self.fd = lane.fileno()

    def send(self, opcode: int, body: bytes, unique: int, nodeid: int = NODEID, pid: int = 0) -> None:
        """Have the lane read a request."""
        header = wire.IN_HEADER.pack(wire.IN_HEADER.size + len(body), opcode, unique, nodeid, 0, 0, pid, 0, 0)
        self._kernel.sendall(header + body)

    def answer(self) -> Answer:
        """The next reply."""
        size, error, unique = wire.OUT_HEADER.unpack(self._received(wire.OUT_HEADER.size))
        return Answer(unique, -error if unique else error, self._received(size - wire.OUT_HEADER.size))

    @property
    def has_answer(self) -> bool:
        """Whether one is there already."""
        return bool(select.select([self._kernel], [], [], 0)[0])

    def close(self) -> None:
        """The kernel has gone."""
        self._kernel.close()

    def drop(self) -> None:
        """Nobody reads it any more."""
        self._lane.close()

    def _received(self, size: int) -> bytes:
        self._kernel.settimeout(ANSWER_S)
        data = bytearray()
        while len(data) < size:
            part = self._kernel.recv(size - len(data))
            assert part, "the lane has closed its end"
            data += part
        return bytes(data)


class Engine(LaneReads):
    """Answers from memory, and keeps what it was handed."""

    def __init__(self, data: bytes) -> None:
        super().__init__(cast(Any, None), Counters())
        self._data = data
        self.taken: list[LaneRead] = []
        self.interrupted_uniques: list[int] = []
        self.knows: set[int] = set()
        self.hangs = False
        self.hanging: set[int] = set()

    def submit(self, request: LaneRead) -> None:
        self.taken.append(request)
        if self.hangs:
            self.hanging.add(request.unique)
            return
        part = self._data[request.offset : request.offset + request.size]
        with contextlib.suppress(OSError):
            header = wire.OUT_HEADER.pack(wire.OUT_HEADER.size + len(part), 0, request.unique)
            os.write(request.fd, header + part)

    def take_back(self, request: LaneRead) -> bool:
        if request.unique not in self.hanging:
            return False
        self.hanging.remove(request.unique)
        return True

    def interrupt(self, unique: int) -> bool:
        self.interrupted_uniques.append(unique)
        return unique in self.knows


class HookedOs(WatchedOs):
    """Calls `hook` with the name of each call before it is made."""

    hook: Callable[[str], None] | None = None

    def _call(self, name: str) -> None:
        if self.hook is not None:
            self.hook(name)


class Bench:
    """A lane over devices, with one file whose ranges are in a store, open and proved."""

    def __init__(
        self, folder: Path, windows: Sequence[tuple[int, int]], *, size: int, stored: Sequence[int] | None = None
    ) -> None:
        """Make it; nothing runs before `start`.

        Args:
            windows: offset and size of each.
            size: of the file.
            stored: the numbers of the windows that are in the store; None for all.
        """
        self.data = contents(size)
        self.folder = folder
        self.fs = HookedOs(folder)
        self.engine = Engine(self.data)
        version = Version(size, 5, 6)
        store = RangeStore(self.fs)
        self.open_ranges = OpenRanges()
        for i, (offset, length) in enumerate(windows):
            if stored is None or i in stored:
                data = memoryview(self.data)[offset : offset + length]
                found = store.write_range(RangeKey(FILE, offset, length), version, data)
                found.prove()
                self.open_ranges[offset, length] = found
        self.view = FileView(version, make_table(size, windows), self.open_ranges)
        self.node = Node(None, b"", cast(Any, None))
        self.node.view = self.view
        self.stalls: list[None] = []
        self.gone = threading.Event()
        self.news: list[None] = []
        self.uniques = itertools.count(2, 2)
        self.devices: list[Device] = []
        self.closing: list[Callable[[], None]] = []

    def start(self, devices: int = 1, pusher: Callable[[int], Pusher] | None = None) -> Lane:
        """Begin to serve."""
        self.devices = [Device() for _ in range(devices)]
        wishes = wire.Wishes(max_pages=256, max_write_bytes=1 << 20, max_background=100)
        self.relay = relay.Relay(self.devices[0].fd, wishes)
        self.libfuse = socket.socket(fileno=self.relay.libfuse_fd)
        handles: Mapping[int, Handle] = {FH: Handle(self.node, cast(Any, None), True)}
        self.lane = Lane(
            [device.fd for device in self.devices],
            handles,
            self.engine,
            self.relay,
            None if pusher is None else pusher(self.devices[0].fd),
            may_read_store=lambda: True,
            stalled=lambda: self.stalls.append(None),
            gone=self.gone.set,
            touched=lambda: self.news.append(None),
        )
        self.relay.start()
        if self.lane.pusher is not None:
            self.lane.pusher.start()
        self.lane.start()
        return self.lane

    def ask(self, offset: int, size: int, device: int = 0, flags: int = 0) -> int:
        """Send a READ; its unique."""
        unique = next(self.uniques)
        self.devices[device].send(wire.READ, wire.READ_IN.pack(FH, offset, size, 0, 0, flags, 0), unique)
        return unique

    def read(self, offset: int, size: int, device: int = 0, flags: int = os.O_DIRECT) -> bytes:
        """A READ, answered. Direct by default: nothing is pushed for it."""
        unique = self.ask(offset, size, device, flags)
        answer = self.devices[device].answer()
        assert answer.unique == unique, "every request has one answer"
        assert answer.error == 0
        return answer.data

    def path(self, i: int) -> Path:
        """The range file of the i-th window."""
        offset = self.view.starts[i]
        return self.folder / range_name(RangeKey(FILE, offset, self.view.ends[i] - offset))

    def close(self) -> None:
        """End the threads."""
        if not self.devices:
            return
        if self.lane.pusher is not None:
            self.lane.pusher.end()
        self.relay.shut()
        self.libfuse.close()
        for device in self.devices:
            device.close()
        assert self.gone.wait(ANSWER_S)
        for thread in lane_threads():
            thread.join(ANSWER_S)
        assert not lane_threads()
        self.relay._ours.close()
        for device in self.devices:
            device.drop()


def lane_threads() -> list[threading.Thread]:
    """The threads that the lane has."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(("lane", "relay"))]


@contextlib.contextmanager
def bench(
    folder: Path, windows: Sequence[tuple[int, int]], *, size: int, stored: Sequence[int] | None = None
) -> Iterator[Bench]:
    """A bench for the length of a block; it is not started."""
    made = Bench(folder, windows, size=size, stored=stored)
    try:
        yield made
    finally:
        made.fs.hook = None
        made.close()
