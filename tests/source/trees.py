"""Trees that a test can change, one for each source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from mummufs.source.base import Source
from mummufs.source.direct import DirectTreeSource
from mummufs.source.memory import MemorySource
from mummufs.source.tree import TreeSource
from mummufs.source.windows import WindowsSource
from tests.support.fake_win32 import FakeWin32

_SECOND_NS = 1_000_000_000


class Tree(Protocol):
    """A source and the changes that a test makes to its tree. Every change of a file is later than the one before."""

    @property
    def source(self) -> Source: ...

    def write(self, path: bytes, contents: bytes) -> None:
        """Create a file with its directories, or rewrite it in place."""

    def replace(self, path: bytes, contents: bytes) -> None:
        """Rename a new file over this one."""

    def rename(self, old: bytes, new: bytes) -> None: ...

    def remove(self, path: bytes) -> None: ...

    def link(self, path: bytes, name: bytes) -> None: ...

    def symlink(self, path: bytes, target: bytes) -> None: ...

    def chmod(self, path: bytes, mode: int) -> None: ...


class DiskTree:
    """A directory."""

    def __init__(self, root: Path) -> None:
        self.root = os.fsencode(root)
        self.source = TreeSource(root)
        self._clock_ns = _SECOND_NS

    def path(self, path: bytes) -> bytes:
        return self.root + b"/" + path

    def write(self, path: bytes, contents: bytes) -> None:
        os.makedirs(os.path.dirname(self.path(path)), exist_ok=True)
        with open(self.path(path), "wb") as file:
            file.write(contents)
        self._clock_ns += _SECOND_NS
        os.utime(self.path(path), ns=(self._clock_ns, self._clock_ns))

    def replace(self, path: bytes, contents: bytes) -> None:
        self.write(b"new-one", contents)
        os.rename(self.path(b"new-one"), self.path(path))

    def rename(self, old: bytes, new: bytes) -> None:
        os.rename(self.path(old), self.path(new))

    def remove(self, path: bytes) -> None:
        os.unlink(self.path(path))

    def link(self, path: bytes, name: bytes) -> None:
        os.link(self.path(path), self.path(name))

    def symlink(self, path: bytes, target: bytes) -> None:
        os.symlink(target, self.path(path))

    def chmod(self, path: bytes, mode: int) -> None:
        os.chmod(self.path(path), mode)


class DirectTree(DiskTree):
    """A directory whose files are read past the page cache."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.source = DirectTreeSource(root)


class MemoryTree:
    """A memory source changes itself."""

    def __init__(self) -> None:
        self.source = source = MemorySource()
        self.write, self.replace = source.write, source.replace
        self.rename, self.remove = source.rename, source.remove
        self.link, self.symlink, self.chmod = source.link, source.symlink, source.chmod


class WindowsTree(DiskTree):
    """A directory that a source of Windows takes for one of its own."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.win32 = FakeWin32(root)
        self.windows = WindowsSource("C:\\", self.win32, unbuffered=True)
        self.source = self.windows  # type: ignore[assignment]
