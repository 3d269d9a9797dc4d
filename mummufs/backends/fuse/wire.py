"""The part of the FUSE protocol that the lane speaks: protocol 7, structs as in the kernel's include/uapi/linux/fuse.h.

Followed up to protocol 7.45 (Linux 6.18). The lane reads every request of the kernel but answers READ alone; everything
else goes to libfuse as it came, so this module knows the header, READ, OPEN's answer, INTERRUPT, READDIR's size, the
STORE and INVAL_INODE notifications, and INIT. All numbers are little- or big-endian as the machine is. Fields that are
newer than the oldest kernel served (6.1, protocol 7.37) say since when they exist.

INIT is an offer of the kernel and an answer of libfuse; the lane rewrites both, and only to ask for what it wants and
has been offered: see `offer_to_libfuse` and `answer_to_kernel`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

PROTOCOL_MAJOR = 7
PROTOCOL_MINOR_KNOWN = 45
"""The newest minor version that these structs were compared with."""

LOOKUP, FORGET, GETATTR, OPEN, READ, WRITE, RELEASE = 1, 2, 3, 14, 15, 16, 18
INIT, READDIR, INTERRUPT, DESTROY, BATCH_FORGET, READDIRPLUS = 26, 28, 36, 38, 42, 44

UNANSWERED = frozenset((FORGET, BATCH_FORGET, INTERRUPT))
"""Requests that get no reply."""

INTERRUPT_BIT = 1
"""Set in the unique of an INTERRUPT, which is otherwise that of the request to interrupt. A reply of EAGAIN to it makes
the kernel ask again."""

NOTIFY_INVAL_INODE = 2
"""Notification code: forget the attributes of an inode, and its pages from an offset on where that is not negative."""
NOTIFY_STORE = 4
"""Notification code: put bytes into the page cache of an inode."""

IN_HEADER = struct.Struct("=IIQQIIIHH")
"""len, opcode, unique, nodeid, uid, gid, pid, total_extlen, padding: in front of every request."""
OUT_HEADER = struct.Struct("=IiQ")
"""len, error (a negative errno; a notification's code where unique is 0), unique: in front of every reply."""
READ_IN = struct.Struct("=QQIIQII")
"""fh, offset, size, read_flags, lock_owner, flags (those of the open file), padding."""
READDIR_SIZE_AT = IN_HEADER.size + 16
"""Where a READDIR's size is: its struct is READ's."""
OPEN_OUT = struct.Struct("=QIi")
"""fh, open_flags, backing_id (7.40, Linux 6.9; padding before)."""
INTERRUPT_IN = struct.Struct("=Q")
"""The unique of the request to interrupt."""
INVAL_INODE_OUT = struct.Struct("=Qqq")
"""nodeid, offset, size."""
STORE_OUT = struct.Struct("=QQII")
"""nodeid, offset, size, padding; the bytes follow."""
INIT_IN = struct.Struct("=IIIII11I")
"""major, minor, max_readahead, flags, flags2 (7.36), unused."""
INIT_OUT = struct.Struct("=IIIIHHIIHHII6I")
"""major, minor, max_readahead, flags, max_background, congestion_threshold, max_write, time_gran, max_pages,
map_alignment, flags2 (7.36), max_stack_depth (7.40), unused (request_timeout in its first half word since 7.43)."""
BACKING_MAP = struct.Struct("=iIQ")
"""fd, flags, padding: the argument of IOC_BACKING_OPEN (7.40)."""

IOC_CLONE = 0x8004E500
"""_IOR(229, 0, uint32_t): make a freshly opened /dev/fuse serve the connection of another descriptor."""
IOC_BACKING_OPEN = 0x4010E501
"""_IOW(229, 1, struct fuse_backing_map), since 7.40: register a file for passthrough, gives its backing id."""
IOC_BACKING_CLOSE = 0x4004E502
"""_IOW(229, 2, uint32_t), since 7.40: take a backing id back."""

FOPEN_PASSTHROUGH = 1 << 7
"""Open flag, since 7.40: reads and maps of this open file go to the backing file."""

DONT_MASK = 1 << 6
"""Modes come without the umask taken off, which comes beside them: where there is a default ACL it does not count."""
ASYNC_DIO = 1 << 15
"""Direct reads of one caller are sent at once, not one after the other."""
SPLICE_FLAGS = 1 << 7 | 1 << 8 | 1 << 9
"""SPLICE_WRITE, SPLICE_MOVE, SPLICE_READ."""
MAX_PAGES = 1 << 22
"""The reply states max_pages: requests of more than 128 KiB."""
INIT_EXT = 1 << 30
"""Offer and answer have a flags2 (7.36)."""
DIRECT_IO_ALLOW_MMAP = 1 << 4
"""In flags2 (bit 36), since 7.39, Linux 6.6: MAP_SHARED works on files opened with FOPEN_DIRECT_IO."""
PASSTHROUGH = 1 << 5
"""In flags2 (bit 37), since 7.40, Linux 6.9."""

CONGESTION_SHARE = 0.75
"""As the kernel has it: above this share of background requests it counts the device as congested."""


@dataclass(frozen=True)
class Wishes:
    """What the lane asks the kernel for.

    Attributes:
        max_pages: 4 KiB pages of the largest request.
        max_write_bytes: the largest WRITE: it crosses a socket, and has to fit.
        max_background: background requests that the kernel sends before it holds more back.
        passthrough: opens may be handed to a backing file.
        masked: bits (flags in the low word, flags2 in the high one) to take out of the kernel's offer.
    """

    max_pages: int
    max_write_bytes: int
    max_background: int
    passthrough: bool = False
    masked: int = 0


@dataclass(frozen=True)
class Offer:
    """What the kernel has offered, after masking: the two words of INIT's flags."""

    minor: int
    flags: int
    flags2: int


@dataclass(frozen=True)
class Negotiated:
    """What holds for the connection."""

    minor: int
    max_pages: int
    max_write_bytes: int
    direct_mmap: bool
    passthrough: bool


def offer_to_libfuse(request: bytearray, wishes: Wishes) -> Offer:
    """Rewrite the kernel's INIT for libfuse, in place; what remains of the offer.

    The splice flags go: libfuse would splice between pipe and device, and has a socket. The masked flags go.
    """
    at = IN_HEADER.size
    major, minor, readahead, flags, *rest = INIT_IN.unpack_from(request, at)
    flags &= ~(SPLICE_FLAGS | wishes.masked & 0xFFFFFFFF)
    flags2 = rest[0] & ~(wishes.masked >> 32) if flags & INIT_EXT else 0
    INIT_IN.pack_into(request, at, major, minor, readahead, flags, flags2, *rest[1:])
    return Offer(minor, flags, flags2)


def answer_to_kernel(reply: bytearray, offer: Offer, wishes: Wishes) -> Negotiated | None:
    """Rewrite libfuse's answer to INIT for the kernel, in place; None, and untouched, where it is a refusal.

    - flags: DONT_MASK, ASYNC_DIO, MAX_PAGES and INIT_EXT are asked for where they were offered. libfuse knows the
      first three and may have left them out; the last makes the kernel look at flags2.
    - max_pages: as wished; a kernel that allows fewer (fs.fuse.max_pages_limit) cuts it.
    - max_write: lowered to what the socket to libfuse carries; never raised over what libfuse can take.
    - max_background and congestion_threshold: the kernel holds requests back beyond 12 by default.
    - flags2: DIRECT_IO_ALLOW_MMAP, without which a mapped file cannot be unbuffered; PASSTHROUGH where it is wished.
      libfuse knows neither.
    - max_stack_depth: 1 with PASSTHROUGH: a backing file may not lie on a stacked file system itself.
    """
    at = OUT_HEADER.size
    _, error, _ = OUT_HEADER.unpack_from(reply)
    if error or len(reply) < at + INIT_OUT.size:
        return None
    fields = list(INIT_OUT.unpack_from(reply, at))
    flags = fields[3] & offer.flags & ~SPLICE_FLAGS
    flags |= offer.flags & (DONT_MASK | ASYNC_DIO | MAX_PAGES | INIT_EXT)
    flags2 = fields[10] & offer.flags2 if flags & INIT_EXT else 0
    if flags & INIT_EXT:
        flags2 |= offer.flags2 & DIRECT_IO_ALLOW_MMAP
        flags2 |= offer.flags2 & PASSTHROUGH if wishes.passthrough else 0
    fields[3] = flags
    fields[4] = wishes.max_background
    fields[5] = int(wishes.max_background * CONGESTION_SHARE)
    fields[6] = min(fields[6], wishes.max_write_bytes)
    fields[8] = wishes.max_pages if flags & MAX_PAGES else fields[8]
    fields[10] = flags2
    if flags2 & PASSTHROUGH:
        fields[11] = 1
    INIT_OUT.pack_into(reply, at, *fields)
    return Negotiated(
        minor=fields[1],
        max_pages=fields[8] if flags & MAX_PAGES else 32,
        max_write_bytes=fields[6],
        direct_mmap=bool(flags2 & DIRECT_IO_ALLOW_MMAP),
        passthrough=bool(flags2 & PASSTHROUGH),
    )


def error_reply(unique: int, code: int) -> bytes:
    """A reply that says no more than this errno (0: done)."""
    return OUT_HEADER.pack(OUT_HEADER.size, -code, unique)
