"""WinFsp's operations that change something, over `engine.mirror`: translation, and nothing else. In trio.

A handle that may write becomes a writer with its first write, not before: a file that may be changed is not served from
the store, and on Windows programs ask for every right there is and then only read.
"""

from __future__ import annotations

import contextlib
import errno
import stat

from mummufs.backends.winfsp import ntstatus, security
from mummufs.backends.winfsp.files import DIRECTORY_FILE, Files, Opened, OpenedAs
from mummufs.backends.winfsp.info import (
    READONLY,
    FileInfo,
    file_info,
    from_filetime,
    parse_symlink_buffer,
)
from mummufs.backends.winfsp.names import components, encoded, is_creatable
from mummufs.backends.winfsp.ntstatus import StatusError
from mummufs.backends.winfsp.paths import Paths
from mummufs.engine.mirror import Mirror
from mummufs.engine.nodes import Node
from mummufs.engine.overlay import Handle, Overlay
from mummufs.source.base import RENAME_NOREPLACE, Creator, NewAttributes

UNCHANGED_ATTRIBUTES = 0xFFFFFFFF
FILE_MODE, DIRECTORY_MODE = 0o666, 0o777
_WRITE_BITS = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


class Changes:
    """Everything that changes the source. One instance per mount."""

    def __init__(self, files: Files, overlay: Overlay, paths: Paths, mirror: Mirror, creator: Creator) -> None:
        """Make one.

        Args:
            creator: whose new files are, where the source asks.
        """
        self._files = files
        self._overlay = overlay
        self._paths = paths
        self._mirror = mirror
        self._creator = creator
        files.closing = self.close

    # ------------------------------------------------------------------ names

    async def create(self, path: str, options: int, bits: int, descriptor: bytes) -> OpenedAs:
        """Create a file or a directory, and open it.

        Args:
            bits: its FILE_ATTRIBUTE_* bits.
            descriptor: its security descriptor; empty for none.
        """
        parent, name = await self._parent(path)
        if await self._paths.child(parent, name) is not None:
            raise StatusError(ntstatus.OBJECT_NAME_COLLISION)
        spelt = encoded(name)
        handle: Handle | None = None
        if options & DIRECTORY_FILE:
            node = await self._mirror.mkdir(parent, spelt, DIRECTORY_MODE, self._creator)
        else:
            mode = FILE_MODE & ~_WRITE_BITS if bits & READONLY else FILE_MODE
            node, handle = await self._mirror.create(parent, spelt, mode, self._creator, to_write=True)
        self._paths.forget_name(parent, name)
        if descriptor:
            with contextlib.suppress(OSError):  # it has what its directory hands down, which is as good
                await self._mirror.setxattr(node, security.SOURCE_ATTRIBUTE, descriptor)
        number = self._files.add(Opened(node, handle, writer=handle))
        return OpenedAs(number, file_info(node.attributes, read_only=True), self._paths.path(node))

    async def rename(self, number: int, old: str, new: str, *, replace: bool) -> None:
        """Give what is open another name, perhaps in the place of a file that has it."""
        node = self._files.opened(number).node
        parent, name = await self._parent(old, must_be_creatable=False)
        to, new_name = await self._parent(new)
        there = await self._paths.child(to, new_name)
        target = encoded(new_name)
        if there is not None and there is not node:
            if not replace:
                raise StatusError(ntstatus.OBJECT_NAME_COLLISION)
            if there.attributes.is_directory or not there.attributes.mode & _WRITE_BITS:
                raise StatusError(ntstatus.ACCESS_DENIED)  # not every source refuses by itself to replace READONLY
            target = there.name  # whatever its case: in a source that tells cases apart there would be two else
        current = await self._paths.child(parent, name)
        if current is None:
            raise StatusError(ntstatus.OBJECT_NAME_NOT_FOUND)
        flags = 0 if replace or there is node else RENAME_NOREPLACE
        await self._mirror.rename(parent, current.name, to, target, flags)
        self._paths.forget_name(parent, name)
        self._paths.forget_name(to, new_name)

    async def can_delete(self, number: int) -> None:
        """Refuse what cannot be deleted."""
        node = self._files.opened(number).node
        found = node.attributes
        if node.parent is None:
            raise StatusError(ntstatus.ACCESS_DENIED)
        if found.is_directory and await self._overlay.entries(node):
            raise StatusError(ntstatus.DIRECTORY_NOT_EMPTY)
        if found.is_file and not found.mode & _WRITE_BITS:
            raise StatusError(ntstatus.CANNOT_DELETE)

    async def delete(self, number: int, path: str) -> None:
        """Remove the name of what is open: its last handle is being closed, and it was to be deleted."""
        node = self._files.opened(number).node
        parent, name = await self._parent(path, must_be_creatable=False)
        there = await self._paths.child(parent, name)
        if there is None:
            raise StatusError(ntstatus.OBJECT_NAME_NOT_FOUND)
        if node.attributes.is_directory:
            await self._mirror.rmdir(parent, there.name)
        else:
            await self._mirror.unlink(parent, there.name)
        self._paths.forget_name(parent, name)

    async def make_link(self, number: int, data: bytes) -> None:
        """Make a symlink of what was created for it just now, which is an empty file or directory."""
        opened = self._files.opened(number)
        node = opened.node
        try:
            target = parse_symlink_buffer(data)
        except ValueError:
            raise StatusError(ntstatus.NOT_SUPPORTED) from None
        parent, name = node.parent, node.name
        if parent is None or (node.attributes.is_file and node.attributes.size):
            raise StatusError(ntstatus.INVALID_PARAMETER)
        self.close(opened)
        opened.handle = opened.writer = None
        if node.attributes.is_directory:
            await self._mirror.rmdir(parent, name)
        else:
            await self._mirror.unlink(parent, name)
        opened.node = await self._mirror.symlink(parent, name, target, self._creator)
        self._paths.forget(node)

    # ------------------------------------------------------------------ open files

    async def write(self, number: int, offset: int | None, data: bytes, *, constrained: bool) -> tuple[int, FileInfo]:
        """Write to a file; the bytes written, and what it is then.

        Args:
            offset: None for its end.
            constrained: it must not grow by that.
        """
        opened = self._files.opened(number)
        writer = await self._writer(opened)
        size = opened.node.attributes.size
        at = size if offset is None else offset
        if constrained:
            data = data[: max(0, size - at)]
        written = 0
        while written < len(data):
            n = await self._mirror.write(writer, at + written, data[written:])
            if n == 0:
                raise OSError(errno.EIO, "the source takes nothing more")
            written += n
        return written, file_info(opened.node.attributes)

    async def flush(self, number: int) -> FileInfo:
        """Have the source's disk take what was written."""
        opened = self._files.opened(number)
        if opened.writer is not None:
            await self._mirror.sync(opened.writer, data_only=False)
        return await self._files.info(number)

    async def set_size(self, number: int, size: int, *, allocation: bool) -> FileInfo:
        """Cut a file, or have it grow.

        Args:
            allocation: it is the room that is set: more of it than the file takes changes nothing.
        """
        opened = self._files.opened(number)
        if not opened.node.attributes.is_file:
            raise StatusError(ntstatus.INVALID_DEVICE_REQUEST)
        if not allocation or size < opened.node.attributes.size:
            writer = await self._writer(opened)
            await self._mirror.set_attributes(opened.node, NewAttributes(size=size), writer)
        return file_info(opened.node.attributes)

    async def overwrite(self, number: int, bits: int) -> FileInfo:
        """Empty a file that a program creates anew."""
        await self.set_size(number, 0, allocation=False)
        if bits & READONLY:
            return await self.set_basic(number, bits, 0, 0)
        return await self._files.info(number)

    async def set_basic(self, number: int, bits: int, accessed: int, written: int) -> FileInfo:
        """Set attributes and times.

        Args:
            bits: FILE_ATTRIBUTE_*, of which the source keeps READONLY; UNCHANGED_ATTRIBUTES for none.
            accessed, written: FILETIMEs; 0 for none.
        """
        opened = self._files.opened(number)
        found = opened.node.attributes
        has_bits = found.is_file and bits != UNCHANGED_ATTRIBUTES
        new = NewAttributes(
            mode=_mode(found.mode, bits) if has_bits else None,
            atime_ns=from_filetime(accessed) if accessed else None,
            mtime_ns=from_filetime(written) if written else None,
        )
        if new != NewAttributes():
            await self._mirror.set_attributes(opened.node, new, opened.writer)
        return await self._files.info(number)

    async def set_descriptor(self, number: int, descriptor: bytes) -> None:
        """Give a file another security descriptor.

        Raises:
            StatusError: INVALID_DEVICE_REQUEST where the source keeps none.
        """
        node = self._files.opened(number).node
        try:
            await self._mirror.setxattr(node, security.SOURCE_ATTRIBUTE, descriptor)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                raise StatusError(ntstatus.INVALID_DEVICE_REQUEST) from None
            raise

    def close(self, opened: Opened) -> None:
        """Close what a handle of Windows has open."""
        if opened.handle is not None and opened.handle is not opened.writer:
            self._overlay.close(opened.handle)
        if opened.writer is not None:
            self._mirror.close(opened.writer)

    # ------------------------------------------------------------------ what they share

    async def _parent(self, path: str, *, must_be_creatable: bool = True) -> tuple[Node, str]:
        """The directory that a path leads to, and the name in it."""
        parts = list(components(path))
        if not parts:
            raise StatusError(ntstatus.ACCESS_DENIED)
        name = parts[-1].name
        if must_be_creatable and not is_creatable(name):
            raise StatusError(ntstatus.OBJECT_NAME_INVALID)
        try:
            parent = await self._paths.find(path[: parts[-1].at])
        except StatusError as error:
            if error.status == ntstatus.OBJECT_NAME_NOT_FOUND:
                raise StatusError(ntstatus.OBJECT_PATH_NOT_FOUND) from None
            raise
        if not parent.attributes.is_directory:
            raise StatusError(ntstatus.OBJECT_PATH_NOT_FOUND)
        return parent, name

    async def _writer(self, opened: Opened) -> Handle:
        if opened.handle is None:
            raise StatusError(ntstatus.INVALID_DEVICE_REQUEST)
        if opened.writer is None:
            opened.writer = await self._mirror.open(opened.node, truncate=False, drop_privileges=False)
        return opened.writer


def _mode(mode: int, bits: int) -> int | None:
    """The mode for these attributes; None where it is right already."""
    if bool(bits & READONLY) != bool(mode & _WRITE_BITS):
        return None
    mode = stat.S_IMODE(mode)
    return mode & ~_WRITE_BITS if bits & READONLY else mode | stat.S_IWUSR
