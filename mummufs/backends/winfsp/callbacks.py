"""The entry points that WinFsp calls, in threads of its own, with C's values: brought to `files` and back.

Whatever goes wrong becomes an NTSTATUS for that one caller; an error that is a fault of ours is counted and logged, and
none passes into C. What is written into WinFsp's buffers is written by its own thread, before it returns: a task that
was given up never touches them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from mummufs.backends.winfsp import ntstatus
from mummufs.backends.winfsp.bridge import Bridge
from mummufs.backends.winfsp.files import DirEntry, Files
from mummufs.backends.winfsp.hits import Hits
from mummufs.backends.winfsp.info import SYMLINK_TAG, FileInfo
from mummufs.backends.winfsp.library import Library
from mummufs.backends.winfsp.names import COMPONENT_UNITS_MAX
from mummufs.backends.winfsp.ntstatus import StatusError, signed, status_of
from mummufs.core.stats import Counters

LABEL_UNITS_MAX = 32
_UTF16 = "utf-16-le"
_DIR_INFO_BYTES = 104

CHANGES = (
    *("Create", "Overwrite", "Write", "SetBasicInfo", "SetFileSize", "CanDelete", "Rename"),
    *("SetSecurity", "SetReparsePoint", "DeleteReparsePoint"),
)
"""The entry points that change something: refused here, and carried out by `writing`."""

log = logging.getLogger(__name__)

Entry = TypeVar("Entry", bound=Callable[..., Any])


def guarded(entry: Entry) -> Entry:
    """Turn whatever an entry point raises into a status."""

    @functools.wraps(entry)
    def wrapper(self: Callbacks, *args: Any) -> int:
        try:
            return signed(entry(self, *args) or ntstatus.SUCCESS)
        except (StatusError, OSError) as error:
            return signed(status_of(error))
        except Exception:
            self.counters.errors.handler += 1
            log.exception("%s failed on a fault of ours; its caller got UNEXPECTED_IO_ERROR", entry.__name__)
            return signed(ntstatus.UNEXPECTED_IO_ERROR)

    return wrapper  # type: ignore[return-value]


class Callbacks:
    """The interface of one mount. WinFsp keeps a pointer to `interface`: it has to outlive the mount."""

    def __init__(
        self,
        library: Library,
        files: Files,
        bridge: Bridge,
        hits: Hits,
        counters: Counters,
        *,
        label: str,
        stopped: Callable[[], None],
    ) -> None:
        """Make the interface.

        Args:
            label: of the volume.
            stopped: told, in a thread of WinFsp's, that no more calls will come.
        """
        self.counters = counters
        self._library = library
        self._ffi, self._text = library.ffi, library.text
        self._add_dir_info = library.lib.FspFileSystemAddDirInfo
        self._files = files
        self._bridge = bridge
        self._hits = hits
        self._label = label[:LABEL_UNITS_MAX].encode(_UTF16, "surrogatepass")[: 2 * LABEL_UNITS_MAX]
        self._stopped = stopped
        self._kept: list[Any] = []
        self.interface = self._ffi.new("FSP_FILE_SYSTEM_INTERFACE *")
        members = dict(self._ffi.typeof("FSP_FILE_SYSTEM_INTERFACE").fields)
        for name, entry in self._entries().items():
            # What a callback returns if even its guard fails: there is no caller to raise to.
            error = None if members[name].type.result.kind == "void" else signed(ntstatus.UNEXPECTED_IO_ERROR)
            callback = self._ffi.callback(members[name].type, entry, error=error)
            self._kept.append(callback)
            setattr(self.interface, name, callback)

    def _entries(self) -> dict[str, Callable[..., Any]]:
        return {
            "GetVolumeInfo": self.get_volume_info,
            "GetSecurityByName": self.get_security_by_name,
            "Open": self.open,
            "Cleanup": self.cleanup,
            "Close": self.close,
            "Read": self.read,
            "Flush": self.flush,
            "GetFileInfo": self.get_file_info,
            "GetSecurity": self.get_security,
            "ReadDirectory": self.read_directory,
            "ResolveReparsePoints": self.resolve_reparse_points,
            "GetReparsePoint": self.get_reparse_point,
            "GetDirInfoByName": self.get_dir_info_by_name,
            "DispatcherStopped": self.dispatcher_stopped,
            **dict.fromkeys(CHANGES, self.refuse),
        }

    # ------------------------------------------------------------------ the volume

    @guarded
    def get_volume_info(self, _fs: Any, info: Any) -> None:
        info.TotalSize, info.FreeSize = self._bridge.call(self._files.volume)
        info.VolumeLabelLength = len(self._label)
        self._ffi.memmove(info.VolumeLabel, self._label, len(self._label))

    def dispatcher_stopped(self, _fs: Any, _normally: int) -> None:
        try:
            self._stopped()
        except Exception:
            log.exception("the end of the dispatcher could not be told, on a fault of ours")

    # ------------------------------------------------------------------ by name

    @guarded
    def get_security_by_name(self, _fs: Any, name: Any, bits: Any, buffer: Any, size: Any) -> int:
        try:
            found, descriptor = self._bridge.call(self._files.security_by_name, self._text(name))
        except StatusError as error:
            if error.status == ntstatus.REPARSE and bits != self._ffi.NULL:
                bits[0] = error.at
            raise
        if bits != self._ffi.NULL:
            bits[0] = found
        return self._put(descriptor, buffer, size, ntstatus.BUFFER_OVERFLOW)

    @guarded
    def open(self, _fs: Any, name: Any, options: int, _access: int, context: Any, info: Any) -> None:
        opened = self._bridge.call(self._files.open, self._text(name), options)
        context[0] = opened.number
        self._fill(info, opened.info)
        self._normalise(info, opened.path)

    @guarded
    def resolve_reparse_points(
        self, _fs: Any, name: Any, _index: int, last: int, io_status: Any, buffer: Any, size: Any
    ) -> int:
        found = self._bridge.call(functools.partial(self._files.resolve, last=bool(last)), self._text(name))
        status = self._put(found, buffer, size, ntstatus.REPARSE_POINT_NOT_RESOLVED)
        if status != ntstatus.SUCCESS:
            return status
        io_status.Status = ntstatus.REPARSE
        io_status.Information = SYMLINK_TAG
        return ntstatus.REPARSE

    # ------------------------------------------------------------------ by handle

    @guarded
    def read(self, _fs: Any, context: int, buffer: Any, offset: int, size: int, done: Any) -> None:
        place = memoryview(self._ffi.buffer(buffer, size)).cast("B")
        opened = self._files.opened(context)
        if opened.handle is not None:
            served = self._hits.read(opened.node, place, offset)
            if served is not None:
                done[0] = served
                return
        data = self._bridge.call(self._files.read, context, offset, size)
        place[: len(data)] = data
        done[0] = len(data)

    @guarded
    def get_file_info(self, _fs: Any, context: int, info: Any) -> None:
        self._fill(info, self._bridge.call(self._files.info, context))

    @guarded
    def flush(self, _fs: Any, context: int, info: Any) -> None:
        if context:  # else the volume, of which nothing is to be told
            self._fill(info, self._bridge.call(self._files.info, context))

    @guarded
    def get_security(self, _fs: Any, context: int, buffer: Any, size: Any) -> int:
        return self._put(self._bridge.call(self._files.descriptor, context), buffer, size, ntstatus.BUFFER_OVERFLOW)

    @guarded
    def get_reparse_point(self, _fs: Any, context: int, _name: Any, buffer: Any, size: Any) -> int:
        return self._put(self._bridge.call(self._files.link, context), buffer, size, ntstatus.BUFFER_TOO_SMALL)

    @guarded
    def read_directory(
        self, _fs: Any, context: int, pattern: Any, marker: Any, buffer: Any, size: int, done: Any
    ) -> None:
        null = self._ffi.NULL
        entries = self._bridge.call(
            self._files.entries,
            context,
            None if pattern == null else self._text(pattern),
            None if marker == null else self._text(marker),
        )
        line = self._ffi.new("uint8_t[]", _DIR_INFO_BYTES + 2 * COMPONENT_UNITS_MAX)
        for entry in entries:
            if not self._add_dir_info(self._line(line, entry), buffer, size, done):
                return
        self._add_dir_info(null, buffer, size, done)

    @guarded
    def get_dir_info_by_name(self, _fs: Any, context: int, name: Any, line: Any) -> None:
        self._line(line, self._bridge.call(self._files.entry, context, self._text(name)))

    def cleanup(self, _fs: Any, _context: int, _name: Any, _flags: int) -> None:
        pass  # nothing was written, and nothing is to be deleted

    def close(self, _fs: Any, context: int) -> None:
        try:
            self._bridge.post(self._files.close, context)
        except Exception:  # there is nobody to tell
            self.counters.errors.handler += 1
            log.exception("close failed on a fault of ours")

    # ------------------------------------------------------------------ what is written is refused

    @guarded
    def refuse(self, *_args: Any) -> int:
        return ntstatus.MEDIA_WRITE_PROTECTED

    # ------------------------------------------------------------------ values of C

    def _fill(self, info: Any, found: FileInfo) -> None:
        info.FileAttributes, info.ReparseTag = found.attributes, found.reparse_tag
        info.AllocationSize, info.FileSize = found.allocation_size, found.size
        info.CreationTime, info.LastAccessTime = found.creation_time, found.last_access_time
        info.LastWriteTime, info.ChangeTime = found.last_write_time, found.change_time
        info.IndexNumber, info.HardLinks, info.EaSize = found.file_index, 0, 0

    def _normalise(self, info: Any, path: str) -> None:
        """Tell the driver a path in the source's case. There is room for it behind the information of an open."""
        more, text = self._ffi.cast("FSP_FSCTL_OPEN_FILE_INFO *", info), path.encode(_UTF16, "surrogatepass")
        if len(text) <= more.NormalizedNameSize:
            self._ffi.memmove(more.NormalizedName, text, len(text))
            more.NormalizedNameSize = len(text)

    def _line(self, line: Any, entry: DirEntry) -> Any:
        found = self._ffi.cast("FSP_FSCTL_DIR_INFO *", line)
        name = entry.name.encode(_UTF16, "surrogatepass")
        found.Size = _DIR_INFO_BYTES + len(name)
        self._fill(found.FileInfo, entry.info)
        self._ffi.memmove(found.FileName, name, len(name))
        return found

    def _put(self, data: bytes, buffer: Any, size: Any, too_small: int) -> int:
        """Copy into a buffer of WinFsp's; where that is too small it is told the size that it takes."""
        if size == self._ffi.NULL:
            return ntstatus.SUCCESS
        room, size[0] = size[0], len(data)
        if len(data) > room:
            return too_small
        if buffer != self._ffi.NULL:
            self._ffi.memmove(buffer, data, len(data))
        return ntstatus.SUCCESS
