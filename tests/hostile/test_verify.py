"""Checksums: what `mummufs verify` and `-o verify=always` find, and what they do about it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from mummufs import control
from tests.faultfs.client import FaultFs
from tests.hostile.support import KIB, PAGE, changed, fill, model, read_all
from tests.mounts.harness import Mounted, run
from tests.mounts.test_filling import pread_direct
from tests.mounts.test_store_faults import flip
from tests.support.waiting import wait_for


def verify(m: Mounted, *arguments: str, code: int = 0) -> dict[str, int]:
    """Run `mummufs verify --json`; what it has found."""
    done = run("verify", m.mountpoint, "--json", *arguments, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("has been dropped" in done.stderr) == (code == 1)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def reseal(path: Path, at: int) -> None:
    """Change a byte of a range file and give it the checksums of what it holds now."""
    with changed(path) as data:
        data[PAGE + at] ^= 0xFF
        data[72:88] = xxh3_128_digest(data[PAGE:])
        struct.pack_into("<Q", data, 88, xxh3_64_intdigest(bytes(data[:88])))


@pytest.mark.mount
def test_what_has_rotted_is_dropped(tree: Path, store: Path) -> None:
    expected = model(tree, "a", "b")
    with Mounted(tree, store=store) as m:
        assert fill(m, expected) == 20
        found = verify(m)
        assert (found["ranges"], found["corrupt"], found["different"], found["skipped"]) == (20, 0, 0, 0)
        assert "20 ranges proved, 0 corrupt" in run("verify", m.mountpoint).stdout
        victim = m.range_files()[7]
        flip(victim)
        found = verify(m, code=1)
        assert (found["ranges"], found["corrupt"]) == (20, 1)
        wait_for(victim.exists, lambda there: not there)
        assert m.settle()["errors"]["corrupt"] == 1
        assert verify(m)["ranges"] == 19
        read_all(m, expected)


@pytest.mark.mount
def test_against_the_source(tree: Path, store: Path) -> None:
    """A range file whose checksums are right and whose bytes are not the source's."""
    expected = model(tree, "a", "b")
    with Mounted(tree, store=store) as m:
        fill(m, expected)
        victim = m.range_files()[3]
        reseal(victim, 5000)
        assert verify(m)["corrupt"] == 0
        found = verify(m, "--against-source", code=1)
        assert (found["corrupt"], found["different"], found["skipped"]) == (0, 1, 0)
        wait_for(victim.exists, lambda there: not there)
        assert verify(m, "--against-source")["different"] == 0
        read_all(m, expected)


@pytest.mark.mount
def test_a_sample_and_what_is_left(tree: Path, store: Path) -> None:
    """A slow one is stopped; `--resume` proves what it had not come to."""
    expected = model(tree, "a", "b")
    with Mounted(tree, store=store) as m:
        fill(m, expected)
        assert verify(m, "--sample", "5")["ranges"] == 5
        run("verify", m.mountpoint, "--rate", "300K", "--background")
        wait_for(m.status, lambda s: s["scrub"]["ranges"] >= 2)
        assert m.status()["scrub"]["running"]
        done = run("verify", m.mountpoint, check=False)
        assert done.returncode == 1
        assert "being verified already" in done.stderr
        control.request(m.mountpoint, "verify_stop")
        stopped = wait_for(m.status, lambda s: not s["scrub"]["running"])["scrub"]
        assert 2 <= stopped["ranges"] < 20
        assert verify(m, "--resume")["ranges"] == 20 - stopped["ranges"]
        assert verify(m, "--resume")["ranges"] == 20, "that one had ended"


@pytest.mark.mount
def test_hits_are_served_while_it_runs(tree: Path, store: Path) -> None:
    expected = model(tree, "a", "b")
    with Mounted(tree, store=store) as m:
        fill(m, expected)
        run("verify", m.mountpoint, "--rate", "100K", "--background")
        wait_for(m.status, lambda s: s["scrub"]["running"])
        before = m.status()["reads"]["misses"]
        for _ in range(5):
            read_all(m, expected)
        status = m.status()
        assert status["scrub"]["running"]
        assert status["reads"]["misses"] == before
        control.request(m.mountpoint, "verify_stop")
        wait_for(m.status, lambda s: not s["scrub"]["running"])
        assert m.settle()["errors"]["store"] == 0


@pytest.mark.mount
def test_a_store_that_is_none(tree: Path) -> None:
    with Mounted(tree) as m:
        done = run("verify", m.mountpoint, check=False)
        assert done.returncode == 1
        assert "no store" in done.stderr


@pytest.mark.mount
def test_verify_always_catches_what_no_attribute_tells(tree: Path, tmp_path: Path) -> None:
    """A bit flips on the disk: size, mtime and ctime of the range file are as they were."""
    back = tmp_path / "disk"
    back.mkdir()
    expected = model(tree, "a")
    options = ("settle=0", "verify=always")
    with FaultFs(back) as under, Mounted(tree, store=under.mountpoint / "store", options=options) as m:
        fill(m, expected)
        m.remount()  # so that each range file is open by its name
        read_all(m, expected)
        assert m.settle()["errors"]["corrupt"] == 0
        before = {path: path.stat() for path in m.range_files()}
        for path in before:
            under.flip_bits(path.relative_to(under.mountpoint), PAGE + 100 * KIB)
        assert {path: path.stat() for path in before} == before
        read_all(m, expected)
        assert m.settle()["errors"]["corrupt"] == 10
        under.reset()
        fill(m, expected)
        hits = m.status()["reads"]["hits"]
        assert pread_direct(m.path("a"), 0, 64 * KIB) == expected["a"][: 64 * KIB]
        assert m.status()["reads"]["hits"] > hits
