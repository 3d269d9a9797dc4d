"""A source that is not there: how it shows, and a file of it that is opened all the same."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from mummufs.source.base import Attributes, NewAttributes, Source, SourceFile, Wanted, WritableFile

ABSENT_ERRNOS = frozenset(
    (
        *(errno.EIO, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNABORTED),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ETIMEDOUT),
    )
)
"""What a volume answers that is not there. ENOENT is not among them: that is a file that was deleted."""


class AbsentFile:
    """A file that could not be opened because its source is absent. It is opened once the source is back.

    Until then only what is in the store can be read of it.
    """

    def __init__(self, source: Source, path: bytes, attributes: Attributes) -> None:
        self._source = source
        self._path = path
        self._attributes = attributes
        self._file: SourceFile | None = None

    def read_into(self, buffer: memoryview, offset: int) -> int:
        return self._opened().read_into(buffer, offset)

    @property
    def reads_at_once(self) -> bool:
        return self._file is not None and self._file.reads_at_once

    def read_many(self, wanted: Sequence[Wanted]) -> list[int]:
        return self._opened().read_many(wanted)

    def attributes(self) -> Attributes:
        try:
            return self._opened().attributes()
        except OSError as error:
            if error.errno not in ABSENT_ERRNOS:
                raise
            return self._attributes

    def fileno(self) -> int:
        return self._opened().fileno()

    def sync(self, *, data_only: bool = False) -> None:
        self._opened().sync(data_only=data_only)

    def set_attributes(self, new: NewAttributes) -> None:
        self._opened().set_attributes(new)

    def drop_privileges(self) -> None:
        self._opened().drop_privileges()

    def getxattr(self, name: bytes) -> bytes:
        return self._opened().getxattr(name)

    def listxattr(self) -> list[bytes]:
        return self._opened().listxattr()

    def to_write(self) -> WritableFile:
        return self._opened().to_write()

    def setxattr(self, name: bytes, value: bytes) -> None:
        self._opened().setxattr(name, value)

    def removexattr(self, name: bytes) -> None:
        self._opened().removexattr(name)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _opened(self) -> SourceFile:
        if self._file is None:
            file = self._source.open(self._path)
            if file.attributes().file != self._attributes.file:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            self._file = file
        return self._file
