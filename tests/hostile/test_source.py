"""A source that fails or hangs: that reader hears of it, and nobody else; nothing of it is stored."""

from __future__ import annotations

import errno
import mmap
import os
import random
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from tests.faultfs.client import FaultFs
from tests.hostile.support import KIB, MIB, PAGE, ROUND_UP_S, children, errno_of, fill, model, read_all, states, threads
from tests.mounts.harness import Mounted, opened
from tests.mounts.test_bytes import read_at_random
from tests.mounts.test_filling import one_range, pread_direct
from tests.mounts.test_lifecycle import GONE, state
from tests.support.models import write_native
from tests.support.waiting import wait_for

TIMEOUT_S = 1.0
TIMED = ("settle=0", "attr_timeout=0", f"source_timeout={TIMEOUT_S:g}")


@pytest.mark.mount
def test_an_error_in_the_middle_of_a_range(tree: Path, store: Path) -> None:
    """Its readers get EIO, the others go on, and nothing of the range is stored."""
    data, start, end = one_range(tree, 8 * MIB)
    expected = model(tree, "hot")
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store) as m:
        pread_direct(m.path("f"), 0, PAGE)
        stored = fill(m, expected)
        under.fail_reads(errno.EIO, path="f", after=3)
        answers: dict[int, int | None] = {}
        for at in range(start, end - MIB, MIB):
            answers[at] = errno_of(partial(pread_direct, m.path("f"), at, 256 * KIB))
        assert set(answers.values()) <= {None, errno.EIO}
        assert list(answers.values()).count(errno.EIO) >= 3
        read_all(m, expected)
        status = m.settle()
        assert status["errors"]["source"] >= 3
        assert len(m.range_files()) == stored
        assert os.listdir(m.mountpoint)
        under.reset()
        read_all(m, {"f": data})
        assert fill(m, {"f": data}) > stored


@pytest.mark.mount
def test_short_reads_of_the_source_are_made_whole(tree: Path, store: Path) -> None:
    expected = model(tree, "a", "b")
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store) as m:
        under.short_reads(5000)
        assert fill(m, expected) == 20
        under.reset()
        under.clear()
        read_all(m, expected)
        assert m.status()["reads"]["hits"] > 0


@pytest.mark.mount
def test_a_file_without_ranges_of_a_source_that_gives_short_reads(tree: Path, store: Path) -> None:
    """The kernel does not read it by itself, even if it would: its reads stay whole, and it may be mapped."""
    data = random.Random(4).randbytes(MIB)
    (tree / "plain").write_bytes(data)
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store, options=("settle=0", "passthrough=on")) as m:
        m.read("plain")
        m.settle()
        under.short_reads(5000)
        with opened(m.path("plain")) as fd:  # of which it is known by now that it has no ranges
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(fd, MIB, 1) == data[1:]
            with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
                assert mapped[:] == data


@pytest.mark.mount
def test_32_readers_of_a_slow_source_at_random(tree: Path, store: Path) -> None:
    """While the fill is under way."""
    write_native(tree / "f", sizes=(3 * MIB,) * 4, gap=50_000)
    data = (tree / "f").read_bytes()
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store) as m:
        pread_direct(m.path("f"), 0, PAGE)
        m.settle()
        under.delay_reads(0.02)
        wrong: list[object] = []

        def reader(number: int) -> None:
            rng = random.Random(number)
            with opened(m.path("f")) as fd:
                for _ in range(8):
                    offset, size = rng.randrange(len(data)), rng.randrange(1, 700 * KIB)
                    if os.pread(fd, size, offset) != data[offset : offset + size]:
                        wrong.append((offset, size))

        readers = [threading.Thread(target=reader, args=(i,)) for i in range(32)]
        for thread in readers:
            thread.start()
        for thread in readers:
            thread.join()
        assert not wrong
        under.delay_reads(0)
        m.drop_pages()
        assert read_at_random(m.path("f")) == data
        assert m.settle()["store"]["ranges"] == 4


