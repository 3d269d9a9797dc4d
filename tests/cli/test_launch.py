"""Starting the daemon: ready, failed, ended, silent. The daemons here are small programs that mount nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import mummufs
from mummufs import launch
from mummufs.config import PASS_THROUGH_NOTE, MountConfig, daemon_arguments
from mummufs.core.errors import MummufsError, UsageError
from mummufs.launch import child_environment, clear_dead_mount, mount_in_background, prepare, start_daemon
from mummufs.mountinfo import MountEntry
from tests.support.descriptors import descriptors

FD = "import os, signal, sys; fd = int(sys.argv[sys.argv.index('--ready-fd') + 1]);"

DAEMON = """
import os, sys, types
fake = types.ModuleType("mummufs.mount")
def run(config, ready, *, background):
    {body}
    return 0
fake.run = run
sys.modules["mummufs.mount"] = fake
from mummufs.cli import main
main()
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MountConfig:
    """Settings whose mountpoint looks mounted to the starting process once a daemon is ready."""
    for name in ("source", "mountpoint"):
        (tmp_path / name).mkdir()
    return MountConfig(source=tmp_path / "source", mountpoint=tmp_path / "mountpoint", fsname="src")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes that were started; those left by design are waited for at the end."""
    found: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[call-overload]
            found.append(self)

    monkeypatch.setattr("mummufs.launch.subprocess.Popen", Recorded)
    yield found
    for process in found:
        try:
            os.waitpid(process.pid, 0)
        except ChildProcessError:
            pass


def looks_mounted(config: MountConfig, monkeypatch: pytest.MonkeyPatch, fstype: str = "fuse.mummufs") -> None:
    entry = MountEntry(1, 0, (0, 9), "/", str(config.mountpoint), "ro", fstype, "src", "ro")
    monkeypatch.setattr(launch, "read_mountinfo", lambda: [entry])


def program(code: str) -> list[str]:
    return [sys.executable, "-c", FD + code, "mount", "SOURCE", "MOUNTPOINT"]


def test_a_ready_daemon_is_left_running_apart(
    config: MountConfig,
    started: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks_mounted(config, monkeypatch)
    facts = (
        "import json; json.dump([os.getcwd(), os.getsid(0) == os.getpid(), os.readlink('/proc/self/fd/0'),"
        f" sys.argv[1:], os.environ.get('LANG')], open({str(tmp_path / 'facts')!r}, 'w'));"
        """ os.write(fd, b'{"ok": true}\\n')"""
    )
    start_daemon(program(facts), config, {"LANG": "xx"})
    cwd, leader, stdin, arguments, lang = json.loads((tmp_path / "facts").read_text())
    assert (cwd, leader, stdin, lang) == ("/", True, "/dev/null", "xx")
    assert arguments[:3] == ["mount", "--foreground", "--ready-fd"]
    assert arguments[4:] == ["SOURCE", "MOUNTPOINT"]
    assert len(started) == 1


@pytest.mark.parametrize(("code", "kind"), [(1, MummufsError), (2, UsageError)])
def test_a_failure_arrives_as_its_sentence(
    config: MountConfig, started: list[subprocess.Popen[bytes]], code: int, kind: type[MummufsError]
) -> None:
    message = json.dumps({"ok": False, "message": "the store is locked by pid 7", "exit": code})
    with pytest.raises(MummufsError) as caught:
        start_daemon(program(f"os.write(fd, {message.encode()!r} + b'\\n'); sys.exit({code})"), config, {})
    assert type(caught.value) is kind
    assert str(caught.value) == "the store is locked by pid 7"
    assert started[0].poll() == code


def test_an_early_end_is_told_with_the_last_line_printed(config: MountConfig) -> None:
    code = "sys.stderr.write('first\\nlibfuse is missing\\n'); sys.exit(3)"
    with pytest.raises(MummufsError, match=r"ended with exit code 3 before the mount was ready: libfuse is missing$"):
        start_daemon(program(code), config, {})


def test_an_end_by_a_signal_is_told(config: MountConfig) -> None:
    with pytest.raises(MummufsError, match=r"ended by signal 9 before the mount was ready$"):
        start_daemon(program("os.kill(os.getpid(), signal.SIGKILL)"), config, {})


def test_with_a_log_file_the_output_goes_there(config: MountConfig, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("earlier\n")
    with pytest.raises(MummufsError, match=f"; see '{log}'$"):
        start_daemon(program("print('said', flush=True); sys.exit(1)"), replace(config, log_file=log), {})
    assert log.read_text() == "earlier\nsaid\n"
    with pytest.raises(UsageError, match=r"the log file .* cannot be opened: No such file"):
        start_daemon(program(""), replace(config, log_file=tmp_path / "absent" / "log"), {})


def test_the_log_begins_before_the_daemon(config: MountConfig, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert prepare(replace(config, log_file=log, log_level="error")) == [PASS_THROUGH_NOTE]
    assert log.read_text().endswith(f" INFO mummufs: mounting {config.source} at {config.mountpoint}\n")
    assert log.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match=r"the log file .* cannot be opened: No such file"):
        prepare(replace(config, log_file=tmp_path / "absent" / "log"))


def test_a_log_that_cannot_be_written_is_told(config: MountConfig) -> None:
    assert prepare(replace(config, log_file=Path("/dev/full"))) == [
        "the log file '/dev/full' cannot be written now, so log lines are lost: No space left on device",
        PASS_THROUGH_NOTE,
    ]


@pytest.mark.parametrize("message", ["nonsense", "[1]", '{"no": 1}', "3"])
def test_a_message_that_is_not_understood_stops_the_daemon(
    config: MountConfig, started: list[subprocess.Popen[bytes]], message: str
) -> None:
    code = f"os.write(fd, {message.encode()!r} + b'\\n'); signal.pause()"
    with pytest.raises(MummufsError, match="a message that is not understood"):
        start_daemon(program(code), config, {})
    assert started[0].poll() == -signal.SIGTERM


def test_a_silent_daemon_is_stopped(config: MountConfig, started: list[subprocess.Popen[bytes]]) -> None:
    with pytest.raises(MummufsError, match=r"did not answer within 0\.05 s, so the daemon was stopped"):
        start_daemon(program("signal.pause()"), replace(config, mount_timeout_s=0.05), {})
    assert started[0].poll() == -signal.SIGTERM


def test_a_daemon_that_ignores_sigterm_is_killed(
    config: MountConfig, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "STOP_S", 0.05)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a child starts with what is ignored here
    try:
        with pytest.raises(MummufsError, match="so the daemon was stopped"):
            start_daemon(program("signal.pause()"), replace(config, mount_timeout_s=0.05), {})
    finally:
        signal.signal(signal.SIGTERM, before)
    started[0].wait()
    assert started[0].returncode == -signal.SIGKILL


def test_a_daemon_that_lies_about_its_mount_is_stopped(
    config: MountConfig, started: list[subprocess.Popen[bytes]]
) -> None:
    code = """os.write(fd, b'{"ok": true}\\n'); signal.pause()"""
    with pytest.raises(MummufsError, match="says that it is ready, but nothing of it is mounted at"):
        start_daemon(program(code), config, {})
    assert started[0].poll() == -signal.SIGTERM


def test_a_mount_that_does_not_answer_is_told(
    config: MountConfig, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks_mounted(config, monkeypatch)
    monkeypatch.setattr(launch, "probe", lambda _path, _timeout_s: TimeoutError(110, "no answer"))
    code = """os.write(fd, b'{"ok": true}\\n'); signal.pause()"""
    with pytest.raises(MummufsError, match=r"is mounted but does not answer \(no answer\)"):
        start_daemon(program(code), config, {})
    assert started[0].poll() == -signal.SIGTERM


def test_a_program_that_cannot_be_run_is_told(config: MountConfig) -> None:
    with pytest.raises(MummufsError, match="the daemon cannot be started: No such file"):
        start_daemon(["/no/such/program", "mount"], config, {})


def test_no_descriptor_is_left_open(config: MountConfig) -> None:
    before = descriptors()
    for code in ("sys.exit(1)", "os.kill(os.getpid(), signal.SIGKILL)"):
        with pytest.raises(MummufsError):
            start_daemon(program(code), config, {})
    assert not descriptors() - before


def whole(body: str, config: MountConfig) -> list[str]:
    """The real command line, run by the real command, with `mummufs.mount` replaced."""
    return [sys.executable, "-P", "-c", DAEMON.format(body=body), *daemon_arguments(config)]


def test_the_whole_way_to_a_ready_daemon(
    config: MountConfig,
    started: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = f"open({str(tmp_path / 'got')!r}, 'w').write(repr(config)); ready({{'ok': True}}); print('unheard')"
    looks_mounted(config, monkeypatch)
    monkeypatch.setattr(launch, "is_dead", lambda _path: False)
    monkeypatch.setattr(launch, "daemon_command", lambda config: whole(body, config))
    assert mount_in_background(config, {}) == [PASS_THROUGH_NOTE]
    assert (tmp_path / "got").read_text() == repr(replace(config, foreground=True))
    assert os.waitstatus_to_exitcode(os.waitpid(started[0].pid, 0)[1]) == 0


@pytest.mark.parametrize(("name", "kind"), [("MummufsError", MummufsError), ("UsageError", UsageError)])
def test_the_whole_way_to_a_failure(
    config: MountConfig, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[MummufsError]
) -> None:
    body = f"from mummufs.core.errors import {name}; raise {name}('it is full')"
    monkeypatch.setattr(launch, "daemon_command", lambda config: whole(body, config))
    with pytest.raises(MummufsError, match=r"^it is full$") as caught:
        mount_in_background(replace(config, store_dir=Path("/x")), {})
    assert type(caught.value) is kind


def test_a_child_finds_this_package_from_anywhere() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import mummufs; print(mummufs.__file__)"],
        env=child_environment({}),
        cwd="/",
        capture_output=True,
        check=True,
        text=True,
    )
    assert Path(done.stdout.strip()).resolve() == Path(mummufs.__file__).resolve()


def test_the_child_s_environment() -> None:
    given = {
        "PATH": "/p",
        "PYTHONPATH": "/q",
        "MUMMU_DISK_CACHE_DIR": "/d",
        "MUMMU_DISK_CACHE_GB": "1",
        "HOME": "/h",
    }
    child = child_environment(given)
    assert child.pop("PYTHONPATH").endswith(":/q")
    assert child == {"PATH": "/p", "HOME": "/h"}
    assert child_environment({})["PATH"] == launch.PATH_DEFAULT


def test_dead_mounts_are_cleared_away_one_by_one(config: MountConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = MountEntry(1, 0, (0, 9), "/", str(config.mountpoint), "ro", "fuse.mummufs", "src", "ro")
    entries = [entry, entry]
    monkeypatch.setattr(launch, "read_mountinfo", lambda: entries)
    monkeypatch.setattr(launch, "is_dead", lambda _path: True)

    def detach(mountpoint: Path, *, lazy: bool) -> None:
        assert (mountpoint, lazy) == (config.mountpoint, True)
        entries.pop()

    monkeypatch.setattr(launch, "detach", detach)
    assert clear_dead_mount(config.mountpoint) == [
        f"replaced the mount that a killed daemon left at '{config.mountpoint}'"
    ]
    assert entries == []
    assert clear_dead_mount(config.mountpoint) == []
