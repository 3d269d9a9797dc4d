"""The plots: ratios to native as bars, one picture for each table, from the JSON that a benchmark wrote."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

COLOURS = ("#2166ac", "#d6604d", "#f4a582", "#999999", "#cccccc")
BAR_INCHES = 0.22
WIDTH_INCHES = 9.0
ROOM_INCHES = 1.3
"""For the title, the axis and the legend."""

HASH_SALT = "mummufs"
"""Makes the same figures give the same file."""


@dataclass
class Bars:
    """One plot. `values[who][i]` belongs to `labels[i]`; None leaves a gap. `wanted[i]` is drawn as a tick."""

    title: str
    axis: str
    labels: list[str] = field(default_factory=list)
    values: dict[str, list[float | None]] = field(default_factory=dict)
    wanted: list[float | None] = field(default_factory=list)

    def add(self, label: str, values: dict[str, float | None], wanted: float | None) -> None:
        """One more group of bars, `values` by who."""
        for who in values:
            self.values.setdefault(who, [None] * len(self.labels))
        self.labels.append(label)
        self.wanted.append(wanted)
        for who, of_who in self.values.items():
            of_who.append(values.get(who))


def draw(bars: Bars, path: Path) -> None:
    """Write an SVG. Raises ClickException where matplotlib is not installed."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
        pyplot: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        raise click.ClickException("plots need matplotlib: pip install '.[bench]'") from None
    pyplot.switch_backend("svg")
    count = max(1, len(bars.values))
    height = len(bars.labels) * (count + 0.6) * BAR_INCHES + ROOM_INCHES
    with matplotlib.rc_context({"svg.hashsalt": HASH_SALT, "font.size": 9, "svg.fonttype": "none"}):
        figure, axes = pyplot.subplots(figsize=(WIDTH_INCHES, height), layout="constrained")
        _draw_bars(axes, bars, 1 / (count + 0.6))
        axes.set_title(bars.title, loc="left")
        axes.set_xlabel(bars.axis)
        figure.legend(loc="outside lower right", ncols=6, frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})
        pyplot.close(figure)


def _draw_bars(axes: Any, bars: Bars, thickness: float) -> None:
    places = range(len(bars.labels))
    for number, (who, values) in enumerate(bars.values.items()):
        shift = (number - (len(bars.values) - 1) / 2) * thickness
        points = [(place + shift, value) for place, value in zip(places, values, strict=True) if value is not None]
        where, lengths = [at for at, _ in points], [value for _, value in points]
        drawn = axes.barh(where, lengths, thickness, label=who, color=COLOURS[number % len(COLOURS)])
        axes.bar_label(drawn, labels=[f"{value:.2f}" for value in lengths], padding=2, fontsize=7)
    ticks = [(place, least) for place, least in zip(places, bars.wanted, strict=True) if least is not None]
    for number, (place, least) in enumerate(ticks):
        label = "wanted" if number == 0 else None
        axes.plot([least, least], [place - 0.42, place + 0.42], color="black", linewidth=1.5, label=label)
    axes.axvline(1.0, color="#666666", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.set_yticks(list(places), bars.labels)
    axes.invert_yaxis()
    _plain_ticks(axes, [value for values in bars.values.values() for value in values if value is not None])


def _plain_ticks(axes: Any, values: Sequence[float]) -> None:
    """Numbers such as 0.5 and 2 on the logarithmic axis, as far as it goes."""
    marks = [mark * 10**power for power in range(-3, 3) for mark in (1, 2, 5)]
    low, high = min(values, default=1.0), max(values, default=1.0)
    shown = [mark for mark in marks if low / 2.5 <= mark <= high * 2.5]
    axes.set_xticks(shown, [f"{mark:g}" for mark in shown])
    axes.minorticks_off()
