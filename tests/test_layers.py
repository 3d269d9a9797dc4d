"""The layers: imports go down only. Every module is parsed, so imports inside functions and `if` blocks count too."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "mummufs"
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70

CORE_MAY_IMPORT = frozenset(
    {
        *("__future__", "abc", "array", "bisect", "collections", "dataclasses", "enum", "functools", "heapq"),
        *("itertools", "math", "operator", "sortedcontainers", "struct", "sys", "typing"),
    }
)
"""Nothing that waits, looks at a clock, rolls dice or touches a file. `sys` is for its byte order."""

L1 = frozenset({"manifests", "source", "store"})
BELOW = {
    "core": frozenset({"core"}),
    "win32": frozenset({"core", "win32"}),
    **{package: frozenset({"core", "win32", package}) for package in L1},
    "engine": L1 | {"core", "engine"},
    "backends": L1 | {"core", "engine", "backends"},
}
"""What each package may import of ours. What is not listed is L4, and may import everything."""

THIRD_PARTY = {
    "manifests": frozenset[str](),
    "source": frozenset[str](),
    "store": frozenset({"xxhash"}),
}

ONLY_IN = {
    "trio": ("engine/", "backends/", "control.py", "mount.py", "pipes.py", "winmount.py"),
    "pyfuse3": ("backends/fuse/",),
    "cffi": ("backends/winfsp/",),
}
PLATFORM_ONLY_IN = ("win32/", "backends/winfsp/", "store/osfs.py", "source/", "mount.py", "control.py", "cli.py")


def violations(path: str, text: str) -> list[str]:
    """What is wrong with one module.

    Args:
        path: its path below mummufs/, with "/".
        text: its source.
    """
    tree = ast.parse(text)
    return [*_import_faults(path, tree), *_platform_faults(path, tree), *_size_faults(text, tree)]


def _import_faults(path: str, tree: ast.Module) -> Iterator[str]:
    package = path.split("/")[0] if "/" in path else ""
    for line, name in _imports(path, tree):
        parts = name.split(".")
        top = parts[0]
        if top == "mummufs":
            layer = parts[1] if len(parts) > 1 else ""
            if package in BELOW and layer not in BELOW[package]:
                yield f"{line}: {package} may not import {name}"
        elif package == "core" and top not in CORE_MAY_IMPORT:
            yield f"{line}: core is pure and may not import {name}"
        elif package in THIRD_PARTY and top not in sys.stdlib_module_names and top not in THIRD_PARTY[package]:
            yield f"{line}: {package} may not import {name}"
        if top in ONLY_IN and not path.startswith(ONLY_IN[top]):
            yield f"{line}: {top} may not be imported here"


def _imports(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every imported module by its full name; `from mummufs import x` as `mummufs.x`."""
    parents = ("mummufs/" + path).split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "mummufs":
                yield from ((node.lineno, f"mummufs.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module
        elif isinstance(node, ast.Call) and _dotted(node.func) in {"__import__", "importlib.import_module"}:
            match node.args:
                case [ast.Constant(value=str(name)), *_]:
                    yield node.lineno, name


def _platform_faults(path: str, tree: ast.Module) -> Iterator[str]:
    if path.startswith(PLATFORM_ONLY_IN):
        return
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="sys", names=names) if any(alias.name == "platform" for alias in names):
                yield f"{node.lineno}: sys.platform may not be asked here"
            case ast.Attribute() if _dotted(node) == "sys.platform":
                yield f"{node.lineno}: sys.platform may not be asked here"


def _size_faults(text: str, tree: ast.Module) -> Iterator[str]:
    lines = len(text.splitlines())
    if lines > FILE_LINES_MAX:
        yield f"1: {lines} lines, more than {FILE_LINES_MAX}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            size = (node.end_lineno or first) - first + 1
            if size > FUNCTION_LINES_MAX:
                yield f"{node.lineno}: {node.name} has {size} lines, more than {FUNCTION_LINES_MAX}"


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{_dotted(value)}.{name}"
        case _:
            return ""


MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES)
def test_module_keeps_to_its_layer(path: str) -> None:
    assert violations(path, (ROOT / path).read_text("utf-8")) == []


def test_the_packages_of_the_design_are_there() -> None:
    assert {"core", "manifests", "source", "store", "engine", "backends"} <= {m.split("/")[0] for m in MODULES}


