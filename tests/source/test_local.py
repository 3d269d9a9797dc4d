"""What is known of files on local file systems: who writes to them."""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mummufs.source.descriptors import TreeFile
from mummufs.source.local import ignore_broken_leases, is_being_written, is_local
from mummufs.source.memory import MemorySource
from mummufs.source.tree import TreeSource


@pytest.fixture
def ignored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGIO)
    ignore_broken_leases()
    yield
    signal.signal(signal.SIGIO, before)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[TreeFile]:
    (tmp_path / "f").write_bytes(b"x" * mmap.PAGESIZE)
    source = TreeSource(tmp_path)
    file = source.open(b"f")
    if not is_local(file.fileno()):
        pytest.skip("the directory for tests is on no local file system")
    yield file
    file.close()
    source.close()


@pytest.mark.usefixtures("ignored")
def test_who_has_it_open_for_writing_is_seen(file: TreeFile, tmp_path: Path) -> None:
    """By a descriptor and by a mapping. A reader is no writer."""
    assert not is_being_written(file)
    with (tmp_path / "f").open("rb"):
        assert not is_being_written(file)
    with (tmp_path / "f").open("r+b") as writer:
        assert is_being_written(file)
        mapped = mmap.mmap(writer.fileno(), 0)
    assert is_being_written(file)
    mapped.close()
    assert not is_being_written(file)


@pytest.mark.usefixtures("ignored")
def test_a_look_leaves_nothing_that_holds_a_writer_up(file: TreeFile, tmp_path: Path) -> None:
    assert not is_being_written(file)
    os.close(os.open(tmp_path / "f", os.O_RDWR | os.O_NONBLOCK))  # EWOULDBLOCK where a lease is in its way


def test_a_process_that_a_broken_lease_would_end_takes_none(file: TreeFile, tmp_path: Path) -> None:
    assert signal.getsignal(signal.SIGIO) is signal.SIG_DFL
    with (tmp_path / "f").open("r+b"):
        assert not is_being_written(file)


@pytest.mark.usefixtures("ignored")
def test_a_file_without_a_descriptor_tells_nothing() -> None:
    assert not is_being_written(MemorySource({b"f": b"x"}).open(b"f"))


def test_what_is_no_local_file_system() -> None:
    fd = os.open("/proc/self/status", os.O_RDONLY)
    assert not is_local(fd)
    os.close(fd)
    assert not is_local(-1)
