"""Names and bytes of the store on disk: all of them are here, and all of it is pure.

    STORE/
      lock                         flock(2)ed by the mount that has the store; holds its PID
      ranges/<xx>/<30 hex>.rng     one file per range, named by a hash of its key; <xx> are its first two digits
      tables/<32 hex>.tbl          the range table of one file, named by a hash of its identity
      tmp/<32 hex>.<n>.tmp         what is being written
      scrub                        the key of the range that an interrupted scrub proved last: 4 x u64
      pins                         what is pinned, by path (pins.py)
      heat, heat.bad               which ranges were hot: heatfile.py

A range file is a header of 4 KiB and then the window's bytes, so that these are page-aligned for O_DIRECT and splice.
Header, little-endian, padded with zeros:

    0   8   magic "MUMMURNG"
    8   4   format version, 1
    12  4   zero
    16  32  key: file system, inode, window offset, window size (u64 each)
    48  24  fingerprint: the file's size (u64), mtime and ctime in ns (i64)
    72  16  XXH3-128 of the window's bytes
    88  8   XXH3-64 of the 88 bytes before

The header is written after the bytes. A file whose header does not check is no range file, whatever its name.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from mummufs.core.errors import RangeFileError
from mummufs.core.ranges import FileId, RangeKey, Version, page_ceil

HEADER_BYTES = 4096
FORMAT_VERSION = 1
CHECKSUM_BYTES = 16
CHARGES_MAX = 4096
"""Sizes whose charge is remembered: half a million ranges of few sizes share one number for it."""

LOCK_NAME = "lock"
RANGES_DIR = "ranges"
TABLES_DIR = "tables"
TMP_DIR = "tmp"
SCRUB_NAME = "scrub"
HEAT_NAME = "heat"
HEAT_BAD_NAME = "heat.bad"
DIRECTORIES = (RANGES_DIR, TABLES_DIR, TMP_DIR)
DIR_MODE = 0o700
FILE_MODE = 0o600

_MAGIC = b"MUMMURNG"
_BODY = struct.Struct("<8sIIQQQQQqq16s")
_SUM = struct.Struct("<Q")
HEADER_USED_BYTES = _BODY.size + _SUM.size

_TABLE_MAGIC = b"MUMMUTBF"
_TABLE_BODY = struct.Struct("<8sIIQQQqqQQ")

_KEY = struct.Struct("<QQQQ")
_FILE = struct.Struct("<QQ")
_RANGE_NAME = re.compile(r"[0-9a-f]{30}\.rng\Z")
_TMP_NAME = re.compile(r"[0-9a-f]{32}\.[0-9]+\.tmp\Z")
_TABLE_NAME = re.compile(r"[0-9a-f]{32}\.tbl\Z")


class RangeHeader(NamedTuple):
    """What a range file says of itself."""

    key: RangeKey
    version: Version
    checksum: bytes

    @property
    def file_bytes(self) -> int:
        """The size of the whole range file."""
        return HEADER_BYTES + self.key.size

    def pack(self) -> bytes:
        """The header's HEADER_BYTES."""
        key, version = self.key, self.version
        body = _BODY.pack(_MAGIC, FORMAT_VERSION, 0, *key.file, key.offset, key.size, *version, self.checksum)
        return (body + _SUM.pack(xxh3_64_intdigest(body))).ljust(HEADER_BYTES, b"\0")

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> RangeHeader:
        """Read a header; HEADER_USED_BYTES of it are enough.

        Raises:
            RangeFileError: these are not the bytes of a header of this version.
        """
        if len(data) < HEADER_USED_BYTES:
            raise RangeFileError(f"it is cut short at {len(data)} bytes")
        body = bytes(data[: _BODY.size])
        magic, version, _, filesystem, inode, offset, size, *rest = _BODY.unpack(body)
        if magic != _MAGIC:
            raise RangeFileError("it is not a range file")
        if version != FORMAT_VERSION:
            raise RangeFileError(f"it has format version {version}, not {FORMAT_VERSION}")
        if _SUM.unpack_from(data, _BODY.size)[0] != xxh3_64_intdigest(body):
            raise RangeFileError("its header does not have the checksum that it states")
        file_size, mtime_ns, ctime_ns, checksum = rest
        key = RangeKey(FileId(filesystem, inode), offset, size)
        return cls(key, Version(file_size, mtime_ns, ctime_ns), checksum)


