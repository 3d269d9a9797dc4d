"""The daemon's log: to a file, to syslog, or to standard error; never more than a bounded number of lines a minute."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
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


class LogFile(logging.Handler):
    """A log file whose disk may be full. Lines that cannot be written are counted, and the next that can tells it."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            OSError: it cannot be opened.
        """
        super().__init__()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        self._fd = os.open(path, flags, 0o600)
        self.lost = 0
        self.error: OSError | None = None
        self.setFormatter(logging.Formatter(_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # a mistake in a call of the log must not end who calls
            self.handleError(record)
            return
        if self.lost:
            line += f" ({self.lost} lines before this one could not be written: {self.error})"
        data = f"{line}\n".encode("utf-8", "backslashreplace")
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self.lost += 1
            self.error = error
        else:
            self.lost, self.error = 0, None

    def close(self) -> None:
        with self.lock or contextlib.nullcontext():
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        super().close()


def begin(path: Path, line: str) -> OSError | None:
    """Write a first line to a log file, whatever the level is to be. None, or why that cannot be done now.

    Raises:
        OSError: the file cannot be opened.
    """
    file = LogFile(path)
    try:
        file.handle(
            logging.makeLogRecord({"name": __package__, "levelno": logging.INFO, "levelname": "INFO", "msg": line})
        )
        return file.error
    finally:
        file.close()


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
        handler = LogFile(file)
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
