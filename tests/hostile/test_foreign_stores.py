"""A store that was filled by somebody else, of another version, or strewn with junk: never a wrong byte."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from tests.faultfs.client import FaultFs
from tests.hostile.support import (
    RANGE_BYTES,
    changed,
    fill,
    model,
    read_all,
)
from tests.mounts.harness import Mounted, run
from tests.support.models import write_native


@pytest.mark.mount
def test_a_store_of_another_user_is_refused(tree: Path, store: Path) -> None:
    store.mkdir()
    os.chown(store, 12345, 12345)
    m = Mounted(tree, store=store)
    try:
        done = run(*m.arguments(), check=False)
        assert done.returncode == 2
        assert done.stderr == f"mummufs: the store {store} belongs to user 12345: name one of your own\n"
        assert not m.is_mounted
        assert list(store.iterdir()) == []
    finally:
        m.take_down()


def as_another_version(path: Path) -> None:
    """Give a range file or a table the next format version, with all its checksums right."""
    with changed(path) as data:
        struct.pack_into("<I", data, 8, 2)
        if path.suffix == ".rng":
            struct.pack_into("<Q", data, 88, xxh3_64_intdigest(bytes(data[:88])))


@pytest.mark.mount
def test_a_store_of_another_format_version(tree: Path, store: Path) -> None:
    expected = model(tree, "a", "b")
    with Mounted(tree, store=store) as m:
        stored = fill(m, expected)
        m.umount()
        for path in [*m.range_files(), *store.glob("tables/*.tbl")]:
            as_another_version(path)
        m.mount()
        assert m.status()["store"]["ranges"] == 0
        read_all(m, expected)
        assert m.settle()["reads"]["hits"] == 0
        assert fill(m, expected) == stored


@pytest.mark.mount
def test_junk_in_the_store(tree: Path, store: Path) -> None:
    """What an earlier mount left half-written goes; what is somebody else's stays as it is."""
    expected = model(tree, "a")
    with Mounted(tree, store=store) as m:
        stored = fill(m, expected)
        m.umount()
        sub = m.range_files()[0].parent
        theirs = (
            "notes.txt",
            "tmp/x.part",
            "tables/README",
            "ranges/old",
            f"ranges/{sub.name}/core",
            "other/deep/file",
        )
        for name in theirs:
            (store / name).parent.mkdir(parents=True, exist_ok=True)
            (store / name).write_bytes(b"theirs")
        (sub / "link").symlink_to("/etc/passwd")
        ours = (store / "tmp" / f"{'a' * 32}.7.tmp", sub / f"{'b' * 30}.rng")
        for path in ours:
            path.write_bytes(b"half of it")
        m.mount()
        read_all(m, expected)
        assert m.status()["reads"]["misses"] == 0
        assert not [path for path in ours if path.exists()]
        for name in theirs:
            assert (store / name).read_bytes() == b"theirs"
        assert (sub / "link").is_symlink()
        assert len(m.range_files()) == stored
        (store / "tmp/x.part").unlink()


@pytest.mark.mount
@pytest.mark.parametrize("how", ["flip", "empty", "junk", "directory"])
def test_corrupt_tables(tree: Path, store: Path, how: str) -> None:
    expected = model(tree, "a", "b")
    with Mounted(tree, store=store) as m:
        stored = fill(m, expected)
        m.umount()
        tables = sorted(store.glob("tables/*.tbl"))
        assert len(tables) == 2
        for path in tables:
            if how == "flip":
                with changed(path) as data:
                    data[len(data) // 2] ^= 4
            elif how == "directory":
                path.unlink()
                path.mkdir()
            else:
                path.write_bytes(b"" if how == "empty" else os.urandom(path.stat().st_size))
        m.mount()
        for name in expected:
            m.read(name)
        m.settle()
        read_all(m, expected)
        assert m.status()["reads"]["hits"] > 0
        assert len(m.range_files()) == stored


@pytest.mark.mount
def test_a_store_filled_from_another_volume_with_the_same_inodes(
    tmp_path: Path, store: Path, tmpfs: Callable[[str], Path]
) -> None:
    """Same path, inode numbers, sizes and mtimes: only the ctimes and the bytes differ."""
    place, volumes = tmp_path / "volume", [tmpfs("size=16m"), tmpfs("size=16m")]
    for seed, volume in enumerate(volumes):
        write_native(volume / "f", seed=seed, sizes=(RANGE_BYTES,) * 10, gap=100)
        os.utime(volume / "f", ns=(10**18, 10**18))
    first, second = ((volume / "f").stat() for volume in volumes)
    assert (first.st_ino, first.st_size, first.st_mtime_ns) == (second.st_ino, second.st_size, second.st_mtime_ns)
    for volume in volumes:
        expected = {"f": (volume / "f").read_bytes()}
        with FaultFs(volume, mountpoint=place), Mounted(place, store=store) as m:
            read_all(m, expected)
            m.settle()
            assert m.status()["reads"]["hits"] == 0, "nothing of the other volume is given out"
            read_all(m, expected)
            assert m.status()["reads"]["hits"] > 0
