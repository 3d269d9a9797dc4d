"""The daemon and the commands of Windows, over a Windows and a WinFsp of the tests' own; and what may be imported."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from mummufs import pipes, winpaths
from mummufs.backends.winfsp.library import Library
from mummufs.commands import windows
from mummufs.config import MountConfig, build
from mummufs.core.errors import MummufsError, StoreBusyError, UsageError
from mummufs.store.windowslock import WindowsStoreLock
from mummufs.winmount import Daemon, opened
from tests.support.fake_win32 import FakeWin32
from tests.support.models import write_gguf
from tests.support.waiting import wait_for
from tests.winfsp_host.host import Volume, compiled

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where pipes are; one of them. A path of a socket is short."""
    monkeypatch.setattr(pipes, "DIRECTORY", f"{tmp_path}/")
    return pipes.pipe_of("M:")


@pytest.fixture
def win32(tmp_path: Path) -> Iterator[FakeWin32]:
    (tmp_path / "c" / "models").mkdir(parents=True)
    write_gguf(tmp_path / "c/models/m.gguf", layers=(0,), experts=2, dense_bytes=300_000, expert_bytes=90_000)
    found = FakeWin32(tmp_path / "c")
    yield found
    gc.collect()
    wait_for(lambda: found.open_handles, lambda count: count == 0)  # a thread of its own closes them
    assert not found.mixed


def config(**changes: object) -> MountConfig:
    settings = {"source": Path("C:\\models"), "mountpoint": Path("M:"), "store_dir": Path("C:\\store"), "settle_s": 0.0}
    return MountConfig(**{**settings, "store_reserve_bytes": 0, **changes})  # type: ignore[arg-type]


async def answers(pipe: str, op: str) -> dict[str, object]:
    return await trio.to_thread.run_sync(pipes.request, pipe, op)


