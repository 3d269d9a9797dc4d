"""From the second read on, the store serves: what reaches the source is counted by a layer under the mount."""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
from hashlib import blake2b
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from tests.faultfs.client import FaultFs, ReadRecord
from tests.mounts.harness import Mounted, opened, run
from tests.support.commands import call
from tests.support.models import write_gguf
from tests.support.trees import write_models
from tests.support.waiting import wait_for

HEADER = 4096


def in_ranges(reads: list[ReadRecord], source: Path) -> list[ReadRecord]:
    """Those of the reads that touch a manifest range, as `mummufs ranges` names them."""
    touched, known = [], {}
    for read in reads:
        if read.path not in known:
            done = call("ranges", source / read.path, "--json")
            known[read.path] = json.loads(done.stdout)["ranges"] if done.returncode == 0 else []
        if any(
            r["offset"] < read.offset + read.size and read.offset < r["offset"] + r["length"] for r in known[read.path]
        ):
            touched.append(read)
    return touched


@pytest.mark.mount
def test_second_pass_and_remount_never_touch_the_source(tree: Path, store: Path) -> None:
    models = write_models(tree)
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store) as m:
        for name in models:
            m.read(name)
        m.settle()
        assert in_ranges(under.reads(clear=True), tree), "the first pass came from the source"
        m.drop_pages(*models)
        for name in models:
            assert m.read(name) == (tree / name).read_bytes()
        assert in_ranges(under.reads(clear=True), tree) == []
        m.remount()
        for name in models:
            assert m.read(name) == (tree / name).read_bytes()
        assert in_ranges(under.reads(clear=True), tree) == []
        reads = m.settle()["reads"]
        assert reads["hit_bytes"] > 0
        assert reads["miss_bytes"] == 0


@pytest.mark.mount
def test_resident_ranges_are_read_while_the_source_is_stopped(tree: Path, store: Path) -> None:
    write_gguf(tree / "m.gguf")
    size = (tree / "m.gguf").stat().st_size
    expected = (tree / "m.gguf").read_bytes()
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store) as m:
        assert m.read("m.gguf") == expected
        m.settle()
        with opened(m.path("m.gguf")) as fd, opened(m.path("m.gguf"), os.O_RDONLY | os.O_DIRECT) as direct:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            under.hang()
            try:
                got: list[bytes] = []
                reader = threading.Thread(target=lambda: got.append(os.pread(fd, size, 0)), daemon=True)
                reader.start()
                reader.join(20)
                assert got == [expected]
                with mmap.mmap(-1, 65536) as buffer:
                    assert os.preadv(direct, [buffer], 0) == 65536
                    assert buffer[:] == expected[:65536]
            finally:
                under.resume()


def check_range_files(m: Mounted, source: Path) -> int:
    """Hold each range file's payload against the source, by nothing but the documented layout; how many there were."""
    by_inode = {p.stat().st_ino: p for p in source.rglob("*") if p.is_file() and not p.is_symlink()}
    for path in m.range_files():
        data = path.read_bytes()
        magic, version, _, filesystem, inode, offset, size = struct.unpack_from("<8sIIQQQQ", data)
        assert (magic, version) == (b"MUMMURNG", 1)
        key = struct.pack("<QQQQ", filesystem, inode, offset, size)
        digest = blake2b(key, digest_size=16).hexdigest()
        assert f"{path.parent.name}{path.stem}" == digest
        assert len(data) == HEADER + size
        with by_inode[inode].open("rb") as file:
            file.seek(offset)
            assert data[HEADER:] == file.read(size), path
    return len(m.range_files())


@pytest.mark.mount
def test_range_files_hold_the_source_and_serve_it(tree: Path, store: Path) -> None:
    models = write_models(tree)
    with Mounted(tree, store=store) as m:
        for name in models:
            m.read(name)
        m.settle()
        assert check_range_files(m, tree) > 20


@pytest.mark.mount
def test_a_changed_byte_sealed_again_comes_out_of_the_mount(tree: Path, store: Path) -> None:
    """So it is the store that serves."""
    write_gguf(tree / "m.gguf")
    source = (tree / "m.gguf").read_bytes()
    with Mounted(tree, store=store) as m:
        assert m.read("m.gguf") == source
        m.settle()
        path = max(m.range_files(), key=lambda p: p.stat().st_size)
        data = bytearray(path.read_bytes())
        offset = struct.unpack_from("<Q", data, 32)[0]
        at = 9000
        data[HEADER + at] ^= 0xFF
        data[72:88] = xxh3_128_digest(data[HEADER:])
        struct.pack_into("<Q", data, 88, xxh3_64_intdigest(bytes(data[:88])))
        path.write_bytes(data)
        m.drop_pages()
        changed = bytearray(source)
        changed[offset + at] ^= 0xFF
        assert m.read("m.gguf") == changed
        assert m.status()["errors"]["store"] == 0


@pytest.mark.mount
def test_a_remount_finds_ranges_before_the_scan_has(tree: Path, store: Path) -> None:
    """A read right after the mount is a hit, whether the scan has come to its ranges or not."""
    write_gguf(tree / "m.gguf")
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store) as m:
        expected = m.read("m.gguf")
        m.settle()
        m.umount()
        under.clear()
        assert run(*m.arguments()).returncode == 0
        assert m.read("m.gguf") == expected
        assert in_ranges(under.reads(), tree) == []
        wait_for(m.status, lambda s: s["state"] == "normal")


def test_the_helper_of_these_tests_knows_ranges(tmp_path: Path) -> None:
    """`in_ranges` finds what is in a range, so an empty answer means something."""
    written = write_gguf(tmp_path / "m.gguf")
    w = written[1]
    inside = ReadRecord(0.0, "m.gguf", w.offset + 5, 10, 10)
    assert in_ranges([inside], tmp_path) == [inside]
