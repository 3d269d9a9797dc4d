"""docs/semantics.md: every promise names its tests, and they exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/semantics.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
WITHOUT_TESTS = {"Not promised", "Not run here"}


def sections() -> dict[str, list[str]]:
    """The items of each list, by heading."""
    found: dict[str, list[str]] = {}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        found[heading.partition(":")[0]] = re.findall(r"^- (.*?)(?=^- |\Z)", body, flags=re.MULTILINE | re.DOTALL)
    return found


@cache
def functions_of(path: str) -> frozenset[str]:
    """The test functions of a file."""
    tree = ast.parse((ROOT / path).read_text())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))


def promises() -> list[str]:
    """The items that need a test."""
    return [item for heading, items in sections().items() if heading not in WITHOUT_TESTS for item in items]


def test_the_page_has_its_sections() -> None:
    assert {heading for heading, items in sections().items() if items} >= WITHOUT_TESTS | {"Bytes", "Crashes", "Limits"}
    assert len(promises()) > 40


@pytest.mark.parametrize("promise", promises(), ids=lambda item: item[:40])
def test_a_promise_names_its_tests(promise: str) -> None:
    assert NAMED.search(promise), promise


@pytest.mark.parametrize("named", sorted(set(NAMED.findall(PAGE.read_text()))), ids="::".join)
def test_what_is_named_exists(named: tuple[str, str]) -> None:
    path, name = named
    assert (ROOT / path).is_file(), path
    assert name in functions_of(path), f"{path} has no {name}"


def test_every_hostile_test_is_named() -> None:
    """A recipe that no promise needs is a promise that is missing."""
    named = set(NAMED.findall(PAGE.read_text()))
    files = [str(file.relative_to(ROOT)) for file in sorted((ROOT / "tests/hostile").glob("test_*.py"))]
    assert {(path, name) for path in files for name in functions_of(path)} <= named
