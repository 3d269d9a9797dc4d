"""Parses one file's header in a process of its own that opens nothing: it asks for bytes by its standard output.

    python -m mummufs.manifests.pipechild NAME_HEX SIZE

NAME_HEX is the file's name in hexadecimal, SIZE its bytes. It is for systems where a child inherits no descriptors, and
for sources that are to be read in one way only, headers included. Each message is one byte of kind, the length of what
follows (u32, little-endian), and that; the parent answers with a length and bytes:

    R  offset u64, size u32             the bytes there, fewer at end of file
    S  limit u64, name                  a file beside it: "-" where there is none, ">" where it is larger than that,
                                        else "+" and its bytes
    Z  name                             its size: "-" where there is none, else "+" and a u64
    A  status byte, payload             the answer, as `child` has it; the last message
"""

from __future__ import annotations

import struct
import sys
from typing import BinaryIO

from mummufs.core.errors import ManifestError
from mummufs.core.manifest import RangeTable
from mummufs.manifests.base import Subject
from mummufs.manifests.registry import read_manifest

HEAD = struct.Struct("<cI")
LENGTH = struct.Struct("<I")
READ = struct.Struct("<QI")
LIMIT = struct.Struct("<Q")
READ_BYTES_MAX = 16 << 20
"""The most that is asked for at once; a larger read is made of several."""
REASON_CHARS_MAX = 1000


class Parent:
    """Whom bytes are asked of. Also the files beside the model, as `Siblings`."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests = requests
        self._answers = answers

    def send(self, kind: bytes, *parts: bytes) -> None:
        """Send a message."""
        self._requests.write(HEAD.pack(kind, sum(map(len, parts))))
        for part in parts:
            self._requests.write(part)
        self._requests.flush()

    def _ask(self, kind: bytes, *parts: bytes) -> bytes:
        self.send(kind, *parts)
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        return self._exactly(length)

    def _exactly(self, size: int) -> bytes:
        data = self._answers.read(size)
        if len(data) != size:
            raise OSError("the daemon has ended")
        return data

    def pread(self, offset: int, size: int) -> bytes:
        """As `base.Pread`."""
        parts: list[bytes] = []
        while size > 0:
            part = self._ask(b"R", READ.pack(offset, min(size, READ_BYTES_MAX)))
            if not part:
                break
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read(self, name: bytes, limit_bytes: int) -> bytes | None:
        """As `Siblings.read`."""
        found = self._ask(b"S", LIMIT.pack(limit_bytes), name)
        if found[:1] == b">":
            raise ManifestError(f"{name.decode('utf-8', 'replace')!r} beside it is larger than {limit_bytes} bytes")
        return found[1:] if found[:1] == b"+" else None

    def size(self, name: bytes) -> int | None:
        """As `Siblings.size`."""
        found = self._ask(b"Z", name)
        return int.from_bytes(found[1:], "little") if found[:1] == b"+" else None


def answer(parent: Parent, name: bytes, size: int, explicit: bytes | None = None) -> tuple[bytes, bytes]:
    """The status byte and its payload, as `child.answer`."""
    try:
        manifest = read_manifest(Subject(name, size, parent.pread, parent), explicit)
        if manifest is None:
            return b"N", b""
        return b"T", RangeTable.from_manifest(manifest).to_bytes()
    except ManifestError as error:
        reason = str(error)
    except MemoryError:
        reason = "parsing its header takes more memory than there is"
    except OSError as error:
        reason = f"its header cannot be read: {error.strerror or error}"
    except Exception as error:  # a parser's own mistake must not end in a traceback: the file has no ranges
        reason = f"its header cannot be parsed: {type(error).__name__}: {error}"
    return b"E", reason[:REASON_CHARS_MAX].encode("utf-8", "replace")


def main(arguments: list[str]) -> int:
    """Exit code 0 whatever the answer is, 2 for a wrong call."""
    try:
        name, size = bytes.fromhex(arguments[0]), int(arguments[1])
    except (IndexError, ValueError):
        sys.stderr.write("usage: python -m mummufs.manifests.pipechild NAME_HEX SIZE\n")
        return 2
    parent = Parent(sys.stdout.buffer, sys.stdin.buffer)
    explicit = parent.read(b"", READ_BYTES_MAX)  # the manifest that an option gives has no name
    parent.send(b"A", *answer(parent, name, size, explicit))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
