"""Waiting for a state that another process reaches: polled, with a limit; a failure tells what was last seen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

WAIT_S = 30.0
_POLL_S = 0.01

Seen = TypeVar("Seen")


def wait_for(look: Callable[[], Seen], done: Callable[[Seen], bool], limit_s: float = WAIT_S) -> Seen:
    """Look again and again until `done`; what was seen then.

    It fails only by a look that was begun after the limit: a slow look, or a machine that did not let us look, says
    nothing of what was to be seen.

    Raises:
        TimeoutError: not within `limit_s`; the message has what was seen last.
    """
    give_up = time.monotonic() + limit_s
    pause = threading.Event()
    while True:
        is_last = time.monotonic() > give_up
        seen = look()
        if done(seen):
            return seen
        if is_last:
            raise TimeoutError(f"not reached within {limit_s} s; last seen: {seen}")
        pause.wait(_POLL_S)
