"""What every mount shows to programs, by nothing but the file calls of Python: run on WinFsp and on FUSE alike.

Each case gets the mount and the source behind it, and leaves the source as it found it, but for what it names after
itself.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

MIB = 1 << 20
READERS = 8


def models_of(source: Path) -> list[Path]:
    """The files of a source, relative to it."""
    return sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())


def case_every_byte_cold_and_warm(mount: Path, source: Path) -> None:
    for _ in range(2):
        for name in models_of(source):
            assert (mount / name).read_bytes() == (source / name).read_bytes(), name


def case_random_reads(mount: Path, source: Path) -> None:
    rng = random.Random(1)
    for name in models_of(source):
        data = (source / name).read_bytes()
        with (mount / name).open("rb", buffering=0) as file:
            for _ in range(50):
                offset, size = rng.randrange(len(data) + 1), rng.randrange(MIB)
                file.seek(offset)
                assert file.read(size) == data[offset : offset + size]


def case_many_readers_at_once(mount: Path, source: Path) -> None:
    wrong: list[str] = []

    def read(number: int) -> None:
        names = random.Random(number).sample(models_of(source), len(models_of(source)))
        wrong.extend(str(name) for name in names if (mount / name).read_bytes() != (source / name).read_bytes())

    threads = [threading.Thread(target=read, args=(i,)) for i in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def case_listings_and_attributes(mount: Path, source: Path) -> None:
    for directory in [source, *(path for path in source.rglob("*") if path.is_dir())]:
        shown = mount / directory.relative_to(source)
        assert sorted(os.listdir(shown)) == sorted(os.listdir(directory))
    for name in models_of(source):
        there, here = (source / name).stat(), (mount / name).stat()
        assert here.st_size == there.st_size
        assert abs(here.st_mtime - there.st_mtime) < 1e-3


def case_what_is_not_there(mount: Path, source: Path) -> None:
    name = models_of(source)[0]
    for path in ("nothing", "nothing/at all", name / "below a file"):
        with pytest.raises(OSError):
            (mount / path).read_bytes()
    with pytest.raises(OSError):
        os.listdir(mount / name)


def case_a_file_that_changes_behind_the_mount(mount: Path, source: Path) -> None:
    (source / "changes").write_bytes(b"a" * 100_000)
    assert (mount / "changes").read_bytes() == b"a" * 100_000
    (source / "changes").write_bytes(b"b" * 90_000)
    os.utime(source / "changes", (2_000_000_000, 2_000_000_000))
    wait_until(lambda: (mount / "changes").stat().st_size == 90_000)
    assert (mount / "changes").read_bytes() == b"b" * 90_000
    (source / "changes").unlink()
    wait_until(lambda: not (mount / "changes").exists())


def case_files_are_written_through_the_mount(mount: Path, source: Path) -> None:
    folder = mount / "written"
    folder.mkdir()
    data = random.Random(2).randbytes(3 * MIB + 17)
    (folder / "new file").write_bytes(data)
    assert (source / "written" / "new file").read_bytes() == data == (folder / "new file").read_bytes()
    with (folder / "new file").open("r+b") as file:
        file.seek(MIB)
        file.write(b"!" * 5000)
        file.truncate(2 * MIB)
    expected = (data[:MIB] + b"!" * 5000 + data[MIB + 5000 :])[: 2 * MIB]
    assert (folder / "new file").read_bytes() == expected
    with (folder / "new file").open("ab") as file:
        file.write(b"end")
    (folder / "new file").replace(folder / "renamed")
    assert (folder / "renamed").read_bytes() == expected + b"end" == (source / "written/renamed").read_bytes()
    with pytest.raises(OSError):
        folder.rmdir()
    (folder / "renamed").unlink()
    folder.rmdir()
    assert not (source / "written").exists()


def wait_until(is_true: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Wait for what the mount shows once what it was told before is believed no longer."""
    ended = threading.Event()
    for _ in range(int(limit_s / 0.05)):
        if is_true():
            return
        ended.wait(0.05)
    raise AssertionError("it does not become so")


CASES: list[Callable[[Path, Path], None]] = [case for name, case in sorted(globals().items()) if name[:5] == "case_"]
