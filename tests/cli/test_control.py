"""The control socket's file: who makes it and who takes it away, at once."""

from __future__ import annotations

import fcntl
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from mummufs import control
from mummufs.control import Answer

WAIT_S = 30.0


def test_a_daemon_that_starts_keeps_its_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process lists the sockets when this one is bound and does not listen yet: it refuses, like a dead one."""
    monkeypatch.setattr(control, "runtime_dir", lambda: tmp_path)
    at_the_lock_or_through = threading.Event()
    found: list[Path] = []

    def look() -> None:
        found.extend(control.sockets())
        at_the_lock_or_through.set()

    other = threading.Thread(target=look)
    flock = fcntl.flock

    def watched_flock(fd: int, operation: int) -> None:
        if threading.current_thread() is other:
            at_the_lock_or_through.set()
        flock(fd, operation)

    class SlowToListen(socket.socket):
        def listen(self, backlog: int = 0) -> None:
            other.start()
            assert at_the_lock_or_through.wait(WAIT_S)
            super().listen(backlog)

    monkeypatch.setattr(fcntl, "flock", watched_flock)
    monkeypatch.setattr(socket, "socket", SlowToListen)
    server = control.ControlServer(Path("/m"), {})
    try:
        other.join(WAIT_S)
        assert found == [server.path]
        assert server.path.exists()
    finally:
        server.close()
    assert not server.path.exists()


def test_the_sockets_of_daemons_that_are_gone_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "runtime_dir", lambda: tmp_path / "absent")
    assert control.sockets() == []
    monkeypatch.setattr(control, "runtime_dir", lambda: tmp_path)
    server, dead = control.ControlServer(Path("/m"), {}), tmp_path / f"dead{control.SUFFIX}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
            gone.bind(str(dead))
        assert control.sockets() == [server.path]
        assert not dead.exists()
    finally:
        server.close()


def test_a_later_daemon_s_socket_at_the_same_place_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "runtime_dir", lambda: tmp_path)
    first, second = (control.ControlServer(Path("/m"), {}) for _ in range(2))
    first.close()
    try:
        assert control.sockets() == [second.path]
    finally:
        second.close()
    assert control.sockets() == []


async def test_a_request_may_have_arguments_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "runtime_dir", lambda: tmp_path)

    async def echo(asked: Mapping[str, object]) -> Answer:
        return {"asked": dict(asked)}

    server = control.ControlServer(Path("/m"), {"echo": echo})
    args: dict[str, Any] = {"path": "a", "mountpoint": "b", "windows": []}
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            answer = await trio.to_thread.run_sync(lambda: control.request(Path("/m"), "echo", **args))
            nursery.cancel_scope.cancel()
    finally:
        server.close()
    assert answer == {"asked": {"op": "echo", **args}}
