"""Signals to the starting process at the one moment when it has a daemon and does not know it yet: within Popen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mummufs import launch
from mummufs.config import MountConfig
from mummufs.launch import ENDING_SIGNALS, mount_in_background
from mummufs.mountinfo import MountEntry

START = "import os, signal, sys; fd = int(sys.argv[sys.argv.index('--ready-fd') + 1]);"
SILENT = START + "signal.pause()"
READY = START + """os.write(fd, b'{"ok": true}\\n')"""

Signalled = Callable[[signal.Signals, str], None]


@pytest.fixture(autouse=True)
def _usual_handlers() -> Iterator[None]:
    """As in a shell's foreground, however these tests were started."""
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """The daemons of this test. One that was not stopped is ended here."""
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        process.returncode = None  # what lives on by design is waited for here
        process.kill()
        process.wait()


@pytest.fixture
def mount_signalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> Signalled:
    """Mounts by a daemon of this code. The signal comes when its process is there and Popen has not returned yet."""
    for name in ("source", "mountpoint"):
        (tmp_path / name).mkdir()
    config = MountConfig(source=tmp_path / "source", mountpoint=tmp_path / "mountpoint", fsname="src")
    entry = MountEntry(1, 0, (0, 9), "/", os.fspath(config.mountpoint), "ro", "fuse.mummufs", "src", "ro")
    monkeypatch.setattr(launch, "read_mountinfo", lambda: [entry] if started else [])
    monkeypatch.setattr(launch, "is_dead", lambda _path: False)

    def mount(number: signal.Signals, code: str) -> None:
        class Interrupted(subprocess.Popen[bytes]):
            def __init__(self, *args: object, **kwargs: object) -> None:
                super().__init__(*args, **kwargs)  # type: ignore[call-overload]
                started.append(self)
                signal.raise_signal(number)

        monkeypatch.setattr("mummufs.launch.subprocess.Popen", Interrupted)
        monkeypatch.setattr(launch, "daemon_command", lambda _config: [sys.executable, "-c", code, "mount"])
        mount_in_background(config, {})

    return mount


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_a_signal_within_popen_stops_the_daemon(
    mount_signalled: Signalled, started: list[subprocess.Popen[bytes]], number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit) as caught:
        mount_signalled(number, SILENT)
    assert [process.poll() for process in started] == [-signal.SIGTERM]
    if isinstance(caught.value, SystemExit):
        assert caught.value.code == 128 + number
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_a_signal_that_is_ignored_stays_ignored(
    mount_signalled: Signalled, started: list[subprocess.Popen[bytes]], number: signal.Signals
) -> None:
    """As SIGHUP is under nohup, and SIGINT in a script's background."""
    signal.signal(number, signal.SIG_IGN)
    mount_signalled(number, READY)
    assert len(started) == 1
    assert signal.getsignal(number) is signal.SIG_IGN
