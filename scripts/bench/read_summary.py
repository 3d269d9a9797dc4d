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
    ours, theirs = [], []
    for name, row in results.rows.items():
        with_lane = results.rows.get(name.removeprefix(NO_LANE_PREFIX))
        if name.startswith(NO_LANE_PREFIX) and with_lane is not None:
            pair = [each.median(MOUNT, "cpu_s_per_gb") for each in (with_lane, row)]
            if pair[0] is not None and pair[1] is not None:
                ours.append(pair[0])
                theirs.append(pair[1])
    if not ours:
        return []
    # The mean of the rows' medians, so that a row counts the same however far it got.
    mine, other = statistics.mean(ours), statistics.mean(theirs)
    ratio = mine / other
    verdict = "ok" if ratio <= CPU_RATIO_MOST else "MISSED"
    what = f"Daemon CPU per GB served from hits, over the {len(ours)} rows measured both ways"
    figures = f"{mine:.3f} s with the lane, {other:.3f} s with pyfuse3 alone, {ratio:.2f} x"
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
