"""What the control socket offers to `mummufs profile`: heat page by page, the paths of files, and heat to be added."""

from __future__ import annotations

from collections.abc import Mapping

from mummufs.control import Answer, Handler
from mummufs.core.errors import MummufsError
from mummufs.engine.heatpages import HeatPages, known_paths
from mummufs.engine.service import Service


def profile_handlers(service: Service) -> dict[str, Handler]:
    """The handlers of a mount, by the name of the request."""
    pages = None if service.cache is None or service.heat is None else HeatPages(service.cache, service.heat)

    def heat() -> HeatPages:
        if pages is None:
            raise MummufsError("this mount has no store: it keeps no heat")
        return pages

    async def heat_page(asked: Mapping[str, object]) -> Answer:
        walk = asked.get("walk")
        number, ranges, more = await heat().page(walk if isinstance(walk, int) else None)
        rows = [[*r.key.file, r.key.offset, r.key.size, round(r.heat, 6)] for r in ranges]
        return {"walk": number, "ranges": rows, "more": more}

    async def heat_paths(asked: Mapping[str, object]) -> Answer:
        heat()
        paths = known_paths(service.overlay.nodes, asked.get("files"))
        return {"paths": [None if path is None else path.decode("utf-8", "surrogateescape") for path in paths]}

    async def heat_recall(asked: Mapping[str, object]) -> Answer:
        return {"ranges": await heat().recall(asked.get("ranges"))}

    return {"heat_page": heat_page, "heat_paths": heat_paths, "heat_recall": heat_recall}
