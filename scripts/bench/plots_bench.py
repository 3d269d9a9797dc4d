"""Puts the benchmarks' figures into the documents: their tables and plots are made from docs/plots/*.json.

    scripts/bench/read   --json docs/plots/read.json
    scripts/bench/peers  --json docs/plots/peers.json
    scripts/bench/tokens --json docs/plots/tokens.json
    scripts/bench/tokens --policies --json docs/plots/policies.json
    scripts/bench/policy --json docs/plots/policy.json
    scripts/bench/plots

The policy's are in docs/policy.md, the others in docs/performance.md, and the policies' in both. A table is written
between `<!-- begin NAME -->` and `<!-- end NAME -->`. What has no JSON is left as it is.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from scripts.bench import tokens_policies
from scripts.bench.figures import Bars, draw
from scripts.bench.launch import REPOSITORY
from scripts.bench.policy_section import policy_section
from scripts.bench.results import NATIVE, RowResult, markdown, number, ratio_text, share_text

MOUNT = "mount"
DOCUMENT = REPOSITORY / "docs" / "performance.md"
POLICY_DOCUMENT = REPOSITORY / "docs" / "policy.md"
PLOTS = REPOSITORY / "docs" / "plots"
TO_NATIVE = "times native (logarithmic)"

Figures = dict[str, Any]


def about(figures: Figures) -> str:
    """On what, and how often, it was measured."""
    machine = figures["machine"]
    return (
        f"{machine['cpus']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB of memory, kernel {machine['kernel']};"
        f" model of {figures['model_bytes'] >> 20} MiB, medians of {figures['rounds']} rounds."
    )


def notes(figures: Figures) -> str:
    """What the run had to say."""
    return "".join(f"\n- {note}" for note in figures["notes"])


def shown(command: str) -> str:
    """A command line without the run's own directories."""
    return re.sub(r"\S*/bin/(\w+) ", r"\1 ", re.sub(r"/\S*?/mummufs-bench-\w+", "$WORK", command))


def read_section(figures: Figures) -> tuple[str, Bars]:
    """The table of the read benchmark, and its plot."""
    bars = Bars("Reads through the mount, over the same on the NVMe's own file system", TO_NATIVE)
    rows = []
    for row in figures["rows"].values():
        ratio, rates = row["ratio"].get(MOUNT), row["median_mb_s"]
        if ratio is None:
            continue
        lane = share_text(_median(row, "lane_share"), _median(row, "pushed_share"))
        cells = [number(rates[NATIVE]), number(rates[MOUNT]), ratio_text(ratio, row["wanted"])]
        wanted = "" if row["wanted"] is None else f"{row['wanted']:g}"
        cpu = number(_median(row, "cpu_s_per_gb"), 3)
        rows.append([row["title"], *cells, wanted, lane, cpu])
        bars.add(row["title"], {MOUNT: ratio}, row["wanted"])
    columns = ("work", "native MB/s", "mount MB/s", "mount/native", "at least", "lane share", "daemon CPU s/GB")
    text = [about(figures), "", markdown(columns, rows)]
    text += [f"\n{sentence}" for sentence in figures.get("summary", ())]
    return "\n".join(text) + notes(figures), bars


def peers_section(figures: Figures) -> tuple[str, Bars]:
    """The table of the peers, and its plot."""
    bars = Bars("The peers, warm, over the NVMe's own file system", TO_NATIVE)
    everybody = list(dict.fromkeys(who for row in figures["rows"].values() for who in row["ratio"]))
    rows = []
    for row in figures["rows"].values():
        ratios = {who: row["ratio"].get(who) for who in everybody}
        if NATIVE not in row["median_mb_s"]:
            continue
        rows.append([row["title"], number(row["median_mb_s"][NATIVE]), *map(ratio_text, ratios.values())])
        bars.add(row["title"], ratios, None)
    text = [about(figures), "", markdown(("work", "native MB/s", *everybody), rows), ""]
    for name, peer in figures["peers"].items():
        version = f" ({peer['version']})" if "version" in peer else ""
        proof = "".join(f"; {key.replace('_', ' ')}: {value:,}" for key, value in peer.get("proof", {}).items())
        text.append(f"- {name}{version}: `{shown(peer['commands'][-1])}`{proof}")
    return "\n".join(text) + notes(figures), bars


