"""An engine in a mount namespace of its own, through a bind mount, as another user: as in a container."""

from __future__ import annotations

import json
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.engines import Engines, Model, check_warm, start
from tests.mounts.harness import Mounted, need_other_users

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
    """An empty directory with a space in its path that every user gets to."""
    with tempfile.TemporaryDirectory(prefix="else where-") as name:
        path = Path(name).resolve()
        path.chmod(0o755)
        (path / "my models").mkdir(mode=0o755)
        yield path / "my models"


@pytest.fixture
def run_elsewhere(engines: Engines, elsewhere: Path) -> Iterator[RunElsewhere]:
    """How an engine is run there; nothing is left bound outside the namespaces of the runs."""
    need_other_users()
    yield RunElsewhere(engines, elsewhere)
    assert not list(elsewhere.iterdir()), "the bind mount stayed in its namespace"


class RunElsewhere:
    """Runs llama.cpp as USER, with a mount bound to a directory in a mount namespace of the run's own."""

    def __init__(self, engines: Engines, elsewhere: Path) -> None:
        self._engines = engines
        self._elsewhere = elsewhere

    def __call__(self, path: Path, mode: str, check: bool = True) -> str:
        """What it answers for the model at `path`, which is bound and not opened here; USER did it."""
        engine = self._engines.command("run_llama.py", self._elsewhere / path.name, mode, "--user", USER)
        answer = start(["unshare", "-m", "sh", "-c", BIND_AND_RUN, "sh", path.parent, self._elsewhere, *engine], check)
        if not answer:
            return ""
        found = json.loads(answer)
        assert found.pop("uid") == pwd.getpwnam(USER).pw_uid
        return json.dumps(found)


@pytest.mark.parametrize("mode", ["mmap", "none", "direct_io"])
def test_another_user_reads_through_a_bind_mount(
    engines: Engines,
    llama_models: dict[str, Model],
    store: Path,
    tmp_path: Path,
    run_elsewhere: RunElsewhere,
    mode: str,
) -> None:
    """Cold and warm, the split model, both mountpoint and bind mount under a path with a space."""
    model = llama_models["split"]
    mountpoint = tmp_path / "a mount"
    plain = json.loads(engines.run("run_llama.py", model.directory / model.name, mode))
    del plain["uid"]
    expected = json.dumps(plain)
    with Mounted(model.directory, store=store, mountpoint=mountpoint, options=("settle=0", "allow_other")) as m:
        assert run_elsewhere(m.path(model.name), mode) == expected
        check_warm(m, model, lambda path: run_elsewhere(path, mode), expected)


def test_another_user_is_kept_out_without_allow_other(
    llama_models: dict[str, Model], store: Path, run_elsewhere: RunElsewhere
) -> None:
    """So the test above does run as another user, and through the mount."""
    model = llama_models["split"]
    with Mounted(model.directory, store=store) as m:
        assert run_elsewhere(m.path(model.name), "none", check=False) == ""
        assert m.settle()["reads"]["replied_bytes"] == 0
