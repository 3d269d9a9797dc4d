"""onnxruntime, unmodified, on weights in a file of their own whose ranges a native manifest gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engines.engines import Engines, Model, check_source_untouched, check_through_mount
from tests.mounts.harness import run

pytestmark = [pytest.mark.mount, pytest.mark.engine]

WEIGHTS = "model.onnx.data"


@pytest.fixture(scope="module")
def model(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The model, its weights and their manifest."""
    directory = tmp_path_factory.mktemp("onnx")
    engines.run("make_onnx.py", directory)
    return Model(directory, "model.onnx", pattern="model.onnx*")


def test_outputs_are_those_without_the_mount(engines: Engines, model: Model, store: Path) -> None:
    """Cold, warm, after a remount and while evicting."""
    check_through_mount(model, store, lambda path: engines.run("run_onnx.py", path))


def test_a_warm_run_reads_no_range_from_the_source(engines: Engines, model: Model, store: Path) -> None:
    check_source_untouched(model, store, lambda path: engines.run("run_onnx.py", path))


def test_the_model_gives_something_to_compare(engines: Engines, model: Model) -> None:
    """It has outputs of many values, and the manifest covers nearly all of its weights."""
    output = json.loads(engines.run("run_onnx.py", model.directory / model.name))["output"]
    assert len(set(output)) > 700
    ranges = json.loads(run("ranges", model.directory / WEIGHTS, "--json").stdout)["ranges"]
    assert sum(r["length"] for r in ranges) > 0.99 * (model.directory / WEIGHTS).stat().st_size
