"""Headers parsed by a child that asks for their bytes by a pipe: the same tables as by the child that opens them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mummufs.core.errors import ManifestError
from mummufs.engine.parse import ChildParser
from mummufs.engine.pipeparse import PipeParser, _path
from mummufs.engine.threads import Pools
from mummufs.source.memory import MemorySource
from mummufs.source.tree import TreeSource
from tests.support.models import write_gguf
from tests.support.trees import write_models


async def test_tables_are_those_of_the_other_child(tmp_path: Path) -> None:
    names = [name for name in write_models(tmp_path) if name.parts[0] in ("gguf", "native", "strata")]
    source, pools = TreeSource(tmp_path), Pools(4)
    for name in names:
        path = str(name).encode()
        file = source.open(path)
        expected = await ChildParser(source, pools).parse(path, file)
        found = await PipeParser(source, pools).parse(path, file)
        assert found is not None and expected is not None and found.to_bytes() == expected.to_bytes()
        file.close()


async def test_a_source_without_descriptors(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", layers=(0,), experts=2, dense_bytes=100_000, expert_bytes=50_000)
    source = MemorySource({b"d/m.gguf": (tmp_path / "m.gguf").read_bytes(), b"d/junk.gguf": b"GGUF" + b"\xff" * 5000})
    parser = PipeParser(source, Pools(4))
    file = source.open(b"d/m.gguf")
    table = await parser.parse(b"d/m.gguf", file)
    assert table is not None and len(table) > 1
    assert source.read_bytes(b"d/m.gguf") < 4 << 20, "its header was read, and no more"
    with pytest.raises(ManifestError):
        await parser.parse(b"d/junk.gguf", source.open(b"d/junk.gguf"))
    source.write(b"d/plain", b"no model at all")
    assert await parser.parse(b"d/plain", source.open(b"d/plain")) is None


async def test_a_source_that_fails_meanwhile(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", layers=(0,), experts=2, dense_bytes=100_000, expert_bytes=50_000)
    source = MemorySource({b"m.gguf": (tmp_path / "m.gguf").read_bytes()})
    source.fail_read(2)  # the first is the sniff
    with pytest.raises(OSError, match="Input/output error"):
        await PipeParser(source, Pools(4)).parse(b"m.gguf", source.open(b"m.gguf"))


@pytest.mark.parametrize("name", [b"", b"..", b".", b"a/b", b"a\0", b"x" * 5000])
def test_a_child_gets_no_file_elsewhere(name: bytes) -> None:
    with pytest.raises(FileNotFoundError):
        _path(b"d", name)
