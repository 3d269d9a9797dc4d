"""Parsing in a child process: a header is hostile until proved otherwise, and parsing one is seconds of Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import trio

from mummufs.core.errors import ManifestError
from mummufs.core.manifest import TABLE_BYTES_MAX, RangeTable
from mummufs.engine.threads import Pools
from mummufs.manifests.base import SNIFF_BYTES
from mummufs.manifests.registry import may_have_manifest
from mummufs.source.base import Source, SourceFile

CHILDREN_MAX = 2
"""Headers parsed at once: they are read from the slow disk."""
PARSE_TIME_MAX_S = 600.0
"""After this long a child is killed. Its CPU time has a limit of its own; this is for a source that hangs."""
KILLED_WAIT_S = 1.0
"""How long a killed child is waited for."""


class ChildParser:
    """Reads the manifest of an open file in a child process."""

    def __init__(self, source: Source, pools: Pools, manifest: Path | None = None) -> None:
        """Make a parser.

        Args:
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
            name = os.path.basename(path)
            if not await self._pools.metadata.run(self._may_have_manifest, path, name, file):
                return None
            directory = await self._pools.metadata.run(self._source.open_directory, os.path.dirname(path))
            try:
                return await self._ask_child(name, file, directory)
            finally:
                os.close(directory)

    def _may_have_manifest(self, path: bytes, name: bytes, file: SourceFile) -> bool:
        head = memoryview(bytearray(SNIFF_BYTES))
        size = file.read_into(head, 0)
        beside = Beside(self._source, os.path.dirname(path))
        return self._manifest is not None or may_have_manifest(name, bytes(head[:size]), beside)

    async def _ask_child(self, name: bytes, file: SourceFile, directory: int) -> RangeTable | None:
        fds = [file.fileno(), directory]
        manifest = -1
        if self._manifest is not None:
            manifest = os.open(self._manifest, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            fds.append(manifest)
        try:
            answer = await _output(
                [sys.executable, "-m", "mummufs.manifests.child", str(fds[0]), str(fds[1]), name.hex()]
                + [str(fd) for fd in fds[2:]],
                fds,
            )
        finally:
            if manifest >= 0:
                os.close(manifest)
        status, payload = answer[:1], answer[1:]
        if status == b"N":
            return None
        if status == b"T":
            return RangeTable.from_bytes(bytes(payload))
        if status == b"E":
            raise ManifestError(payload.decode("utf-8", "replace"))
        raise ManifestError("the process that parses its header ended without an answer")


async def _output(command: list[str], fds: list[int]) -> bytes:
    """What a child process prints, within the limits of time and size."""
    inherited: dict[str, Any] = {"pass_fds": fds}  # which Windows has not, and its types know nothing of
    with trio.move_on_after(PARSE_TIME_MAX_S):
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
            cwd="/",
            **inherited,
        )
        try:
            assert process.stdout is not None
            answer = bytearray()
            async for chunk in process.stdout:
                answer += chunk
                if len(answer) > TABLE_BYTES_MAX + 1:
                    raise ManifestError("its header names more ranges than a table may hold")
            await process.wait()
            return bytes(answer)
        finally:
            await end_child(process)
    raise ManifestError(f"parsing its header takes more than {PARSE_TIME_MAX_S:.0f} s")


async def end_child(process: trio.Process) -> None:
    """Kill a child that has not ended. One that hangs in the kernel, in a read of the source, is not waited for."""
    if process.returncode is None:
        process.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + KILLED_WAIT_S):
            await process.wait()


def child_environment() -> dict[str, str]:
    """The environment of a child: what it takes to find this package, from an empty environment too."""
    package = Path(__file__).resolve().parents[2]
    kept = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}  # Windows starts nothing without
    return {"PATH": os.defpath, "PYTHONPATH": os.fspath(package), "PYTHONDONTWRITEBYTECODE": "1", **kept}


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
