"""Runs tests in two stages: in several processes those that meet nobody, then one by one those marked `alone`.

    python -m tests.stages MARKS [PYTEST ARGUMENT...]      as `pytest -m MARKS`

Each process of the first stage has a mount namespace of its own (`conftest`). What only the machine has, such as the
kernel's caches, is shared all the same: a test that drops them, or that measures time closely, is for the second stage.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

PROCESSES = 2
"""Most of a test is waiting for processes that it starts, and these take the cores."""


def run(marks: str, arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> bool:
    """Run both stages. Whether all went well, which takes that there was something to run.

    Args:
        marks: as for pytest's `-m`.
        environ: the environment of the tests.
    """
    stages = (
        ("-n", str(PROCESSES), "--dist", "loadscope", "-m", f"({marks}) and not alone"),
        ("-m", f"({marks}) and alone"),
    )
    codes = set()
    for stage in stages:
        command = [sys.executable, "-m", "pytest", "-q", *stage, *arguments]
        codes.add(subprocess.run(command, env=environ, check=False).returncode)
    return pytest.ExitCode.OK in codes and codes <= {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}


def main() -> int:
    """The command line."""
    if len(sys.argv) < 2:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    return 0 if run(sys.argv[1], sys.argv[2:]) else 1


if __name__ == "__main__":
    sys.exit(main())