async def test_a_mount_from_its_first_call_to_its_last(
    tmp_path: Path, win32: FakeWin32, pipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mummufs.engine.service.Service._scan", _no_scan)
    data = (tmp_path / "c/models/m.gguf").read_bytes()
    ready: list[dict[str, object]] = []
    with opened(config(), win32, Library(compiled())) as (service, session):
        session.mount()
        volume = Volume(session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Daemon(config(), service, session, ready.append, pipe).main)
            while not ready:
                await trio.testing.wait_all_tasks_blocked(0.01)
            for _ in range(3):
                opened_file = await trio.to_thread.run_sync(volume.open, "\\M.GGUF")
                whole = await trio.to_thread.run_sync(volume.read, opened_file, 0, len(data))
                assert whole == data
                await trio.to_thread.run_sync(volume.close, opened_file)
                while service.catalog and (service.catalog.parsing or (service.cache and service.cache.filler.flights)):
                    await trio.testing.wait_all_tasks_blocked(0.01)
            status = await answers(pipe, "status")
            assert status["state"] == "normal" and status["mountpoint"] == "M:"
            backend = status["backend"]
            assert isinstance(backend, dict) and backend["winfsp"] == "2.1" and backend["hits"] > 0
            with pytest.raises(MummufsError, match="does not know that request"):
                await answers(pipe, "nonsense")
            assert service.cache is not None
            count = service.cache.index.statistics().resident
            proved = await trio.to_thread.run_sync(CliRunner().invoke, windows.verify, ["M:", "--against-source"])
            assert f"{count} ranges proved, 0 corrupt, 0 different" in proved.output and proved.exit_code == 0
            assert count > 0
            await trio.to_thread.run_sync(windows.leave, pipe, "M:")
        assert volume.lib.host_mountpoint(volume.fs)[0] == "\0", "the drive is gone"
    assert ready == [{"ok": True}]
    with pytest.raises(MummufsError, match="no mummufs is mounted at M:"):
        windows.leave(pipe, "M:")


def _take_at_once(self: WindowsStoreLock, _: float) -> None:
    _take(self, 0.0)


_take = WindowsStoreLock._take


async def _no_scan(*_: object) -> None:
    """The scan is another process, which has no Windows of the tests' own."""


def test_two_mounts_of_one_store(win32: FakeWin32, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mummufs.store.windowslock.WindowsStoreLock._take", _take_at_once)
    library = Library(compiled())
    first, second = opened(config(), win32, library), opened(config(), win32, library)
    with first, pytest.raises(StoreBusyError, match="in use by a mount of process"), second:
        pass


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"source": Path("C:\\nothing")}, r"the source C:\\nothing cannot be opened"),
        ({"store_dir": Path("C:\\no\\such\\place")}, r"the store .* cannot be used"),
    ],
)
def test_places_that_cannot_be_used(win32: FakeWin32, changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(MummufsError, match=sentence), opened(config(**changes), win32, Library(compiled())):
        pass


@pytest.mark.parametrize(
    ("environ", "direct", "unbuffered"), [("1", False, True), ("0", True, False), ("", True, True), ("", False, False)]
)
def test_how_the_source_is_read_can_be_forced(
    win32: FakeWin32, monkeypatch: pytest.MonkeyPatch, environ: str, direct: bool, unbuffered: bool
) -> None:
    monkeypatch.setenv("MUMMUFS_UNBUFFERED", environ)
    monkeypatch.setattr("mummufs.source.windows.WindowsSource._probe", lambda *_: 1e10)
    with opened(config(direct=direct, store_dir=None), win32, Library(compiled())) as (service, _):
        assert getattr(service.source, "unbuffered", None) is unbuffered


def test_a_read_only_mount(win32: FakeWin32) -> None:
    with opened(config(read_only=True, store_dir=None), win32, Library(compiled())) as (_, session):
        session.mount()
        assert Volume(session).param("ReadOnlyVolume") == 1
    with opened(config(store_dir=None), win32, Library(compiled())) as (_, session):
        session.mount()
        assert Volume(session).param("ReadOnlyVolume") == 0


# ---------------------------------------------------------------------- places and commands


@pytest.mark.parametrize(("text", "path"), [("m:", "M:"), ("M:\\", "M:"), ("Q:/", "Q:")])
def test_drives(text: str, path: str) -> None:
    assert str(winpaths.usable_mountpoint(text)) == path


def test_mountpoints_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="WinFsp makes the directory itself"):
        winpaths.usable_mountpoint(str(tmp_path))
    with pytest.raises(UsageError, match="there is no directory"):
        winpaths.usable_mountpoint(str(tmp_path / "a" / "b"))
    with pytest.raises(UsageError, match="has no name"):
        winpaths.usable_mountpoint("")
    assert winpaths.usable_mountpoint(str(tmp_path / "new")) == tmp_path / "new"
    monkeypatch.setattr(os.path, "exists", lambda path: path == "M:\\")
    with pytest.raises(UsageError, match="the drive M: is in use"):
        winpaths.usable_mountpoint("m:")


def test_the_settings_of_a_mount(tmp_path: Path) -> None:
    found = build(str(tmp_path), "m:", options=["store_size=2G,ro"], environ={}, places=winpaths)
    assert (found.mountpoint, found.store_bytes, found.read_only) == (Path("M:"), 2 << 30, True)


def test_pipes_are_named_by_the_mountpoint() -> None:
    assert pipes.pipe_of("m:") == pipes.pipe_of("M:\\") != pipes.pipe_of("N:")
    assert Path(pipes.pipe_of("M:")).name.startswith("mummufs-")


def test_nothing_is_mounted() -> None:
    runner = CliRunner()
    assert runner.invoke(windows.status, []).output == "no mounts\n"
    for command in (windows.umount, windows.status):
        result = runner.invoke(command, ["M:"])
        assert isinstance(result.exception, MummufsError) and "no mummufs is mounted at M:" in str(result.exception)


