"""What people and their programs do in a volume: the mount ends up as the source's own file system would."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.hostile.support import KIB, fill, hits, model, random_bytes, read_all
from tests.mounts.harness import Mounted, opened
from tests.support.models import write_native

OPTIONS = ("settle=0", "attr_timeout=0")

SCRIPT = """
set -eu
umask 027
mkdir -p a/b/c && cp -a "$1" a/model && cp --sparse=always "$1" a/sparse && cp --reflink=auto a/model a/again
mv a/model a/b/moved && ln a/b/moved a/hard && ln -s b/moved a/soft && ln -s nowhere a/dangling
dd if="$1" of=a/part bs=7777 count=20 status=none
dd if="$1" of=a/part bs=7777 skip=20 seek=20 conv=notrunc status=none
cmp a/part "$1" && mv -f a/part a/again
seq 1000 >a/text && sed -i 's/^5.*/five/' a/text && sort -r -o a/text a/text && echo more >>a/text
tar --mtime=@0 -cf a/all.tar -C a text hard soft && mkdir a/out && tar -xpf a/all.tar -C a/out
truncate -s 123456 a/sparse && truncate -s +1000 a/sparse && chmod 600 a/sparse && touch -d @1000000 a/sparse
install -m 751 "$1" a/installed && mktemp -d "$PWD/a/XXXXXX" | xargs rmdir
mkfifo a/fifo && chmod g+s a/out && mkdir a/out/inherits && touch a/-name "a/ two  words" && rm a/hard
cp -r a/b a/copy && rm -r a/copy && mv a/b a/renamed && rmdir a/renamed/c
find a -type f -newermt @999999 | wc -l
"""


def look(folder: Path) -> dict[str, object]:
    """What there is below a folder: kinds, modes, owners, links and contents."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        what: object = None
        if stat.S_ISLNK(status.st_mode):
            what = os.readlink(path)
        elif stat.S_ISREG(status.st_mode):
            what = path.read_bytes()
        links = 1 if stat.S_ISDIR(status.st_mode) else status.st_nlink
        found[os.fspath(path.relative_to(folder))] = (status.st_mode, status.st_uid, status.st_gid, links, what)
    return found


@pytest.mark.mount
@pytest.mark.parametrize("lane", ["auto", "off"])
def test_everyday_tools(tree: Path, store: Path, tmp_path: Path, lane: str) -> None:
    plain, given = tmp_path / "plain", tmp_path / "given"
    plain.mkdir()
    given.write_bytes(random_bytes(300 * KIB) + bytes(100 * KIB) + random_bytes(5))
    with Mounted(tree, store=store, options=(*OPTIONS, f"lane={lane}")) as m:
        said = [
            subprocess.run(
                ["sh", "-c", SCRIPT, "sh", given], cwd=folder, capture_output=True, text=True, timeout=60, check=False
            )
            for folder in (m.mountpoint, plain)
        ]
        assert said[1].returncode == 0, said[1].stderr
        assert [(done.returncode, done.stdout, done.stderr) for done in said[:1]] == [(0, said[1].stdout, "")]
        expected = look(plain)
        assert len(expected) > 15
        assert look(m.mountpoint) == expected == look(tree)


@pytest.mark.mount
def test_a_download_takes_the_place_of_a_model(tree: Path, store: Path, tmp_path: Path) -> None:
    """In pieces, broken off and resumed, synced and renamed over: the old one is read on, the new one is stored."""
    old = model(tree, "f")["f"]
    write_native(tmp_path / "f", seed=99, sizes=(150 * KIB,) * 10, gap=7)
    new, manifest = ((tmp_path / name).read_bytes() for name in ("f", "f.mummufs.json"))
    with Mounted(tree, store=store, options=OPTIONS) as m, opened(m.path("f")) as reader:
        stored = fill(m, {"f": old})
        half = len(new) // 2
        for start, end in ((0, half), (half - 10 * KIB, len(new))):  # what may be torn is fetched again
            with opened(m.path("f.part"), os.O_CREAT | os.O_RDWR) as fd:
                os.ftruncate(fd, start)
                for at in range(start, end, 33_333):
                    assert os.pwrite(fd, new[at : min(end, at + 33_333)], at) > 0
                os.fsync(fd)
                os.posix_fadvise(reader, 0, 0, os.POSIX_FADV_DONTNEED)
                assert os.pread(reader, len(old), 0) == old
        assert m.read("f.part") == new
        m.path("f.mummufs.json").write_bytes(manifest)
        m.path("f.part").rename(m.path("f"))
        assert m.read("f") == new == (tree / "f").read_bytes()
        os.posix_fadvise(reader, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(reader, len(old), 0) == old, "who has it open goes on"
        assert fill(m, {"f": new}) >= stored
        before = m.status()["reads"]
        served = hits(m)
        read_all(m, {"f": new})
        assert hits(m) > served and m.status()["reads"]["misses"] == before["misses"]
