"""JSON read entry by entry: a header of 16 MiB, parsed whole, becomes some 200 MB of Python objects.

Theory of operation. The caller walks the levels it knows by `members()` and `items()`, takes each small entry by
`value()`, and passes what it does not know with `skip()`. Text is held in a sliding buffer that grows by a block when
an entry reaches over its end. Only entries of up to ENTRY_CHARS_MAX characters are decoded, by the standard decoder.
`skip()` counts brackets outside strings and does not check what lies between them: nothing of it is used.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator

from mummufs.core.errors import ManifestError

ENTRY_CHARS_MAX = 64 << 10
"""One entry (a tensor, a range) is longer than this only in a hostile header."""

BLOCK_BYTES = 256 << 10
"""A good size for the blocks of text: over ENTRY_CHARS_MAX, so that an entry reaches over one end at most."""

_BLANK = re.compile(r"[ \t\n\r]*")
_MARK = re.compile(r'["{}\[\]]')
_STRING_END = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_BARE_END = re.compile(r"[,\]}\s]")


class JsonStream:
    """A cursor in JSON text.

    Args:
        next_block: the next bytes of the text, `b""` at its end.
    """

    def __init__(self, next_block: Callable[[], bytes]) -> None:
        self._next_block = next_block
        self._decode_utf8 = codecs.getincrementaldecoder("utf-8")()
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._at = 0
        self._ended = False

    @classmethod
    def of(cls, data: bytes) -> JsonStream:
        """A cursor in text that is at hand. Decoded in blocks: one string could take four times the size."""
        blocks = (data[i : i + BLOCK_BYTES] for i in range(0, len(data), BLOCK_BYTES))
        return cls(lambda: next(blocks, b""))

    def members(self) -> Iterator[str]:
        """The keys of the object that comes next. The caller takes or skips each value before the next key."""
        for _ in self._separated("{", "}"):
            key = self.value()
            if not isinstance(key, str):
                raise ManifestError("its JSON has a key that is not a string")
            self._expect(":")
            yield key

    def items(self) -> Iterator[None]:
        """Stops before each item of the list that comes next. The caller takes or skips the item."""
        yield from self._separated("[", "]")

    def value(self) -> object:
        """The next value, decoded.

        Raises:
            ManifestError: it is no JSON, or longer than ENTRY_CHARS_MAX characters.
        """
        start = self._peek()
        if start not in '{["':
            self._need_bare_end()
        while True:
            try:
                found, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._ended and len(self._text) - self._at <= ENTRY_CHARS_MAX:
                    self._more()
                    continue
                raise ManifestError(f"its JSON is broken or has an entry that is too long: {error.msg}") from None
            except (ValueError, RecursionError) as error:
                raise ManifestError(f"its JSON is absurd: {type(error).__name__}") from None
            if end - self._at > ENTRY_CHARS_MAX:
                raise ManifestError(f"its JSON has an entry of more than {ENTRY_CHARS_MAX} characters")
            self._at = end
            return found

    def skip(self) -> None:
        """Go past the next value, whatever its size and depth."""
        if self._peek() not in '{["':
            self._need_bare_end()
            self.value()
            return
        depth = 0
        while True:
            mark = self._next_mark()
            if mark == '"':
                self._skip_string()
            else:
                depth += 1 if mark in "{[" else -1
            if depth == 0:
                return

    def end(self) -> None:
        """Nothing but blanks may follow."""
        if self._peek():
            raise ManifestError("its JSON has text after its end")

    def _separated(self, opening: str, closing: str) -> Iterator[None]:
        self._expect(opening)
        if self._peek() == closing:
            self._at += 1
            return
        while True:
            yield None
            mark = self._peek()
            self._at += 1
            if mark == closing:
                return
            if mark != ",":
                raise ManifestError(f"its JSON has {mark!r} in place of ',' or {closing!r}")

    def _expect(self, mark: str) -> None:
        found = self._peek()
        if found != mark:
            raise ManifestError(f"its JSON has {found!r} in place of {mark!r}")
        self._at += 1

    def _peek(self) -> str:
        """The next character that is not blank, without taking it; "" at the end."""
        while True:
            match = _BLANK.match(self._text, self._at)
            assert match is not None, "the pattern matches anywhere"
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._more()

    def _need_bare_end(self) -> None:
        """Have the end of a number or word in the buffer: half a number would decode too."""
        while not self._ended and _BARE_END.search(self._text, self._at) is None:
            if len(self._text) - self._at > ENTRY_CHARS_MAX:
                raise ManifestError(f"its JSON has an entry of more than {ENTRY_CHARS_MAX} characters")
            self._more()

    def _next_mark(self) -> str:
        """Take the next quote or bracket."""
        while True:
            match = _MARK.search(self._text, self._at)
            if match is not None:
                self._at = match.end()
                return match.group()
            self._at = len(self._text)
            self._more_or_fail()

    def _skip_string(self) -> None:
        """Go past the rest of a string, holding no more of it than a block."""
        while True:
            match = _STRING_END.match(self._text, self._at)
            if match is not None:
                self._at = match.end()
                return
            # An escape must not be cut in two: keep the run of backslashes that the buffer ends with.
            self._at = max(self._at, len(self._text) - _trailing_backslashes(self._text) % 2)
            self._more_or_fail()

    def _more_or_fail(self) -> None:
        if self._ended:
            raise ManifestError("its JSON is cut short")
        self._more()

    def _more(self) -> None:
        block = self._next_block()
        self._ended = not block
        try:
            added = self._decode_utf8.decode(block, final=self._ended)
        except UnicodeDecodeError:
            raise ManifestError("its JSON is not UTF-8") from None
        self._text = self._text[self._at :] + added
        self._at = 0


def _trailing_backslashes(text: str) -> int:
    return len(text) - len(text.rstrip("\\"))
