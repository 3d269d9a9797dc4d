"""The entry points of a volume that may be written to. See `callbacks`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from mummufs.backends.winfsp import ntstatus, security
from mummufs.backends.winfsp.callbacks import Callbacks, guarded
from mummufs.backends.winfsp.changes import Changes
from mummufs.backends.winfsp.ntstatus import StatusError

CLEANUP_DELETE = 0x1

log = logging.getLogger(__name__)


class WritingCallbacks(Callbacks):
    """The interface of a mount that changes its source."""

    def __init__(self, changes: Changes, *args: Any, **kwargs: Any) -> None:
        """See `Callbacks`."""
        self._changes = changes
        super().__init__(*args, **kwargs)

    def _entries(self) -> dict[str, Callable[..., Any]]:
        return {
            **super()._entries(),
            "Create": self.create,
            "Overwrite": self.overwrite,
            "Write": self.write,
            "SetBasicInfo": self.set_basic_info,
            "SetFileSize": self.set_file_size,
            "CanDelete": self.can_delete,
            "Rename": self.rename,
            "SetSecurity": self.set_security,
            "SetReparsePoint": self.set_reparse_point,
            "DeleteReparsePoint": self.delete_reparse_point,
        }

    @guarded
    def create(
        self,
        _fs: Any,
        name: Any,
        options: int,
        _access: int,
        bits: int,
        descriptor: Any,
        _allocation: int,
        context: Any,
        info: Any,
    ) -> None:
        data = b"" if descriptor == self._ffi.NULL else self._descriptor(descriptor)
        opened = self._bridge.call(self._changes.create, self._text(name), options, bits, data)
        context[0] = opened.number
        self._fill(info, opened.info)
        self._normalise(info, opened.path)

    @guarded
    def overwrite(self, _fs: Any, context: int, bits: int, _replace: int, _allocation: int, info: Any) -> None:
        self._fill(info, self._bridge.call(self._changes.overwrite, context, bits))

    @guarded
    def write(
        self,
        _fs: Any,
        context: int,
        buffer: Any,
        offset: int,
        size: int,
        to_end: int,
        constrained: int,
        done: Any,
        info: Any,
    ) -> None:
        data = bytes(self._ffi.buffer(buffer, size))  # a copy: a task that was given up may still have it
        call = functools.partial(self._changes.write, constrained=bool(constrained))
        written, found = self._bridge.call(call, context, None if to_end else offset, data)
        done[0] = written
        self._fill(info, found)

    @guarded
    def flush(self, _fs: Any, context: int, info: Any) -> None:
        if context:  # else the volume: the source's own flushing is not ours to ask for
            self._fill(info, self._bridge.call(self._changes.flush, context))

    @guarded
    def set_basic_info(
        self, _fs: Any, context: int, bits: int, _created: int, accessed: int, written: int, _changed: int, info: Any
    ) -> None:
        self._fill(info, self._bridge.call(self._changes.set_basic, context, bits, accessed, written))

    @guarded
    def set_file_size(self, _fs: Any, context: int, size: int, allocation: int, info: Any) -> None:
        call = functools.partial(self._changes.set_size, allocation=bool(allocation))
        self._fill(info, self._bridge.call(call, context, size))

    @guarded
    def can_delete(self, _fs: Any, context: int, _name: Any) -> None:
        self._bridge.call(self._changes.can_delete, context)

    @guarded
    def rename(self, _fs: Any, context: int, name: Any, new_name: Any, replace: int) -> None:
        call = functools.partial(self._changes.rename, replace=bool(replace))
        self._bridge.call(call, context, self._text(name), self._text(new_name))

    @guarded
    def set_security(self, _fs: Any, context: int, what: int, change: Any) -> None:
        """Lay the change over the descriptor that the file has: WinFsp knows how."""
        ffi, lib = self._ffi, self._library.lib
        known = self._bridge.call(self._files.descriptor, context)
        made = ffi.new("void **")
        status = lib.FspSetSecurityDescriptor(ffi.from_buffer(known), what, change, made)
        if status != ntstatus.SUCCESS:
            raise StatusError(status & 0xFFFFFFFF)
        try:
            data = self._descriptor(made[0])
        finally:
            lib.FspDeleteSecurityDescriptor(made[0], ffi.addressof(lib, "FspSetSecurityDescriptor"))
        self._bridge.call(self._changes.set_descriptor, context, data)

    @guarded
    def set_reparse_point(self, _fs: Any, context: int, _name: Any, buffer: Any, size: int) -> None:
        self._bridge.call(self._changes.make_link, context, bytes(self._ffi.buffer(buffer, size)))

    @guarded
    def delete_reparse_point(self, *_args: Any) -> int:
        return ntstatus.NOT_SUPPORTED  # a symlink that is none any more has nothing to be instead

    def cleanup(self, _fs: Any, context: int, name: Any, flags: int) -> None:
        """A handle was closed. If its file was to be deleted it is now; nobody can be told if that fails."""
        if not flags & CLEANUP_DELETE or name == self._ffi.NULL:
            return
        try:
            self._bridge.call(self._changes.delete, context, self._text(name))
        except (StatusError, OSError) as error:
            log.warning("a file that was to be deleted is still there: %s", error)
        except Exception:
            self.counters.errors.handler += 1
            log.exception("a file could not be deleted, on a fault of ours")

    def _descriptor(self, pointer: Any) -> bytes:
        """The bytes of a self-relative security descriptor."""
        start = self._ffi.cast("uint8_t *", pointer)

        def read(at: int, size: int) -> bytes:
            return bytes(self._ffi.buffer(start + at, size))

        return read(0, security.length(read))
