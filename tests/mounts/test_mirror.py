"""The read-side mirror: what the source shows, the mount shows, to whomever the source shows it."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mounts.harness import Mounted, need_mounts
from tests.support.trees import write_odd_things
from tests.support.waiting import wait_for

FIELDS = ("mode", "nlink", "uid", "gid", "size", "mtime_ns", "ctime_ns", "rdev", "blocks")
MANY = 5000
NOBODY = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--")


def as_nobody(*command: str | os.PathLike[str]) -> subprocess.CompletedProcess[bytes]:
    """Run a command as somebody without rights of their own."""
    return subprocess.run([*NOBODY, *command], capture_output=True, timeout=30, check=False)


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user gets to, for sources and mountpoints; pytest's own are closed to others."""
    place = Path(tempfile.mkdtemp(prefix="open-")).resolve()
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A mount of a tree of odd things, for tests that change nothing."""
    need_mounts()
    tree = tmp_path_factory.mktemp("odd")
    write_odd_things(tree)
    os.mknod(tree / "device", stat.S_IFCHR | 0o640, os.makedev(1, 7))
    os.chown(tree / "empty", 12, 34)
    os.chown(tree / "soft link", 56, 78, follow_symlinks=False)
    (tree / "sticky").mkdir()
    (tree / "sticky").chmod(0o3751)
    os.setxattr(tree / "random", "user.note", b"a \0 value")
    os.setxattr(tree / "random", "user.empty", b"")
    os.setxattr(tree / "deep", "user.of a directory", b"x" * 1000)
    (tree / ("n" * 255)).write_bytes(b"a long name")
    deep = tree / "nested"
    for _ in range(60):
        deep = deep / ("d" * 30)
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"far down")
    (tree / "many").mkdir()
    for i in range(MANY):
        (tree / "many" / f"entry {i} {'x' * (i % 100)}").touch()
    (tree / "many" / os.fsdecode(b"entry \xf0\x9f")).touch()
    with Mounted(tree, options=("ro",)) as m:
        yield m


def everything(root: Path) -> list[Path]:
    """All that lies below a directory, relative to it."""
    return sorted(path.relative_to(root) for path in root.rglob("*"))


@pytest.mark.mount
def test_attributes_are_the_source_s(odd: Mounted) -> None:
    names = [Path(), *everything(odd.source)]
    assert names == [Path(), *everything(odd.mountpoint)]
    assert {stat.S_IFMT((odd.source / name).lstat().st_mode) for name in names} == {
        *(stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR)
    }
    for name in names:
        there, here = (odd.source / name).lstat(), odd.path(name).lstat()
        for field in FIELDS:
            assert getattr(here, f"st_{field}") == getattr(there, f"st_{field}"), f"{field} of {name}"
        assert here.st_blksize == 4096, name


@pytest.mark.mount
@pytest.mark.parametrize("name", ["", "many", "deep/er"])
def test_listings_are_the_source_s(odd: Mounted, name: str) -> None:
    there, here = odd.source / name, odd.path(name)
    assert sorted(os.listdir(os.fsencode(here))) == sorted(os.listdir(os.fsencode(there)))
    for command in (["ls", "-a"], ["find", ".", "-printf", "%y %m %n %U %G %s %p\\n"]):
        seen, real = (subprocess.run(command, cwd=cwd, capture_output=True, check=True) for cwd in (here, there))
        assert sorted(seen.stdout.splitlines()) == sorted(real.stdout.splitlines())
        assert seen.stderr == b""
    with os.scandir(here) as entries:
        assert all(entry.inode() == os.lstat(entry.path).st_ino for entry in entries)


@pytest.mark.mount
def test_a_listing_can_be_read_again_from_its_start(odd: Mounted, tmp_path: Path) -> None:
    fd = os.open(odd.path("many"), os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert len(os.listdir(fd)) == len(os.listdir(fd)) == MANY + 1
    finally:
        os.close(fd)


@pytest.mark.mount
def test_links(odd: Mounted) -> None:
    assert os.readlink(odd.path("soft link")) == "random"
    assert os.readlink(odd.path("dangling")) == "/nowhere/at all"
    assert odd.read("soft link") == odd.read("random") == (odd.source / "random").read_bytes()
    assert odd.path("hard link").lstat().st_ino == odd.path("random").lstat().st_ino
    inodes: dict[int, list[int]] = {}
    for name in everything(odd.source):
        inodes.setdefault(odd.path(name).lstat().st_ino, []).append((odd.source / name).lstat().st_ino)
    assert all(len(set(same)) == 1 for same in inodes.values()), "one number, one file"
    assert len(inodes) == len({(odd.source / name).lstat().st_ino for name in everything(odd.source)})


@pytest.mark.mount
def test_long_names_and_deep_paths(odd: Mounted) -> None:
    assert odd.read("n" * 255) == b"a long name"
    assert odd.read("nested/" + "/".join(["d" * 30] * 60) + "/file") == b"far down"
    with pytest.raises(OSError, match=os.strerror(errno.ENAMETOOLONG)):
        odd.path("n" * 256).stat()
    with pytest.raises(FileNotFoundError):
        odd.path("missing").stat()
    with pytest.raises(NotADirectoryError):
        odd.path("random/below").stat()


@pytest.mark.mount
def test_the_volume_s_size_is_the_source_s(odd: Mounted) -> None:
    here, there = os.statvfs(odd.mountpoint), os.statvfs(odd.source)
    for field in ("f_bsize", "f_frsize", "f_blocks", "f_files", "f_namemax"):
        assert getattr(here, field) == getattr(there, field), field
    assert here.f_bavail == pytest.approx(there.f_bavail, rel=0.05), "others write to that volume too"
    assert here.f_flag & os.ST_RDONLY


@pytest.mark.mount
def test_extended_attributes(odd: Mounted) -> None:
    for name in ("random", "deep", "empty", "soft link", "fifo", "device"):
        here, there = odd.path(name), odd.source / name
        assert sorted(os.listxattr(here, follow_symlinks=False)) == sorted(os.listxattr(there, follow_symlinks=False))
        for attribute in os.listxattr(there, follow_symlinks=False):
            assert os.getxattr(here, attribute) == os.getxattr(there, attribute)
    assert os.getxattr(odd.path("random"), "user.note") == b"a \0 value"
    assert os.getxattr(odd.path("random"), "user.empty") == b""
    with pytest.raises(OSError, match=os.strerror(errno.ENODATA)):
        os.getxattr(odd.path("random"), "user.missing")


CHANGES: dict[str, Callable[[Path], object]] = {
    "open for writing": lambda m: os.open(m / "random", os.O_WRONLY),
    "open for reading and writing": lambda m: os.open(m / "random", os.O_RDWR),
    "open and truncate": lambda m: os.open(m / "random", os.O_RDONLY | os.O_TRUNC),
    "create": lambda m: os.open(m / "new", os.O_CREAT | os.O_WRONLY),
    "truncate": lambda m: os.truncate(m / "random", 0),
    "unlink": lambda m: os.unlink(m / "random"),
    "rename": lambda m: os.rename(m / "random", m / "other"),
    "link": lambda m: os.link(m / "random", m / "other"),
    "symlink": lambda m: os.symlink("random", m / "other"),
    "mkdir": lambda m: os.mkdir(m / "other"),
    "rmdir": lambda m: os.rmdir(m / "sticky"),
    "mkfifo": lambda m: os.mkfifo(m / "other"),
    "chmod": lambda m: os.chmod(m / "random", 0o777),
    "chown": lambda m: os.chown(m / "random", 1, 1),
    "utime": lambda m: os.utime(m / "random"),
    "setxattr": lambda m: os.setxattr(m / "random", "user.note", b"x"),
    "removexattr": lambda m: os.removexattr(m / "random", "user.note"),
}


@pytest.mark.mount
@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_written_with_ro(odd: Mounted, change: str) -> None:
    before = [(path, path.lstat()) for path in (odd.source, odd.source / "random")]
    with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
        CHANGES[change](odd.mountpoint)
    assert all(path.lstat()[:9] == status[:9] for path, status in before)


@pytest.mark.mount
def test_reading_changes_nothing_in_the_source(tree: Path) -> None:
    (tree / "f").write_bytes(b"f" * 10_000)
    before = (tree / "f").stat()
    with Mounted(tree) as m:
        assert m.read("f") == b"f" * 10_000
    after = (tree / "f").stat()
    assert (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)


LOOK = """
for path; do
    echo "== $path"
    for flag in e r w x; do [ -$flag "$path" ] && echo "$flag"; done
    if [ -d "$path" ]; then ls "$path"; else cat "$path"; fi 2>/dev/null || echo refused
