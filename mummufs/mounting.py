"""What a mount makes of its settings on every system: the engine's options, and the store's limits."""

from __future__ import annotations

from collections.abc import Callable

from mummufs.config import MountConfig
from mummufs.engine.service import ServiceOptions
from mummufs.store.rangestore import TABLES_BYTES_MAX

RESERVE_BYTES_MAX = 1 << 30
RESERVE_SHARE = 0.05
"""The store's file system keeps this share free, but no more than RESERVE_BYTES_MAX, unless an option says else."""
TABLES_SHARE = 8
"""One in so many bytes of the budget may go to range tables."""


def tables_bytes_max(config: MountConfig) -> int:
    """What the store may take for range tables."""
    return min(TABLES_BYTES_MAX, config.store_bytes // TABLES_SHARE)


def common_options(config: MountConfig, source_reads: int, store_total_bytes: Callable[[], int]) -> ServiceOptions:
    """The options that are the settings' own; a system adds what it knows better.

    Args:
        source_reads: reads of the source at once.
        store_total_bytes: asks for the size of the store's file system; only where there is a store.
    """
    reserve = config.store_reserve_bytes
    if reserve is None and config.store_dir is not None:
        reserve = int(min(RESERVE_BYTES_MAX, store_total_bytes() * RESERVE_SHARE))
    return ServiceOptions(
        source_reads=source_reads,
        budget_bytes=config.store_bytes if config.store_dir is not None else 0,
        reserve_bytes=reserve or 0,
        settle_s=config.settle_s,
        policy=config.policy,
        manifest=config.manifest,
        source_timeout_s=config.source_timeout_s,
        offline_reads=config.offline_reads,
        verify_always=config.verify == "always",
        write_budget_bytes=config.write_budget_bytes,
    )
