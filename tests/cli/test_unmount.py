"""Ending a mount: who is waited for, and who is named."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mummufs import unmount
from mummufs.core.errors import MummufsError, UsageError
from mummufs.mountinfo import Holder, MountEntry
from mummufs.unmount import BusyError, Ended, detach, end_mount, listing, mummufs_mount, resolved

MOUNTPOINT = Path("/m p")
ENTRY = MountEntry(7, 1, (0, 9), "/", "/m p", "ro", "fuse.mummufs", "/slow", "ro")
READER = Holder(12, "llama-server -m x", "open file", "/m p/x.gguf")


class Machine:
    """What the system shows: mounts, holders, and what an unmount does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries = [ENTRY]
        self.holders: list[Holder] = []
        self.busy = False
        self.asked: list[tuple[object, ...]] = []
        self.daemon: subprocess.Popen[bytes] | None = None
        monkeypatch.setattr(unmount, "read_mountinfo", lambda: list(self.entries))
        monkeypatch.setattr(unmount, "detach", self.detach)
        monkeypatch.setattr(unmount, "holders", self.find)
        monkeypatch.setattr(unmount, "LOOK_AFTER_S", 0.01)

    def detach(self, mountpoint: Path, *, lazy: bool) -> None:
        if self.busy and not lazy:
            raise BusyError("busy")
        self.entries.remove(ENTRY)
        if self.daemon is not None and not self.holders:
            assert self.daemon.stdin is not None
            self.daemon.stdin.close()

    def find(
        self, device: tuple[int, int], *, mount_ids: set[int], skip_pids: set[int], source: str = ENTRY.source
    ) -> list[Holder]:
        assert source == ENTRY.source
        self.asked.append((device, mount_ids, skip_pids))
        return self.holders

    def start_daemon(self) -> int:
        self.daemon = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        return self.daemon.pid

    def end(self) -> None:
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.communicate()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize("lazy", [False, True])
def test_the_daemon_is_waited_for(machine: Machine, lazy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = machine.start_daemon()
    try:
        ended = end_mount(MOUNTPOINT, pid, lazy=lazy)
        assert ended == Ended(MOUNTPOINT, pid, gone=True)
        assert ended.note is None
    finally:
        machine.end()


def test_a_daemon_that_is_gone_already_is_not_waited_for(machine: Machine) -> None:
    assert end_mount(MOUNTPOINT, None, lazy=False).gone
    pid = machine.start_daemon()
    machine.end()
    assert end_mount_again(machine, pid).gone


def end_mount_again(machine: Machine, pid: int) -> Ended:
    machine.entries = [ENTRY]
    machine.daemon = None
    return end_mount(MOUNTPOINT, pid, lazy=False)


def test_who_keeps_it_busy_is_named(machine: Machine) -> None:
    machine.busy = True
    machine.holders = [READER]
    with pytest.raises(BusyError) as caught:
        end_mount(MOUNTPOINT, None, lazy=False)
    assert str(caught.value) == (
        "'/m p' is busy: it is held by pid 12 (llama-server -m x), open file /m p/x.gguf;"
        " end that, or detach the mount with --lazy"
    )
    assert machine.asked == [((0, 9), {7}, set())]


def test_who_only_looks_at_it_is_not_in_the_way(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stat holds the mount for a moment, and nobody is found to."""
    machine.busy = True
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        machine.busy = len(pauses) < 3

    monkeypatch.setattr("mummufs.unmount.time.sleep", pause)
    assert end_mount(MOUNTPOINT, None, lazy=False).gone
    assert len(pauses) == 3


def test_a_mount_that_stays_busy_without_a_holder_is_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unmount, "BUSY_S", 0.0)
    machine.busy = True
    with pytest.raises(BusyError, match="held by a mount below it or the kernel"):
        end_mount(MOUNTPOINT, None, lazy=False)


def test_who_keeps_the_daemon_alive_elsewhere_is_named(machine: Machine) -> None:
    machine.holders = [Holder(30, "reader", "mount namespace with it at", "/models")]
    pid = machine.start_daemon()
    try:
        ended = end_mount(MOUNTPOINT, pid, lazy=False, wait_s=60)
    finally:
        machine.end()
    assert not ended.gone
    assert ended.note == (
        f"'/m p' is unmounted, but its daemon (pid {pid}) lives until the last holder lets go:"
        " held by pid 30 (reader), mount namespace with it at /models"
    )


def test_a_bind_mount_in_sight_is_named(machine: Machine) -> None:
    machine.entries.append(ENTRY._replace(mount_id=8, mountpoint="/bind"))
    ended = end_mount(MOUNTPOINT, None, lazy=False)
    assert ended.elsewhere == ["/bind"]
    assert ended.note is not None and "it is also mounted at '/bind'" in ended.note


def test_a_new_mount_with_the_same_device_number_is_another(machine: Machine) -> None:
    """The kernel gives the number of a file system that has gone to the next one."""
    machine.entries.append(ENTRY._replace(mount_id=8, mountpoint="/new", source="/other"))
    ended = end_mount(MOUNTPOINT, None, lazy=False)
    assert ended == Ended(MOUNTPOINT, None, gone=True)


def test_a_daemon_that_stays_for_no_known_reason_is_told(machine: Machine) -> None:
    pid = machine.start_daemon()
    assert machine.daemon is not None
    daemon, machine.daemon = machine.daemon, None  # so that the unmount does not end it
    try:
        ended = end_mount(MOUNTPOINT, pid, lazy=False, wait_s=0.02)
    finally:
        machine.daemon = daemon
        machine.end()
    assert ended.note is not None and "nothing that may be looked at holds it" in ended.note
    assert "holder" not in ended.note


@pytest.mark.parametrize("held", [False, True])
def test_a_daemon_that_is_stopped_is_not_waited_for(machine: Machine, held: bool) -> None:
    machine.holders = [READER] if held else []
    pid = machine.start_daemon()
    try:
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)  # until it has stopped
        ended = end_mount(MOUNTPOINT, pid, lazy=False, wait_s=60)
    finally:
        os.kill(pid, signal.SIGCONT)
        machine.end()
    then = (
        "; after that it lives until the last holder lets go: held by pid 12 (llama-server -m x), open file /m p/x.gguf"
    )
    assert ended.note == (
        f"'/m p' is unmounted, but its daemon (pid {pid}) is stopped, so it cannot end:"
        f" let it go on with `kill -CONT {pid}`{then if held else ''}"
    )


def test_only_mounts_of_mummufs_are_ended(machine: Machine) -> None:
    with pytest.raises(MummufsError, match=r"^nothing is mounted at '/other'$") as caught:
        mummufs_mount(Path("/other"))
    assert not isinstance(caught.value, UsageError)
    machine.entries = [ENTRY, ENTRY._replace(fstype="ext4")]
    with pytest.raises(UsageError, match="is a mount of type ext4, not of mummufs: use umount"):
        mummufs_mount(MOUNTPOINT)


def test_a_nul_in_a_path_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be used"):
        resolved("a\0b")


@pytest.mark.parametrize(("number", "kind"), [(errno.EBUSY, BusyError), (errno.EINVAL, MummufsError)])
def test_errors_of_the_system_call(monkeypatch: pytest.MonkeyPatch, number: int, kind: type[MummufsError]) -> None:
    monkeypatch.setattr(unmount, "_umount2", lambda _mountpoint, _lazy: number)
    with pytest.raises(MummufsError) as caught:
        detach(MOUNTPOINT, lazy=False)
    assert type(caught.value) is kind


def test_the_system_call_reports_its_error(tmp_path: Path) -> None:
    assert unmount._umount2(tmp_path / "absent", False) in (errno.ENOENT, errno.EPERM)


def fusermount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "fusermount3"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(unmount, "_umount2", lambda _mountpoint, _lazy: errno.EPERM)


def test_a_user_unmounts_by_fusermount3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fusermount(tmp_path, monkeypatch, f'printf "%s\\n" "$@" >> {tmp_path}/calls')
    detach(MOUNTPOINT, lazy=False)
    detach(MOUNTPOINT, lazy=True)
    assert (tmp_path / "calls").read_text().splitlines() == ["-u", "--", "/m p", "-u", "-z", "--", "/m p"]


@pytest.mark.parametrize(
    ("said", "kind", "sentence"),
    [
        ("failed to unmount /m p: Device or resource busy", BusyError, "'/m p' is busy"),
        (
            "entry for /m p not found in /etc/mtab",
            MummufsError,
            "cannot be unmounted: entry for /m p not found",
        ),
        ("", MummufsError, "cannot be unmounted: exit code 1"),
    ],
)
def test_what_fusermount3_says_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, kind: type[MummufsError], sentence: str
) -> None:
    fusermount(tmp_path, monkeypatch, f"echo '{said}' >&2; exit 1")
    with pytest.raises(MummufsError, match=sentence) as caught:
        detach(MOUNTPOINT, lazy=False)
    assert type(caught.value) is kind


def test_without_fusermount3_a_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(unmount, "_umount2", lambda _mountpoint, _lazy: errno.EPERM)
    with pytest.raises(MummufsError, match="fusermount3 is not installed"):
        detach(MOUNTPOINT, lazy=False)


def test_a_long_list_of_holders_is_cut() -> None:
    many = [Holder(n, "x", "open file", "/f") for n in range(1, 12)]
    assert listing(many).endswith("pid 8 (x), open file /f; and 3 more")
    assert listing([]) == ""
