"""The daemon's log: to a file, to syslog, or to standard error; never more than a bounded number of lines a minute."""

from __future__ import annotations

import logging
import logging.handlers
import sys
import time
from collections.abc import Callable
from pathlib import Path

TRACEBACK_LINES = 10
"""What a record with a traceback counts as."""
LINES_PER_MINUTE = 40
"""What a fault that repeats for every read may write; the rest is counted."""
_SYSLOG = Path("/dev/log")
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class RateLimit(logging.Filter):
    """Lets LINES_PER_MINUTE lines through in any minute, and says then how many were left out."""

    def __init__(self, lines: int = LINES_PER_MINUTE, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._lines = lines
        self._clock = clock
        self._minute = clock()
        self._passed = 0
        self.left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        if now - self._minute >= 60:
            self._minute, self._passed = now, 0
        if self._passed >= self._lines:
            self.left_out += 1
            return False
        self._passed += TRACEBACK_LINES if record.exc_info else 1
        if self.left_out:
            record.msg = f"{record.getMessage()} ({self.left_out} lines before this one were left out)"
            record.args = ()
            self.left_out = 0
        return True


def set_up(level: str, file: Path | None, foreground: bool) -> None:
    """Send the log of this process where it belongs.

    Args:
        level: a level's name ("info").
        file: the log file; None for standard error in the foreground and syslog in the background.

    Raises:
        OSError: the file cannot be opened.
    """
    handler: logging.Handler
    if file is not None:
        handler = logging.FileHandler(file, encoding="utf-8", errors="backslashreplace")
    elif foreground:
        handler = logging.StreamHandler(sys.stderr)
    elif _SYSLOG.exists():
        handler = logging.handlers.SysLogHandler(str(_SYSLOG), logging.handlers.SysLogHandler.LOG_DAEMON)
        handler.ident = "mummufs: "
    else:
        handler = logging.NullHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    handler.addFilter(RateLimit())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("mummufs").setLevel(level.upper())
    # Out of descriptors, it would tell ten times a second that a client of the control socket has to wait.
    logging.getLogger("trio.serve_listeners").setLevel(logging.CRITICAL)
