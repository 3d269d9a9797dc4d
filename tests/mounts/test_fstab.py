"""mount(8), fstab and umount(8), with the helper installed where they look."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mummufs.commands.install_helper import DIRECTORY_DEFAULT, LINK_NAMES
from mummufs.mountinfo import MountEntry, mount_at, read_mountinfo
from tests.mounts.as_user import USER, become, give, open_dev_fuse
from tests.mounts.harness import Mounted, need_mounts, run
from tests.mounts.test_lifecycle import is_free, model, wait_gone, why_not_listed
from tests.mounts.test_users import bind, by_user
from tests.support.waiting import wait_for

OPTIONS = "nofail,_netdev,noauto,user,ro,noatime,x-gvfs-hide,x-systemd.mount-timeout=90"


@pytest.fixture(scope="module", autouse=True)
def _helper() -> Iterator[None]:
    """The helper in /sbin, for the length of this module, unless it was there already."""
    need_mounts()
    there = any((Path(DIRECTORY_DEFAULT) / name).is_symlink() for name in LINK_NAMES)
    run("install-helper")
    try:
        yield
    finally:
        if not there:
            run("install-helper", "--remove")


class ByMount8(Mounted):
    """A mount that mount(8) makes, in an empty environment."""

    def mount8(self, *arguments: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
        """Run mount(8)."""
        return subprocess.run(
            ["env", "-i", shutil.which("mount") or "mount", *arguments],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def __enter__(self) -> ByMount8:
        return self

    @property
    def entry(self) -> MountEntry:
        found = mount_at(self.mountpoint, read_mountinfo())
        assert found is not None
        return found

    def fstab(self, kind: str = "fuse.mummufs", options: str = OPTIONS) -> Path:
        """An fstab with a line of this mount."""
        assert self.store is not None
        path = self.source.parent / "fstab"
        source, mountpoint, store = (
            os.fspath(p).replace(" ", "\\040") for p in (self.source, self.mountpoint, self.store)
        )
        path.write_text(f"{source} {mountpoint} {kind} {options},store={store},store_gb=1,settle=0 0 0\n")
        return path


@pytest.fixture
def m(tmp_path: Path) -> Iterator[ByMount8]:
    """Not mounted yet. Its source and its mountpoint have a space in their names."""
    source, mountpoint = tmp_path / "my models", tmp_path / "the mount"
    source.mkdir()
    mountpoint.mkdir()
    model(source)
    with ByMount8(source, store=tmp_path / "a store", mountpoint=mountpoint) as mounted:
        yield mounted


@pytest.mark.mount
@pytest.mark.parametrize("kind", ["fuse.mummufs", "mummufs"])
def test_mount_and_umount(m: ByMount8, kind: str) -> None:
    assert m.store is not None
    done = m.mount8("-t", kind, m.source, m.mountpoint, "-o", f"ro,store={m.store},store_gb=1,settle=0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    m.take_in()
    assert (m.entry.fstype, m.entry.source) == ("fuse.mummufs", os.fspath(m.source))
    for _ in range(2):
        m.drop_pages("f")
        assert m.read("f") == (m.source / "f").read_bytes()
        m.settle()
    status = m.status()
    assert status["reads"]["hits"] > 0
    assert status["store"]["dir"] == os.fspath(m.store)
    assert status["store"]["budget_bytes"] == 1 << 30
    subprocess.run(["umount", m.mountpoint], check=True, timeout=30)
    wait_gone(m.pid)
    assert is_free(m.store)


@pytest.mark.mount
def test_a_line_of_fstab(m: ByMount8) -> None:
    """With all the options that others read; and as mount -a does it."""
    for how in (m.mountpoint, "-a"):
        done = m.mount8("-T", m.fstab(options=OPTIONS.replace("noauto", "auto") if how == "-a" else OPTIONS), how)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        m.take_in()
        assert (m.entry.fstype, m.entry.source) == ("fuse.mummufs", os.fspath(m.source))
        assert {"ro", "nosuid", "nodev", "noexec", "noatime"} <= set(m.entry.options.split(","))
        assert m.read("f") == (m.source / "f").read_bytes()
        subprocess.run(["umount", m.mountpoint], check=True, timeout=30)
        wait_gone(m.pid)


@pytest.mark.mount
def test_values_may_be_quoted(m: ByMount8, tmp_path: Path) -> None:
    store = tmp_path / "a store, with a comma"
    done = m.mount8("-t", "fuse.mummufs", m.source, m.mountpoint, "-o", f'nofail,store="{store}",store_gb=1,ro')
    assert (done.returncode, done.stderr) == (0, "")
    m.take_in()
    assert m.status()["store"]["dir"] == os.fspath(store)


@pytest.mark.mount
def test_flags_of_mount_8(m: ByMount8) -> None:
    arguments = (m.source, m.mountpoint, "-t", "fuse.mummufs", "-o")
    assert m.mount8("-f", *arguments, "ro").returncode == 0
    assert not m.is_mounted
    assert m.store is not None
    done = m.mount8("-n", "-s", "-v", *arguments, f"ro,unheard_of,store={m.store}")
    assert done.returncode == 0
    assert "unknown option 'unheard_of' is ignored" in done.stderr
    assert f"'{m.source}' is mounted at '{m.mountpoint}'" in done.stdout
    m.take_in()


@pytest.mark.mount
@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        ("stor=/x", 1, "unknown option 'stor'; the nearest known one is 'store'"),
        ("store=/proc/nowhere", 1, "the store /proc/nowhere cannot be used: .*"),
        ("store_gb=many", 1, "store_gb: .*"),
        ("mount_timeout=0.001", 32, "'.*' did not answer within 0.001 s, so the daemon was stopped; .*"),
    ],
)
def test_exit_codes(m: ByMount8, options: str, code: int, sentence: str) -> None:
    done = m.mount8("-t", "fuse.mummufs", m.source, m.mountpoint, "-o", options)
    assert re.fullmatch(f"mount.mummufs: {sentence}\n", done.stderr), done.stderr
    assert done.returncode == code
    assert not m.is_mounted


@pytest.mark.mount
def test_a_missing_source_is_refused(m: ByMount8) -> None:
    done = m.mount8("-t", "fuse.mummufs", m.source / "missing", m.mountpoint)
    assert done.returncode == 1
    assert re.fullmatch("mount.mummufs: the source .* cannot be used: No such file or directory\n", done.stderr)


@pytest.mark.mount
def test_remount_is_refused(m: ByMount8) -> None:
    assert m.mount8("-T", m.fstab(), m.mountpoint).returncode == 0
    m.take_in()
    done = m.mount8("-o", "remount,store_gb=2", m.mountpoint)
    assert done.returncode == 1
    assert "remount is not supported: unmount, then mount again" in done.stderr
    assert m.read("f") == (m.source / "f").read_bytes()
    assert m.status()["store"]["budget_bytes"] == 1 << 30


@pytest.mark.mount
def test_mounted_twice_is_refused(m: ByMount8) -> None:
    fstab = m.fstab()
    assert m.mount8("-T", fstab, m.mountpoint).returncode == 0
    m.take_in()
    done = m.mount8("-T", fstab, m.mountpoint)
    assert done.returncode == 1
    assert f"the mountpoint '{m.mountpoint}' is in use" in done.stderr
    assert m.read("f") == (m.source / "f").read_bytes()


@pytest.mark.mount
def test_a_dead_mount_is_replaced(m: ByMount8) -> None:
    fstab = m.fstab()
    assert m.mount8("-T", fstab, m.mountpoint).returncode == 0
    m.take_in()
    m.kill()
    wait_for(lambda: why_not_listed(m.mountpoint), lambda error: error == errno.ENOTCONN)
    done = m.mount8("-T", fstab, m.mountpoint)
    assert done.returncode == 0, done.stderr
    assert "replaced the mount that a killed daemon left" in done.stderr
    m.take_in()
    assert m.read("f") == (m.source / "f").read_bytes()


@pytest.mark.mount
def test_without_the_helper_the_type_is_unknown(m: ByMount8) -> None:
    run("install-helper", "--remove")
    try:
        done = m.mount8("-t", "mummufs", m.source, m.mountpoint)
        assert done.returncode == 32
        assert "unknown filesystem type 'mummufs'" in done.stderr
    finally:
        run("install-helper")


# ---------------------------------------------------------------------- the option `user`


def mounts_what_fstab_lets_it(place: Path) -> None:
    """As a normal user: `mount MNT` and `umount MNT` of a line with the option `user`."""
    open_dev_fuse()
    give(place, USER)
    bind(place / "fstab", Path("/etc/fstab"))
    become(USER)
    os.environ.clear()
    mountpoint = place / "the mount"
    mount, umount = (shutil.which(name, path="/usr/bin:/bin") or name for name in ("mount", "umount"))
    done = subprocess.run([mount, mountpoint], cwd="/", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    try:
        entry = mount_at(mountpoint, read_mountinfo())
        assert entry is not None
        assert f"user_id={os.geteuid()}" in entry.super_options
        assert {"ro", "nosuid", "nodev", "noexec"} <= set(entry.options.split(","))
        assert (mountpoint / "f").read_bytes() == (place / "my models" / "f").read_bytes()
    finally:
        done = subprocess.run([umount, mountpoint], cwd="/", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert mount_at(mountpoint, read_mountinfo()) is None


@pytest.mark.mount
def test_a_user_mounts_what_fstab_lets_them() -> None:
    place = Path(tempfile.mkdtemp(prefix="fstab-")).resolve()
    try:
        for name in ("my models", "the mount", "a store"):
            (place / name).mkdir()
        model(place / "my models")
        ByMount8(place / "my models", store=place / "a store", mountpoint=place / "the mount").fstab()
        by_user(mounts_what_fstab_lets_it, place)
    finally:
        shutil.rmtree(place)
