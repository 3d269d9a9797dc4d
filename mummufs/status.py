"""What a mount says of itself: the JSON of `mummufs status`. Its keys are a promise; new ones may be added."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mummufs import __version__
from mummufs.config import MountConfig
from mummufs.engine.heatkeeper import HeatKeeper
from mummufs.engine.scrub import Scrub
from mummufs.engine.service import Service
from mummufs.engine.tracing import Tracing
from mummufs.store.written import Purpose
from mummufs.storecontrol import placement_status

if TYPE_CHECKING:  # not on Windows
    from mummufs.backends.fuse.front import Front
    from mummufs.backends.fuse.operations import Operations
    from mummufs.backends.fuse.tuning import Tuned

SCHEMA = 1


def status(
    config: MountConfig,
    service: Service,
    operations: Operations,
    front: Front | None,
    tuned: Tuned,
    uptime_s: float,
) -> dict[str, Any]:
    """The status of a running mount: bytes, counts since it was mounted, and gauges."""
    from mummufs.backends.fuse.session import MAX_TASKS

    if front is not None:
        front.report()  # what the lane has served up to now is in the counters
    return {
        **common(config, service, uptime_s, operations.open_handles, len(operations.inodes)),
        "backend": {
            "lane": "off" if front is None else "on",
            "io": "direct" if config.direct else "cached",
            "protocol": None if front is None else _protocol(front),
            "max_background": tuned.max_background,
            "max_tasks": MAX_TASKS,
            "read_ahead_bytes": tuned.read_ahead_bytes,
        },
        "lane": None if front is None else _lane(front, operations),
    }


def common(config: MountConfig, service: Service, uptime_s: float, open_handles: int, inodes: int) -> dict[str, Any]:
    """What every backend's status has."""
    counters = service.counters
    return {
        "schema": SCHEMA,
        "version": __version__,
        "pid": os.getpid(),
        "uptime_s": round(uptime_s, 3),
        "options": _options(config, service),
        "mountpoint": os.fspath(config.mountpoint),
        "source": os.fspath(config.source),
        "state": _state(service),
        "store": _store(config, service),
        "reads": asdict(counters.reads),
        "fills": asdict(counters.fills),
        "evictions": asdict(counters.evictions),
        "wear": _wear(service),
        "heat": None if service.heat is None else _heat(service.heat),
        "source_reads": asdict(counters.source_reads),
        "source_writes": asdict(counters.source_writes),
        "prefetch": _prefetch(service),
        "errors": asdict(counters.errors),
        "trace": None if service.cache is None else _trace(service.cache.tracing),
        **placement_status(service.placement),
        "scrub": None if service.scrub is None else scrub_status(service.scrub),
        "gauges": _gauges(service, open_handles, inodes),
    }


def _protocol(front: Front) -> dict[str, Any] | None:
    negotiated = front.relay.negotiated
    return None if negotiated is None else asdict(negotiated)


def _lane(front: Front, operations: Operations) -> dict[str, Any]:
    """What the lane did, and what its limits hold now and have held at most."""
    lane, reads, relay, pusher = front.lane, front.reads, front.relay, front.pusher
    return {
        "servers": 0 if lane is None else len(lane.clones),
        "hits": 0 if lane is None else lane.hits,
        "hit_bytes": 0 if lane is None else lane.hit_bytes,
        "replaced": 0 if lane is None else lane.replaced,
        "stuck": 0 if lane is None else lane.stuck,
        "faults": 0 if lane is None else lane.faults,
        "reads_running": reads.running,
        "reads_running_max": reads.running_max,
        "reads_waiting": reads.waiting,
        "interrupted": reads.interrupted,
        "forwarded": relay.forwarded,
        "forward_waiting_max": relay.waiting_max,
        "lost_replies": relay.lost_replies,
        "passed_through": operations.modes.passed_through,
        "passthrough_refused": operations.modes.refused,
        "pushed_bytes": 0 if pusher is None else pusher.pushed_bytes,
        "push_wasted_bytes": 0 if pusher is None else pusher.wasted_bytes,
        "push_queued_bytes": 0 if pusher is None else pusher.queued_bytes,
        "push_queued_bytes_max": 0 if pusher is None else pusher.queued_bytes_max,
        "push_held": 0 if pusher is None else pusher.held,
        "push_dropped": 0 if pusher is None else pusher.dropped,
        "push_failed": 0 if pusher is None else pusher.failed,
    }


def _trace(tracing: Tracing) -> dict[str, Any]:
    """The recording that is under way, or the last one; all zero if there was none."""
    return {"on": tracing.on, **asdict(tracing.counters)}


def scrub_status(scrub: Scrub) -> dict[str, Any]:
    """How far a scrub is, or how the last one ended."""
    return asdict(scrub.progress)


def _options(config: MountConfig, service: Service) -> dict[str, Any]:
    return {
        "fsname": config.fsname,
        "read_only": config.read_only,
        "allow_other": config.allow_other,
        "source_reads": service.pools.source.threads,
        "attr_timeout_s": config.attr_timeout_s,
        "settle_s": config.settle_s,
        "policy": config.policy,
        "write_budget_bytes_per_day": config.write_budget_bytes or None,
        "source_timeout_s": config.source_timeout_s,
        "prefetch": "off" if service.cache is None or service.cache.prefetch is None else "order",
        "offline_reads": config.offline_reads,
        "verify": config.verify,
        "manifest": None if config.manifest is None else os.fspath(config.manifest),
    }


