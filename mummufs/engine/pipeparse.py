"""Parsing in a child process that inherits nothing: it asks for the bytes of the header, and gets them by a pipe.

The protocol is in `manifests.pipechild`. The bytes come through the file that is open already, so that a source is
read in one way only. What the child asks for is as hostile as the header that it reads: sizes have limits, names are
one component each.
"""

from __future__ import annotations

import os

import trio

from mummufs.core.errors import ManifestError
from mummufs.engine.children import running_child
from mummufs.engine.parse import ANSWER_BYTES_MAX, HeaderParser
from mummufs.manifests.base import SIDE_FILE_BYTES_MAX
from mummufs.manifests.pipechild import HEAD, LENGTH, LIMIT, READ, READ_BYTES_MAX
from mummufs.source.base import SourceFile

NAME_BYTES_MAX = 4096


class PipeParser(HeaderParser):
    """Answers what the child asks for."""

    async def _ask_child(self, path: bytes, file: SourceFile) -> bytes:
        directory, name = os.path.split(path)
        size = (await self._pools.metadata.run(file.attributes)).size
        async with running_child("mummufs.manifests.pipechild", name.hex(), str(size), asks=True) as process:
            try:
                return await self._serve(process, directory, file)
            except trio.BrokenResourceError:
                return b""

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
        if length > ANSWER_BYTES_MAX:
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
