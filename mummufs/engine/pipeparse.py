"""Parsing in a child process that inherits nothing: it asks for the bytes of the header, and gets them by a pipe.

The protocol is in `manifests.pipechild`. The bytes come through the file that is open already, so that a source is
read in one way only. What the child asks for is as hostile as the header that it reads: sizes have limits, names are
one component each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import trio

from mummufs.core.errors import ManifestError
from mummufs.core.manifest import TABLE_BYTES_MAX, RangeTable
from mummufs.engine.parse import CHILDREN_MAX, PARSE_TIME_MAX_S, Beside, child_environment, end_child
from mummufs.engine.threads import Pools
from mummufs.manifests.base import SIDE_FILE_BYTES_MAX, SNIFF_BYTES
from mummufs.manifests.pipechild import HEAD, LENGTH, LIMIT, READ, READ_BYTES_MAX
from mummufs.manifests.registry import may_have_manifest
from mummufs.source.base import Source, SourceFile

MESSAGE_BYTES_MAX = TABLE_BYTES_MAX + 1
NAME_BYTES_MAX = 4096


class PipeParser:
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
            size = await self._pools.metadata.run(self._size_if_promising, path, file)
            if size is None:
                return None
            answer = await self._ask_child(path, file, size)
        status, payload = answer[:1], answer[1:]
        if status == b"N":
            return None
        if status == b"T":
            return RangeTable.from_bytes(payload)
        if status == b"E":
            raise ManifestError(payload.decode("utf-8", "replace"))
        raise ManifestError("the process that parses its header ended without an answer")

    def _size_if_promising(self, path: bytes, file: SourceFile) -> int | None:
        """The file's size, or None where no format can recognise it."""
        head = memoryview(bytearray(SNIFF_BYTES))
        n = file.read_into(head, 0)
        beside = Beside(self._source, os.path.dirname(path))
        if self._manifest is None and not may_have_manifest(os.path.basename(path), bytes(head[:n]), beside):
            return None
        return file.attributes().size

    async def _ask_child(self, path: bytes, file: SourceFile, size: int) -> bytes:
        name = os.path.basename(path)
        with trio.move_on_after(PARSE_TIME_MAX_S):
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "mummufs.manifests.pipechild", name.hex(), str(size)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=child_environment(),
            )
            try:
                return await self._serve(process, os.path.dirname(path), file)
            except trio.BrokenResourceError:
                return b""
            finally:
                await end_child(process)
                for stream in (process.stdin, process.stdout):
                    if stream is not None:
                        await trio.aclose_forcefully(stream)
        raise ManifestError(f"parsing its header takes more than {PARSE_TIME_MAX_S:.0f} s")

    async def _serve(self, process: trio.Process, directory: bytes, file: SourceFile) -> bytes:
        """Answer what the child asks for until it has answered; nothing where it has ended before."""
        assert process.stdin is not None and process.stdout is not None
        stream = _Messages(process.stdout)
        while True:
            message = await stream.next()
            if message is None:
                return b""
            kind, body = message
            if kind == b"A":
                return body
            data = await self._pools.metadata.run(self._answer, kind, body, directory, file)
            await process.stdin.send_all(LENGTH.pack(len(data)) + data)

    def _answer(self, kind: bytes, body: bytes, directory: bytes, file: SourceFile) -> bytes:
        """What the child is told. Blocks. Raises OSError where the file itself cannot be read."""
        if kind == b"R":
            offset, size = READ.unpack(body)
            place = bytearray(min(size, READ_BYTES_MAX))
            return bytes(place[: file.read_into(memoryview(place), offset)])
        try:
            if kind == b"S":
                (limit,) = LIMIT.unpack_from(body)
                return self._beside(directory, body[LIMIT.size :], min(limit, SIDE_FILE_BYTES_MAX))
            if kind == b"Z":
                found = self._source.stat(_path(directory, body))
                return b"+" + found.size.to_bytes(8, "little") if found.is_file else b"-"
        except OSError:  # as good as not there
            return b"-"
        raise ManifestError("the process that parses its header asks for what there is not")

    def _beside(self, directory: bytes, name: bytes, limit: int) -> bytes:
        if not name:
            return b"-" if self._manifest is None else b"+" + self._manifest.read_bytes()[:limit]
        file = self._source.open(_path(directory, name))
        try:
            size = file.attributes().size
            if size > limit:
                return b">"
            place = bytearray(size)
            return b"+" + bytes(place[: file.read_into(memoryview(place), 0)])
        finally:
            file.close()


class _Messages:
    """The messages in a stream."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._data = bytearray()

    async def next(self) -> tuple[bytes, bytes] | None:
        """The kind and the body of the next; None at the end.

        Raises:
            ManifestError: it is longer than any that is meant.
        """
        if not await self._has(HEAD.size):
            return None
        kind, length = HEAD.unpack_from(self._data)
        if length > MESSAGE_BYTES_MAX:
            raise ManifestError("its header names more ranges than a table may hold")
        if not await self._has(HEAD.size + length):
            return None
        body = bytes(self._data[HEAD.size : HEAD.size + length])
        del self._data[: HEAD.size + length]
        return kind, body

    async def _has(self, size: int) -> bool:
        while len(self._data) < size:
            chunk = await self._stream.receive_some()
            if not chunk:
                return False
            self._data += chunk
        return True


def _path(directory: bytes, name: bytes) -> bytes:
    """A path beside the model. Raises OSError for a name that would lead elsewhere."""
    if not name or b"/" in name or b"\0" in name or name in (b".", b"..") or len(name) > NAME_BYTES_MAX:
        raise FileNotFoundError
    return directory + b"/" + name if directory else name