PLANTED = [
    *(("core/plan.py", f"import {name}") for name in ("os", "io", "time", "random", "logging", "threading", "trio")),
    *(("core/plan.py", f"import {name}") for name in ("asyncio", "socket", "subprocess", "pathlib", "xxhash", "numpy")),
    ("core/plan.py", "import os.path"),
    ("core/plan.py", "from os import path"),
    ("core/plan.py", "def f():\n    import time"),
    ("core/plan.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pathlib"),
    ("core/plan.py", "try:\n    import time\nexcept ImportError:\n    pass"),
    ("core/plan.py", "import importlib"),
    ("core/plan.py", "__import__('os')"),
    ("core/plan.py", "from mummufs.store import layout"),
    ("core/plan.py", "from mummufs import units"),
    ("core/plan.py", "from ..store import layout"),
    ("core/plan.py", "from .. import units"),
    ("core/plan.py", "import mummufs"),
    ("manifests/gguf.py", "import mummufs.source.base"),
    ("manifests/gguf.py", "import xxhash"),
    ("manifests/gguf.py", "import numpy"),
    ("manifests/gguf.py", "from mummufs.engine import parse"),
    ("source/tree.py", "from mummufs import store"),
    ("source/tree.py", "from mummufs.units import format_size"),
    ("source/tree.py", "import xxhash"),
    ("source/tree.py", "import trio"),
    ("store/scan.py", "from mummufs.manifests.base import Header"),
    ("store/scan.py", "from mummufs.source.base import Source"),
    ("store/scan.py", "import sortedcontainers"),
    ("engine/reader.py", "from mummufs.backends.fuse import session"),
    ("engine/reader.py", "from mummufs.config import Config"),
    ("engine/reader.py", "import pyfuse3"),
    ("backends/fuse/session.py", "def f():\n    from mummufs.mount import run"),
    ("backends/fuse/session.py", "import cffi"),
    ("win32/api.py", "from mummufs.source import base"),
    ("backends/winfsp/session.py", "import pyfuse3"),
    ("backends/__init__.py", "import pyfuse3"),
    ("mount.py", "import pyfuse3"),
    ("mount.py", "import cffi"),
    ("cli.py", "import trio"),
    ("commands/mount.py", "import trio.lowlevel"),
    ("store/rangestore.py", "import sys\nif sys.platform == 'win32':\n    pass"),
    ("engine/reader.py", "from sys import platform"),
    ("cli.py", "\n" * FILE_LINES_MAX + "x = 1"),
    ("cli.py", "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
    ("cli.py", "class C:\n    @property\n    async def f(self):\n" + "        x = 1\n" * (FUNCTION_LINES_MAX - 1)),
    ("cli.py", 'def f():\n    """' + "x\n" * (FUNCTION_LINES_MAX - 1) + '    """'),
]


@pytest.mark.parametrize(("path", "text"), PLANTED)
def test_a_planted_violation_is_found(path: str, text: str) -> None:
    assert len(violations(path, text)) >= 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("core/plan.py", "from collections.abc import Callable\nfrom sortedcontainers import SortedKeyList"),
        ("core/plan.py", "from . import ranges\nfrom .ranges import PAGE_SIZE\nfrom mummufs.core import hotness"),
        (
            "store/rangestore.py",
            "import os\nfrom xxhash import xxh3_128\nfrom mummufs.core.errors import RangeFileError",
        ),
        ("store/osfs.py", "import sys\nsys.platform"),
        ("source/tree.py", "import sys\nsys.platform\nfrom mummufs.source import base"),
        ("engine/reader.py", "import trio\nfrom mummufs.manifests import registry\nimport sys\nsys.byteorder"),
        ("backends/fuse/session.py", "import trio\nimport pyfuse3\nfrom mummufs.engine import overlay"),
        ("backends/winfsp/session.py", "import cffi"),
        ("source/windows.py", "from mummufs.win32 import api"),
        ("win32/calls.py", "import sys\nsys.platform"),
        ("mount.py", "import sys\nimport trio\nfrom mummufs.backends.fuse import session\nsys.platform"),
        ("commands/mount.py", "import click\nfrom mummufs.store.lock import StoreLock"),
        ("cli.py", "x = 1\n" * FILE_LINES_MAX),
        ("cli.py", "def f():\n" + "    x = 1\n" * (FUNCTION_LINES_MAX - 1)),
    ],
)
def test_what_is_allowed_is_let_through(path: str, text: str) -> None:
    assert violations(path, text) == []
