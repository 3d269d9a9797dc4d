"""The control socket: how `mummufs status` and `umount` talk to a daemon.

One unix socket per mount, in a directory that only the mounting user (and root) can enter; its name is derived from the
mountpoint. One JSON object on a line is the request, one is the answer: `{"op": "status"}` -> `{"ok": true, ...}` or
`{"ok": false, "message": "..."}`. The client blocks and has a time-out; nothing is started at import.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import trio

from mummufs.core.errors import MummufsError

SYSTEM_DIR = Path("/run/mummufs")
SUFFIX = ".sock"
TIMEOUT_S = 5.0
REQUEST_BYTES_MAX = 64 << 10
ANSWER_BYTES_MAX = 64 << 20
CLIENTS_MAX = 16
"""Clients served at once; more wait."""

Answer = dict[str, Any]
Handler = Callable[[Mapping[str, object]], Awaitable[Answer]]


def runtime_dir() -> Path:
    """Where this user's control sockets are."""
    if os.geteuid() == 0:
        return SYSTEM_DIR
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "mummufs" if base else Path(f"/tmp/mummufs-{os.geteuid()}")


def socket_path(mountpoint: Path) -> Path:
    """The control socket of the mount at this absolute path."""
    return runtime_dir() / (blake2b(os.fsencode(mountpoint), digest_size=8).hexdigest() + SUFFIX)


def sockets() -> list[Path]:
    """The control sockets of this user's mounts; those of daemons that are gone are removed and left out."""
    directory = runtime_dir()
    if not directory.is_dir():
        return []
    found = []
    with _alone(directory):
        for path in sorted(directory.glob("*" + SUFFIX)):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.setblocking(False)  # a full backlog is a living daemon
                try:
                    probe.connect(os.fspath(path))
                except ConnectionRefusedError:
                    path.unlink()
                    continue
            found.append(path)
    return found


def request(mountpoint: Path, op: str, /, timeout_s: float = TIMEOUT_S, **args: object) -> Answer:
    """Ask the daemon of the mount at this absolute path.

    Raises:
        MummufsError: there is none, it does not answer in time, or it refuses.
    """
    path = socket_path(mountpoint)
    try:
        return request_socket(path, op, timeout_s, **args)
    except FileNotFoundError:
        raise MummufsError(f"no mummufs of this user is mounted at {mountpoint}: see `mummufs status`") from None
    except ConnectionRefusedError:
        raise MummufsError(
            f"the daemon of {mountpoint} is gone: mount it again, or clear it away with `mummufs umount {mountpoint}`"
        ) from None


def request_socket(path: Path, op: str, /, timeout_s: float = TIMEOUT_S, **args: object) -> Answer:
    """Ask the daemon that has this socket.

    Raises:
        MummufsError: it does not answer in time, or it refuses.
        OSError: it cannot be reached.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout_s)
        try:
            client.connect(os.fspath(path))
            client.sendall(json.dumps({"op": op, **args}).encode() + b"\n")
            data = bytearray()
            while chunk := client.recv(1 << 16):
                data += chunk
                if len(data) > ANSWER_BYTES_MAX:
                    raise MummufsError("the daemon's answer is absurdly long")
            answer = json.loads(data)
        except TimeoutError:
            raise MummufsError(f"the daemon behind {path} does not answer within {timeout_s:g} s") from None
        except ValueError:
            raise MummufsError(f"the daemon behind {path} ended without an answer") from None
    if not answer.pop("ok", False):
        raise MummufsError(str(answer.get("message", "the daemon refused")))
    return dict(answer)


def daemon_pid(mountpoint: Path, timeout_s: float = TIMEOUT_S) -> int | None:
    """The process that has the control socket of a mount, as the kernel knows it, so even if it hangs; or None."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout_s)
        client.connect(os.fspath(socket_path(mountpoint)))
        pid, _, _ = struct.unpack("iII", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(pid) or None
    return None


class ControlServer:
    """The daemon's side."""

    def __init__(self, mountpoint: Path, handlers: Mapping[str, Handler]) -> None:
        """Take the socket.

        Raises:
            OSError: its directory cannot be made, or belongs to somebody else.
        """
        self.path = socket_path(mountpoint)
        self._handlers = handlers
        self._limit = trio.CapacityLimiter(CLIENTS_MAX)
        directory = self.path.parent
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = directory.stat()
        if owner.st_uid != os.geteuid() or owner.st_mode & 0o022:
            raise PermissionError(f"{directory} belongs to somebody else, or others may write to it")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _alone(directory):
            self.path.unlink(missing_ok=True)
            before = os.umask(0o177)
            try:
                self._listener.bind(os.fspath(self.path))
            finally:
                os.umask(before)
            self._identity = _identity(self.path)
            self._listener.listen(CLIENTS_MAX)

    async def serve(self) -> None:
        """Answer clients until cancelled."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._listener))
        await trio.serve_listeners(self._client, [listener])

    def close(self) -> None:
        """Take the socket away, unless a later mount at the same place has put its own there."""
        with contextlib.suppress(OSError), _alone(self.path.parent):
            if _identity(self.path) == self._identity:
                self.path.unlink(missing_ok=True)
        self._listener.close()

    async def _client(self, stream: trio.SocketStream) -> None:
        async with self._limit:
            with trio.move_on_after(TIMEOUT_S):
                try:
                    answer = await self._answer(await _line(stream))
                except MummufsError as error:
                    answer = {"ok": False, "message": str(error)}
                with contextlib.suppress(trio.BrokenResourceError):
                    await stream.send_all(json.dumps(answer).encode() + b"\n")
            await stream.aclose()

    async def _answer(self, line: bytes) -> Answer:
        try:
            asked = json.loads(line)
            handler = self._handlers[asked["op"]]
        except (ValueError, TypeError, KeyError):
            raise MummufsError("this daemon does not know that request: is it of another version?") from None
        return {"ok": True, **await handler(asked)}


async def _line(stream: trio.SocketStream) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        try:
            chunk = await stream.receive_some(4096)
        except trio.BrokenResourceError:
            chunk = b""
        if not chunk or len(data) > REQUEST_BYTES_MAX:
            raise MummufsError("the request is cut short or too long")
        data += chunk
    return data


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Have the directory's lock: between its bind and its listen, the socket of a new daemon looks like a dead one's.

    It is held for a few system calls that do not wait.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
