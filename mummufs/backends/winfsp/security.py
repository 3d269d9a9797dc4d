"""Security descriptors made from a file's mode and owner. Pure: they are bytes of a known form (MS-DTYP 2.4).

A source on NTFS has descriptors of its own, which are handed on as they are. This is for one that has none: Everyone
gets what others may, the owner's and the group's entries stand for whoever they are on the machine that the ids come
from, and SYSTEM and Administrators may do everything.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Callable

SOURCE_ATTRIBUTE = b"system.ntfs_acl"
"""The extended attribute by which a source gives the descriptor that a file really has, as ntfs-3g names it."""

_SELF_RELATIVE, _DACL_PRESENT, _DACL_PROTECTED = 0x8000, 0x0004, 0x1000
_ACL_REVISION, _ALLOWED = 2, 0
READ, WRITE, EXECUTE, ALL = 0x120089, 0x130156, 0x1200A0, 0x1F01FF
"""FILE_GENERIC_READ; FILE_GENERIC_WRITE with DELETE and FILE_DELETE_CHILD; FILE_GENERIC_EXECUTE; FILE_ALL_ACCESS."""

_HEADER = struct.Struct("<BBHIIII")
_ACL = struct.Struct("<BBHHH")
_ACE = struct.Struct("<BBHI")
_SID_HEAD_BYTES = 8


def sid(authority: int, *parts: int) -> bytes:
    """A security identifier S-1-authority-parts."""
    return struct.pack(">BBHI", 1, len(parts), 0, authority) + struct.pack(f"<{len(parts)}I", *parts)


EVERYONE = sid(1, 0)
SYSTEM = sid(5, 18)
ADMINISTRATORS = sid(5, 32, 544)


def user_sid(uid: int) -> bytes:
    """A user of a Unix, as Samba names them; root is Administrators."""
    return sid(22, 1, uid) if uid else ADMINISTRATORS


def group_sid(gid: int) -> bytes:
    """A group of a Unix, likewise."""
    return sid(22, 2, gid) if gid else ADMINISTRATORS


def from_mode(mode: int, uid: int, gid: int) -> bytes:
    """A self-relative security descriptor."""
    owner, group = user_sid(uid), group_sid(gid)
    entries = [(SYSTEM, ALL), (ADMINISTRATORS, ALL)]
    entries += [(owner, _rights(mode >> 6)), (group, _rights(mode >> 3)), (EVERYONE, _rights(mode))]
    aces = b"".join(_ACE.pack(_ALLOWED, 0, _ACE.size + len(who), rights) + who for who, rights in entries if rights)
    count = sum(bool(rights) for _, rights in entries)
    dacl = _ACL.pack(_ACL_REVISION, 0, _ACL.size + len(aces), count, 0) + aces
    at_owner = _HEADER.size
    at_group = at_owner + len(owner)
    at_dacl = at_group + len(group)
    control = _SELF_RELATIVE | _DACL_PRESENT | _DACL_PROTECTED
    return _HEADER.pack(1, 0, control, at_owner, at_group, 0, at_dacl) + owner + group + dacl


def length(read: Callable[[int, int], bytes]) -> int:
    """The bytes of a self-relative security descriptor: it says where its parts are, and each of them how long it is.

    Args:
        read: gives bytes of it, from an offset on.
    """
    _, _, _, owner, group, sacl, dacl = _HEADER.unpack(read(0, _HEADER.size))
    end = _HEADER.size
    for at in filter(None, (owner, group)):
        end = max(end, at + _SID_HEAD_BYTES + 4 * read(at, 2)[1])
    for at in filter(None, (sacl, dacl)):
        end = max(end, at + _ACL.unpack(read(at, _ACL.size))[2])
    return end


def _rights(bits: int) -> int:
    rights = READ if bits & stat.S_IROTH else 0
    rights |= WRITE if bits & stat.S_IWOTH else 0
    return rights | (EXECUTE if bits & stat.S_IXOTH else 0)
