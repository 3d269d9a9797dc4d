"""The control requests of a trace, on a service: what they answer, and what they refuse."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from mummufs.backends.fuse.session import Session
from mummufs.config import MountConfig
from mummufs.control import Handler
from mummufs.control_trace import trace_handlers
from mummufs.core.errors import MummufsError
from mummufs.core.trace import BlockReader
from mummufs.engine.service import Service, ServiceOptions
from mummufs.source.memory import MemorySource
from tests.engine.harness import FakeParser, contents, engine, make_table

SIZE = 64 << 10


class Lane:
    """Stands for a session with a lane; counts how often it was asked for what the lane has served."""

    def __init__(self) -> None:
        self.front = self
        self.reports = 0

    def report(self) -> None:
        self.reports += 1


def handlers(service: Service, lane: Lane | None = None) -> dict[str, Handler]:
    session = lane or SimpleNamespace(front=None)
    config = SimpleNamespace(store_bytes=77)
    return trace_handlers(cast(MountConfig, config), service, cast(Session, session))


async def test_a_trace_from_its_start_to_its_stop(tmp_path: Path) -> None:
    source = MemorySource({b"m.gguf": contents(2 * SIZE)})
    parser = FakeParser({b"m.gguf": make_table(2 * SIZE, [(0, SIZE), (SIZE, SIZE)])})
    async with engine(source, tmp_path, parser) as e:
        lane = Lane()
        asked = handlers(e.service, lane)
        handle = await e.open(b"m.gguf")
        started = await asked["trace_start"]({})
        assert started["budget_bytes"] == 77 and started["started_ms"] > 0
        await e.read(handle, 0, SIZE)
        ticket = {"trace": started["trace"]}
        answer = await asked["trace_read"](ticket)
        reads = BlockReader().read(b64decode(answer.pop("block")))
        assert (reads.windows, reads.sizes) == ([0], [SIZE])
        assert answer == {
            "reads": 1,
            "read_bytes": SIZE,
            "hit_bytes": 0,
            "dropped": 0,
            "blocks": 0,
            "blocks_max": 1,
        }
        assert (await asked["trace_read"](ticket))["block"] == ""
        assert lane.reports == 3  # before it began, and before each answer
        with pytest.raises(MummufsError, match="already"):
            await asked["trace_start"]({})
        for wrong in ({}, {"trace": started["trace"] + 1}, {"trace": "1"}):
            for op in ("trace_read", "trace_stop"):
                with pytest.raises(MummufsError, match="ended"):
                    await asked[op](wrong)
        assert await asked["trace_stop"](ticket) == {}
        assert not e.cache.tracing.on


async def test_a_mount_without_a_store_has_nothing_to_trace() -> None:
    asked = handlers(Service(MemorySource(), ServiceOptions(source_reads=1)))
    for op in ("trace_start", "trace_read", "trace_stop"):
        with pytest.raises(MummufsError, match="nothing to trace"):
            await asked[op]({"trace": 1})