done
"""
"""What somebody may do with each of some paths."""


def guarded_tree(root: Path) -> list[str]:
    """Files and directories that let some in and others not."""
    modes = {"open": 0o644, "own": 0o600, "none": 0, "group": 0o640, "run": 0o755, "only others": 0o004}
    for name, mode in modes.items():
        (root / name).write_text(f"contents of {name}\n")
        (root / name).chmod(mode)
    os.chown(root / "only others", 65534, 0)  # its owner is refused what everybody else may do
    for name, mode in {"closed": 0o700, "blind": 0o711, "looked at": 0o744}.items():
        (root / name).mkdir()
        (root / name / "file").write_text("inside\n")
        (root / name).chmod(mode)
    (root / "by acl").write_text("for nobody\n")
    (root / "by acl").chmod(0o600)
    (root / "not by acl").write_text("for others\n")
    (root / "not by acl").chmod(0o644)
    for rule, name in (("u:nobody:r--", "by acl"), ("u:nobody:---", "not by acl")):
        subprocess.run(["setfacl", "-m", rule, root / name], check=True)
    return [
        *modes,
        "by acl",
        "not by acl",
        "closed",
        "closed/file",
        "blind",
        "blind/file",
        "looked at",
        "looked at/file",
    ]


@pytest.mark.mount
@pytest.mark.parametrize("cached", [False, True])
def test_who_may_is_who_may_in_the_source(open_place: Path, cached: bool) -> None:
    """Modes, owners and ACLs hold, also for what root has read through the mount already."""
    source, mountpoint = open_place / "source", open_place / "mnt"
    source.mkdir()
    mountpoint.mkdir()
    names = guarded_tree(source)
    with Mounted(source, mountpoint=mountpoint, options=("allow_other",)) as m:
        if cached:
            for name in names:
                if m.path(name).is_file():
                    assert m.read(name) == (source / name).read_bytes()
        looks = [
            subprocess.run(
                [*NOBODY, "sh", "-c", LOOK, "sh", *names],
                cwd=cwd,
                capture_output=True,
                text=True,
                timeout=30,
                check=True,
            ).stdout
            for cwd in (mountpoint, source)
        ]
        here = looks[0].splitlines()
        assert here == looks[1].splitlines()
        assert "contents of open" in here
        assert "for nobody" in here
        assert "contents of own" not in here
        assert "for others" not in here
        for name in ("by acl", "not by acl"):
            acl = "system.posix_acl_access"
            assert os.getxattr(m.path(name), acl) == os.getxattr(source / name, acl)


@pytest.mark.mount
def test_a_permission_taken_away_holds_for_what_is_cached(open_place: Path) -> None:
    source, mountpoint = open_place / "source", open_place / "mnt"
    source.mkdir()
    mountpoint.mkdir()
    (source / "f").write_text("secret")
    with Mounted(source, mountpoint=mountpoint, options=("allow_other", "attr_timeout=0")):
        assert as_nobody("cat", mountpoint / "f").stdout == b"secret"
        (source / "f").chmod(0)
        assert as_nobody("cat", mountpoint / "f").returncode != 0


@pytest.mark.mount
def test_file_systems_inside_the_source(tree: Path, store: Path) -> None:
    """Two that use the same inode numbers, as subvolumes do: their files stay apart."""
    places = [tree / "one", tree / "two"]
    mounted: list[Path] = []
    try:
        for place in places:
            place.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
            mounted.append(place)
            (place / "model").write_bytes(os.fsencode(place.name) * 1000)
        assert len({(place / "model").stat().st_ino for place in places}) == 1, "the tmpfs count alike"
        with Mounted(tree, store=store) as m:
            assert sorted(os.listdir(m.mountpoint)) == ["one", "two"]
            for place in places:
                assert m.read(f"{place.name}/model") == (place / "model").read_bytes()
                assert os.listdir(m.path(place.name)) == ["model"]
            paths = ("one", "two", "one/model", "two/model", "")
            assert len({m.path(path).stat().st_ino for path in paths}) == len(paths)
    finally:
        for place in mounted:
            subprocess.run(["umount", place], check=True)


@pytest.mark.mount
@pytest.mark.alone
def test_what_the_kernel_forgets_is_forgotten(tree: Path) -> None:
    (tree / "deep/er").mkdir(parents=True)
    for i in range(300):
        (tree / f"deep/er/{i}").write_text("x")
    with Mounted(tree) as m:
        assert len(everything(m.mountpoint)) == 302
        assert m.read("deep/er/7") == b"x"
        assert m.status()["gauges"]["inodes"] > 300
        Path("/proc/sys/vm/drop_caches").write_text("2")
        gauges = wait_for(lambda: m.status()["gauges"], lambda g: g["inodes"] <= 2)
        assert gauges["nodes"] == gauges["inodes"]