def test_a_daemon_that_ends_tells_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here there is no WinFsp: that is what it tells."""
    monkeypatch.delenv("MUMMUFS_WINFSP_DLL", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    script = tmp_path / "mummufs_on_windows.py"
    script.write_text(
        "import sys, click\nfrom mummufs.commands.windows import mount\nfrom mummufs.cli import Commands\n"
        "group = Commands('mummufs')\ngroup.add_command(mount)\ngroup()\n"
    )
    monkeypatch.setattr(windows, "sys", type("", (), {"executable": sys.executable, "argv": sys.argv}))
    monkeypatch.setattr(subprocess, "Popen", _popen_of(script, subprocess.Popen))
    (tmp_path / "source").mkdir()
    with pytest.raises(MummufsError, match=r"WinFsp is not installed: get it from https://winfsp\.dev"):
        windows.start(config(), ["mount", str(tmp_path / "source"), "M:"])


def _popen_of(script: Path, real: type) -> object:
    def popen(command: list[str], **kwargs: object) -> object:
        assert command[1:4] == ["-P", "-m", "mummufs"]
        return real([command[0], str(script), *command[4:]], **kwargs)

    return popen


def test_the_ranges_of_a_file(tmp_path: Path, win32: FakeWin32) -> None:
    table = windows.read_table(Path("C:\\models\\m.gguf"), None, win32)
    assert table is not None and table.format == "gguf"
    assert table.file_size == (tmp_path / "c/models/m.gguf").stat().st_size
    (tmp_path / "c/models/plain").write_bytes(b"no model")
    (tmp_path / "c/models/broken.gguf").write_bytes(b"GGUF" + b"\xff" * 5000)
    assert windows.read_table(Path("C:\\models\\plain"), None, win32) is None
    with pytest.raises(MummufsError, match="has no usable ranges"):
        windows.read_table(Path("C:\\models\\broken.gguf"), None, win32)
    for path in ("C:\\models\\none", "C:\\models", "C:\\none\\none"):
        with pytest.raises(UsageError, match="cannot be read"):
            windows.read_table(Path(path), None, win32)


# ---------------------------------------------------------------------- imports

NOT_ON_WINDOWS = (
    *("backends.fuse", "mount", "mount_helper", "launch", "control", "store.lock"),
    *("source.tree", "source.descriptors", "source.creating", "source.devices", "source.direct"),
    *("manifests.child", "commands.mount", "commands.umount", "commands.install_helper", "commands.ranges"),
    *("commands.pin", "commands.profile", "commands.residency", "commands.simulate"),
    *("commands.trace", "commands.warm", "commands.located", "control_profile", "control_trace", "__main__"),
)
"""Modules that are never imported on Windows."""

WALK = """
import importlib, pkgutil, sys
blocked, left_out = {blocked!r}, {left_out!r}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ImportError(f"{{name}} is imported")
sys.meta_path.insert(0, Blocker())
{before}
import mummufs
for module in pkgutil.walk_packages(mummufs.__path__, "mummufs."):
    short = module.name.removeprefix("mummufs.")
    if not any(short == name or short.startswith(name + ".") for name in left_out):
        importlib.import_module(module.name)
print("walked")
"""

LIKE_WINDOWS = """
import os, signal, mmap
import trio, multiprocessing.connection, subprocess, tempfile, concurrent.futures, click, rich.console, logging.handlers
for name in dir(os):
    if name.startswith(("O_CLOEXEC", "O_DIRECT", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "SPLICE", "POSIX_")):
        delattr(os, name)
for name in ("geteuid", "getegid", "statvfs_result", "preadv", "pwrite", "pread", "splice", "nice", "umask"):
    delattr(os, name)
for name in ("SIGHUP", "SIGIO", "SIGXCPU"):
    delattr(signal, name)
for name in ("MAP_PRIVATE", "MAP_ANONYMOUS", "MADV_HUGEPAGE"):
    delattr(mmap, name)
import ctypes.wintypes, sortedcontainers, xxhash  # before they can ask what this is
sys.platform = "win32"
"""


def walk(blocked: tuple[str, ...], left_out: tuple[str, ...], before: str = "") -> str:
    script = WALK.format(blocked=blocked, left_out=left_out, before=before)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, text=True, capture_output=True, timeout=60, check=False
    )
    return done.stdout.strip() or done.stderr


def test_on_linux_nothing_imports_the_binding_of_winfsp() -> None:
    assert walk(("cffi", "winfspy", "winreg"), ("__main__",)) == "walked"


def test_on_windows_nothing_imports_pyfuse3_or_what_windows_has_not() -> None:
    blocked = ("pyfuse3", "fcntl", "resource", "pwd", "grp", "termios", "syslog", "winfspy")
    assert walk(blocked, NOT_ON_WINDOWS, LIKE_WINDOWS) == "walked"