@lru_cache(maxsize=CHARGES_MAX)
def charge_of(size: int) -> int:
    """Bytes that the range file of a window of this size takes: header and data in whole blocks of 4 KiB."""
    return HEADER_BYTES + page_ceil(size)


def digest_of(key: RangeKey) -> str:
    """32 hex digits that name a range."""
    return blake2b(pack_key(key), digest_size=16).hexdigest()


def range_dir(key: RangeKey) -> str:
    """The directory that a range's file is in."""
    return f"{RANGES_DIR}/{digest_of(key)[:2]}"


def range_name(key: RangeKey) -> str:
    """The path of a range's file in the store."""
    digest = digest_of(key)
    return f"{RANGES_DIR}/{digest[:2]}/{digest[2:]}.rng"


def tmp_name(digest: str, n: int) -> str:
    """The path of a temporary: what will be named by `digest`, the n-th of this mount."""
    return f"{TMP_DIR}/{digest}.{n}.tmp"


def is_range_name(name: str) -> bool:
    """Whether a name in ranges/<xx>/ is one of ours; anything else there is somebody's and is left alone."""
    return _RANGE_NAME.match(name) is not None


def is_tmp_name(name: str) -> bool:
    """Whether a name in tmp/ is one of ours."""
    return _TMP_NAME.match(name) is not None


def is_table_name(name: str) -> bool:
    """Whether a name in tables/ is one of ours."""
    return _TABLE_NAME.match(name) is not None


def pack_key(key: RangeKey) -> bytes:
    """A key as the scrub's mark holds it."""
    return _KEY.pack(*key.file, key.offset, key.size)


def unpack_key(data: bytes) -> RangeKey | None:
    """What `pack_key` wrote; None where it is something else."""
    if len(data) != _KEY.size:
        return None
    filesystem, inode, offset, size = _KEY.unpack(data)
    return RangeKey(FileId(filesystem, inode), offset, size)


def table_digest(file: FileId) -> str:
    """32 hex digits that name a file's table."""
    return blake2b(_FILE.pack(*file), digest_size=16).hexdigest()


def table_name(file: FileId) -> str:
    """The path of a file's range table in the store."""
    return f"{TABLES_DIR}/{table_digest(file)}.tbl"


def pack_table(file: FileId, version: Version, payload: bytes) -> bytes:
    """A table file: identity, fingerprint, size and checksum, then the payload as it is."""
    head = (_TABLE_MAGIC, FORMAT_VERSION, 0, *file, *version, len(payload), xxh3_64_intdigest(payload))
    return _TABLE_BODY.pack(*head) + payload


def unpack_table(data: bytes, file: FileId, version: Version) -> bytes:
    """The payload of a table file, if it is that of this version of this file.

    Raises:
        RangeFileError: it is not.
    """
    if len(data) < _TABLE_BODY.size:
        raise RangeFileError("a table file is cut short")
    magic, form, _, filesystem, inode, *stamp, size, checksum = _TABLE_BODY.unpack_from(data)
    payload = data[_TABLE_BODY.size :]
    if magic != _TABLE_MAGIC or form != FORMAT_VERSION or FileId(filesystem, inode) != file:
        raise RangeFileError("a table file is not the one that its name says")
    if Version(*stamp) != version:
        raise RangeFileError("a table file is of another version of its file")
    if size != len(payload) or checksum != xxh3_64_intdigest(payload):
        raise RangeFileError("a table file does not have the checksum that it states")
    return payload
