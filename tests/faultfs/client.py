"""`FaultFs`: start the layer, command it, and always take it down. Blocking; for a process that does not serve it."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

REPOSITORY = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 30.0
END_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class ReadRecord:
    """One read that reached the layer, in order of arrival.

    `t` is monotonic seconds. `path` is relative to the tree. `returned` is the bytes replied, minus an errno where it
    failed, None while it waits.
    """

    t: float
    path: str
    offset: int
    size: int
    returned: int | None


class FaultFs:
    """One running layer over `back`, mounted at `mountpoint` (a new directory of its own by default).

    `direct`: reads bypass the page cache, so that each arrives as asked, cut to 1 MiB; shared mappings are then refused
    with ENODEV. Without it reads are page-cached and mappings work. `volatile`: what is written is lost by `lose_power`
    until it is synced (with `direct`, or the kernel's pages outlive it). Paths given to methods are relative to the
    tree; None means every file. Methods raise RuntimeError if the layer refuses and TimeoutError if it does not answer.
    """

    def __init__(
        self,
        back: str | os.PathLike[str],
        *,
        mountpoint: str | os.PathLike[str] | None = None,
        direct: bool = True,
        allow_other: bool = False,
        volatile: bool = False,
        log: str | os.PathLike[str] | None = None,
    ) -> None:
        """Mount it. Raises RuntimeError with the layer's own words if it does not come up."""
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._directory = Path(tempfile.mkdtemp(prefix="faultfs-"))
        # Made here so that another user can get through to the mount.
        self._directory.chmod(0o755)
        self.mountpoint = self._directory / "mnt" if mountpoint is None else Path(mountpoint)
        self.mountpoint.mkdir(exist_ok=True)
        self.mountpoint = self.mountpoint.resolve()
        control = self._directory / "control"
        command = [sys.executable, "-m", "tests.faultfs", os.fspath(back), str(self.mountpoint)]
        command += ["--control", str(control), "--direct" if direct else "--cached"]
        command += ["--allow-other"] * allow_other + ["--volatile"] * volatile
        command += ["--log", os.fspath(log)] if log is not None else []
        with (self._directory / "stderr").open("wb") as stderr:
            self.process = subprocess.Popen(
                command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )
        try:
            self._wait_ready()
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(ANSWER_TIMEOUT_S)
            self._socket.connect(str(control))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # The log

    def reads(self, clear: bool = False) -> list[ReadRecord]:
        """Every read that arrived since the last clear."""
        answer = self._command("reads", clear=clear)
        if answer["dropped"]:
            raise RuntimeError(f"the log is full: {answer['dropped']} reads are not in it; clear it more often")
        return [
            ReadRecord(line["t"], line["path"], line["offset"], line["size"], line["returned"])
            for line in answer["records"]
        ]

    def clear(self) -> None:
        """Forget the log and the counts."""
        self._command("clear")

    def op_counts(self) -> dict[str, int]:
        """How often each operation ("lookup", "open", "read", ...) was called since the last clear."""
        counts: dict[str, int] = self._command("op_counts")
        return counts

    def wait_reads(self, count: int, path: str | os.PathLike[str] | None = None) -> list[ReadRecord]:
        """Wait until `count` reads (of `path`) have arrived, hanging ones too, and return them all."""
        end = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            reads = [read for read in self.reads() if path is None or read.path == os.fspath(path)]
            if len(reads) >= count:
                return reads
            if time.monotonic() > end:
                raise TimeoutError(f"{len(reads)} reads of {count} arrived in {ANSWER_TIMEOUT_S:.0f} s")
            select.select([], [], [], 0.005)

    # Faults

    def delay_reads(self, seconds: float, path: str | os.PathLike[str] | None = None) -> None:
        """Each read waits `seconds` first; waits overlap. 0 ends it. A path's own delay wins over the general one."""
        self._command("delay_reads", seconds=seconds, path=_text(path))

    def set_attr_delay(self, seconds: float) -> None:
        """Each look-up, getattr and listing waits `seconds` first. 0 ends it."""
        self._command("delay_attributes", seconds=seconds)

    def fail_op(
        self,
        op: str,
        errno: int,
        *,
        after: int = 0,
        count: int | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Calls of an operation fail with `errno`: the first `after` pass, then `count` fail (None: all later ones).

        For the n-th call only: `after=n - 1, count=1`. Operations are FUSE's: "read", "write", "create", "fsync", ...
        """
        self._command("fail", op=op, errno=errno, after=after, count=count, path=_text(path))

    def fail_reads(
        self,
        errno: int,
        *,
        after: int = 0,
        count: int | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        """`fail_op` for reads."""
        self.fail_op("read", errno, after=after, count=count, path=path)

    def short_reads(self, size: int | None) -> None:
        """Each read returns at most `size` bytes. None ends it."""
        self._command("short_reads", size=size)

    def limit_writes(self, size: int | None) -> None:
        """After `size` more bytes were written, writes fail with ENOSPC. None ends it."""
        self._command("limit_writes", size=size)

    def delay_syncs(self, seconds: float) -> None:
        """Each fsync waits `seconds` first, its bytes not durable yet. 0 ends it."""
        self._command("delay_syncs", seconds=seconds)

    def lie_on_syncs(self) -> None:
        """From now on an fsync is answered without having made anything durable, until `reset`."""
        self._command("lie_on_syncs")

    def lose_power(self, loss: str = "empty") -> int:
        """Take away what was written and not synced; names stay. Returns how many files lost bytes.

        The power is off then: every call fails with EIO, a sync that waits too, until `reset`.

        Args:
            loss: what is left of those bytes: "empty" none, "short" the first half, "zeros" as many zeros, "holes"
                every second page (the first one stays), with zeros between.
        """
        lost: int = self._command("lose_power", loss=loss)
        return lost

    def flip_bits(self, path: str | os.PathLike[str], offset: int, mask: int = 1) -> None:
        """Reads see the byte at `offset` XORed with `mask`. BACK itself is not changed."""
        self._command("flip_bits", path=_text(path), offset=offset, mask=mask)

    def hang_reads(self, path: str | os.PathLike[str] | None = None) -> None:
        """Reads wait until `release_reads`. Everything else goes on."""
        self._command("hang_reads", path=_text(path))

    def release_reads(self) -> None:
        """Every hanging read goes on, and no later one hangs."""
        self._command("release_reads")

    def reset(self) -> None:
        """No faults any longer. The log stays."""
        self._command("reset")

    def hang(self) -> None:
        """Stop the whole layer (SIGSTOP): every call on the mount waits. Returns once it is stopped."""
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Let a stopped layer go on."""
        os.kill(self.process.pid, signal.SIGCONT)

    # The end

    def close(self) -> None:
        """End the layer and unmount, whatever state either is in. Callers that still wait get an error. May be
        called again."""
        if self._socket is not None:
            self._socket.close()
        if self.process.poll() is None:
            # Both signals are delivered to a stopped process, SIGTERM when it goes on.
            self.process.terminate()
            os.kill(self.process.pid, signal.SIGCONT)
            try:
                self.process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        while is_mounted(self.mountpoint):
            unmount_lazily(self.mountpoint)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _wait_ready(self) -> None:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_TIMEOUT_S)
        if not readable or self.process.stdout.readline() != b"ready\n":
            words = (self._directory / "stderr").read_text(errors="replace").strip()
            raise RuntimeError(f"faultfs did not mount {self.mountpoint}: {words or 'no answer'}")

    def _command(self, command: str, **arguments: object) -> Any:
        line = json.dumps({"command": command, **arguments}).encode() + b"\n"
        with self._lock:
            if self._socket is None or self._socket.fileno() < 0:
                raise RuntimeError("this faultfs is closed")
            self._socket.sendall(line)
            answer = json.loads(self._receive_line(self._socket))
        if "error" in answer:
            raise RuntimeError(f"faultfs refused {command}: {answer['error']}")
        return answer["value"]

    @staticmethod
    def _receive_line(connection: socket.socket) -> bytes:
        chunks: list[bytes] = []
        while not chunks or not chunks[-1].endswith(b"\n"):
            chunk = connection.recv(1 << 20)
            if not chunk:
                raise RuntimeError("faultfs ended")
            chunks.append(chunk)
        return b"".join(chunks)


def is_mounted(path: Path) -> bool:
    """Whether something is mounted at `path`. Reads mountinfo only, so that a hanging mount hangs nobody."""
    target = os.fsencode(path.absolute())
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        if line.split(b" ")[4].decode("unicode_escape").encode("latin-1") == target:
            return True
    return False


def unmount_lazily(path: Path) -> None:
    """Detach the topmost mount at `path`. Raises CalledProcessError with the tool's words in `stderr`."""
    command: Sequence[str] = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
    subprocess.run([*command, str(path)], check=True, capture_output=True, timeout=END_TIMEOUT_S)


def _text(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)
