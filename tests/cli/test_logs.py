"""The log file: a full disk costs lines, never more, and the log says so when it can."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mummufs.logs import LogFile, begin


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logging.Logger]:
    """A logger of its own, which logs to the file `log`."""
    logger = logging.Logger("mummufs.test")
    logger.addHandler(LogFile(tmp_path / "log"))
    yield logger
    logger.handlers[0].close()


@contextlib.contextmanager
def full_disk(log: logging.Logger) -> Iterator[None]:
    """Have the logger's file lie on a full disk."""
    file = log.handlers[0]
    assert isinstance(file, LogFile)
    full, before = os.open("/dev/full", os.O_WRONLY), os.dup(file._fd)
    os.dup2(full, file._fd)
    os.close(full)
    try:
        yield
    finally:
        os.dup2(before, file._fd)
        os.close(before)


def test_lines_that_were_lost_are_told_by_the_next(
    tmp_path: Path, log: logging.Logger, capfd: pytest.CaptureFixture[str]
) -> None:
    log.info("one")
    with full_disk(log):
        log.info("two")
        log.error("three")
    log.info("four \udcff")
    log.info("five")
    said = [line.partition("mummufs.test: ")[2] for line in (tmp_path / "log").read_text().splitlines()]
    lost = f"(2 lines before this one could not be written: [Errno {errno.ENOSPC}] No space left on device)"
    assert said == ["one", f"four \\udcff {lost}", "five"]
    assert capfd.readouterr() == ("", "")


def test_after_its_end_a_log_file_takes_lines_and_writes_none(tmp_path: Path, log: logging.Logger) -> None:
    """Threads that outlive the mount may still log, and the descriptor may be another file's by then."""
    log.handlers[0].close()
    with (tmp_path / "other").open("w"):
        log.info("late")
    assert (tmp_path / "log").read_text() == (tmp_path / "other").read_text() == ""


def test_a_log_is_begun_with_a_line(tmp_path: Path) -> None:
    for line in ("first", "second"):
        assert begin(tmp_path / "log", line) is None
    assert [line[23:] for line in (tmp_path / "log").read_text().splitlines()] == [
        " INFO mummufs: first",
        " INFO mummufs: second",
    ]
    error = begin(Path("/dev/full"), "first")
    assert error is not None and error.errno == errno.ENOSPC
    with pytest.raises(FileNotFoundError):
        begin(tmp_path / "absent" / "log", "first")
