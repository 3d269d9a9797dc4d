r"""The calls of kernel32 and advapi32, by ctypes. On other systems there is nothing here but the module.

A file that was opened overlapped is read and written at offsets, by several threads at once; a call that has begun is
waited for by its own event, and so a buffer is never given back while Windows still fills it.
"""

from __future__ import annotations

import errno
import sys

from mummufs.win32.api import Win32

if sys.platform == "win32":
    import ctypes
    import threading
    from collections.abc import Iterator, Sequence
    from ctypes import wintypes

    from mummufs.win32.api import (
        FLAG_BACKUP_SEMANTICS,
        OPEN_EXISTING,
        READ_DATA,
        SHARE_ALL,
        FileState,
        Space,
        error,
    )
    from mummufs.win32.libraries import load
    from mummufs.win32.structures import (
        BasicInfo,
        IdInfo,
        MemoryStatus,
        Overlapped,
        SecurityAttributes,
        StandardInfo,
        TagInfo,
        link_target,
        listed,
    )

    _INVALID_HANDLE = ctypes.c_void_p(-1).value
    _HANDLE_EOF, _IO_PENDING, _NO_MORE_FILES, _INSUFFICIENT_BUFFER = 38, 997, 18, 122
    _LOCK_VIOLATION = 33
    _MOVE_REPLACE_EXISTING = 1
    _LOCK_EXCLUSIVE, _LOCK_FAIL_IMMEDIATELY = 2, 1
    _LOCK_OFFSET = 1 << 62
    _SYMLINK_DIRECTORY, _SYMLINK_UNPRIVILEGED = 1, 2
    _FILE_BASIC_INFO, _FILE_STANDARD_INFO, _FILE_ATTRIBUTE_TAG_INFO, _FILE_ID_INFO = 0, 1, 9, 18
    _FILE_END_OF_FILE_INFO, _FILE_ID_EXTD_DIR_INFO = 6, 19
    _LISTING_BYTES = 64 << 10
    _FSCTL_GET_REPARSE_POINT = 0x900A8
    _REPARSE_BYTES = 16 << 10
    _SDDL_REVISION = 1
    _OWNER_GROUP_DACL = 0x1 | 0x2 | 0x4
    _FINAL_PATH_CHARS = 32 << 10
    _IO_BYTES_MAX = 1 << 30

    def _address(place: memoryview) -> int:
        """Where a buffer that may be written to begins."""
        return ctypes.addressof(ctypes.c_char.from_buffer(place)) if len(place) else 0

    class RealWin32:
        """The calls of this machine."""

        def __init__(self) -> None:
            self._kernel, self._security = load()
            self._of_thread = threading.local()

        def open(
            self, path: str, access: int, share: int, creation: int, flags: int = 0, sddl: str | None = None
        ) -> int:
            with _Descriptor(self._kernel, self._security, sddl) as attributes:
                handle = self._kernel.CreateFileW(path, access, share, attributes, creation, flags, None)
            if handle == _INVALID_HANDLE or handle is None:
                raise self._error(path)
            return int(handle)

        def close(self, handle: int) -> None:
            self._check(self._kernel.CloseHandle(handle))

        def state(self, handle: int) -> FileState:
            basic, standard, tag, ids = BasicInfo(), StandardInfo(), TagInfo(), IdInfo()
            for kind, found in (
                (_FILE_BASIC_INFO, basic),
                (_FILE_STANDARD_INFO, standard),
                (_FILE_ATTRIBUTE_TAG_INFO, tag),
                (_FILE_ID_INFO, ids),
            ):
                self._check(
                    self._kernel.GetFileInformationByHandleEx(handle, kind, ctypes.byref(found), ctypes.sizeof(found))
                )
            return FileState(
                basic.attributes,
                tag.tag,
                ids.volume,
                ids.id_low ^ ids.id_high,  # ReFS has 128 bits; of NTFS the upper half is zero
                standard.links,
                standard.size,
                standard.allocated,
                basic.created,
                basic.accessed,
                basic.written,
                basic.changed,
            )

        def changed(self, handle: int) -> int:
            basic = BasicInfo()
            self._check(
                self._kernel.GetFileInformationByHandleEx(
                    handle, _FILE_BASIC_INFO, ctypes.byref(basic), ctypes.sizeof(basic)
                )
            )
            return int(basic.changed)

        def read(self, handle: int, requests: Sequence[tuple[int, memoryview]]) -> list[int]:
            under_way = []
            failure: OSError | None = None
            for i, (offset, place) in enumerate(requests):
                overlapped = self._overlapped(offset, i)
                size = min(len(place), _IO_BYTES_MAX)
                done = self._kernel.ReadFile(handle, _address(place), size, None, ctypes.byref(overlapped))
                code = 0 if done else ctypes.get_last_error()
                if code not in (0, _IO_PENDING, _HANDLE_EOF):
                    failure = error(code)
                    break
                under_way.append(None if code == _HANDLE_EOF else overlapped)
            sizes = []
            for started in under_way:  # all of them, after a failure too: Windows may still write to their buffers
                try:
                    sizes.append(0 if started is None else self._result(handle, started))
                except OSError as late:
                    failure = failure or late
            if failure is not None:
                raise failure
            return sizes

        def write(self, handle: int, data: memoryview, offset: int) -> int:
            overlapped = self._overlapped(offset, 0)
            kept = bytes(data[:_IO_BYTES_MAX])  # Windows reads it until the result is there
            if not self._kernel.WriteFile(handle, kept, len(kept), None, ctypes.byref(overlapped)):
                code = ctypes.get_last_error()
                if code != _IO_PENDING:
                    raise error(code)
            return self._result(handle, overlapped)

        def flush(self, handle: int) -> None:
            self._check(self._kernel.FlushFileBuffers(handle))

        def set_size(self, handle: int, size: int) -> None:
            end = ctypes.c_int64(size)
            self._check(
                self._kernel.SetFileInformationByHandle(
                    handle, _FILE_END_OF_FILE_INFO, ctypes.byref(end), ctypes.sizeof(end)
                )
            )

        def set_basic(self, handle: int, attributes: int, accessed: int, written: int) -> None:
            info = BasicInfo(0, accessed, written, 0, attributes)
            self._check(
                self._kernel.SetFileInformationByHandle(
                    handle, _FILE_BASIC_INFO, ctypes.byref(info), ctypes.sizeof(info)
                )
            )

        def lock(self, handle: int) -> bool:
            overlapped = self._overlapped(_LOCK_OFFSET, 0)
            how = _LOCK_EXCLUSIVE | _LOCK_FAIL_IMMEDIATELY
            if self._kernel.LockFileEx(handle, how, 0, 1, 0, ctypes.byref(overlapped)):
                return True
            code = ctypes.get_last_error()
            if code == _IO_PENDING:
                done = wintypes.DWORD()
                if self._kernel.GetOverlappedResult(handle, ctypes.byref(overlapped), ctypes.byref(done), True):
                    return True
                code = ctypes.get_last_error()
            if code != _LOCK_VIOLATION:
                raise error(code)
            return False

        def move(self, old: str, new: str, *, replace: bool) -> None:
            self._check(self._kernel.MoveFileExW(old, new, _MOVE_REPLACE_EXISTING if replace else 0), old)

        def delete(self, path: str) -> None:
            self._check(self._kernel.DeleteFileW(path), path)

        def make_directory(self, path: str, sddl: str | None = None) -> None:
            with _Descriptor(self._kernel, self._security, sddl) as attributes:
                self._check(self._kernel.CreateDirectoryW(path, attributes), path)

        def remove_directory(self, path: str) -> None:
            self._check(self._kernel.RemoveDirectoryW(path), path)

        def make_link(self, path: str, target: str, *, to_directory: bool) -> None:
            flags = _SYMLINK_UNPRIVILEGED | (_SYMLINK_DIRECTORY if to_directory else 0)
            self._check(self._kernel.CreateSymbolicLinkW(path, target, flags), path)

        def add_name(self, existing: str, path: str) -> None:
            self._check(self._kernel.CreateHardLinkW(path, existing, None), path)

        def entries(self, path: str) -> Iterator[tuple[str, FileState]]:
            handle = self.open(path, READ_DATA, SHARE_ALL, OPEN_EXISTING, FLAG_BACKUP_SEMANTICS)
            try:
                volume = self.state(handle).volume
                buffer = ctypes.create_string_buffer(_LISTING_BYTES)
                while self._kernel.GetFileInformationByHandleEx(handle, _FILE_ID_EXTD_DIR_INFO, buffer, _LISTING_BYTES):
                    yield from listed(buffer.raw, volume)
                code = ctypes.get_last_error()
                if code != _NO_MORE_FILES:
                    raise error(code, path)
            finally:
                self.close(handle)

        def final_path(self, handle: int) -> str:
            buffer = ctypes.create_unicode_buffer(_FINAL_PATH_CHARS)
            if not self._kernel.GetFinalPathNameByHandleW(handle, buffer, _FINAL_PATH_CHARS, 0):
                raise self._error(None)
            return buffer.value

        def link_target(self, handle: int) -> str:
            buffer, size = ctypes.create_string_buffer(_REPARSE_BYTES), wintypes.DWORD()
            self._check(
                self._kernel.DeviceIoControl(
                    handle, _FSCTL_GET_REPARSE_POINT, None, 0, buffer, _REPARSE_BYTES, ctypes.byref(size), None
                )
            )
            return link_target(buffer.raw[: size.value])

        def security(self, handle: int) -> bytes:
            needed = wintypes.DWORD()
            self._security.GetKernelObjectSecurity(handle, _OWNER_GROUP_DACL, None, 0, ctypes.byref(needed))
            if ctypes.get_last_error() != _INSUFFICIENT_BUFFER:
                raise self._error(None)
            buffer = ctypes.create_string_buffer(needed.value)
            self._check(
                self._security.GetKernelObjectSecurity(handle, _OWNER_GROUP_DACL, buffer, needed, ctypes.byref(needed))
            )
            return buffer.raw[: needed.value]

        def set_security(self, handle: int, descriptor: bytes) -> None:
            buffer = ctypes.create_string_buffer(descriptor, len(descriptor))
            self._check(self._security.SetKernelObjectSecurity(handle, _OWNER_GROUP_DACL, buffer))

        def space(self, path: str) -> Space:
            available, total, free = (ctypes.c_uint64() for _ in range(3))
            self._check(
                self._kernel.GetDiskFreeSpaceExW(
                    path, ctypes.byref(available), ctypes.byref(total), ctypes.byref(free)
                ),
                path,
            )
            return Space(total.value, free.value, available.value)

        def volume_name(self, path: str) -> str:
            root, name = ctypes.create_unicode_buffer(_FINAL_PATH_CHARS), ctypes.create_unicode_buffer(64)
            self._check(self._kernel.GetVolumePathNameW(path, root, _FINAL_PATH_CHARS), path)
            self._check(self._kernel.GetVolumeInformationW(root.value, None, 0, None, None, None, name, 64), path)
            return name.value

        def memory_bytes(self) -> int:
            status = MemoryStatus()
            status.length = ctypes.sizeof(status)
            self._check(self._kernel.GlobalMemoryStatusEx(ctypes.byref(status)))
            return int(status.total)

        def _overlapped(self, offset: int, number: int) -> Overlapped:
            """An OVERLAPPED with an event of this thread, one for each request that is in flight with others."""
            events: _Events | None = getattr(self._of_thread, "events", None)
            if events is None:
                events = self._of_thread.events = _Events(self._kernel)
            return Overlapped(None, None, offset & 0xFFFFFFFF, offset >> 32, events.get(number))

        def _result(self, handle: int, overlapped: Overlapped) -> int:
            done = wintypes.DWORD()
            if not self._kernel.GetOverlappedResult(handle, ctypes.byref(overlapped), ctypes.byref(done), True):
                code = ctypes.get_last_error()
                if code != _HANDLE_EOF:
                    raise error(code)
            return done.value

        def _check(self, done: int, path: str | None = None) -> None:
            if not done:
                raise self._error(path)

        def _error(self, path: str | None) -> OSError:
            return error(ctypes.get_last_error(), path)

    class _Events:
        """The events of a thread, given back when it ends."""

        def __init__(self, kernel: ctypes.WinDLL) -> None:
            self._kernel = kernel
            self._handles: list[int] = []

        def get(self, number: int) -> int:
            while len(self._handles) <= number:
                event = self._kernel.CreateEventW(None, True, False, None)
                if not event:
                    raise error(ctypes.get_last_error())
                self._handles.append(event)
            return self._handles[number]

        def __del__(self) -> None:
            for event in self._handles:
                self._kernel.CloseHandle(event)

    class _Descriptor:
        """SECURITY_ATTRIBUTES made of a text, while it is used; None for no text."""

        def __init__(self, kernel: ctypes.WinDLL, security: ctypes.WinDLL, sddl: str | None) -> None:
            self._kernel, self._security, self._sddl = kernel, security, sddl
            self._pointer = ctypes.c_void_p()
            self._attributes = SecurityAttributes()

        def __enter__(self) -> object:
            if self._sddl is None:
                return None
            made = self._security.ConvertStringSecurityDescriptorToSecurityDescriptorW(
                self._sddl, _SDDL_REVISION, ctypes.byref(self._pointer), None
            )
            if not made:
                raise error(ctypes.get_last_error())
            self._attributes.length = ctypes.sizeof(self._attributes)
            self._attributes.descriptor = self._pointer
            return ctypes.byref(self._attributes)

        def __exit__(self, *_: object) -> None:
            if self._pointer:
                self._kernel.LocalFree(self._pointer)

    def real_win32() -> Win32:
        """The calls of this machine."""
        return RealWin32()

else:

    def real_win32() -> Win32:
        """There are none."""
        raise OSError(errno.ENOSYS, "this machine does not run Windows")
