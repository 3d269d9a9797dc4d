"""The miss-ratio curve as a picture. matplotlib is an extra: everything but the picture works without it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mummufs.core.errors import MummufsError, UsageError
from mummufs.core.simulate import Result
from mummufs.units import format_size

SUFFIXES = (".png", ".svg")
COLOURS = ("#2166ac", "#d6604d", "#f4a582", "#999999")
SIZE_INCHES = (8.0, 5.0)
DPI = 144
HASH_SALT = "mummufs"
"""Makes the same figures give the same file."""


def require(paths: Sequence[Path]) -> None:
    """Check that pictures can be drawn at these places, before anything that takes long.

    Raises:
        UsageError: a name ends in neither .png nor .svg, or its directory is not there.
        MummufsError: matplotlib is missing.
    """
    for path in paths:
        if path.suffix.lower() not in SUFFIXES:
            raise UsageError(f"--plot: '{path}' must end in {' or '.join(SUFFIXES)}")
        if not path.parent.is_dir():
            raise UsageError(f"--plot: there is no directory '{path.parent}'")
        if path.is_dir():
            raise UsageError(f"--plot: '{path}' is a directory")
    if paths and importlib.util.find_spec("matplotlib") is None:
        raise MummufsError("--plot needs matplotlib: `pip install matplotlib`, or mummufs with its extra `plots`")


def draw(results: Sequence[Result], path: Path, token_bytes: int | None) -> None:
    """Draw the share of bytes missed over the budget, a line for each policy.

    Args:
        token_bytes: what one token reads, marked in the picture; None if nobody knows.

    Raises:
        OSError: the picture cannot be written.
    """
    matplotlib: Any = importlib.import_module("matplotlib")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    kind = path.suffix.lower().lstrip(".")
    pyplot.switch_backend("svg" if kind == "svg" else "agg")
    with matplotlib.rc_context({"svg.hashsalt": HASH_SALT, "font.size": 10, "svg.fonttype": "none"}):
        figure, axes = pyplot.subplots(figsize=SIZE_INCHES, layout="constrained")
        for number, policy in enumerate(dict.fromkeys(result.policy for result in results)):
            of_policy = sorted((r for r in results if r.policy == policy), key=lambda r: r.budget_bytes)
            axes.plot(
                [r.budget_bytes for r in of_policy],
                [100 * (1 - r.hit_ratio) for r in of_policy],
                label=policy,
                color=COLOURS[number % len(COLOURS)],
                marker="o",
                linestyle="-" if number < len(COLOURS) else "--",
            )
        budgets = sorted({result.budget_bytes for result in results})
        if token_bytes is not None:
            axes.axvline(token_bytes, color="#cccccc", linestyle=":", label="bytes of one token")
        axes.set_xscale("log", base=2)
        axes.set_xticks(budgets, [format_size(budget) for budget in budgets], rotation=30, ha="right")
        axes.set_xticks([], minor=True)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("budget")
        axes.set_ylabel("bytes missed, %")
        axes.set_title("Bytes that come from the source, by budget", loc="left")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        figure.savefig(path, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
        pyplot.close(figure)
