"""What a source is told beforehand: a disk that knows what comes next reads it in one pass."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from mummufs.core.ranges import ByteRange
from mummufs.source.base import SourceFile

HINT_BYTES = 2 << 20
"""The kernel cuts one hint off at the read-ahead of the device, which is this or more where hints are worth it."""


def will_need(file: SourceFile, runs: Sequence[ByteRange]) -> None:
    """Have the system begin to read these runs, in this order, without waiting for them.

    What it has already costs nothing. Where hints are not known nothing happens.
    """
    if not runs or not hasattr(os, "posix_fadvise"):
        return
    with contextlib.suppress(OSError):
        fd = file.fileno()
        for run in runs:
            for offset in range(run.offset, run.end, HINT_BYTES):
                os.posix_fadvise(fd, offset, min(HINT_BYTES, run.end - offset), os.POSIX_FADV_WILLNEED)