def _state(service: Service) -> str:
    if service.cache is None:
        return "pass-through"
    return service.cache.gate.state.value if service.scanned else "scanning"


def _store(config: MountConfig, service: Service) -> dict[str, Any]:
    if service.cache is None:
        return {"dir": None, "budget_bytes": 0, "used_bytes": 0, "ranges": 0, "filling": 0}
    index = service.cache.index.statistics()
    return {
        "dir": os.fspath(config.store_dir or ""),
        "budget_bytes": index.budget_bytes,
        "used_bytes": index.used_bytes + index.overhead_bytes,
        "ranges": index.resident,
        "filling": service.cache.filler.flights,
        "filling_bytes": index.filling_bytes,
        "evicting": index.evicting,
        "tables_bytes": service.cache.store.tables_bytes,
        "heat_bytes": service.cache.store.heat.bytes,
        "headroom_bytes": service.cache.index.headroom_bytes,
        "pinned": index.pinned,
        "pinned_bytes": index.pinned_bytes,
    }


def _wear(service: Service) -> dict[str, Any] | None:
    """What was written to the store, in all and by purpose, for what it has served; and what is left of the budget."""
    if service.cache is None or service.wear is None:
        return None
    written, served = service.cache.store.written, service.counters.reads.hit_bytes
    budget = service.wear.statistics()
    return {
        "written_bytes": written.total,
        **{f"{purpose.value}_bytes": written.of(purpose) for purpose in Purpose},
        "served_bytes": served,
        "written_per_served": round(written.total / served, 4) if served else None,
        "budget_left_bytes": None if budget is None else budget.left_bytes,
        "budget_heat_needed": None if budget is None else budget.heat_needed,
    }


def _prefetch(service: Service) -> dict[str, Any] | None:
    """What was fetched ahead of readers: fetched = used + wasted + unread. None where nothing is."""
    return None if service.cache is None or service.cache.prefetch is None else service.cache.prefetch.statistics()


def _heat(heat: HeatKeeper) -> dict[str, Any]:
    """What is remembered for the next mount, and what of the last one."""
    return {
        "loaded": heat.loaded,
        "recalled": heat.recalled,
        "saved_ranges": heat.records,
        "saves": heat.saves,
        "saves_failed": heat.failed,
        "saved_ago_s": heat.saved_ago_s,
    }


def _gauges(service: Service, open_handles: int, inodes: int) -> dict[str, Any]:
    """Every queue, buffer and pool: what it holds now, and where it is kept the most it has held."""
    gauges: dict[str, Any] = {
        "reads_in_flight": service.reader.reads_in_flight,
        "reads_in_flight_bytes": service.reader.bytes_in_flight,
        "open_handles": open_handles,
        "open_files": service.overlay.open_files,
        "directories_read": service.overlay.listings.streams,
        "writes_in_flight_bytes": service.mirror.bytes_in_flight,
        "writes_in_flight_bytes_max": service.mirror.bytes_in_flight_max,
        "files_written": service.writes.written,
        "files_settling": service.writes.settling,
        "nodes": len(service.overlay.nodes),
        "inodes": inodes,
        "tasks": service.tasks,
    }
    for name, pool in vars(service.pools).items():
        gauges[f"{name}_waiting"] = pool.waiting
        gauges[f"{name}_waiting_max"] = pool.waiting_max
        gauges[f"{name}_threads_busy"] = pool.busy
        gauges[f"{name}_late"] = pool.late
        gauges[f"{name}_no_thread"] = pool.no_thread
        gauges[f"{name}_stuck"] = pool.stuck
    if service.cache is not None and service.catalog is not None:
        filler = service.cache.filler
        gauges["fill_bytes_in_flight"] = filler.in_flight_bytes
        gauges["fill_bytes_in_flight_max"] = filler.in_flight_bytes_max
        gauges["source_reads_foreground"] = filler.schedule.foreground
        gauges["source_reads_background"] = filler.schedule.background
        gauges["source_reads_ordered_waiting"] = filler.schedule.waiting
        gauges["source_reads_ordered_waiting_max"] = filler.schedule.waiting_max
        if filler.hinter is not None:
            gauges["read_around_share_used"] = filler.hinter.share_used
            gauges["siblings_told"] = filler.hinter.siblings_told
            gauges["siblings_used"] = filler.hinter.siblings_used
            gauges["hints_under_way"] = filler.hinter.hinting
            gauges["hints_dropped"] = filler.hinter.dropped
        gauges["open_range_files"] = service.cache.resident.open_files
        gauges["evictions_queued"] = service.cache.evictor.queued
        gauges["heat_remembered"] = service.cache.index.statistics().ghosts
        gauges["packs"] = service.cache.index.statistics().packs
        gauges["parsing"] = service.catalog.parsing
        gauges["parsed"] = service.catalog.parsed
        gauges["manifests_refused"] = service.catalog.refused
    return gauges
