"""The control socket: one JSON object a line in, one a line out. `client.FaultFs` is its other end.

Request `{"command": NAME, ...arguments}`, answer `{"value": ...}` or `{"error": sentence}`.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import trio

from tests.faultfs.faults import BitFlip, FailRule, Faults
from tests.faultfs.operations import FaultOperations

MAX_LINE_BYTES = 1 << 20
RECEIVE_BYTES = 1 << 16


class Control:
    """Commands on one mount. Every public method is a command; its arguments are the request's other members."""

    def __init__(self, operations: FaultOperations) -> None:
        self._operations = operations

    def execute(self, line: bytes) -> dict[str, object]:
        """Carry out one request line. A bad one is answered with an error, never raised."""
        try:
            request: dict[str, Any] = json.loads(line)
            name = request.pop("command")
            if name.startswith("_") or name == "execute":
                raise AttributeError(name)
            command: Callable[..., object] = getattr(self, name)
            return {"value": command(**request)}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def reads(self, clear: bool) -> dict[str, object]:
        """The log of reads so far, oldest first."""
        value = {
            "records": [record.as_json() for record in self._operations.records],
            "dropped": self._operations.dropped_records,
        }
        if clear:
            self.clear()
        return value

    def clear(self) -> None:
        """Forget the log and the counts. Reads that still wait are forgotten too."""
        self._operations.records.clear()
        self._operations.dropped_records = 0
        self._operations.op_counts.clear()

    def op_counts(self) -> dict[str, int]:
        """Calls of each operation since the last clear."""
        return dict(self._operations.op_counts)

    def delay_reads(self, seconds: float, path: str | None) -> None:
        """Reads wait first; 0 ends it."""
        self._operations.faults.read_delays_s[path] = seconds

    def delay_attributes(self, seconds: float) -> None:
        """Look-ups, getattrs and listings wait first; 0 ends it."""
        self._operations.faults.attr_delay_s = seconds

    def fail(self, op: str, errno: int, after: int, count: int | None, path: str | None) -> None:
        """Calls of `op` fail, see `FailRule`."""
        if not callable(getattr(self._operations, op, None)):
            raise ValueError(f"there is no operation {op!r}")
        self._operations.faults.fail_rules.append(FailRule(op, errno, after, count, path))

    def short_reads(self, size: int | None) -> None:
        """Reads return at most `size` bytes; None ends it."""
        self._operations.faults.short_read_bytes = size

    def limit_writes(self, size: int | None) -> None:
        """After `size` more bytes, writes fail with ENOSPC; None ends it."""
        self._operations.faults.writable_bytes = size

    def delay_syncs(self, seconds: float) -> None:
        """Syncs wait first; 0 ends it."""
        self._operations.faults.sync_delay_s = seconds

    def lie_on_syncs(self) -> None:
        """Syncs are answered at once and make nothing durable."""
        self._operations.faults.syncs_lie = True

    def lose_power(self, loss: str) -> int:
        """What was not synced is lost, see `Unsynced`; how many files lost bytes."""
        if self._operations.unsynced is None:
            raise ValueError("this layer keeps no account of syncs: start it with --volatile")
        lost = self._operations.unsynced.lose_power(loss)
        self._operations.faults.power_is_off = True
        self._operations.release_hung()
        return lost

    def flip_bits(self, path: str, offset: int, mask: int) -> None:
        """Reads see a changed byte, see `BitFlip`."""
        self._operations.faults.bit_flips.append(BitFlip(path, offset, mask))

    def hang_reads(self, path: str | None) -> None:
        """Reads wait until they are released."""
        self._operations.faults.hung_paths.add(path)

    def release_reads(self) -> None:
        """No read hangs any longer."""
        self._operations.faults.hung_paths.clear()
        self._operations.release_hung()

    def reset(self) -> None:
        """No faults any longer; the log stays."""
        self._operations.faults = Faults()
        self._operations.release_hung()


async def serve(control: Control, listener: socket.socket) -> None:
    """Answer every client, until cancelled."""

    async def handle(stream: trio.SocketStream) -> None:
        pending = b""
        try:
            while chunk := await stream.receive_some(RECEIVE_BYTES):
                *lines, pending = (pending + chunk).split(b"\n")
                if len(pending) > MAX_LINE_BYTES:
                    return
                for line in lines:
                    await stream.send_all(json.dumps(control.execute(line)).encode() + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client went away
        finally:
            await trio.aclose_forcefully(stream)

    await trio.serve_listeners(handle, [trio.SocketListener(trio.socket.from_stdlib_socket(listener))])
