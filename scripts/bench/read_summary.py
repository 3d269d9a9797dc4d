"""What the read benchmark says beside its table: processor time with and without the fast lane, and memory held."""

from __future__ import annotations

import statistics

from scripts.bench.read_rows import NO_LANE_PREFIX
from scripts.bench.results import Results

MOUNT = "mount"
CPU_RATIO_MOST = 0.5
CACHED_MOST = 1.1


def summarise(results: Results) -> list[str]:
    """Sentences."""
    return [*_cpu(results), *_cached(results)]


def _cpu(results: Results) -> list[str]:
    ratios = {}
    for name, row in results.rows.items():
        with_lane = results.rows.get(name.removeprefix(NO_LANE_PREFIX))
        if name.startswith(NO_LANE_PREFIX) and with_lane is not None:
            ours, theirs = (each.median(MOUNT, "cpu_s_per_gb") for each in (with_lane, row))
            if ours is not None and theirs:
                ratios[with_lane.title] = ours / theirs
    if not ratios:
        return []
    worst = max(ratios, key=lambda title: ratios[title])
    verdict = "ok" if ratios[worst] <= CPU_RATIO_MOST else "MISSED"
    what = f"Daemon CPU per GB served from hits, with the lane over pyfuse3 alone, in {len(ratios)} rows"
    figures = f"{statistics.median(ratios.values()):.2f} x in the median, {ratios[worst]:.2f} x at worst ({worst})"
    return [f"{what}: {figures} (at most {CPU_RATIO_MOST:g}: {verdict})."]


def _cached(results: Results) -> list[str]:
    shares = results.facts.get("cached_to_read")
    if not shares:
        return []
    share = statistics.median(shares)
    verdict = "ok" if share <= CACHED_MOST else "MISSED"
    return [
        f"A full warm pass grew the page cache by {share:.2f} x the bytes read (at most {CACHED_MOST:g}: {verdict})."
    ]
