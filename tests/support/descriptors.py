"""What the test process has open."""

from __future__ import annotations

import contextlib
import gc
import os


def descriptors() -> set[tuple[int, str]]:
    """Each open descriptor and what it leads to.

    To find a leak ask what there is *besides* what there was: what other tests have left is closed whenever it is
    collected as garbage, so there may be less of it at any time.
    """
    gc.collect()
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one of this very listing
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
    return found
