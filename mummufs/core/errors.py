"""Every error that mummufs raises on purpose, each with a sentence that says what was wrong and what to do.

Faults of the source travel as plain `OSError`: they are the reader's answer and are translated once, in the
backend. The classes here are for what mummufs itself finds wrong.
"""

from __future__ import annotations


class MummufsError(Exception):
    """A failure with a sentence for the person who reads it. Exit code 1."""


class UsageError(MummufsError):
    """The call was wrong: an option, a path, a value. Exit code 2."""


class ManifestError(MummufsError):
    """A model header that names no usable ranges. `str()` is the reason alone, without the file's name."""


class RangeFileError(MummufsError):
    """A range file that cannot be believed: missing, short, foreign, of another version or corrupt.

    It is never shown to a reader: the source answers, the entry is dropped and a counter rises.
    """


class HeatFileError(MummufsError):
    """A heat file that cannot be believed. It is set aside, and heat starts anew."""


class StoreBusyError(MummufsError):
    """Another mount holds the store's lock.

    Args:
        pid: the holder's process id, or None where it could not be read.
    """

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


class TransitionError(AssertionError):
    """A state change that the transition table does not know: a programmer's error, never a user's."""
