"""The cases that a mount on Windows has to pass, on this one: so that they are known to say what they mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mounts.harness import Mounted
from tests.support.models import write_gguf, write_safetensors
from tests.windows.cases import CASES


@pytest.mark.mount
def test_every_case(tree: Path, store: Path) -> None:
    (tree / "below").mkdir()
    write_gguf(tree / "below/model.gguf", layers=(0,), experts=2, dense_bytes=300 << 10, expert_bytes=90_112)
    write_safetensors(tree / "model.safetensors", dense_bytes=200 << 10, expert_bytes=64 << 10)
    with Mounted(tree, store=store, options=("settle=0", "attr_timeout=0.1")) as m:
        for case in CASES:
            case(m.mountpoint, tree)
            m.settle()
        assert m.status()["fills"]["completed"] > 0
