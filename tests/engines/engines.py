"""Running real engines from PyPI, in an environment of their own, on models in and out of a mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from tests.faultfs.client import FaultFs
from tests.mounts.harness import REPOSITORY, Mounted
from tests.mounts.test_warm import in_ranges

SCRIPTS = Path(__file__).resolve().parent
ENVIRONMENT = REPOSITORY / ".venv-engines"
RUN_S = 120.0
MIB = 1 << 20


@dataclass(frozen=True)
class Model:
    """A model in a directory that a mount takes as its source.

    Attributes:
        directory: the source.
        name: what the engine is told to open, in it.
        pattern: which of the files in it are the model.
    """

    directory: Path
    name: str
    pattern: str = "*"

    @cached_property
    def files(self) -> list[str]:
        """The names of the files that make up the model."""
        return sorted(p.name for p in self.directory.glob(self.pattern) if p.is_file())

    @cached_property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum((self.directory / name).stat().st_size for name in self.files)


class Engines:
    """The environment that has the engines. Scripts of this directory run in it, each in a process of its own."""

    def __init__(self, environment: Path) -> None:
        self._python = environment / "bin" / "python"
        done = start([os.fspath(self._python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
        self._packages = Path(done.strip())

    def package(self, name: str) -> Path:
        """The directory of a package in the environment."""
        path = self._packages / name
        assert path.is_dir(), f"{path} is missing: run scripts/engines-venv"
        return path

    def command(self, script: str, *arguments: str | int | os.PathLike[str]) -> list[str]:
        """The command line that runs one of the scripts."""
        words = [os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in arguments]
        return [os.fspath(self._python), os.fspath(SCRIPTS / script), *words]

    def run(self, script: str, *arguments: str | int | os.PathLike[str]) -> str:
        """What one of the scripts prints; fails with its words if it fails."""
        return start(self.command(script, *arguments))


def start(command: Sequence[str | os.PathLike[str]], check: bool = True) -> str:
    """What a command prints; fails with its words if it fails, unless `check` is off."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert not check or done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr[-4000:]}"
    return done.stdout


Run = Callable[[Path], str]
"""Has an engine open a path; what it answers."""


def find_environment() -> Engines:
    """The engines' environment: MUMMUFS_ENGINES_VENV, or .venv-engines. Skips where it was not made; in CI it fails."""
    environment = Path(os.environ.get("MUMMUFS_ENGINES_VENV") or ENVIRONMENT)
    if (environment / "bin" / "python").exists():
        return Engines(environment)
    reason = f"no engines in {environment}: run scripts/engines-venv"
    if os.environ.get("CI"):
        pytest.fail(f"this test may not be left out in CI: {reason}")
    pytest.skip(reason)


def check_warm(m: Mounted, model: Model, run: Run, expected: str, under: FaultFs | None = None) -> None:
    """A run whose bytes in ranges all come from the store, whose pages the kernel does not have, answers as expected.

    `under`: the layer under the mount, which must see no read in a range.
    """
    before = m.settle()["reads"]
    m.drop_pages(*model.files)
    if under is not None:
        under.clear()
    assert run(m.path(model.name)) == expected
    after = m.settle()["reads"]
    assert after["hit_bytes"] - before["hit_bytes"] > model.size / 2, "hits, and not pages that the kernel kept"
    assert after["miss_bytes"] == before["miss_bytes"], m.status()
    if under is not None:
        assert in_ranges(under.reads(), model.directory) == []


def check_through_mount(model: Model, store: Path, run: Run) -> None:
    """Cold, warm, warm after a remount, and with a store of a quarter of the model: all as without the mount."""
    expected = run(model.directory / model.name)
    with Mounted(model.directory, store=store) as m:
        assert run(m.path(model.name)) == expected
        assert m.settle()["fills"]["completed"] > 0
        check_warm(m, model, run, expected)
        m.remount()
        check_warm(m, model, run, expected)
    options = ("settle=0", "policy=lru")  # the default would rather keep what it has than take in what is as hot
    with Mounted(model.directory, store=store.with_name("small"), store_size=quarter(model), options=options) as m:
        for _ in range(2):
            assert run(m.path(model.name)) == expected
            m.settle()
            m.drop_pages(*model.files)
        status = m.status()
        assert status["store"]["used_bytes"] > 0
        assert status["evictions"]["ranges"] > 0


def check_source_untouched(model: Model, store: Path, run: Run) -> None:
    """Cold from the source, then warm without a read of any range there, seen by a layer under the mount."""
    expected = run(model.directory / model.name)
    with FaultFs(model.directory) as under, Mounted(under.mountpoint, store=store) as m:
        assert run(m.path(model.name)) == expected
        m.settle()
        assert in_ranges(under.reads(), model.directory), "the cold run read ranges from the source"
        check_warm(m, model, run, expected, under)


def quarter(model: Model) -> str:
    """A store's size: a quarter of the model, in whole MiB."""
    return f"{model.size // 4 // MIB}M"