def tokens_section(figures: Figures) -> tuple[str, Bars]:
    """The tables of tokens, and the plot: the plain copy's time over ours, and the slow volume's."""
    bars = Bars("Tokens: speed over the plain copy (warm), over the slow volume (cold)", "times as fast (logarithmic)")
    warm, cold = [], []
    for name, row in figures["rows"].items():
        ratio = row["ratio"].get(MOUNT)
        if ratio is None:
            continue
        seconds = [number(_median(row, "s_per_token", who), 4) for who in (NATIVE, MOUNT)]
        bars.add(row["title"], {MOUNT: ratio}, row["wanted"])
        if "_warm_" in name:
            most = "" if row["wanted"] is None else f"{1 / row['wanted']:.3g}"
            verdict = "" if row["wanted"] is None else " ok" if ratio >= row["wanted"] else " MISSED"
            warm.append([row["title"], *seconds, f"{1 / ratio:.3f}{verdict}", most])
        else:
            cold.append([row["title"], *seconds, f"{ratio:.2f} x"])
    text = [about(figures), ""]
    text += [markdown(("warm", "copy s/token", "mount s/token", "mount/copy", "at most"), warm), ""]
    text += [markdown(("cold", "slow volume s/token", "mount s/token", "faster by"), cold)]
    return "\n".join(text) + notes(figures), bars


def policies_section(figures: Figures) -> tuple[str, Bars]:
    """The table of policies on a real mount, and the plot: seconds per token over LRU's."""
    bars = Bars("Seconds per token over LRU's, on a mount whose store has a share of the model", "times LRU's seconds")
    rounds = set[int]()
    for row in figures["rows"].values():
        rounds.update(map(len, row["rounds"].values()))
        seconds = tokens_policies.seconds_of(RowResult(row["title"], None, row["rounds"]))
        least = seconds.pop(tokens_policies.REFERENCE, None)
        if least is not None:
            bars.add(row["title"], {policy: one / least for policy, one in seconds.items()}, None)
    machine, timed = figures["machine"], f"{figures['tokens']} steps timed after the warm-up"
    of = f"models of {figures['model_bytes'] >> 20} MiB, a store of {figures['budget_share']:.0%} of each"
    how = f"medians of {' or '.join(map(str, sorted(rounds)))} rounds"
    text = [
        f"{machine['cpus']} cores, kernel {machine['kernel']}; {of}; {timed}; {how}.",
        "",
        markdown(tokens_policies.COLUMNS, tokens_policies.rows(figures)),
        *(f"\n{sentence}" for sentence in tokens_policies.verdicts(figures)),
    ]
    return "\n".join(text) + notes(figures), bars


Section = Callable[[Figures], tuple[str, Bars]]

SECTIONS: dict[str, Section] = {"read": read_section, "peers": peers_section, "tokens": tokens_section}
SECTIONS |= {tokens_policies.BENCH: policies_section}
POLICY_SECTIONS: dict[str, Section] = {"policy": policy_section, tokens_policies.BENCH: policies_section}


def replace_section(document: str, name: str, text: str) -> str:
    """The document with what is between the markers of `name` replaced. Raises ClickException if they are missing."""
    pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    if not pattern.search(document):
        raise click.ClickException(f"the document has no '<!-- begin {name} -->' and '<!-- end {name} -->'")
    return pattern.sub(lambda match: f"{match[1]}\n{text}\n\n{match[2]}", document)


def update(document: Path, plots: Path, sections: Mapping[str, Section] = SECTIONS) -> list[str]:
    """Write the tables and plots of every JSON there is; the names of those."""
    done = []
    text = document.read_text()
    for name, section in sections.items():
        source = plots / f"{name}.json"
        if source.exists():
            table, bars = section(json.loads(source.read_text()))
            draw(bars, plots / f"{name}.svg")
            picture = f"![{bars.title}](plots/{name}.svg)"
            text = replace_section(text, name, f"{table}\n\n{picture}")
            done.append(name)
    document.write_text(text)
    return done


def _median(row: dict[str, Any], key: str, who: str = MOUNT) -> float | None:
    values = [one[key] for one in row["rounds"].get(who, ()) if one.get(key) is not None]
    return statistics.median(values) if values else None


@click.command(help=__doc__)
@click.option("--document", type=click.Path(path_type=Path, exists=True, dir_okay=False), default=DOCUMENT)
@click.option(
    "--policy-document", type=click.Path(path_type=Path, exists=True, dir_okay=False), default=POLICY_DOCUMENT
)
@click.option("--plots", type=click.Path(path_type=Path, exists=True, file_okay=False), default=PLOTS)
def main(document: Path, policy_document: Path, plots: Path) -> None:
    """The command line."""
    done = {document: update(document, plots), policy_document: update(policy_document, plots, POLICY_SECTIONS)}
    if not any(done.values()):
        names = (f"{name}.json" for name in (*SECTIONS, *POLICY_SECTIONS))
        raise click.ClickException(f"{plots} has none of {', '.join(names)}")
    for path, names_done in done.items():
        click.echo(f"{path}: {', '.join(names_done) or 'nothing new'}")
