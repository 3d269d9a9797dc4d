"""Hints: in order, in steps that the kernel does not cut off, and never an error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mummufs.core.ranges import ByteRange
from mummufs.source.hints import HINT_BYTES, will_need
from mummufs.source.memory import MemorySource
from mummufs.source.tree import TreeSource


def test_runs_are_hinted_in_order_and_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"x")
    file = TreeSource(tmp_path).open(b"f")
    hinted: list[tuple[int, int]] = []

    def fadvise(fd: int, offset: int, size: int, advice: int) -> None:
        assert (fd, advice) == (file.fileno(), os.POSIX_FADV_WILLNEED)
        hinted.append((offset, size))

    monkeypatch.setattr(os, "posix_fadvise", fadvise)
    will_need(file, [ByteRange(100, HINT_BYTES + 5), ByteRange(7, 3)])
    assert hinted == [(100, HINT_BYTES), (100 + HINT_BYTES, 5), (7, 3)]
    file.close()


def test_what_cannot_be_hinted_is_no_error(tmp_path: Path) -> None:
    will_need(MemorySource({b"f": b"x"}).open(b"f"), [ByteRange(0, 1)])
    (tmp_path / "f").write_bytes(b"x")
    file = TreeSource(tmp_path).open(b"f")
    will_need(file, [ByteRange(0, 1), ByteRange(1 << 40, 1 << 20)])
    file.close()
    will_need(file, [ByteRange(0, 1)])
