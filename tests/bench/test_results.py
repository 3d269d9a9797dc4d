"""Medians, ratios, and the tables and plots of docs/performance.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from scripts.bench import plots_bench
from scripts.bench.bench_mount import Use
from scripts.bench.peers_bench import faults
from scripts.bench.read_rows import HEADLINE, NO_LANE_ROWS, PEER_ROWS, QUICK_ROWS, ROWS
from scripts.bench.read_summary import summarise
from scripts.bench.results import NATIVE, Results, ratio_text

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "performance.md"


def results_of(bench: str, rows: dict[str, dict[str, list[float]]], **facts: Any) -> Results:
    """Results with these MB/s."""
    results = Results(bench, {"model_bytes": 1 << 30, "rounds": 1, **facts})
    for name, by_who in rows.items():
        for who, rates in by_who.items():
            for rate in rates:
                one = {"mb_s": rate, "s_per_token": 1 / rate, "cpu_s_per_gb": rate / 100}
                results.row(name, f"title of {name}", 0.5).add(who, one)
    return results


def test_a_ratio_is_that_of_the_medians() -> None:
    row = results_of("read", {"a": {NATIVE: [10, 1000, 20], "mount": [5, 30, 1]}}).rows["a"]
    assert row.median("mount") == 5
    assert row.ratio("mount") == pytest.approx(5 / 20)
    assert row.ratio("nobody") is None


def test_the_json_keeps_every_round(tmp_path: Path) -> None:
    path = tmp_path / "read.json"
    results_of("read", {"a": {NATIVE: [10, 20], "mount": [5, 6]}}).finish(path)
    row = json.loads(path.read_text())["rows"]["a"]
    assert [one["mb_s"] for one in row["rounds"]["mount"]] == [5, 6]
    assert row["ratio"] == {"mount": pytest.approx(5.5 / 15)}


def test_a_measurement_that_fails_is_noted_and_told_at_the_end(tmp_path: Path) -> None:
    results = Results("read", {})

    def fail() -> None:
        raise click.ClickException("no luck")

    with results.noting("a row"):
        fail()
    path = tmp_path / "read.json"
    with pytest.raises(click.ClickException, match="not everything"):
        results.finish(path)
    assert json.loads(path.read_text())["notes"] == ["a row: no luck"]


def test_a_note_is_kept_once() -> None:
    results = Results("read", {})
    results.note("twice")
    results.note("twice")
    assert results.notes == ["twice"]


@pytest.mark.parametrize(
    ("ratio", "wanted", "text"),
    [
        (0.5, 0.5, "0.500 ok"),
        (0.4999, 0.5, "0.500 MISSED"),
        (12.345, 5.0, "12.35 ok"),
        (None, 0.5, ""),
        (1.0, None, "1.00"),
    ],
)
def test_a_ratio_says_whether_it_is_enough(ratio: float | None, wanted: float | None, text: str) -> None:
    assert ratio_text(ratio, wanted) == text


def test_a_use_is_the_difference_of_two() -> None:
    before = Use(1.0, {"reads.hit_bytes": 5, "lane.hit_bytes": 1, "reads.misses": 3})
    use = Use(1.5, {"reads.hit_bytes": 7, "lane.hit_bytes": 9, "reads.misses": 3, "reads.miss_bytes": 4}).since(before)
    assert use == Use(0.5, {"reads.hit_bytes": 2, "lane.hit_bytes": 8, "reads.miss_bytes": 4})
    assert (use.lane_hit_bytes, use.slow_bytes, use.reached) == (8, 4, True)
    assert not Use(1.0, {}).reached


def test_rows_have_names_of_their_own() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))
    assert {row.name for row in (*QUICK_ROWS, *PEER_ROWS)} <= set(names)
    assert {row.name for row in NO_LANE_ROWS} == {f"no_lane_{row.name}" for row in HEADLINE if not row.hot}


def test_a_row_that_was_not_measured_is_left_out(tmp_path: Path) -> None:
    results = results_of(
        "read", {"a": {NATIVE: [1.0]}, "b": {"mount": [1.0]}, "no_lane_a": {NATIVE: [1.0]}}, summary=[]
    )
    assert summarise(results) == []
    table, _ = plots_bench.read_section(json.loads(json.dumps(results.as_json())))
    assert "title of" not in table
    table, _ = plots_bench.tokens_section(json.loads(json.dumps(results.as_json())))
    assert "title of" not in table


def test_the_summary_compares_processor_time() -> None:
    rates = {"a": 10.0, "no_lane_a": 40.0, "b": 26.0, "no_lane_b": 40.0}  # processor time goes with them here
    rows = {name: {NATIVE: [100.0], "mount": [rate]} for name, rate in rates.items()}
    cpu, cached = summarise(results_of("read", rows, cached_to_read=[1.2, 1.0, 1.3]))
    assert "in 2 rows: 0.45 x in the median, 0.65 x at worst (title of b) (at most 0.5: MISSED)" in cpu
    assert "1.20 x the bytes read (at most 1.1: MISSED)" in cached


def test_a_caching_peer_that_is_ahead_is_told() -> None:
    rows = {
        "hot_a": {NATIVE: [9.0], "mummufs": [1.0], "rclone": [2.0]},
        "a": {NATIVE: [9.0], "mummufs": [3.0], "rclone": [2.0], "mergerfs": [8.0]},
        "random_4k": {NATIVE: [9.0], "mummufs": [3.0], "rclone": [2.0], "juicefs": [1.0]},
    }
    assert faults(results_of("peers", rows)) == ["title of random_4k: 1.50 x rclone, wanted more than 2"]


def test_a_section_is_replaced_between_its_markers() -> None:
    text = "before\n<!-- begin read -->\nold\n<!-- end read -->\nafter\n"
    once = plots_bench.replace_section(text, "read", "new \\1")
    assert once == "before\n<!-- begin read -->\n\nnew \\1\n\n<!-- end read -->\nafter\n"
    assert plots_bench.replace_section(once, "read", "new \\1") == once
    with pytest.raises(click.ClickException, match="begin peers"):
        plots_bench.replace_section(text, "peers", "new")


def test_the_document_has_a_place_for_every_table() -> None:
    for name in plots_bench.SECTIONS:
        plots_bench.replace_section(DOCUMENT.read_text(), name, "")


def test_tables_and_plots_come_from_the_json(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    document = tmp_path / "performance.md"
    document.write_text(DOCUMENT.read_text())
    rates = {NATIVE: [1000.0], "mount": [400.0]}
    results_of("read", {"a": rates}, summary=["A sentence."]).finish(tmp_path / "read.json")
    by_peer = {NATIVE: [1000.0], "mummufs": [900.0], "rclone": [250.0]}
    about = {"rclone": {"version": "v9", "commands": ["rclone mount"], "proof": {"cache_bytes": 12345}}}
    results_of("peers", {"a": by_peer}, peers=about).finish(tmp_path / "peers.json")
    results_of("tokens", {"q_warm_pread": rates, "q_cold_pread": rates}).finish(tmp_path / "tokens.json")
    assert plots_bench.update(document, tmp_path) == ["read", "peers", "tokens"]
    text = document.read_text()
    assert "| title of a | 1,000 | 400 | 0.400 MISSED | 0.5 |" in text
    assert "A sentence." in text
    assert "| title of a | 1,000 | 0.900 | 0.250 |" in text
    assert "- rclone (v9): `rclone mount`; cache bytes: 12,345" in text
    assert "| title of q_warm_pread | 0.0010 | 0.0025 | 2.500 MISSED | 2 |" in text
    assert "| title of q_cold_pread | 0.0010 | 0.0025 | 0.40 x |" in text
    first = {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")}
    assert set(first) == {"read.svg", "peers.svg", "tokens.svg"}
    plots_bench.update(document, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")} == first
    assert document.read_text() == text
