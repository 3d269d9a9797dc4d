"""llama.cpp, unmodified: its tokens and logprobs do not depend on whether it reads through a mount."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engines.engines import Engines, Model, check_source_untouched, check_through_mount

pytestmark = [pytest.mark.mount, pytest.mark.engine]

MODELS = ["moe", "split", "smollm2"]
MODES = ["mmap", "none", "direct_io"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_without_the_mount(
    engines: Engines, llama_models: dict[str, Model], store: Path, name: str, mode: str
) -> None:
    """Cold, warm, after a remount and while evicting."""
    check_through_mount(llama_models[name], store, lambda path: engines.run("run_llama.py", path, mode))


@pytest.mark.parametrize(("name", "mode"), [("moe", "mmap"), ("split", "none"), ("smollm2", "direct_io")])
def test_a_warm_run_reads_no_range_from_the_source(
    engines: Engines, llama_models: dict[str, Model], store: Path, name: str, mode: str
) -> None:
    check_source_untouched(llama_models[name], store, lambda path: engines.run("run_llama.py", path, mode))


def test_the_models_give_something_to_compare(engines: Engines, llama_models: dict[str, Model]) -> None:
    """Each model answers with tokens and five logprobs each; whole and split, the same weights answer the same."""
    assert len(llama_models["split"].files) == 4
    answers = {name: engines.run("run_llama.py", m.directory / m.name, "mmap") for name, m in llama_models.items()}
    for answer in map(json.loads, answers.values()):
        assert len(set(answer["tokens"])) > 5
        assert all(len(top) == 5 for top in answer["logprobs"])
    assert answers["moe"] == answers["split"]
    assert answers["moe"] != answers["smollm2"]
