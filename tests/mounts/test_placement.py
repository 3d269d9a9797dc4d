"""warm, pin, evict and residency on a real mount: from the command line to the bytes that the store serves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mummufs.commands.located import looked
from mummufs.core.errors import MummufsError
from tests.faultfs.client import FaultFs
from tests.hostile.support import RANGES, model, read_all
from tests.mounts.harness import Mounted, run
from tests.support.waiting import wait_for

SMALL = "3M"
"""Room for 14 of the ranges, 13 of them pinned."""


@pytest.mark.mount
def test_what_is_warmed_is_read_from_the_store(tree: Path, store: Path) -> None:
    (tree / "a folder").mkdir()
    expected = model(tree, "a folder/x", "b")
    (tree / "notes").write_text("nothing to see")
    with FaultFs(tree) as under, Mounted(under.mountpoint, store=store) as m:
        done = run("warm", m.path("*"))
        assert f"are in the store: {2 * RANGES} of {2 * RANGES} ranges" in done.stdout
        assert "3 of 5 files have no range that is asked for" in done.stdout
        assert m.status()["gauges"]["nodes"] == 1, "nothing is left of the search"
        under.reads(clear=True)
        read_all(m, expected)
        assert m.status()["reads"]["miss_bytes"] == 0
        assert sum(read.size for read in under.reads()) < 1 << 20, "but for what lies between the ranges"
        assert m.status()["warm"]["state"] == "ended"


@pytest.mark.mount
def test_pins_hold_under_pressure_and_in_the_next_mount(tree: Path, store: Path) -> None:
    expected = model(tree, "a", "b")
    with Mounted(tree, store=store, store_size=SMALL) as m:
        assert looked(m.mountpoint, "pin", paths=["a"])[0]["ranges"] == RANGES
        wait_for(m.status, lambda s: s["store"]["ranges"] == RANGES)
        with pytest.raises(MummufsError, match=r"more cannot be pinned: .* 90% of the budget"):
            looked(m.mountpoint, "pin", paths=["b"])
        m.remount()
        for _ in range(2):
            read_all(m, {"b": expected["b"]})
            m.settle()
        before = m.status()["reads"]["miss_bytes"]
        read_all(m, {"a": expected["a"]})
        assert m.settle()["reads"]["miss_bytes"] == before
        assert looked(m.mountpoint, "evict", paths=["a"])[0]["pinned_ranges"] == RANGES
        looked(m.mountpoint, "unpin", paths=["?"])
        assert looked(m.mountpoint, "evict", paths=["a"])[0]["evicted_ranges"] == RANGES
        read_all(m, expected)


@pytest.mark.mount
def test_residency_of_a_folder_and_a_warm_in_the_background(tree: Path, store: Path) -> None:
    (tree / "d").mkdir()
    model(tree, "d/a", "b")
    with Mounted(tree, store=store) as m:
        run("warm", m.path("d/a"), "--background")
        wait_for(m.status, lambda s: s["warm"]["state"] == "ended")
        found = json.loads(run("residency", m.mountpoint, "--json").stdout)
        assert (found["files"], found["files_without_ranges"]) == (4, 2)
        resident = {one["model"]: one["dense_resident_bytes"] for one in found["models"]}
        assert resident == {"/": 0, "d/": found["dense_resident_bytes"]}
        assert found["dense_resident_bytes"] > 0
