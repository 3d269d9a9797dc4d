"""Range files are deleted and damaged all the time, under readers: `python -m tests.hostile.damage`."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import click

from tests.hostile.support import LOG_LINES_A_MINUTE, fill, model
from tests.mounts.harness import Mounted, why_no_mounts
from tests.mounts.test_store_faults import Load, delete, empty, extend, flip, shorten
from tests.support.waiting import wait_for

FAULTS = (delete, empty, shorten, extend, flip)
PAUSE_S = 0.01
SPARE = 64
"""Descriptors that a mount under load may have more of than at its start."""


def damage(tree: Path, store: Path, *, seconds: float, seed: int) -> Counter[str]:
    """Do it for so long; what has happened meanwhile.

    Args:
        tree: an empty directory to be the source.
        store: where the store may be made.

    Raises:
        AssertionError: a byte was wrong, the log ran over, or something was left behind.
    """
    expected = model(tree, "a", "b")
    rng, damaged = random.Random(seed), 0
    with Mounted(tree, store=store) as m:
        stored = fill(m, expected)
        begun, descriptors = time.monotonic(), len(os.listdir(f"/proc/{m.pid}/fd"))
        with Load(m, expected) as load:
            while time.monotonic() < begun + seconds and not load.wrong:
                found = m.range_files()
                for path in rng.sample(found, min(3, len(found))):
                    with contextlib.suppress(OSError, IndexError):  # the mount was quicker, or it is damaged already
                        rng.choice(FAULTS)(path)
                        damaged += 1
                if rng.random() < 0.1:
                    for folder in (store / "ranges").glob("*"):
                        shutil.rmtree(folder, ignore_errors=True)
                threading.Event().wait(PAUSE_S)
        assert not load.wrong, load.wrong[:5]
        wait_for(lambda: fill(m, expected), lambda count: count == stored)
        status = m.settle()
        assert status["errors"]["handler"] == 0
        assert len(os.listdir(f"/proc/{m.pid}/fd")) <= descriptors + SPARE
        minutes = 1 + (time.monotonic() - begun) / 60
        assert len(m.log.read_text().splitlines()) <= LOG_LINES_A_MINUTE * minutes
    return Counter(damaged=damaged, passes=load.passes, fills=status["fills"]["completed"])


@click.command()
@click.option("--seconds", default=3600.0, show_default=True, help="How long.")
@click.option("--seed", default=0, show_default=True)
def main(seconds: float, seed: int) -> None:
    """Delete and damage range files under readers until the time is over."""
    reason = why_no_mounts()
    if reason is not None:
        raise click.ClickException(reason)
    with tempfile.TemporaryDirectory(prefix="damage-") as root:
        tree = Path(root) / "source"
        tree.mkdir()
        done = damage(tree, Path(root) / "store", seconds=seconds, seed=seed)
    click.echo("  ".join(f"{name}: {count}" for name, count in sorted(done.items())))


if __name__ == "__main__":
    main()
