"""Subjects in memory, and over real files, for the parser tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mummufs.core.errors import ManifestError
from mummufs.core.manifest import Manifest, ManifestRange, RangeTable
from mummufs.manifests.base import Subject
from mummufs.manifests.registry import read_manifest
from tests.support.models import Written


class MemorySiblings:
    """Files beside the model, from a mapping."""

    def __init__(self, files: Mapping[bytes, bytes]) -> None:
        self._files = files

    def read(self, name: bytes, limit_bytes: int) -> bytes | None:
        data = self._files.get(name)
        if data is not None and len(data) > limit_bytes:
            raise ManifestError("too large")
        return data

    def size(self, name: bytes) -> int | None:
        data = self._files.get(name)
        return None if data is None else len(data)


def subject_of(data: bytes, name: bytes = b"file", siblings: Mapping[bytes, bytes] | None = None) -> Subject:
    """A file in memory."""
    return Subject(name, len(data), lambda offset, size: data[offset : offset + size], MemorySiblings(siblings or {}))


def sparse_subject(head: bytes, file_size: int, name: bytes = b"file") -> Subject:
    """A file that starts with `head` and is zero up to `file_size`, which may be huge."""

    def pread(offset: int, size: int) -> bytes:
        size = max(0, min(size, file_size - offset))
        return head[offset : offset + size].ljust(size, b"\0")

    return Subject(name, file_size, pread, MemorySiblings({}))


class FolderFiles(NamedTuple):
    """A written model in memory: its bytes, name and what lies beside it."""

    data: bytes
    name: bytes
    siblings: dict[bytes, bytes]

    def subject(self, data: bytes | None = None, siblings: Mapping[bytes, bytes] | None = None) -> Subject:
        return subject_of(
            self.data if data is None else data, self.name, self.siblings if siblings is None else siblings
        )


def load(path: Path) -> FolderFiles:
    """The model at `path` with its folder."""
    beside = {os.fsencode(p.name): p.read_bytes() for p in path.parent.iterdir() if p != path and p.is_file()}
    return FolderFiles(path.read_bytes(), os.fsencode(path.name), beside)


def as_ranges(written: list[Written]) -> list[tuple[int, int, str, str]]:
    """What was written, to compare with `found`."""
    return sorted((w.offset, w.size, w.name, w.kind) for w in written)


def found(manifest: Manifest | None) -> list[tuple[int, int, str, str]]:
    """The ranges of a manifest, to compare with `as_ranges`."""
    assert manifest is not None
    return sorted((r.offset, r.size, r.name, r.kind.name.lower()) for r in manifest.ranges)


def table_or_reason(subject: Subject, explicit: bytes | None = None) -> RangeTable | str | None:
    """What the child would answer: a checked table, the reason why there is none, or None."""
    try:
        manifest = read_manifest(subject, explicit)
        if manifest is None:
            return None
        table = RangeTable.from_manifest(manifest)
    except ManifestError as error:
        assert str(error), "a reason is a sentence"
        return str(error)
    table._check()
    return table


def reason(subject: Subject, explicit: bytes | None = None) -> str:
    """The reason why a subject has no ranges, which must be given."""
    answer = table_or_reason(subject, explicit)
    assert isinstance(answer, str), f"expected a ManifestError, got {answer!r}"
    return answer


def ranges_of(subject: Subject, explicit: bytes | None = None) -> list[ManifestRange]:
    """The ranges of a subject, which must have some."""
    manifest = read_manifest(subject, explicit)
    assert manifest is not None
    return list(manifest.ranges)


def run_child(path: Path, manifest: Path | None = None, *, with_folder: bool = True) -> bytes:
    """The whole answer of a real child process for one file."""
    fds = [os.open(path, os.O_RDONLY), os.open(path.parent, os.O_RDONLY)]
    if manifest is not None:
        fds.append(os.open(manifest, os.O_RDONLY))
    try:
        arguments = [str(fds[0]), str(fds[1] if with_folder else -1), os.fsencode(path.name).hex()]
        arguments += [str(fd) for fd in fds[2:]]
        done = subprocess.run(
            [sys.executable, "-m", "mummufs.manifests.child", *arguments],
            pass_fds=fds,
            capture_output=True,
            timeout=120,
            check=True,
        )
    finally:
        for fd in fds:
            os.close(fd)
    assert done.stderr == b"", done.stderr.decode()
    return done.stdout
