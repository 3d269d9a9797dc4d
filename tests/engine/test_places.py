"""Files by path and pattern: the same as the file system's own glob finds, and nothing outside."""

from __future__ import annotations

import errno
import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.core.errors import MummufsError
from mummufs.engine import places
from mummufs.engine.places import NotThereError, Pattern, Places, matches
from mummufs.source.memory import MemorySource
from tests.engine.harness import Engine, FakeParser, engine
from tests.engine.test_warm import placement

TREE = (b"a/m.gguf", b"a/n.gguf", b"a/notes", b"b/c/m.gguf", b"b/m[1].gguf", b"m.gguf", b"\xff\xfe")


def places_of(e: Engine) -> Places:
    return placement(e)._places


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ([b""], sorted(TREE)),
        ([b"a"], [b"a/m.gguf", b"a/n.gguf", b"a/notes"]),
        ([b"a/m.gguf", b"a"], [b"a/m.gguf", b"a/n.gguf", b"a/notes"]),
        ([b"*.gguf"], [b"m.gguf"]),
        ([b"*/m.gguf"], [b"a/m.gguf"]),
        ([b"**/m.gguf"], [b"a/m.gguf", b"b/c/m.gguf", b"m.gguf"]),
        ([b"b/**"], [b"b/c/m.gguf", b"b/m[1].gguf"]),
        ([b"**/c/*"], [b"b/c/m.gguf"]),
        ([b"[ab]"], [b"a/m.gguf", b"a/n.gguf", b"a/notes", b"b/c/m.gguf", b"b/m[1].gguf"]),
        ([b"b/m[1].gguf"], [b"b/m[1].gguf"]),
        ([b"b/m[[]1].*"], [b"b/m[1].gguf"]),
        ([b"\xff*"], [b"\xff\xfe"]),
        ([b"?"], [b"a/m.gguf", b"a/n.gguf", b"a/notes", b"b/c/m.gguf", b"b/m[1].gguf"]),
    ],
)
async def test_find(tmp_path: Path, wanted: list[bytes], found: list[bytes]) -> None:
    async with engine(MemorySource(dict.fromkeys(TREE, b"x")), tmp_path, FakeParser()) as e:
        assert await places_of(e).find(wanted) == found


@pytest.mark.parametrize("wanted", [b"absent", b"a/m.gguf/x", b"*.absent", b"a/[z]"])
async def test_what_is_not_there_is_told(tmp_path: Path, wanted: bytes) -> None:
    async with engine(MemorySource(dict.fromkeys(TREE, b"x")), tmp_path, FakeParser()) as e:
        with pytest.raises(NotThereError, match="in the mount"):
            await places_of(e).find([b"a", wanted])


async def test_an_empty_folder_is_there(tmp_path: Path) -> None:
    source = MemorySource({b"a/x": b"x"})
    source.remove(b"a/x")
    async with engine(source, tmp_path, FakeParser()) as e:
        assert await places_of(e).find([b"a"]) == []


async def test_symlinks_are_followed_inside_and_never_outside(tmp_path: Path) -> None:
    source = MemorySource({b"blobs/1": b"x", b"blobs/2": b"y", b"snap/plain": b"z"})
    source.symlink(b"snap/good", b"../blobs/1")
    source.symlink(b"snap/again", b"./good")
    source.symlink(b"snap/out", b"../../etc/passwd")
    source.symlink(b"snap/absolute", b"/etc/passwd")
    source.symlink(b"snap/folder", b"../blobs")
    source.symlink(b"snap/nowhere", b"nothing")
    source.symlink(b"snap/round", b"round")
    async with engine(source, tmp_path, FakeParser()) as e:
        assert await places_of(e).find([b"snap"]) == [b"blobs/1", b"snap/plain"]
        assert await places_of(e).find([b"snap/again"]) == [b"blobs/1"]


async def test_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine(MemorySource(dict.fromkeys(TREE, b"x")), tmp_path, FakeParser()) as e:
        monkeypatch.setattr(places, "FILES_MAX", len(TREE) - 1)
        with pytest.raises(MummufsError, match="files are meant"):
            await places_of(e).find([b""])
        monkeypatch.setattr(places, "ENTRIES_MAX", 2)
        with pytest.raises(MummufsError, match="names would have to be looked at"):
            await places_of(e).find([b"**/x"])


async def test_a_folder_is_no_file_to_open(tmp_path: Path) -> None:
    async with engine(MemorySource(dict.fromkeys(TREE, b"x")), tmp_path, FakeParser()) as e:
        for path, number in ((b"a", errno.EINVAL), (b"a/absent", errno.ENOENT)):
            with pytest.raises(OSError) as caught:
                async with places_of(e).opened(path):
                    raise AssertionError("not reached")
            assert caught.value.errno == number
        assert len(e.overlay.nodes) == 1


async def test_a_look_from_inside_does_not_count_as_the_kernel_s(tmp_path: Path) -> None:
    """After a chmod the kernel is to drop its pages at its next open, whoever else has opened the file before."""
    source = MemorySource({b"model": b"x"})
    async with engine(source, tmp_path, FakeParser()) as e:
        handle = await e.open(b"model")
        handle.node.number = 1
        source.chmod(b"model", 0o600)
        async with places_of(e).opened(b"model") as inside:
            assert inside.node is handle.node
        assert not (await e.open(b"model")).keep_pages
        assert (await e.open(b"model")).keep_pages


NAMES = st.text("ab*?[]!-.", min_size=1, max_size=5).filter(lambda name: name not in (".", ".."))


@given(NAMES.filter(lambda name: name != "**"), NAMES)
def test_one_part_is_fnmatch(pattern: str, name: str) -> None:
    compiled = Pattern(pattern.encode())
    assert compiled.is_met(compiled.after(compiled.start, name.encode())) == fnmatchcase(name, pattern)


PARTS = st.lists(st.sampled_from(["a", "b", "*", "**", "?"]), min_size=1, max_size=5)


def slowly(pattern: list[str], path: list[str]) -> bool:
    """The definition: the pattern matches the path, or a folder that it is in."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return slowly(pattern[1:], path) or bool(path and slowly(pattern, path[1:]))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and slowly(pattern[1:], path[1:])


@given(PARTS, st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=5))
def test_matches_is_its_definition(pattern: list[str], path: list[str]) -> None:
    assert matches("/".join(pattern).encode(), "/".join(path).encode()) == slowly(pattern, path)


def test_a_name_that_looks_like_a_pattern_means_itself() -> None:
    assert matches(b"b/m[1].gguf", b"b/m[1].gguf")
    assert matches(b"b[1]", b"b[1]/m")
    assert not matches(b"b/m[1].gguf", b"b/m2.gguf")
    assert matches(b"", os.fsencode("anything"))
