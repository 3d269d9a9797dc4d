"""Files of the store by their name: what is refused in their place, and small ones, which are read whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from mummufs.core.errors import MummufsError
from mummufs.store.osfs import Os

ASIDE_MAX = 10
"""Names that are tried for what is set aside."""
NOT_OURS = frozenset((errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR))
"""What opening a name of ours, a file's or a directory's, says where something of another kind has it: a symlink, a
socket, a directory, a file. It is that name's fault alone: the disk has answered."""


def open_own(call: Callable[[str], int], name: str, wrong: type[MummufsError]) -> int:
    """Open a name of ours by `Os.open` or `Os.open_to_change`.

    Args:
        wrong: what is raised where something that is no file is in its place, if the system opens no such thing.

    Raises:
        OSError: it is not there (ENOENT), or cannot be opened.
    """
    try:
        return call(name)
    except OSError as error:
        if error.errno in NOT_OURS:
            raise wrong(f"it is no regular file: {error.strerror}") from None
        raise


def read_whole(fs: Os, name: str, size_max: int, wrong: type[MummufsError]) -> bytearray:
    """The contents of a file.

    Args:
        size_max: a larger one is not ours.
        wrong: what is raised where it is none of ours, or cut short while it is read.

    Raises:
        OSError: it is not there (ENOENT), or cannot be read.
    """
    fd = open_own(fs.open, name, wrong)
    try:
        state = fs.state(fd)
        if not state.regular or state.size > size_max:
            raise wrong(f"'{name}' is not one of ours")
        data = bytearray(state.size)
        done = 0
        while done < len(data):
            n = fs.read(fd, memoryview(data)[done:], done)
            if n == 0:
                raise wrong(f"'{name}' is cut short while it is read")
            done += n
        return data
    finally:
        fs.close(fd)


def set_aside(fs: Os, name: str, aside: str) -> str:
    """Give what bears one of our names and is none of ours another name. A file that was set aside before is lost.

    Returns:
        the name that it has now: `aside`, unless a directory has that.

    Raises:
        OSError: it keeps its name.
    """
    for number in range(1, ASIDE_MAX):
        free = aside if number == 1 else f"{aside}.{number}"
        try:
            fs.rename(name, free)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EISDIR):
                continue
            if error.errno not in (errno.ENOTDIR, errno.EBUSY):  # the latter is what Windows makes of it
                raise
            fs.unlink(free)  # a directory bears our name, and takes no file's place
            fs.rename(name, free)
        return free
    raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), aside)
