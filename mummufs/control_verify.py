"""What a daemon offers to `mummufs verify`: `verify`, `verify_progress` until it has ended, `verify_stop`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mummufs.core.errors import MummufsError
from mummufs.engine.scrub import RATE_BYTES_PER_S, BackgroundScrub
from mummufs.status import scrub_status

if TYPE_CHECKING:  # there are no such sockets on Windows
    from mummufs.control import Answer, Handler


def verify_handlers(background: BackgroundScrub | None) -> dict[str, Handler]:
    """The handlers of a mount, by the name of the request.

    Args:
        background: what carries them out; None for a mount without a store.
    """

    async def verify(asked: Mapping[str, object]) -> Answer:
        if background is None:
            raise MummufsError("this mount has no store: there is nothing to verify")
        sample, rate = asked.get("sample"), asked.get("rate_bytes_per_s")
        background.start_nowait(
            against_source=bool(asked.get("against_source")),
            sample=sample if isinstance(sample, int) else None,
            resume=bool(asked.get("resume")),
            rate_bytes_per_s=float(rate) if isinstance(rate, int) and rate > 0 else RATE_BYTES_PER_S,
        )
        return {}

    async def verify_progress(asked: Mapping[str, object]) -> Answer:
        del asked
        return {} if background is None else scrub_status(background.scrub)

    async def verify_stop(asked: Mapping[str, object]) -> Answer:
        del asked
        if background is not None:
            background.stop()
        return {}

    return {"verify": verify, "verify_progress": verify_progress, "verify_stop": verify_stop}
