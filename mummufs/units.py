"""Sizes and durations as people write and read them. K, M, G and T are powers of 1024."""

from __future__ import annotations

import re
from fractions import Fraction

from mummufs.core.errors import UsageError

SIZE_BYTES_MAX = (1 << 63) - 1
"""The largest size that a file offset can hold."""

DURATION_S_MAX = 365 * 86400.0
"""A longer duration than a year is taken for a mistake."""

_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {
    "ms": Fraction(1, 1000),
    "": Fraction(1),
    "s": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3600),
}
_NUMBER = r"(\d{1,20}(?:\.\d{1,20})?|\.\d{1,20})"
_SIZE = re.compile(_NUMBER + r" ?(?:([KMGT])(?:i?B)?|B)?", re.ASCII | re.IGNORECASE)
_DURATION = re.compile(_NUMBER + r" ?(ms|s|min|m|h)?", re.ASCII | re.IGNORECASE)


def parse_size(what: str, text: str) -> int:
    """Bytes of "64G", "1.5GiB", "512M" or "4096". `what` names the value in the error.

    Raises:
        UsageError: it is not a size, or one of more than SIZE_BYTES_MAX.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = (match[2] or "").upper() if match else ""
    if match is None or (not unit and "." in match[1]):
        raise UsageError(f"{what}: {text!r} is not a size; write bytes, or a number with K, M, G or T, such as 64G")
    return _bounded(what, text, int(Fraction(match[1]) * _FACTORS[unit]))


def parse_gib(what: str, text: str) -> int:
    """Bytes of a plain number of GiB, such as "64" or "0.5".

    Raises:
        UsageError: it is not a plain number, or too large.
    """
    if not re.fullmatch(_NUMBER, text.strip(), re.ASCII):
        raise UsageError(f"{what}: {text!r} is not a number of GiB, such as 64")
    return _bounded(what, text, int(Fraction(text.strip()) * _FACTORS["G"]))


def gib(size: int) -> str:
    """A size as a plain number of GiB that `parse_gib` reads as just this size."""
    whole, rest = divmod(size, _FACTORS["G"])
    return f"{whole}.{-(-rest * 10**20 // _FACTORS['G']):020d}"


def parse_duration(what: str, text: str) -> float:
    """Seconds of "60", "60s", "500ms", "2m" or "1h".

    Raises:
        UsageError: it is not a duration, or one of more than DURATION_S_MAX.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{what}: {text!r} is not a duration; write seconds, or a number with ms, s, m or h, such as 60s"
        )
    seconds = float(Fraction(match[1]) * _SECONDS[(match[2] or "").lower()])
    if seconds > DURATION_S_MAX:
        raise UsageError(f"{what}: {text!r} is more than a year")
    return seconds


def parse_count(what: str, text: str, low: int, high: int) -> int:
    """A whole number from `low` to `high`.

    Raises:
        UsageError: it is not one.
    """
    if not re.fullmatch(r"\d{1,20}", text.strip(), re.ASCII) or not low <= int(text) <= high:
        raise UsageError(f"{what}: {text!r} is not a whole number from {low} to {high}")
    return int(text)


def format_size(size: int) -> str:
    """A size for people: "17 B", "4.0 KiB", "1.5 GiB"; one decimal, TiB at most."""
    if size < 1 << 10:
        return f"{size} B"
    value, unit = size / (1 << 10), "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if round(value, 1) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}"


def format_duration(seconds: float) -> str:
    """A duration for people: "12 s", "3 min 20 s", "5 h 3 min", "2 d 4 h"."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def _bounded(what: str, text: str, size: int) -> int:
    if size > SIZE_BYTES_MAX:
        raise UsageError(f"{what}: {text!r} is more than any file can hold")
    return size
