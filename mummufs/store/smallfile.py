"""Small files of the store, which are read whole: tables, and the heat of the last mount."""

from __future__ import annotations

import errno

from mummufs.core.errors import MummufsError
from mummufs.store.osfs import Os


def read_whole(fs: Os, name: str, size_max: int, wrong: type[MummufsError]) -> bytearray:
    """The contents of a file.

    Args:
        size_max: a larger one is not ours.
        wrong: what is raised where it is none of ours, or cut short while it is read.

    Raises:
        OSError: it is not there (ENOENT), or cannot be read.
    """
    fd = fs.open(name)
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


def set_aside(fs: Os, name: str, aside: str) -> None:
    """Give what bears one of our names and is none of ours another name. What was set aside before is lost.

    Raises:
        OSError: it keeps its name.
    """
    try:
        fs.rename(name, aside)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.EBUSY):  # the latter is what Windows makes of it
            raise
        fs.unlink(aside)  # a directory bears our name, and takes no file's place
        fs.rename(name, aside)
