"""chmod, rename and link change no contents: no range is lost, and no range file is written anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.mounts.harness import Mounted
from tests.mounts.test_versions import QUICK, SEEN_S, model
from tests.support.waiting import wait_for

FILLS_MAX = 8


def files(m: Mounted) -> dict[Path, tuple[int, int]]:
    """The inode and size of each range file: one that is written anew is a file of its own."""
    return {path: (path.stat().st_ino, path.stat().st_size) for path in m.range_files()}


def read_until_hits(m: Mounted, name: str, expected: bytes) -> None:
    """Read it, page cache dropped each time, until all but what lies in no range comes from the store."""
    for _ in range(FILLS_MAX):
        misses = m.status()["reads"]["misses"]
        assert m.read(name) == expected
        m.settle()
        m.drop_pages(name)
        if m.status()["reads"]["misses"] == misses:
            return
    pytest.fail("it is still not served from the store")


@pytest.mark.mount
@pytest.mark.parametrize("how", ["mounted", "unmounted"])
@pytest.mark.parametrize("change", ["chmod", "rename", "link"])
def test_what_changes_no_contents_loses_no_range(tree: Path, store: Path, change: str, how: str) -> None:
    data, name = model(tree / "f.gguf", 1), "f.gguf"
    with Mounted(tree, store=store, options=QUICK) as m:
        read_until_hits(m, name, data)
        before = files(m)
        assert len(before) > 5
        if how == "unmounted":
            m.umount()
        match change:
            case "chmod":
                (tree / name).chmod(0o600)
            case "rename":
                (tree / name).rename(tree / "g.gguf")
                name = "g.gguf"
            case "link":
                os.link(tree / name, tree / "linked")
        if how == "unmounted":
            m.mount()
        wait_for(m.path(name).exists, bool, SEEN_S)
        changed_ns = (tree / name).stat().st_ctime_ns
        wait_for(m.path(name).stat, lambda seen: seen.st_ctime_ns == changed_ns, SEEN_S)
        assert m.settle()["store"]["ranges"] == len(before), "they are not believed, and not lost"
        fills = m.status()["fills"]
        read_until_hits(m, name, data)
        status = m.settle()
        assert status["fills"]["restamped"] - fills["restamped"] == len(before)
        assert status["fills"]["completed"] == fills["completed"]
        assert status["evictions"]["ranges"] == 0
        assert files(m) == before
        m.remount()
        read_until_hits(m, name, data)
        assert m.status()["fills"]["restamped"] == 0, "it is kept"
        assert files(m) == before
