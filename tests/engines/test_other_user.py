"""An engine in a mount namespace of its own, through a bind mount, as another user: as in a container."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.engines import RUN_S, Engines, Model, find_environment
from tests.mounts.harness import Mounted

pytestmark = [pytest.mark.mount, pytest.mark.engine]

USER = "nobody"

BIND_AND_RUN = """
set -eu
from=$1 to=$2
shift 2
mount --make-rprivate /
mount --bind "$from" "$to"
exec "$@"
"""


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A directory with spaces in its name that every user gets to, outside of it nothing is mounted."""
    with tempfile.TemporaryDirectory(prefix="elsewhere ") as name:
        path = Path(name).resolve()
        path.chmod(0o755)
        (path / "my models").mkdir(mode=0o755)
        yield path / "my models"


def run_elsewhere(engines: Engines, m: Mounted, elsewhere: Path, model: Model, mode: str) -> subprocess.CompletedProcess[str]:
    """Run llama.cpp as USER, where the mount is bound to `elsewhere` in a namespace of its own."""
    command = engines.command("run_llama.py", elsewhere / model.name, mode, "--user", USER)
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", BIND_AND_RUN, "sh", m.mountpoint, elsewhere, *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


@pytest.mark.parametrize("mode", ["mmap", "direct_io"])
def test_another_user_reads_through_a_bind_mount(
    engines: Engines, llama_models: dict[str, Model], store: Path, elsewhere: Path, mode: str
) -> None:
    """Cold and warm, in the split model, under a path with spaces."""
    model = llama_models["split"]

    def run(path: Path) -> str:
        command = engines.command("run_llama.py", elsewhere / path.name, mode, "--user", USER)
        return answer_of(engines.start(["unshare", "-m", "sh", "-c", BIND_AND_RUN, "sh", path.parent, elsewhere, *command]))