@pytest.mark.mount
def test_a_source_that_hangs_is_given_up(tree: Path, store: Path) -> None:
    """EIO after the time-out; hits, listings and look-ups go on; released, it is read again and no thread is lost."""
    data, start, _ = one_range(tree, 4 * MIB)
    expected = model(tree, "hot")
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store, options=TIMED) as m:
        pread_direct(m.path("f"), 0, PAGE)
        fill(m, expected)
        stored = len(m.range_files())
        before = threads(m.pid)
        for _ in range(3):
            under.hang_reads("f")
            answers: list[tuple[int | None, float]] = []

            def reader(at: int, answers: list[tuple[int | None, float]] = answers) -> None:
                begun = time.monotonic()
                code = errno_of(lambda: pread_direct(m.path("f"), at, 64 * KIB))
                answers.append((code, time.monotonic() - begun))

            readers = [threading.Thread(target=reader, args=(start + i * 256 * KIB,)) for i in range(12)]
            for thread in readers:
                thread.start()
            begun = time.monotonic()
            read_all(m, expected)
            assert "hot" in os.listdir(m.mountpoint)
            assert time.monotonic() - begun < TIMEOUT_S
            for thread in readers:
                thread.join()
            assert {code for code, _ in answers} == {errno.EIO}
            assert max(took for _, took in answers) < 2 * TIMEOUT_S + 2 * ROUND_UP_S, answers
            assert m.status()["gauges"]["source_stuck"] > 0
            assert len(m.range_files()) == stored
            under.release_reads()
            wait_for(m.status, lambda s: s["gauges"]["source_stuck"] == 0 and s["gauges"]["source_threads_busy"] == 0)
        read_all(m, {"f": data})
        assert wait_for(lambda: threads(m.pid), lambda n: n <= before + 16) <= before + 16


