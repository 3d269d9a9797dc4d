"""`mummufs trace` against a daemon that is made up here around the real recorder, and the file that it writes."""

from __future__ import annotations

import errno
import json
import os
import signal
from base64 import b64encode
from collections.abc import Callable
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mummufs import control as control_module
from mummufs import unmount
from mummufs.cli import cli
from mummufs.core.errors import MummufsError
from mummufs.core.ranges import FileId, RangeKey
from mummufs.core.trace import TraceError, TraceReads
from mummufs.engine.tracing import Tracing
from mummufs.mountinfo import MountEntry
from mummufs.tracefile import TraceHeader, TraceReader, TraceWriter

HEADER = TraceHeader(1_700_000_000_000, 64 << 30)
HEADER_BYTES = 32
SIZE = 1 << 20


def called(*words: str | os.PathLike[str]) -> Result:
    return CliRunner().invoke(cli, [os.fspath(word) for word in words])


def sentence(result: Result) -> str:
    """The one line on stderr of a failure."""
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("mummufs: ") and result.stderr.count("\n") == 1
    return result.stderr.removeprefix("mummufs: ").strip()


class Daemon:
    """Answers control requests of a mount at `mountpoint`; before each `trace_read` the next of `steps` is done."""

    def __init__(self, mountpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        mountpoint.mkdir()
        self.mountpoint = mountpoint
        self.tracing = Tracing()
        self.steps: list[Callable[[], object]] = []
        self.asked: list[str] = []
        entry = MountEntry(7, 1, (0, 999), "/", str(mountpoint), "ro", "fuse.mummufs", "/slow", "ro,user_id=0")
        monkeypatch.setattr(unmount, "read_mountinfo", lambda: [entry])
        monkeypatch.setattr(control_module, "request", self.request)

    def touch(self, *numbers: int, size: int = SIZE, hit: bool = False) -> None:
        for number in numbers:
            self.tracing.touched(RangeKey(FileId(1, 2), number * SIZE, SIZE), size, hit=hit)

    def request(self, mountpoint: Path, op: str, timeout_s: float = 5.0, **args: Any) -> dict[str, Any]:
        assert mountpoint == self.mountpoint
        self.asked.append(op)
        if op == "trace_start":
            return {"trace": self.tracing.start(), **HEADER._asdict()}
        if op == "trace_stop":
            self.tracing.stop(args["trace"])
            return {}
        if self.steps:
            self.steps.pop(0)()
        block = self.tracing.take(args["trace"])
        return {"block": b64encode(block).decode(), **asdict(self.tracing.counters)}


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    return Daemon(tmp_path / "mnt", monkeypatch)


def reads_of(path: Path) -> list[tuple[int, int, bool]]:
    """The window, bytes and kind of every read in a trace file."""
    with path.open("rb") as file:
        reader = TraceReader(file)
        found = [(w, s, bool(h)) for reads in reader for w, s, h in zip(*reads[1:4], strict=True)]
    assert reader.fault is None
    assert reader.header == HEADER
    return found


# ---------------------------------------------------------------------- the command


def test_it_writes_what_was_read_until_the_time_is_over(daemon: Daemon, tmp_path: Path) -> None:
    daemon.steps = [lambda: daemon.touch(0, 1, 0), lambda: daemon.touch(1, hit=True)]
    done = called("trace", daemon.mountpoint, "-o", tmp_path / "t", "--for", "0")
    assert done.exit_code == 0, done.stderr
    assert daemon.asked == ["trace_start", "trace_read", "trace_stop"]
    assert reads_of(tmp_path / "t") == [(0, SIZE, False), (1, SIZE, False), (0, SIZE, False)]
    assert "3 reads, 3.0 MiB read, hits 0 %" in done.stdout
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_what_is_left_is_written(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr("mummufs.commands.trace.POLL_S", 0.001)
    before = signal.getsignal(number)

    def read_and_signal() -> None:
        daemon.touch(1)
        signal.raise_signal(number)

    daemon.steps = [lambda: daemon.touch(0), read_and_signal, lambda: daemon.touch(2, hit=True)]
    done = called("trace", daemon.mountpoint, "-o", tmp_path / "t")
    assert done.exit_code == 0, done.stderr
    assert [window for window, *_ in reads_of(tmp_path / "t")] == [0, 1, 2]
    assert daemon.asked == ["trace_start", *["trace_read"] * 3, "trace_stop"]
    assert signal.getsignal(number) is before
    assert not daemon.tracing.on


def test_every_block_that_waits_is_fetched(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mummufs.core.trace.BLOCK_READS_MAX", 4)
    daemon.steps = [lambda: daemon.touch(*range(10))]
    assert called("trace", daemon.mountpoint, "-o", tmp_path / "t", "--for", "0").exit_code == 0
    assert [window for window, *_ in reads_of(tmp_path / "t")] == list(range(10))


def test_json_at_the_end(daemon: Daemon, tmp_path: Path) -> None:
    daemon.steps = [lambda: daemon.touch(0, 1, hit=True)]
    done = called("trace", daemon.mountpoint, "-o", tmp_path / "t", "--for", "0", "--json")
    answer = json.loads(done.stdout)
    assert answer.pop("seconds") >= 0
    assert answer == {
        "schema": 1,
        "file": str(tmp_path / "t"),
        "reads": 2,
        "read_bytes": 2 * SIZE,
        "hit_bytes": 2 * SIZE,
        "dropped": 0,
        "file_bytes": (tmp_path / "t").stat().st_size,
        "ended": None,
    }


def test_the_end_of_the_daemon_is_told_and_the_trace_is_kept(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mummufs.commands.trace.POLL_S", 0.001)

    def gone() -> None:
        raise MummufsError("the daemon of it is gone")

    daemon.steps = [lambda: daemon.touch(0), gone]
    done = called("trace", daemon.mountpoint, "-o", tmp_path / "t")
    assert done.exit_code == 0
    assert sentence(done) == "the trace ends here: the daemon of it is gone"
    assert len(reads_of(tmp_path / "t")) == 1


def test_a_file_that_is_there_is_kept_unless_forced(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "t").write_text("mine")
    done = called("trace", daemon.mountpoint, "-o", tmp_path / "t", "--for", "0")
    assert done.exit_code == 2
    assert "--force" in sentence(done)
    assert (tmp_path / "t").read_text() == "mine"
    assert daemon.asked == []
    daemon.steps = [lambda: daemon.touch(0)]
    assert called("trace", daemon.mountpoint, "-o", tmp_path / "t", "--for", "0", "--force").exit_code == 0
    assert len(reads_of(tmp_path / "t")) == 1


def test_places_that_are_refused(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(daemon.mountpoint)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "dir").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name, why in {
        "mnt/t": "lies in the mount",
        "link/t": "lies in the mount",
        "dir": "not a regular file",
        "fifo": "not a regular file",
        "dangling": "not a regular file",
        "absent/t": "No such file or directory",
        "dir/": "no name for a file",
    }.items():
        done = called("trace", str(daemon.mountpoint), "-o", f"{tmp_path}/{name}", "--for", "0", "--force")
        assert (done.exit_code, why in sentence(done)) == (2, True), name
    assert daemon.asked == []


def test_a_second_trace_is_refused_and_leaves_no_file(daemon: Daemon, tmp_path: Path) -> None:
    daemon.tracing.start()
    done = called("trace", daemon.mountpoint, "-o", tmp_path / "t", "--for", "0")
    assert done.exit_code == 1
    assert "traced already" in sentence(done)
    assert not (tmp_path / "t").exists()


def test_a_file_that_cannot_be_made_ends_the_recording(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mummufs.tracefile.os.open", refuse)
    done = called("trace", daemon.mountpoint, "-o", tmp_path / "t", "--for", "0")
    monkeypatch.undo()
    assert done.exit_code == 1
    assert "No space left" in sentence(done)
    assert not daemon.tracing.on


def test_a_full_disk_leaves_whole_blocks(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mummufs.commands.trace.POLL_S", 0.001)
    write, sizes = os.write, list[int]()

    def write_little(fd: int, data: memoryview) -> int:
        sizes.append(len(data))
        if len(sizes) < 3:
            return write(fd, data)
        if len(sizes) == 3:
            return write(fd, data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mummufs.tracefile.os.write", write_little)
    daemon.steps = [lambda: daemon.touch(0), lambda: daemon.touch(1)]
    done = called("trace", daemon.mountpoint, "-o", tmp_path / "t")
    assert done.exit_code == 1
    assert "No space left" in sentence(done)
    assert len(reads_of(tmp_path / "t")) == 1
    assert not daemon.tracing.on


# ---------------------------------------------------------------------- the file


@pytest.fixture
def written(tmp_path: Path) -> bytes:
    """A trace of three blocks of two reads."""
    tracing = Tracing()
    ticket = tracing.start()
    writer = TraceWriter(tmp_path / "whole", HEADER)
    for number in range(3):
        for window in (number, 0):
            tracing.touched(RangeKey(FileId(1, 2), window * SIZE, SIZE), SIZE, hit=number == 2)
        writer.append(tracing.take(ticket))
    writer.close()
    data = (tmp_path / "whole").read_bytes()
    assert writer.size == len(data)
    return data


def read_all(data: bytes) -> tuple[list[TraceReads], str | None]:
    reader = TraceReader(BytesIO(data))
    return list(reader), reader.fault


def test_every_cut_leaves_the_whole_blocks_before_it(written: bytes) -> None:
    blocks, fault = read_all(written)
    assert (len(blocks), fault) == (3, None)
    whole_at = set[int]()
    for size in range(len(written)):
        if size < HEADER_BYTES:
            with pytest.raises(TraceError):
                read_all(written[:size])
            continue
        found, fault = read_all(written[:size])
        assert found == blocks[: len(found)]
        if fault is None:
            whole_at.add(size)
        else:
            assert fault == "its last block is cut short"
    assert len(whole_at) == 3  # after the header and after each of the first two blocks


def test_every_flipped_bit_is_an_error_or_a_shorter_trace(written: bytes) -> None:
    blocks, _ = read_all(written)
    for at in range(len(written)):
        for bit in range(8):
            data = bytearray(written)
            data[at] ^= 1 << bit
            if at < HEADER_BYTES:
                with pytest.raises(TraceError):
                    read_all(bytes(data))
                continue
            found, fault = read_all(bytes(data))
            assert fault is not None
            assert len(found) < 3
            assert found == blocks[: len(found)]


def test_what_is_no_trace_says_what_it_is(written: bytes) -> None:
    for data, why in (
        (b"", "not a trace"),
        (b"GGUF" * 20, "not a trace"),
        (written[:20], "cut within its header"),
        (written[:8] + b"\7" + written[9:], "version 7"),
        (written[:20] + b"\7" + written[21:], "header is damaged"),
    ):
        with pytest.raises(TraceError, match=why):
            read_all(data)
