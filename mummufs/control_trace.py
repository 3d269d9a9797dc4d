"""What the control socket offers to `mummufs trace`: `trace_start`, `trace_read` until nothing is left, `trace_stop`.

A block of the trace travels as it is recorded, in base64; it is the client that compresses it. One answer has one
block, which the daemon's one thread is kept busy by for less than a millisecond.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import asdict

from mummufs.backends.fuse.session import Session
from mummufs.config import MountConfig
from mummufs.control import Answer, Handler
from mummufs.core.errors import MummufsError
from mummufs.engine.service import Service
from mummufs.engine.tracing import Tracing


def trace_handlers(config: MountConfig, service: Service, session: Session) -> dict[str, Handler]:
    """The handlers of a mount, by the name of the request."""

    def tracing() -> Tracing:
        if service.cache is None:
            raise MummufsError("this mount has no store, so none of its reads is of a range: there is nothing to trace")
        return service.cache.tracing

    async def trace_start(asked: Mapping[str, object]) -> Answer:
        del asked
        recorder = tracing()
        _hear(session)  # what was read before does not belong to the trace
        return {"trace": recorder.start(), "started_ms": time.time_ns() // 10**6, "budget_bytes": config.store_bytes}

    async def trace_read(asked: Mapping[str, object]) -> Answer:
        recorder = tracing()
        _hear(session)
        block = recorder.take(_number(asked))
        return {"block": b64encode(block).decode("ascii"), **asdict(recorder.counters)}

    async def trace_stop(asked: Mapping[str, object]) -> Answer:
        tracing().stop(_number(asked))
        return {}

    return {"trace_start": trace_start, "trace_read": trace_read, "trace_stop": trace_stop}


def _hear(session: Session) -> None:
    """Have what the lane has served up to now in the counts, and in the trace."""
    if session.front is not None:
        session.front.report()


def _number(asked: Mapping[str, object]) -> int:
    number = asked.get("trace")
    return number if isinstance(number, int) else 0
