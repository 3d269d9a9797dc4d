"""The store's operating system with a hook before every call: tests count calls there, hold them up or fail them."""

from __future__ import annotations

from pathlib import Path

from mummufs.store.osfs import FileState, Os, RealOs


class WatchedOs:
    """`store.osfs.Os` over a directory."""

    def __init__(self, directory: Path) -> None:
        self._real: Os = RealOs(directory)

    def _call(self, name: str) -> None:
        """Told each call's name before it is made. What it raises, the call raises."""

    def open(self, name: str) -> int:
        self._call("open")
        return self._real.open(name)

    def open_to_change(self, name: str) -> int:
        self._call("open_to_change")
        return self._real.open_to_change(name)

    def create(self, name: str) -> int:
        self._call("create")
        return self._real.create(name)

    def close(self, fd: int) -> None:
        self._real.close(fd)  # a close(2) that fails has closed the file all the same
        self._call("close")

    def state(self, fd: int) -> FileState:
        self._call("state")
        return self._real.state(fd)

    def is_in(self, fd: int, state: FileState) -> bool:
        self._call("state")
        return self._real.is_in(fd, state)

    def read(self, fd: int, buffer: memoryview, offset: int) -> int:
        self._call("read")
        return self._real.read(fd, buffer, offset)

    def open_direct(self, fd: int) -> int:
        self._call("open_direct")
        return self._real.open_direct(fd)

    def splice(self, fd: int, pipe: int, size: int, offset: int) -> int:
        self._call("splice")
        return self._real.splice(fd, pipe, size, offset)

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        self._call("write")
        return self._real.write(fd, data, offset)

    def sync(self, fd: int) -> None:
        self._call("sync")
        self._real.sync(fd)

    def rename(self, old: str, new: str) -> None:
        self._call("rename")
        self._real.rename(old, new)

    def publish(self, fd: int, old: str, new: str) -> int:
        self._call("rename")
        return self._real.publish(fd, old, new)

    def unlink(self, name: str) -> None:
        self._call("unlink")
        self._real.unlink(name)

    def mkdir(self, name: str) -> None:
        self._call("mkdir")
        self._real.mkdir(name)

    def names(self, name: str) -> list[str]:
        self._call("names")
        return self._real.names(name)

    def free_bytes(self) -> int:
        self._call("free_bytes")
        return self._real.free_bytes()

    def total_bytes(self) -> int:
        self._call("total_bytes")
        return self._real.total_bytes()

    def revive(self) -> bool:
        return self._real.revive()
