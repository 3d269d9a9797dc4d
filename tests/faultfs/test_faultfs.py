"""The layer itself: what it passes through, what it logs, and every way in which it misbehaves."""

from __future__ import annotations

import errno
import json
import mmap
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faultfs.client import FaultFs, ReadRecord, is_mounted

pytestmark = pytest.mark.mount

MIB = 1 << 20
CONTENTS = bytes(range(256)) * (2 * MIB // 256)


@pytest.fixture
def back(tmp_path: Path) -> Path:
    """A small tree with one file of 2 MiB."""
    back = tmp_path / "back dir"
    (back / "sub").mkdir(parents=True)
    (back / "file").write_bytes(CONTENTS)
    return back


@pytest.fixture
def layer(back: Path) -> Iterator[FaultFs]:
    """A running layer over `back`, gone without a trace afterwards."""
    with FaultFs(back) as layer:
        yield layer
    assert not is_mounted(layer.mountpoint)
    assert layer.process.poll() is not None


def pread(path: Path, size: int, offset: int) -> bytes:
    """One pread of a newly opened file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)


def places(records: list[ReadRecord]) -> list[tuple[str, int, int, int | None]]:
    """Records without their time."""
    return [(read.path, read.offset, read.size, read.returned) for read in records]


def test_tree_is_passed_through(back: Path, layer: FaultFs) -> None:
    os.link(back / "file", back / "sub" / "hard")
    os.symlink("../file", back / "sub" / "soft")
    odd = os.fsdecode(b"odd \xff name")
    (back / odd).write_bytes(b"odd")
    (back / odd).chmod(0o640)
    os.utime(back / odd, ns=(1_234_567_890, 987_654_321_123_456_789))
    os.setxattr(back / odd, "user.note", b"value")

    assert sorted(os.listdir(layer.mountpoint)) == sorted(["file", "sub", odd])
    assert os.readlink(layer.mountpoint / "sub" / "soft") == "../file"
    assert os.getxattr(layer.mountpoint / odd, "user.note") == b"value"
    assert os.listxattr(layer.mountpoint / odd) == ["user.note"]
    assert os.statvfs(layer.mountpoint).f_blocks == os.statvfs(back).f_blocks
    for name in ("file", "sub/hard", odd):
        seen, real = (layer.mountpoint / name).stat(), (back / name).stat()
        for field in ("st_ino", "st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_ctime_ns"):
            assert getattr(seen, field) == getattr(real, field), (name, field)
    with os.scandir(layer.mountpoint / "sub") as entries:
        assert {entry.name: entry.inode() for entry in entries}["hard"] == (back / "file").stat().st_ino
    assert (layer.mountpoint / odd).read_bytes() == b"odd"
    assert layer.reads()[-1].path == odd


def test_changes_in_back_show_at_once(back: Path, layer: FaultFs) -> None:
    assert (layer.mountpoint / "file").stat().st_size == len(CONTENTS)
    (back / "file").write_bytes(b"short")
    (back / "new").write_bytes(b"n")
    assert (layer.mountpoint / "file").stat().st_size == 5
    assert (layer.mountpoint / "file").read_bytes() == b"short"
    assert (layer.mountpoint / "new").read_bytes() == b"n"
    os.replace(back / "new", back / "file")
    assert (layer.mountpoint / "file").read_bytes() == b"n"


def test_log_shows_reads_exactly_as_asked(layer: FaultFs) -> None:
    assert pread(layer.mountpoint / "file", 1000, 12_345) == CONTENTS[12_345:13_345]
    assert pread(layer.mountpoint / "file", 100, len(CONTENTS) - 10) == CONTENTS[-10:]
    expected = [("file", 12_345, 1000, 1000), ("file", len(CONTENTS) - 10, 100, 10)]
    assert places(layer.reads(clear=True)) == expected
    assert layer.reads() == []


def test_log_is_written_at_exit(back: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with FaultFs(back, log=log) as layer:
        pread(layer.mountpoint / "file", 7, 3)
    (line,) = log.read_text().splitlines()
    record = json.loads(line)
    assert record.pop("t") > 0
    assert record == {"op": "read", "path": "file", "offset": 3, "size": 7, "returned": 7}


def test_cached_mode_allows_shared_mappings(back: Path) -> None:
    with (
        FaultFs(back, direct=False) as layer,
        (layer.mountpoint / "file").open("rb") as file,
        mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped,
    ):
        assert mapped[:] == CONTENTS


def test_writes_pass_through(back: Path, layer: FaultFs) -> None:
    mount = layer.mountpoint
    (mount / "dir").mkdir(mode=0o750)
    with (mount / "dir" / "temporary").open("wb") as file:
        file.write(b"payload" * 1000)
        file.flush()
        os.fsync(file.fileno())
        os.pwrite(file.fileno(), b"HEAD", 0)
    (mount / "dir" / "temporary").chmod(0o600)
    os.utime(mount / "dir" / "temporary", ns=(5, 7))
    os.rename(mount / "dir" / "temporary", mount / "dir" / "final")
    final = back / "dir" / "final"
    assert final.read_bytes() == b"HEAD" + (b"payload" * 1000)[4:]
    assert (final.stat().st_mode & 0o7777, final.stat().st_mtime_ns) == (0o600, 7)
    os.truncate(mount / "dir" / "final", 3)
    assert final.read_bytes() == b"HEA"
    (mount / "dir" / "final").unlink()
    (mount / "dir").rmdir()
    assert not (back / "dir").exists()
    assert layer.op_counts()["fsync"] == 1


def test_delayed_reads_overlap(layer: FaultFs) -> None:
    layer.delay_reads(0.3, "file")
    start = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        parts = list(pool.map(lambda i: pread(layer.mountpoint / "file", 100, i * 100), range(16)))
    elapsed_s = time.monotonic() - start
    assert b"".join(parts) == CONTENTS[:1600]
    assert 0.3 <= elapsed_s < 16 * 0.3 / 2


def test_attributes_can_be_slow(layer: FaultFs) -> None:
    layer.set_attr_delay(0.2)
    start = time.monotonic()
    os.stat(layer.mountpoint / "file")
    assert time.monotonic() - start >= 0.2


def test_reads_fail_after_n_and_k_times(back: Path, layer: FaultFs) -> None:
    (back / "other").write_bytes(b"other")
    layer.fail_reads(errno.EIO, after=1, count=2, path="file")

    def outcome(name: str) -> int:
        try:
            return len(pread(layer.mountpoint / name, 5, 0))
        except OSError as error:
            return -(error.errno or 0)

    assert [outcome("file") for _ in range(4)] == [5, -errno.EIO, -errno.EIO, 5]
    assert outcome("other") == 5
    assert [read.returned for read in layer.reads()] == [5, -errno.EIO, -errno.EIO, 5, 5]


def test_a_named_operation_fails_once(layer: FaultFs) -> None:
    layer.fail_op("mkdir", errno.EIO, after=1, count=1)
    (layer.mountpoint / "a").mkdir()
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        (layer.mountpoint / "b").mkdir()
    (layer.mountpoint / "b").mkdir()


def test_an_unknown_operation_is_refused(layer: FaultFs) -> None:
    with pytest.raises(RuntimeError, match="no operation 'raed'"):
        layer.fail_op("raed", errno.EIO)


def test_short_reads(layer: FaultFs) -> None:
    layer.short_reads(10)
    assert pread(layer.mountpoint / "file", 100, 0) == CONTENTS[:10]
    layer.short_reads(None)
    assert pread(layer.mountpoint / "file", 100, 0) == CONTENTS[:100]


def test_flipped_bits_are_read_but_not_stored(back: Path, layer: FaultFs) -> None:
    layer.flip_bits("file", 1000, 0x81)
    expected = bytearray(CONTENTS)
    expected[1000] ^= 0x81
    assert (layer.mountpoint / "file").read_bytes() == expected
    assert (back / "file").read_bytes() == CONTENTS


def test_space_runs_out(back: Path, layer: FaultFs) -> None:
    layer.limit_writes(1000)
    descriptor = os.open(layer.mountpoint / "new", os.O_WRONLY | os.O_CREAT)
    try:
        assert os.pwrite(descriptor, b"x" * 1500, 0) == 1000
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            os.pwrite(descriptor, b"x", 1000)
    finally:
        os.close(descriptor)
    assert (back / "new").read_bytes() == b"x" * 1000


def test_reads_hang_until_released(layer: FaultFs) -> None:
    layer.hang_reads()
    with ThreadPoolExecutor(20) as pool:
        futures = [pool.submit(pread, layer.mountpoint / "file", 10, i) for i in range(20)]
        waiting = layer.wait_reads(20, "file")
        assert [read.returned for read in waiting] == [None] * 20
        # Everything but reads goes on.
        assert (layer.mountpoint / "file").stat().st_size == len(CONTENTS)
        layer.release_reads()
        assert [future.result() for future in futures] == [CONTENTS[i : i + 10] for i in range(20)]


def test_one_path_hangs_and_reset_releases(back: Path, layer: FaultFs) -> None:
    (back / "other").write_bytes(b"other")
    layer.hang_reads("file")
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(pread, layer.mountpoint / "file", 10, 0)
        layer.wait_reads(1, "file")
        assert (layer.mountpoint / "other").read_bytes() == b"other"
        layer.reset()
        assert future.result() == CONTENTS[:10]


def test_stopped_layer_goes_on(layer: FaultFs) -> None:
    layer.hang()
    state = Path(f"/proc/{layer.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    assert state == "T"
    layer.resume()
    assert pread(layer.mountpoint / "file", 10, 0) == CONTENTS[:10]


def test_close_ends_a_stopped_layer_with_waiting_readers(back: Path) -> None:
    layer = FaultFs(back)
    layer.hang_reads()
    reader = subprocess.Popen(["cat", layer.mountpoint / "file"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    layer.wait_reads(1)
    layer.hang()
    layer.close()
    assert not is_mounted(layer.mountpoint)
    assert reader.wait(10) != 0
    layer.close()
    with pytest.raises(RuntimeError, match="closed"):
        layer.reads()


def test_a_missing_back_is_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="No such file or directory"):
        FaultFs(tmp_path / "missing")


@pytest.fixture
def volatile(back: Path) -> Iterator[FaultFs]:
    """A layer in which only what was synced outlives `lose_power`."""
    with FaultFs(back, volatile=True) as layer:
        yield layer
    assert not is_mounted(layer.mountpoint)


@pytest.mark.parametrize(
    ("loss", "left"),
    [
        ("empty", b""),
        ("short", b"n" * 4500),
        ("zeros", bytes(9000)),
        ("holes", b"n" * 4096 + bytes(4096) + b"n" * 808),
    ],
    ids=["empty", "short", "zeros", "holes"],
)
def test_unsynced_writes_are_lost_and_names_stay(back: Path, volatile: FaultFs, loss: str, left: bytes) -> None:
    mount = volatile.mountpoint
    (mount / "temporary").write_bytes(b"n" * 9000)
    os.rename(mount / "temporary", mount / "new")
    with (mount / "synced").open("wb") as file:
        file.write(b"s" * 3000)
        file.flush()
        os.fsync(file.fileno())
    (mount / "unlinked").write_bytes(b"u")
    (mount / "unlinked").unlink()
    assert (mount / "new").read_bytes() == b"n" * 9000, "until then everything is there"
    assert volatile.lose_power(loss) == 1
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        (mount / "new").read_bytes()
    volatile.reset()
    assert (mount / "new").read_bytes() == (back / "new").read_bytes() == left
    assert (mount / "synced").read_bytes() == b"s" * 3000
    assert not (mount / "unlinked").exists()
    assert volatile.lose_power(loss) == 0, "what is left is on the disk"


def test_a_file_falls_back_to_its_last_sync(back: Path, volatile: FaultFs) -> None:
    with (volatile.mountpoint / "file").open("r+b") as file:
        file.write(b"first")
        file.flush()
        os.fsync(file.fileno())
        file.write(b"second")
        file.flush()
        os.ftruncate(file.fileno(), 8)
    assert (back / "file").read_bytes() == b"firstsec"
    volatile.lose_power()
    volatile.reset()
    assert (back / "file").read_bytes() == b"first" + CONTENTS[5:]
    (volatile.mountpoint / "file").open("wb").close()
    assert (back / "file").stat().st_size == 0
    volatile.lose_power()
    assert (back / "file").read_bytes() == b"first" + CONTENTS[5:]


def test_a_sync_may_be_late_or_a_lie(back: Path, volatile: FaultFs) -> None:
    def write(name: str) -> float:
        start = time.monotonic()
        with (volatile.mountpoint / name).open("wb") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        return time.monotonic() - start

    volatile.delay_syncs(0.2)
    assert write("late") >= 0.2
    volatile.reset()
    volatile.lie_on_syncs()
    write("lied")
    assert volatile.lose_power() == 1
    assert ((back / "late").read_bytes(), (back / "lied").read_bytes()) == (b"x", b"")


def test_a_sync_that_waits_when_power_is_lost_fails(back: Path, volatile: FaultFs) -> None:
    volatile.delay_syncs(60)
    descriptor = os.open(volatile.mountpoint / "new", os.O_WRONLY | os.O_CREAT)
    with ThreadPoolExecutor(1) as pool:
        os.write(descriptor, b"new")
        syncing = pool.submit(os.fsync, descriptor)
        while not volatile.op_counts().get("fsync"):
            pass
        assert volatile.lose_power() == 1
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            syncing.result(10)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        os.close(descriptor)
    assert (back / "new").read_bytes() == b""


def test_a_layer_without_an_account_cannot_lose_power(layer: FaultFs) -> None:
    with pytest.raises(RuntimeError, match="volatile"):
        layer.lose_power()
