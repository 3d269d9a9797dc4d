"""The profile's format: what is written comes back, and nothing else is ever taken for a profile."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.errors import MummufsError
from mummufs.profile import (
    HEAT_MAX,
    ProfileRange,
    hottest_first,
    parse_profile,
    profile_lines,
    read_profile,
)

_NAMES = st.binary(min_size=1, max_size=12).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map(b"/".join)
_HEATS = st.floats(-1e6, HEAT_MAX).map(lambda heat: round(heat, 6))


@st.composite
def _ranges(draw: st.DrawFn) -> list[ProfileRange]:
    found: list[ProfileRange] = []
    for path in draw(st.lists(_PATHS, max_size=3, unique=True)):
        file_size = draw(st.integers(1, (1 << 63) - 1))
        for _ in range(draw(st.integers(1, 3))):
            offset = draw(st.integers(0, file_size - 1))
            size = draw(st.integers(1, file_size - offset))
            found.append(ProfileRange(path, offset, size, draw(_HEATS), file_size))
    return found


SAMPLE = [
    ProfileRange(b"a/x.gguf", 4096, 8192, 2.5, 1 << 20),
    ProfileRange(b"a/x.gguf", 65536, 4096, -3.25, 1 << 20),
    ProfileRange(b'\xff \n"', 0, 10, 0.0, 10),
]
DATA = b"".join(profile_lines(SAMPLE))


@given(_ranges())
def test_what_is_written_comes_back(ranges: list[ProfileRange]) -> None:
    assert parse_profile(b"".join(profile_lines(ranges))) == ranges


def test_it_is_the_text_that_the_documentation_shows() -> None:
    assert DATA.splitlines()[:3] == [
        b'{"mummufs_profile": 1}',
        b'{"path": "a/x.gguf", "size": 1048576}',
        b"[4096, 8192, 2.5]",
    ]
    assert DATA.splitlines()[-1] == b'{"end": 3}'


def test_every_prefix_is_refused() -> None:
    assert parse_profile(DATA[:-1]) == SAMPLE, "the last newline may be missing"
    for size in range(len(DATA) - 1):
        with pytest.raises(MummufsError):
            parse_profile(DATA[:size])


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_a_sentence_or_another_profile(at: int, flip: int) -> None:
    data = bytearray(DATA)
    data[at] ^= flip
    try:
        found = parse_profile(bytes(data))
    except MummufsError:
        return
    for r in found:
        assert 0 <= r.offset < r.offset + r.size <= r.file_size and r.heat <= HEAT_MAX


HEAD = b'{"mummufs_profile": 1}\n{"path": "a", "size": 100}\n'


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "cut short"),
        (b"hello", "not JSON"),
        (b"{}", "first line"),
        (b"[" * 100_000, "not JSON"),
        (b'{"mummufs_profile": 2}\n{"end": 0}', "version 2"),
        (b'{"mummufs_profile": true}\n{"end": 0}', "version True"),
        (b'{"mummufs_profile": 1}\n[0, 1, 2]', "a file comes first"),
        (HEAD + b"[0, 101, 0]", "does not lie in its file"),
        (HEAD + b"[0, 0, 0]", "does not lie in its file"),
        (HEAD + b"[-1, 5, 0]", "offset, size, heat"),
        (HEAD + b"[0, true, 0]", "offset, size, heat"),
        (HEAD + b"[0, 1]", "offset, size, heat"),
        (HEAD + b"[0, 1, NaN]", "heat is a number"),
        (HEAD + b"[0, 1, -Infinity]", "heat is a number"),
        (HEAD + b"[0, 1, true]", "heat is a number"),
        (HEAD + b"[0, 1, 65]", "heat is a number"),
        (HEAD + b"[0, 1, 1" + b"0" * 400 + b"]", "heat is a number"),
        (HEAD + b'[0, 1, 0]\n{"end": 2}', "there were 1"),
        (HEAD + b'{"end": 0}\n[0, 1, 0]', "nothing follows"),
        *(
            (b'{"mummufs_profile": 1}\n{"path": "%s", "size": 1}' % path, "below the source")
            for path in (b"/a", b"../a", b"a//b", b"a/./b", b"a/..", b"", b"a\\u0000b")
        ),
        (b'{"mummufs_profile": 1}\n{"path": "\\ud800", "size": 1}', "cannot be that of a file"),
        (b'{"mummufs_profile": 1}\n{"path": "a", "size": -1}', "a path and a size"),
        (b'{"mummufs_profile": 1}\n{"path": 5, "size": 1}', "a path and a size"),
    ],
)
def test_what_is_wrong_is_told(data: bytes, says: str) -> None:
    with pytest.raises(MummufsError, match=says):
        parse_profile(data)


def test_hottest_first_is_a_fixed_order() -> None:
    ranges = [
        ProfileRange(b"b", 0, 1, 1.0, 9),
        ProfileRange(b"a", 5, 1, 1.0, 9),
        ProfileRange(b"c", 0, 1, 2.0, 9),
        ProfileRange(b"a", 0, 1, 1.0, 9),
    ]
    assert [(r.path, r.offset) for r in hottest_first(ranges)] == [(b"c", 0), (b"a", 0), (b"a", 5), (b"b", 0)]


def test_a_file_that_is_no_profile_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p"
    with pytest.raises(MummufsError, match="cannot be read"):
        read_profile(path)
    path.write_bytes(b"hello")
    with pytest.raises(MummufsError, match=r"p' is no profile that can be used: line 1"):
        read_profile(path)
    path.write_bytes(DATA)
    assert read_profile(path) == SAMPLE
