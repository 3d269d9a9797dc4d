"""The control socket's file: who makes it and who takes it away, at once."""

from __future__ import annotations

import fcntl
import socket
import threading
from pathlib import Path

import pytest

from mummufs import control

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
