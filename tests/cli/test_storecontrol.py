"""The control requests about the store, on an engine: what they answer, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mummufs import storecontrol
from mummufs.core.errors import MummufsError
from mummufs.engine.pins import TooMuchPinnedError
from mummufs.storecontrol import handlers, placement_status, sentence
from tests.engine.harness import Engine, engine
from tests.engine.test_pins import warmed
from tests.engine.test_warm import COUNT, DATA, WINDOW, budget_of, model, placement


async def ask(e: Engine | None, op: str, **asked: Any) -> dict[str, Any]:
    """An answer, as it goes over the socket."""
    ops = handlers(None if e is None else placement(e))
    return dict(json.loads(json.dumps(await ops[op](json.loads(json.dumps(asked))))))


async def looked(e: Engine, op: str, **asked: Any) -> dict[str, Any]:
    """What the job of a request has found, once a warm that it has begun has ended too."""
    job = (await ask(e, op, **asked))["job"]
    await placement(e).looks.get(job).ended.wait()
    await warmed(e)
    return await ask(e, "look", job=job)


async def test_without_a_store_everything_is_refused() -> None:
    for op in handlers(None):
        with pytest.raises(MummufsError, match="this mount has no store"):
            await ask(None, op, paths=["x"], path="x", windows=[], job=1)
    assert placement_status(None) == {"warm": None, "pins": None}


async def test_a_warm_from_its_start_to_its_end(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        assert placement_status(placement(e))["warm"]["state"] == "none"
        source.hold_reads()
        assert await ask(e, "warm", paths=["model"]) == {"job": 1, "ahead": 0}
        await e.wait_until(lambda: bool(source.reads))
        assert await ask(e, "warm", paths=["absent"], ranges="blk.*") == {"job": 2, "ahead": 0}
        found = await ask(e, "warm_progress", job=1)
        assert (found["state"], found["counted"], found["asked_bytes"], found["resident_bytes"]) == (
            "running",
            True,
            len(DATA),
            0,
        )
        source.release_reads()
        await warmed(e)
        found = await ask(e, "warm_progress", job=1)
        assert (found["state"], found["failure"], found["filled_ranges"]) == ("ended", None, COUNT)
        assert (await ask(e, "warm_progress", job=2))["failure"] == "there is no file or folder 'absent' in the mount"
        status = placement_status(placement(e))["warm"]
        assert (status["job"], status["started"], status["waiting"], status["refused"]) == (2, 2, 0, 0)


async def test_a_warm_of_single_windows(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser, budget_bytes=budget_of(10)) as e:
        ops = handlers(placement(e))
        draft = await ops["warm_windows"]({"path": "", "windows": []})
        assert 0 < draft["room_bytes"] <= budget_of(10)
        for at in (3, 5):
            await ops["warm_windows"]({"draft": draft["draft"], "path": "model", "windows": [at * WINDOW, WINDOW]})
        await ops["warm"]({"draft": draft["draft"]})
        await warmed(e)
        assert (await ops["warm_progress"]({"job": 1}))["filled_ranges"] == 2
        with pytest.raises(MummufsError, match="the list of windows to warm is gone"):
            await ops["warm"]({"draft": draft["draft"]})
        drafts = [(await ops["warm_windows"]({"path": "m", "windows": [1, 2]}))["draft"] for _ in range(5)]
        with pytest.raises(MummufsError, match="is gone"):
            await ops["warm"]({"draft": drafts[0]})


async def test_a_warm_is_stopped(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        source.hold_reads()
        for _ in range(2):
            await ask(e, "warm", paths=["model"])
        await e.wait_until(lambda: bool(source.reads))
        assert await ask(e, "warm_stop") == {}
        source.release_reads()
        await warmed(e)
        assert [(await ask(e, "warm_progress", job=job))["stopped"] for job in (1, 2)] == [True, True]


async def test_pins_are_made_listed_and_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, parser = model(b"model", b"b/\xff")
    async with engine(source, tmp_path, parser) as e:
        monkeypatch.setattr(storecontrol, "ROWS_MAX", 1)
        answer = await looked(e, "pin", paths=["model", "b"], ranges="blk.0.*")
        assert (answer["state"], answer["failure"], answer["found"]["files"], answer["found"]["ranges"]) == (
            "ended",
            None,
            2,
            4,
        )
        page = await ask(e, "pins")
        assert (page["pins"][0]["path"], page["next"]) == ("b/\udcff", 1)
        last = (await ask(e, "pins", **{"from": 1}))["pins"][0]
        assert (last["path"], last["ranges"], last["file_ranges"], last["found"]) == ("model", "blk.0.*", 2, True)
        assert placement_status(placement(e))["pins"]["files"] == 2
        answer = await looked(e, "evict", paths=["model"])
        assert (answer["found"]["pinned_ranges"], answer["found"]["evicted_ranges"]) == (2, 0)
        answer = await looked(e, "unpin", paths=["b/\udcff"])
        assert answer["found"]["ranges"] == 2
        answer = await looked(e, "unpin", paths=["model"], ranges="*")
        assert "no such pin" in answer["failure"]


async def test_residency_comes_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        monkeypatch.setattr(storecontrol, "ROWS_MAX", COUNT // 2 - 1)
        answer = await looked(e, "residency", paths=[""])
        assert (len(answer["found"]["layers"]), answer["next"]) == (COUNT // 2 - 1, COUNT // 2 - 1)
        rest = await ask(e, "look", job=1, **{"from": answer["next"]})
        assert ([row["layer"] for row in rest["found"]["layers"]], rest["next"]) == ([str(COUNT // 2 - 1)], None)


async def test_a_look_is_stopped(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        job = (await ask(e, "residency", paths=["model"]))["job"]
        await ask(e, "look_stop", job=job)
        await placement(e).looks.get(job).ended.wait()
        assert (await ask(e, "look", job=job))["stopped"]


BAD_PATHS: list[object] = [
    None,
    "model",
    [],
    [5],
    ["/model"],
    ["a//b"],
    ["a/../b"],
    ["."],
    ["a\0"],
    ["\ud800"],
    ["x" * 5000],
    ["x"] * 257,
]


@pytest.mark.parametrize("paths", BAD_PATHS, ids=str)
async def test_paths_that_are_none(tmp_path: Path, paths: object) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        for op in ("warm", "pin", "unpin", "evict", "residency"):
            with pytest.raises(MummufsError, match="this request takes"):
                await ask(e, op, paths=paths)


async def test_other_values_that_are_none(tmp_path: Path) -> None:
    source, parser = model()
    async with engine(source, tmp_path, parser) as e:
        wrong: list[tuple[str, dict[str, Any]]] = [
            ("warm", {"paths": ["model"], "ranges": ""}),
            ("warm", {"paths": ["model"], "ranges": 5}),
            ("pin", {"paths": ["model"], "ranges": "x" * 513}),
            ("warm", {"draft": "x"}),
            ("warm_windows", {"path": "m"}),
            ("warm_windows", {"path": "m", "windows": [1]}),
            ("warm_windows", {"path": "m", "windows": [1, -2]}),
            ("warm_windows", {"path": "m", "windows": [1, 1 << 64]}),
            ("warm_windows", {"path": "m", "windows": ["x", 2]}),
            ("warm_windows", {"path": "../m", "windows": [1, 2]}),
            ("warm_windows", {"path": "m", "windows": [1] * 8194}),
            ("warm_progress", {}),
            ("warm_progress", {"job": 7}),
            ("warm_progress", {"job": "x"}),
            ("warm_stop", {"job": 7}),
            ("look", {"job": 7}),
            ("look_stop", {}),
            ("pins", {"from": -1}),
        ]
        for op, asked in wrong:
            with pytest.raises(MummufsError):
                await ask(e, op, **asked)


def test_sentences() -> None:
    assert sentence(TooMuchPinnedError(12 << 30, 50 << 30, 57 << 30)) == (
        "50.0 GiB more cannot be pinned: 12.0 GiB are pinned, and no more than 57.0 GiB may be, 90% of the budget;"
        " pin less, unpin something, or mount with a larger store"
    )
    assert sentence(OSError(5, "Input/output error")) == "the source cannot be read: Input/output error"
    assert sentence(MummufsError("as it is")) == "as it is"
