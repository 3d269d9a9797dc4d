"""The command line without a new interpreter each time: a process that has imported it forks for every call.

The caller's half is `call`. The other half is this module as a program: a call is a line of JSON on its standard input,
its outcome a line on its standard output.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

REPOSITORY = Path(__file__).resolve().parents[2]
CALL_S = 120.0
BROKEN = 70
"""The exit code of a command that has raised something."""


class _Server:
    """The process that forks, for as long as this one lives."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.commands"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()
        atexit.register(self._end)

    def call(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps({"arguments": arguments, "environ": dict(os.environ)}) + "\n")
            self._process.stdin.flush()
            is_there, _, _ = select.select([self._process.stdout], [], [], CALL_S)
            assert is_there, f"no answer within {CALL_S:g} s: {arguments}"
            line = self._process.stdout.readline()
        assert line, "the process that forks has ended"
        done = json.loads(line)
        return subprocess.CompletedProcess(arguments, done["code"], done["stdout"], done["stderr"])

    def _end(self) -> None:
        self._process.communicate()


_server = functools.cache(_Server)


def call(*arguments: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process's environment, mount namespace and rights."""
    return _server().call([os.fspath(argument) for argument in arguments])


def _forked(arguments: list[str], environ: dict[str, str], stdout: BinaryIO, stderr: BinaryIO) -> int:
    """The wait status of the command line in a fork of this process."""
    from mummufs.cli import main

    pid = os.fork()
    if pid > 0:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = BROKEN
    try:
        with open(os.devnull, "rb") as stdin:
            for number, file in enumerate((stdin, stdout, stderr)):
                os.dup2(file.fileno(), number)
        os.environ.clear()
        os.environ.update(environ)
        sys.argv[1:] = arguments
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve() -> None:
    for line in sys.stdin:
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            wanted = json.loads(line)
            code = _forked(wanted["arguments"], wanted["environ"], stdout, stderr)
            said = []
            for file in (stdout, stderr):
                file.seek(0)
                said.append(file.read().decode(errors="surrogateescape"))
        print(json.dumps({"code": code, "stdout": said[0], "stderr": said[1]}), flush=True)


if __name__ == "__main__":
    _serve()
