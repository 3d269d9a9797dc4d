"""A mount namespace of one's own: what is mounted from then on nobody else sees, and nobody else's copy holds it."""

from __future__ import annotations

import ctypes

_CLONE_NEWNS = 0x20000
_MS_REC = 0x4000
_MS_SLAVE = 1 << 19


def leave_mount_namespace() -> None:
    """Move the calling thread, and all that it starts, into a new mount namespace. What is unmounted in the old one
    goes here too, or this copy would keep it alive.

    Raises:
        OSError: only root may.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0 or libc.mount(None, b"/", None, _MS_SLAVE | _MS_REC, None) != 0:
        raise OSError(ctypes.get_errno(), "no mount namespace of our own")
