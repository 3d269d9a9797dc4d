"""Parsing in a child process: a header is hostile until proved otherwise, and parsing one is seconds of Python."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path

import trio

from mummufs.core.errors import ManifestError
from mummufs.core.manifest import TABLE_BYTES_MAX, RangeTable
from mummufs.engine.children import running_child
from mummufs.engine.threads import Pools
from mummufs.manifests.base import SNIFF_BYTES
from mummufs.manifests.registry import may_have_manifest
from mummufs.source.base import Source, SourceFile

CHILDREN_MAX = 2
"""Headers parsed at once: they are read from the slow disk."""
PARSE_TIME_MAX_S = 600.0
"""After this long a child is killed. Its CPU time has a limit of its own; this is for a source that hangs."""
ANSWER_BYTES_MAX = 1 + TABLE_BYTES_MAX
"""A status byte and a table."""


class HeaderParser(ABC):
    """Reads the manifest of an open file in a child process. How the child gets the bytes is left to each class."""

    def __init__(self, source: Source, pools: Pools, manifest: Path | None = None) -> None:
        """Make a parser.

        Args:
            source: where the file is.
            pools: whose threads block.
            manifest: a native manifest given by an option, for the file that it names.
        """
        self._source = source
        self._pools = pools
        self._manifest = manifest
        self._places = trio.CapacityLimiter(CHILDREN_MAX)

    async def parse(self, path: bytes, file: SourceFile) -> RangeTable | None:
        """The windows of a file; None where no format recognises it.

        Raises:
            ManifestError: a format does, and its header is broken or absurd.
            OSError: the source failed.
        """
        async with self._places:
            if not await self._pools.metadata.run(self._may_have_manifest, path, file):
                return None
            with trio.move_on_after(PARSE_TIME_MAX_S):
                return _table(await self._ask_child(path, file))
        raise ManifestError(f"parsing its header takes more than {PARSE_TIME_MAX_S:.0f} s")

    def _may_have_manifest(self, path: bytes, file: SourceFile) -> bool:
        if self._manifest is not None:
            return True
        directory, name = os.path.split(path)
        head = memoryview(bytearray(SNIFF_BYTES))
        size = file.read_into(head, 0)
        return may_have_manifest(name, bytes(head[:size]), Beside(self._source, directory))

    @abstractmethod
    async def _ask_child(self, path: bytes, file: SourceFile) -> bytes:
        """The child's answer, as `manifests.child` describes it: at most ANSWER_BYTES_MAX, nothing where it ended
        without one.
        """


class ChildParser(HeaderParser):
    """Hands the open file and its folder to the child."""

    async def _ask_child(self, path: bytes, file: SourceFile) -> bytes:
        directory, name = os.path.split(path)
        fds = [await self._pools.metadata.run(self._source.open_directory, directory)]
        try:
            if self._manifest is not None:
                fds.append(os.open(self._manifest, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)))
            arguments = [str(file.fileno()), str(fds[0]), name.hex(), *map(str, fds[1:])]
            inherited = [file.fileno(), *fds]
            async with running_child("mummufs.manifests.child", *arguments, inherited_fds=inherited) as process:
                assert process.stdout is not None
                answer = bytearray()
                async for chunk in process.stdout:
                    answer += chunk
                    if len(answer) > ANSWER_BYTES_MAX:
                        raise ManifestError("its header names more ranges than a table may hold")
                await process.wait()
                return bytes(answer)
        finally:
            for fd in fds:
                os.close(fd)


def _table(answer: bytes) -> RangeTable | None:
    status, payload = answer[:1], answer[1:]
    if status == b"N":
        return None
    if status == b"T":
        return RangeTable.from_bytes(payload)
    if status == b"E":
        raise ManifestError(payload.decode("utf-8", "replace"))
    raise ManifestError("the process that parses its header ended without an answer")


class Beside:
    """The names beside a file, looked up one by one: a directory may have half a million."""

    def __init__(self, source: Source, directory: bytes) -> None:
        self._source = source
        self._prefix = directory + b"/" if directory else b""

    def __contains__(self, name: object) -> bool:
        assert isinstance(name, bytes)
        try:
            return self._source.stat(self._prefix + name).is_file
        except OSError:
            return False
