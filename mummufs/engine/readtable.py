"""The ranges that a file's own header names, read from first to last: for a command, which has no engine."""

from __future__ import annotations

from pathlib import Path

import trio

from mummufs.core.manifest import RangeTable
from mummufs.engine.pipeparse import PipeParser
from mummufs.engine.threads import Pools
from mummufs.source.base import Source


def read_table(source: Source, path: bytes, manifest: Path | None = None) -> RangeTable | None:
    """The windows of a file; None where no format recognises it. The header is parsed in a child process.

    Args:
        manifest: a native manifest, for the file that it names.

    Raises:
        ManifestError: a format does, and its header is broken or absurd, or not read in time.
        OSError: the source failed.
    """

    async def parse() -> RangeTable | None:
        file = source.open(path)
        try:
            return await PipeParser(source, Pools(1), manifest).parse(path, file)
        finally:
            file.close()

    return trio.run(parse)
