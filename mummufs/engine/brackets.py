"""Brackets: a change in one call of one thread, between two looks at the files that it is about."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from mummufs.core.ranges import Version
from mummufs.source.base import Attributes

Result = TypeVar("Result")
Look = Callable[[], Attributes]


class ForeignChangeError(Exception):
    """The file is of another version than was expected, and nothing was done to it."""

    def __init__(self, number: int, attributes: Attributes) -> None:
        super().__init__()
        self.number = number
        """Which of the files it is."""
        self.attributes = attributes


@dataclass
class Bracketed(Generic[Result]):
    """A change and the attributes of the files that it is about, before and after it; None: it is gone.

    Without any the files could not be looked at, and the change was not made.
    """

    before: Sequence[Attributes | None]
    after: Sequence[Attributes | None]
    result: Result | None
    error: OSError | None

    def value(self) -> Result:
        """What the change has given, or its error; to be asked once."""
        if self.error is not None:
            error, self.error = self.error, None
            try:
                raise error
            finally:
                del error  # with its traceback it is a cycle, in whose frames a file may be open
        return self.result  # type: ignore[return-value]


def bracket(
    before: Sequence[Look],
    after: Sequence[Look],
    call: Callable[[], Result],
    expected: Sequence[Version | None],
) -> Bracketed[Result]:
    """Look, change, look. Runs in a worker thread."""
    try:
        was = [_seen(look) for look in before]
    except OSError as error:
        return Bracketed((), (), None, error.with_traceback(None))
    for number, (found, version) in enumerate(zip(was, expected, strict=True)):
        if found is not None and version is not None and found.version != version:
            raise ForeignChangeError(number, found)
    result, failure = None, None
    try:
        result = call()
    except OSError as error:
        failure = error.with_traceback(None)
    return Bracketed(was, [_seen(look, whatever=True) for look in after], result, failure)


def _seen(look: Look, *, whatever: bool = False) -> Attributes | None:
    try:
        return look()
    except OSError as error:
        if whatever or error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
            return None
        raise
