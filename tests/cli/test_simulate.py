"""`mummufs simulate` on traces that are written here: figures, sentences, pictures, and bad input."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mummufs import simulation
from mummufs.cli import cli
from mummufs.core.ranges import FileId, RangeKey
from mummufs.core.simulate import replay
from mummufs.engine.tracing import Tracing
from mummufs.simulation import NAMES_DEFAULT, default_budgets, load, room_of
from mummufs.store.layout import charge_of
from mummufs.tracefile import TraceHeader, TraceWriter

MIB = 1 << 20
GIB = 1 << 30
TOKEN = [0, 1, 2, 3]
"""The windows of one token, of 16 MiB each."""
Read = tuple[int, int, bool]


def called(*words: str | os.PathLike[str]) -> Result:
    return CliRunner().invoke(cli, [os.fspath(word) for word in words])


def sentence(result: Result) -> str:
    """The one line on stderr of a failure."""
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("mummufs: ") and result.stderr.count("\n") == 1
    return result.stderr.removeprefix("mummufs: ").strip()


def write(path: Path, reads: Sequence[Read], budget_bytes: int = GIB) -> Path:
    """A trace of reads (window, bytes, hit) of one model, through the recorder."""
    now_ns = 0
    tracing = Tracing(lambda _: (b"m/model.gguf", GIB), lambda: now_ns)
    ticket = tracing.start()
    writer = TraceWriter(path, TraceHeader(1_700_000_000_000, budget_bytes))
    for number, size, hit in reads:
        now_ns += 10**9  # so nothing is joined
        tracing.touched(RangeKey(FileId(1, 2), number * 16 * MIB, 16 * MIB), size, hit=hit)
        writer.append(tracing.take(ticket))
    writer.close()
    return path


def passes(*numbers: int, hit: bool = False) -> list[Read]:
    return [(number, 16 * MIB, hit) for number in numbers]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """Ten tokens, nine of which were hits when they were recorded."""
    return write(tmp_path / "trace", passes(*TOKEN) + passes(*TOKEN * 9, hit=True))


def results(done: Result) -> dict[str, Any]:
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_figures(tokens: Path) -> None:
    answer = results(
        called(
            "simulate",
            tokens,
            "--budget",
            "66M,1G",
            "--policy",
            "lru,belady",
            "--json",
            "--source-rate",
            "64M",
            "--source-seek",
            "50",
            "--store-rate",
            "576M",
        )
    )
    assert answer["trace"] == {
        "started_ms": 1_700_000_000_000,
        "duration_ms": 40_000,
        "budget_bytes": GIB,
        "reads": 40,
        "read_bytes": 640 * MIB,
        "hit_bytes": 576 * MIB,
        "distinct_bytes": 64 * MIB,
        "dropped": 0,
        "fault": None,
        "tokens": 10,
        "token_bytes": 64 * MIB,
    }
    assert answer["rates"] == {"source": 64 * MIB, "store": 576 * MIB, "seek_s": 0.05}
    assert [(r["policy"], r["budget_bytes"]) for r in answer["results"]] == [
        (policy, budget) for policy in ("lru", "belady") for budget in (66 * MIB, GIB)
    ]
    for result in answer["results"]:
        assert (result["requests"], result["hits"], result["hit_ratio"]) == (40, 36, 0.9)
        assert result["miss_bytes"] == result["written_bytes"] == 64 * MIB
        assert result["seeks"] == 1, "the windows lie side by side"
        assert result["token_s"] == pytest.approx(0.205)  # (1 s of misses + 50 ms + 1 s of hits) / 10 tokens


def test_a_loop_larger_than_the_budget_never_hits_with_lru_and_does_with_the_optimum(tokens: Path) -> None:
    answer = results(called("simulate", tokens, "--budget", "49M", "--policy", "lru,belady", "--json"))
    by_policy = {r["policy"]: r["hits"] for r in answer["results"]}
    assert by_policy["lru"] == 0
    assert by_policy["belady"] == 27  # three of four stay
    assert answer["notes"][1:] == [
        "49.0 MiB has less room than the 64.0 MiB that one token reads: some of every token comes from the source."
    ]


def test_figures_are_those_of_the_replay(tokens: Path) -> None:
    """The command counts as the core does, whatever steps it takes for its bar."""
    accesses = load(tokens, lambda _: None).accesses
    answer = results(called("simulate", tokens, "--json"))
    assert {r["policy"] for r in answer["results"]} == set(NAMES_DEFAULT)
    for result in answer["results"]:
        expected = replay(accesses, room_of(result["budget_bytes"]), result["policy"], charge=charge_of)
        assert (result["hits"], result["hit_bytes"]) == (expected.hits, expected.hit_bytes)
        assert result["written_bytes"] == expected.written_bytes


def test_people_get_a_table_and_sentences(tokens: Path) -> None:
    done = called("simulate", tokens, "--budget", "32M,64M,66M,128M", "--policy", "lru")
    assert done.exit_code == 0
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines == [
        "40 reads of 640.0 MiB in 40 s, 64.0 MiB of them distinct; about 10 tokens of 64.0 MiB",
        "policy budget hits missed written s/token",
        "lru 32.0 MiB 0.0 % 640.0 MiB 640.0 MiB 0.640",
        "lru 64.0 MiB 0.0 % 640.0 MiB 640.0 MiB 0.640",
        "lru 66.0 MiB 90.0 % 64.0 MiB 64.0 MiB 0.083",
        "lru 128.0 MiB 90.0 % 64.0 MiB 64.0 MiB 0.083",
        "When it was recorded, the mount had 1.0 GiB and hit 90 % of the bytes.",
        "32.0 MiB has less room than the 64.0 MiB that one token reads: some of every token comes from the source.",
        "64.0 MiB has less room than the 64.0 MiB that one token reads: some of every token comes from the source.",
        "32.0 -> 64.0 MiB brings nothing: hits stay at 0 %.",
        "64.0 -> 66.0 MiB lifts hits from 0 to 90 % (lru).",
        "66.0 -> 128.0 MiB brings nothing: hits stay at 90 %.",
    ]


def test_default_budgets_go_from_a_sixteenth_to_all(tokens: Path) -> None:
    answer = results(called("simulate", tokens, "--policy", "lru", "--json"))
    budgets = [r["budget_bytes"] for r in answer["results"]]
    assert [budgets[-1] // budget for budget in budgets] == [16, 8, 4, 2, 1]
    assert 64 * MIB < budgets[-1] < 66 * MIB
    assert answer["results"][-1]["hits"] == 36  # all of it has room
    assert default_budgets(1)[0] > 0
    assert default_budgets(1 << 40)[-1] == (1 << 40) + GIB + 4096


def test_the_warm_up_is_not_counted(tokens: Path) -> None:
    answer = results(called("simulate", tokens, "--policy", "lru", "--budget", "1G", "--warmup", "10", "--json"))
    (result,) = answer["results"]
    assert (result["requests"], result["hits"]) == (36, 36)
    assert answer["trace"]["tokens"] == 9


def test_grazes_and_parts(tmp_path: Path) -> None:
    """Less than half of a window does not fill it, unless it is read in several parts that add up to half."""
    trace = write(tmp_path / "t", [(0, MIB, False), (0, MIB, False), (1, 8 * MIB, False), (1, MIB, False)])
    assert [(a.size, a.fills) for a in load(trace, lambda _: None).accesses] == [
        *[(MIB, False)] * 2,
        (8 * MIB, True),
        (MIB, False),
    ]
    trace = write(tmp_path / "u", [(0, 3 * MIB, False)] * 6 + [(1, 16 * MIB, False), (1, 40 * MIB, True)])
    assert [(a.size, a.fills) for a in load(trace, lambda _: None).accesses] == [
        *[(3 * MIB, False), (3 * MIB, False), (3 * MIB, True)] * 2,
        (0, True),
        (40 * MIB, True),
    ]


def test_a_trace_that_is_cut_is_replayed_up_to_there(tokens: Path) -> None:
    data = tokens.read_bytes()
    tokens.write_bytes(data[:-7])
    answer = results(called("simulate", tokens, "--policy", "lru", "--json"))
    assert answer["trace"]["reads"] == 39
    assert answer["notes"][0] == "The trace is replayed up to where its last block is cut short."


def test_a_trace_that_is_too_long_is_cut(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "READS_MAX", 10)
    answer = results(called("simulate", tokens, "--policy", "lru", "--json"))
    assert answer["trace"]["reads"] == 10
    assert answer["trace"]["read_bytes"] == 160 * MIB
    assert answer["notes"][0] == "The trace is longer than 10 reads: the rest is left out."


def test_nothing_read_twice(tmp_path: Path) -> None:
    trace = write(tmp_path / "t", passes(0, 1))
    done = called("simulate", trace, "--policy", "lru", "--budget", "1G")
    assert done.exit_code == 0
    assert "Nothing was read twice, so nothing is known of tokens." in done.stdout
    assert done.stdout.splitlines()[2].split()[-1] == "-"


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is not a trace"),
        (b"\x89PNG" * 10, "is not a trace"),
        (b"MUMMUTRC\7\0\0\0" + bytes(20), "is a trace of version 7"),
        (b"MUMMUTRC\1\0\0\0", "is cut within its header"),
        (b"MUMMUTRC\1\0\0\0" + bytes(20), "header is damaged"),
    ],
)
def test_what_is_no_trace_is_said(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "t").write_bytes(data)
    done = called("simulate", tmp_path / "t")
    assert done.exit_code == 1
    assert why in sentence(done)


def test_an_empty_trace(tmp_path: Path) -> None:
    done = called("simulate", write(tmp_path / "t", []))
    assert done.exit_code == 1
    assert "has no reads: nothing was read meanwhile" in sentence(done)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--budget", "0"], "holds nothing"),
        (["--budget", "many"], "is not a size"),
        (["--budget", "1G,"], "is not a size"),
        (["--budget", ",".join(f"{n}M" for n in range(1, 300))], "more than 256"),
        (["--policy", "arc"], "is none of hotness, lru"),
        (["--source-rate", "0"], "nothing ever arrives"),
        (["--store-rate", "x"], "is not a size"),
        (["--plot", "curve.gif"], "must end in .png or .svg"),
        (["--plot", "/no/such/dir/curve.svg"], "there is no directory"),
    ],
)
def test_wrong_usage(tokens: Path, words: list[str], why: str) -> None:
    done = called("simulate", tokens, *words)
    assert done.exit_code == 2
    assert why in sentence(done)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    done = called("simulate", tmp_path / "absent")
    assert done.exit_code == 2
    assert "cannot be used" in sentence(done)


# ---------------------------------------------------------------------- the picture


def test_without_matplotlib_it_says_how_to_get_it(
    tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    done = called("simulate", tokens, "--plot", tmp_path / "c.svg")
    assert done.exit_code == 1
    assert "pip install" in sentence(done)
    assert not (tmp_path / "c.svg").exists()


def test_the_picture(tokens: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    svg, png, again = tmp_path / "c.svg", tmp_path / "c.PNG", tmp_path / "again.svg"
    done = called("simulate", tokens, "--budget", "32M,64M", "--plot", svg, "--plot", png, "--plot", again)
    assert done.exit_code == 0, done.output
    text = svg.read_text()
    for word in (*NAMES_DEFAULT, "32.0 MiB", "64.0 MiB", "bytes missed", "bytes of one token"):
        assert f">{word}" in text
    assert again.read_text() == text
    assert png.read_bytes().startswith(b"\x89PNG")
