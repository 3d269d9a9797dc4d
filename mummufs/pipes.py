r"""Control over a named pipe: how `mummufs status` and `umount` talk to a daemon on Windows.

One pipe per mount, `\\.\pipe\mummufs-` and a number made of the mountpoint. One JSON object is the request, one is the
answer, as on the control socket. Windows lets the mounting user, administrators and SYSTEM write to a pipe that was
made without an access list, and nobody else; who may not write cannot ask.

The messages are those of `multiprocessing.connection`, of which only bytes are used: nothing is ever unpickled. Where
there are no such pipes (in tests) a socket is in their place.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import trio

from mummufs.core.errors import MummufsError

DIRECTORY = "\\\\.\\pipe\\"
PREFIX = "mummufs-"
TIMEOUT_S = 5.0
REQUEST_BYTES_MAX = 64 << 10
ANSWER_BYTES_MAX = 64 << 20
CLIENTS_MAX = 16
"""Clients served at once; more wait."""
BUSY_PAUSE_S = 0.05
"""Pause before a pipe whose every end is taken is tried again."""

Answer = dict[str, Any]
Handler = Callable[[Mapping[str, object]], Awaitable[Answer]]


def pipe_of(mountpoint: str) -> str:
    """The pipe of the mount at a place: a drive like `M:`, or a directory."""
    name = mountpoint.rstrip("\\/").upper().encode("utf-8", "surrogatepass")
    return DIRECTORY + PREFIX + blake2b(name, digest_size=8).hexdigest()


def pipes() -> list[str]:
    """The pipes of all mounts, of whichever user."""
    with contextlib.suppress(OSError):
        return sorted(DIRECTORY + name for name in os.listdir(DIRECTORY) if name.startswith(PREFIX))
    return []


def request(pipe: str, op: str, timeout_s: float = TIMEOUT_S, **args: object) -> Answer:
    """Ask the daemon that has a pipe.

    Raises:
        MummufsError: it does not answer in time, or it refuses.
        OSError: it cannot be reached: FileNotFoundError where there is no such pipe.
    """
    give_up = time.monotonic() + timeout_s
    with _connected(pipe, give_up) as connection:
        try:
            connection.send_bytes(json.dumps({"op": op, **args}).encode())
            if not connection.poll(max(0.0, give_up - time.monotonic())):
                raise MummufsError(f"the daemon behind {pipe} does not answer within {timeout_s:g} s")
            answer = json.loads(connection.recv_bytes(ANSWER_BYTES_MAX))
        except (EOFError, BrokenPipeError, ConnectionResetError, ValueError):
            raise MummufsError(f"the daemon behind {pipe} ended without an answer") from None
    if not answer.pop("ok", False):
        raise MummufsError(str(answer.get("message", "the daemon refused")))
    return dict(answer)


def _connected(pipe: str, give_up: float) -> Any:
    """A connection to a pipe. One whose every end is taken by somebody else is waited for."""
    while True:
        try:
            return Client(pipe)
        except (FileNotFoundError, ConnectionRefusedError):
            raise
        except OSError:
            if time.monotonic() >= give_up:
                raise
        time.sleep(BUSY_PAUSE_S)


class PipeServer:
    """The daemon's side."""

    def __init__(self, pipe: str, handlers: Mapping[str, Handler]) -> None:
        """Take the pipe.

        Raises:
            OSError: another daemon has it.
        """
        self._pipe = pipe
        self._handlers = handlers
        self._listener = Listener(pipe)
        self._places = threading.Semaphore(CLIENTS_MAX)
        self._token: trio.lowlevel.TrioToken | None = None
        self._closed = False

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer clients until cancelled."""
        self._token = trio.lowlevel.current_trio_token()
        threading.Thread(target=self._accept, name="control", daemon=True).start()
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            self.close()

    def close(self) -> None:
        """Take the pipe away. Closing twice does nothing."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(OSError):  # who waits for a client wakes up by one
                Client(self._pipe).close()
            with contextlib.suppress(OSError):
                self._listener.close()
            if not self._pipe.startswith("\\\\"):
                Path(self._pipe).unlink(missing_ok=True)

    def _accept(self) -> None:
        while not self._closed:
            self._places.acquire()
            try:
                connection = self._listener.accept()
            except OSError:  # a client that has gone already, or the end
                self._places.release()
                if not self._closed:
                    time.sleep(BUSY_PAUSE_S)
                continue
            threading.Thread(target=self._client, args=(connection,), name="control client", daemon=True).start()

    def _client(self, connection: Any) -> None:
        try:
            with connection, contextlib.suppress(OSError, EOFError):
                if connection.poll(TIMEOUT_S):
                    connection.send_bytes(json.dumps(self._answer(connection.recv_bytes(REQUEST_BYTES_MAX))).encode())
        finally:
            self._places.release()

    def _answer(self, line: bytes) -> Answer:
        try:
            try:
                asked = json.loads(line)
                handler = self._handlers[asked["op"]]
            except (ValueError, TypeError, KeyError):
                raise MummufsError("this daemon does not know that request: is it of another version?") from None
            answer = trio.from_thread.run(self._handled, handler, asked, trio_token=self._token)
        except MummufsError as error:
            return {"ok": False, "message": str(error)}
        except trio.RunFinishedError:
            return {"ok": False, "message": "the mount has ended"}
        return {"ok": True, **answer}

    async def _handled(self, handler: Handler, asked: Mapping[str, object]) -> Answer:
        with trio.move_on_after(TIMEOUT_S):
            return await handler(asked)
        raise MummufsError(f"the daemon was busy for more than {TIMEOUT_S:g} s")
