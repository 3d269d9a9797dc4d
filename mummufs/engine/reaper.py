"""A thread that closes descriptors.

close(2) waits: a file system in user space or on a network is asked to flush first, and while it hangs so does the
call. A descriptor may be closed wherever its last reference is dropped, in the thread of the event loop too; so who
drops it hands the closing over to this thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Reaper:
    """Runs calls one after another, in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, call: Callable[[], None]) -> None:
        """Have this called soon. Never blocks; safe from a finalizer, in any thread."""
        self._calls.put(call)

    @property
    def waiting(self) -> int:
        """Calls that have not begun."""
        return self._calls.qsize()

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            try:
                call()
            except OSError:
                pass  # the descriptor is gone even so
            del call
