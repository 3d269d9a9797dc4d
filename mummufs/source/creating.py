"""Creating in the name of somebody else: whose the new object is, which group it gets, and which mode bits it does not.

The kernel asks a thread, not a process, for these three things, so they are set for one call of one thread and taken
back before it returns.

- The owner is the thread's fsuid, the group its fsgid, unless the directory hands its own group down. To create as the
  daemon and to change the owner afterwards would not be the same: the object would be somebody else's for a moment, a
  quota would be charged to the wrong user, and a directory's group would be lost.
- The umask belongs to the file system context that threads of a process share; a thread takes a context of its own
  first (unshare(2)). The mode is not simply masked beforehand, because where the directory has a default ACL that
  decides in the umask's place. Where unshare is forbidden (some containers) the process's umask is set instead, by one
  thread at a time: everything else that this process creates has its mode stated.
- Whether the creator may create there has been checked by the mount's kernel, who knows all groups that he is in. With
  an fsuid that is not root's the thread loses the right to override permissions, and would be refused where the creator
  may write by one of his other groups. So it takes that right back (CAP_DAC_OVERRIDE), and with it CAP_FSETID, without
  which the same groups would cost the setgid bit.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Iterator

from mummufs.source.base import Creator

_CLONE_FS = 0x200
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_DAC_OVERRIDE, _CAP_FSETID = 1, 4
_KEPT = 1 << _CAP_DAC_OVERRIDE | 1 << _CAP_FSETID
_NO_ID = -1
"""What setfsuid and setfsgid refuse, so that they change nothing; they return what was set before."""

_libc = ctypes.CDLL(None, use_errno=True)
_of_thread = threading.local()
_process_umask = threading.Lock()


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextlib.contextmanager
def creating_as(creator: Creator) -> Iterator[None]:
    """Objects that this thread creates in the block are the creator's.

    Raises:
        OSError: EPERM where this process cannot create for that user.
    """
    own_uid, own_gid = os.geteuid(), os.getegid()
    with contextlib.ExitStack() as stack:
        if not _has_own_context():
            stack.enter_context(_process_umask)
        stack.callback(os.umask, os.umask(creator.umask))
        if (creator.uid, creator.gid) == (own_uid, own_gid):
            yield
            return
        try:
            _set_ids(creator.uid, creator.gid)
            if creator.uid != own_uid:
                _keep_capabilities()
            yield
        finally:
            _libc.setfsuid(own_uid)
            _libc.setfsgid(own_gid)


def _has_own_context() -> bool:
    """Whether this thread has a umask of its own, which it takes the first time that it is asked."""
    if not hasattr(_of_thread, "unshared"):
        _of_thread.unshared = _libc.unshare(_CLONE_FS) == 0
    return bool(_of_thread.unshared)


def _set_ids(uid: int, gid: int) -> None:
    """Neither call says whether it has worked; a second one does."""
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    if (ctypes.c_uint32(_libc.setfsuid(_NO_ID)).value, ctypes.c_uint32(_libc.setfsgid(_NO_ID)).value) != (uid, gid):
        raise OSError(errno.EPERM, "this mount cannot create files for another user: it is not root's")


def _keep_capabilities() -> None:
    """Take back those that setfsuid has taken away and that are needed; a process that has none goes without."""
    header, data = _Header(_CAPABILITY_VERSION_3, 0), (_Data * 2)()
    if _libc.capget(ctypes.byref(header), data) != 0:
        return
    data[0].effective |= data[0].permitted & _KEPT
    _libc.capset(ctypes.byref(header), data)
