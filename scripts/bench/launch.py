"""Start a stand-in's module with the repository's virtual environment, whichever Python the script was called by."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def run(module: str) -> None:
    """Run `main()` of `scripts.bench.<module>`; exits with a sentence where the packages it needs are not there."""
    needed = ("click", "pyfuse3", "rich", "trio")
    if any(importlib.util.find_spec(name) is None for name in needed):
        python = REPOSITORY / ".venv" / "bin" / "python"
        if not python.exists() or Path(sys.prefix) == python.parent.parent:
            sys.exit(f"this needs the packages {', '.join(needed)}; scripts/quickstart installs them in .venv")
        os.execv(python, [str(python), *sys.argv])
    importlib.import_module(f"scripts.bench.{module}").main()