@pytest.mark.mount
def test_a_reader_killed_while_the_source_hangs(tree: Path, store: Path) -> None:
    """The kernel sends nothing that could free it at once: the time-out does."""
    write_native(tree / "f", sizes=(MIB,), gap=0)
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store, options=TIMED) as m:
        under.hang_reads("f")
        reader = subprocess.Popen(["cat", m.path("f")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(m.status, lambda s: s["gauges"]["reads_in_flight"] > 0)
            reader.send_signal(signal.SIGKILL)
            assert reader.wait(TIMEOUT_S + 4 * ROUND_UP_S) == -signal.SIGKILL
            assert wait_for(m.status, lambda s: s["gauges"]["reads_in_flight"] == 0)["errors"]["handler"] == 0
        finally:
            under.release_reads()
            reader.kill()
        wait_for(m.status, lambda s: s["gauges"]["source_stuck"] == 0 and s["gauges"]["metadata_stuck"] == 0)
        assert m.read("f") == (tree / "f").read_bytes()


@pytest.mark.mount
def test_the_process_that_parses_a_header_is_killed(tree: Path, store: Path) -> None:
    """Reads go on without it; the file is passed through."""
    expected = model(tree, "f", "g")
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store) as m:
        under.hang_reads("f.mummufs.json")  # so that the process is there until it is killed
        with opened(m.path("f")) as fd:
            found = wait_for(
                lambda: [pid for pid, line in children(m.pid).items() if "manifests.child" in line],
                bool,
            )
            os.kill(found[0], signal.SIGKILL)
            wait_for(m.log.read_text, lambda text: "ended without an answer" in text)
            under.release_reads()
            assert os.pread(fd, 1 << 22, 0) == expected["f"]
        assert m.settle()["gauges"]["manifests_refused"] == 1
        assert fill(m, {"g": expected["g"]}) == 10
        read_all(m, expected)


@pytest.mark.mount
def test_the_source_is_stopped_and_a_file_changes_under_it(tree: Path, store: Path) -> None:
    """Reads of it hang, it changes, the attributes expire: a listing still answers, and no process stays stuck."""
    expected = model(tree, "f", "hot")
    options = ("settle=0", "attr_timeout=0.1")
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store, options=options) as m:
        fill(m, {"hot": expected["hot"]})
        pread_direct(m.path("f"), 0, PAGE)
        m.settle()
        under.hang_reads("f")
        reader = subprocess.Popen(["cat", m.path("f")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        wait_for(m.status, lambda s: s["gauges"]["reads_in_flight"] > 0)
        with (tree / "f").open("r+b") as file:
            file.write(b"changed")
        new = (tree / "f").read_bytes()
        begun = time.monotonic()
        listed = subprocess.run(["ls", "-l", m.mountpoint], capture_output=True, text=True, timeout=10, check=True)
        assert time.monotonic() - begun < 2
        assert "hot" in listed.stdout
        read_all(m, {"hot": expected["hot"]})
        under.release_reads()
        out, _ = reader.communicate(timeout=10)
        assert expected["f"].startswith(out), "bytes of the old version, until it answers ESTALE"
        wait_for(lambda: m.read("f"), lambda data: data == new)
        assert state(reader.pid) in GONE
        assert wait_for(lambda: states(m.pid), lambda letters: "D" not in letters)


@pytest.mark.mount
@pytest.mark.alone
def test_look_ups_and_forgets_without_end(tree: Path, store: Path) -> None:
    """Nodes come, change and are forgotten in every order; what is forgotten leaves nothing behind."""
    for i in range(500):
        (tree / f"{i}").write_bytes(b"%d" % i)
    with Mounted(tree, store=store, options=("settle=0", "attr_timeout=0")) as m:
        stop = threading.Event()
        wrong: list[object] = []

        def looker(number: int) -> None:
            rng = random.Random(number)
            while not stop.is_set():
                name = str(rng.randrange(500))
                try:
                    m.path(name).stat()
                    if not m.read(name).startswith(name.encode()):
                        wrong.append(name)
                except OSError as error:
                    if error.errno not in (errno.ESTALE, errno.ENOENT):
                        wrong.append(error)

        lookers = [threading.Thread(target=looker, args=(i,)) for i in range(4)]
        for thread in lookers:
            thread.start()
        rng = random.Random(9)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            name = str(rng.randrange(500))
            fresh = tree / "fresh"
            fresh.write_bytes(name.encode() + b" again")
            fresh.rename(tree / name)
            if rng.random() < 0.05:
                Path("/proc/sys/vm/drop_caches").write_text("2")
        stop.set()
        for thread in lookers:
            thread.join()
        assert not wrong
        assert m.status()["errors"]["handler"] == 0

        def left() -> int:
            Path("/proc/sys/vm/drop_caches").write_text("2")
            return int(m.status()["gauges"]["inodes"])

        wait_for(left, lambda n: n <= 2)
        assert m.status()["gauges"]["nodes"] <= 2


@pytest.mark.mount
def test_a_source_that_is_stopped_as_a_whole(tree: Path, store: Path) -> None:
    """Nothing of it answers: what needs it gets EIO after the time-out, and an open file's hits are served."""
    expected = model(tree, "a", "b")
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store, options=TIMED) as m:
        fill(m, expected)
        with opened(m.path("a")) as fd:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            under.hang()
            try:
                begun = time.monotonic()
                assert os.pread(fd, 1 << 22, 0) == expected["a"]
                assert time.monotonic() - begun < TIMEOUT_S
                lost: list[int | None] = []
                askers = [
                    threading.Thread(target=lambda i=i: lost.append(errno_of(m.path(f"nobody{i}").stat)))
                    for i in range(40)
                ]
                for asker in askers:
                    asker.start()
                for asker in askers:
                    asker.join()
                assert set(lost) == {errno.EIO}
                assert time.monotonic() - begun < 4 * TIMEOUT_S
                assert m.status()["gauges"]["metadata_stuck"] > 0
            finally:
                under.resume()
        wait_for(m.status, lambda s: s["gauges"]["metadata_stuck"] == 0 and s["gauges"]["metadata_threads_busy"] == 0)
        assert sorted(os.listdir(m.mountpoint)) == sorted(os.listdir(tree))
        read_all(m, expected)
