"""The scan by the store's own calls finds what the other one finds, and clears away what it does."""

from __future__ import annotations

from pathlib import Path

from mummufs.core.ranges import FileId, RangeKey, Version
from mummufs.store.rangestore import RangeStore
from mummufs.store.scan import scan, scan_os
from mummufs.store.windowsos import WindowsOs
from tests.support.fake_win32 import FakeWin32


def test_both_scans_find_the_same(tmp_path: Path) -> None:
    fs = WindowsOs("C:\\", FakeWin32(tmp_path))
    store, version = RangeStore(fs), Version(1 << 20, 5, 6)
    keys = {RangeKey(FileId(1, i), 4096 * i, 5000) for i in range(40)}
    for key in keys:
        store.write_range(key, version, memoryview(bytes(key.size)))
    junk = tmp_path / "ranges" / "00"
    junk.mkdir(exist_ok=True)
    (junk / ("0" * 30 + ".rng")).write_bytes(b"torn")
    (junk / "foreign").write_bytes(b"somebody's")
    found = {header.key for header in scan_os(fs)}
    assert found == keys
    assert (junk / "foreign").exists()
    assert not (junk / ("0" * 30 + ".rng")).exists()
    assert {header.key for header in scan(str(tmp_path))} == keys
