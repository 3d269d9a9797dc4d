"""Two stages have gone well if neither has failed and one has run something."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from tests import stages

WELL, FAILED, NOTHING = pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize(
    ("codes", "well"),
    [
        ((WELL, WELL), True),
        ((WELL, NOTHING), True),
        ((NOTHING, WELL), True),
        ((NOTHING, NOTHING), False),
        ((WELL, FAILED), False),
        ((FAILED, WELL), False),
        ((FAILED, NOTHING), False),
    ],
)
def test_how_it_went(monkeypatch: pytest.MonkeyPatch, codes: tuple[int, int], well: bool) -> None:
    left = list(codes)
    commands: list[Sequence[str]] = []

    def ended(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, left.pop(0))

    monkeypatch.setattr(subprocess, "run", ended)
    assert stages.run("mount or slow", ["-x"]) is well
    marks = [command[command.index("-m", 3) + 1] for command in commands]
    assert marks == ["(mount or slow) and not alone", "(mount or slow) and alone"]
    assert all(command[-1] == "-x" for command in commands)
