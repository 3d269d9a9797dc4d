"""Command line, `-o` and environment together give checked settings, or one sentence."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mummufs import paths
from mummufs.config import POLICIES, STORE_BYTES_DEFAULT, MountConfig, build, daemon_arguments
from mummufs.core import policy as core_policy
from mummufs.core.errors import UsageError
from mummufs.mountinfo import MountEntry
from mummufs.options import OWN_OPTIONS

NAMES = st.text(
    st.characters(blacklist_characters="\0/", blacklist_categories=["Cs"]), min_size=1, max_size=40
) | st.text('a,"\\ =', min_size=1, max_size=10)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("source", "mountpoint", "store"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_bytes(b"x")
    return tmp_path


def made(
    tree: Path,
    *options: str,
    environ: Mapping[str, str] | None = None,
    source: str = "source",
    mountpoint: str = "mountpoint",
    **overrides: str | None,
) -> MountConfig:
    return build(
        str(tree / source),
        str(tree / mountpoint),
        options=options,
        environ=environ or {},
        overrides=overrides,
    )


def test_the_defaults(tree: Path) -> None:
    assert made(tree) == MountConfig(
        source=tree / "source", mountpoint=tree / "mountpoint", fsname=str(tree / "source")
    )


def test_every_policy_of_the_core_can_be_asked_for(tree: Path) -> None:
    assert set(POLICIES) == set(core_policy.POLICIES)
    assert made(tree, "policy=decay").policy == "decay"
    assert OWN_OPTIONS["policy"] == "|".join(POLICIES)


def test_every_option_arrives(tree: Path) -> None:
    config = made(
        tree,
        f"store={tree}/store,store_size=1.5G,store_reserve=2G,source_reads=7,read_ahead=1M,max_background=99",
        "attr_timeout=0,settle=250ms,policy=lfu,log_level=DEBUG,mount_timeout=2m,fsname=the name,allow_other,noexec",
        f"manifest={tree}/file,log_file={tree}/log,write_budget_gb_per_day=0.5,prefetch=order",
    )
    assert config == MountConfig(
        source=tree / "source",
        mountpoint=tree / "mountpoint",
        store_dir=tree / "store",
        store_bytes=3 << 29,
        store_reserve_bytes=2 << 30,
        allow_other=True,
        source_reads=7,
        read_ahead_bytes=1 << 20,
        max_background=99,
        attr_timeout_s=0.0,
        settle_s=0.25,
        policy="lfu",
        write_budget_bytes=512 << 20,
        prefetch="order",
        manifest=tree / "file",
        log_file=tree / "log",
        log_level="debug",
        fsname="the name",
        mount_flags=("noexec",),
        mount_timeout_s=120.0,
    )


def test_relative_paths_and_links_are_resolved(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "link").symlink_to("source")
    (tree / "mountlink").symlink_to("mountpoint")
    monkeypatch.chdir(tree)
    config = build("link", "mountlink/.", options=["store=store/new"], environ={})
    assert (config.source, config.mountpoint) == (tree / "source", tree / "mountpoint")
    assert config.store_dir == tree / "store" / "new"
    assert config.fsname == "link"


def test_the_environment_gives_the_store_s_defaults(tree: Path) -> None:
    environ = {"MUMMU_DISK_CACHE_DIR": f"{tree}/store", "MUMMU_DISK_CACHE_GB": "0.5"}
    config = made(tree, environ=environ)
    assert (config.store_dir, config.store_bytes) == (tree / "store", 1 << 29)
    config = made(tree, f"store={tree}/other,store_gb=2", environ=environ)
    assert (config.store_dir, config.store_bytes) == (tree / "other", 2 << 30)
    config = made(tree, environ=environ, store=f"{tree}/third", store_size="3G")
    assert (config.store_dir, config.store_bytes) == (tree / "third", 3 << 30)


def test_an_empty_variable_is_not_set(tree: Path) -> None:
    config = made(tree, environ={"MUMMU_DISK_CACHE_DIR": "", "MUMMU_DISK_CACHE_GB": ""})
    assert (config.store_dir, config.store_bytes) == (None, STORE_BYTES_DEFAULT)


def test_a_long_option_wins_over_o(tree: Path) -> None:
    config = made(tree, "store_size=1G,log_level=debug", store_gb="2", log_level="error")
    assert (config.store_bytes, config.log_level) == (2 << 30, "error")


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("store_size=lots", "store_size: 'lots' is not a size"),
        ("store_size=1000", "store_size: a store of 1000 bytes is too small"),
        ("store_gb=0", "store_gb: a store of 0 bytes is too small"),
        ("store_gb=4G", "store_gb: '4G' is not a number of GiB"),
        ("source_reads=0", "source_reads: '0' is not a whole number from 1 to"),
        ("max_background=65536", "max_background: '65536' is not a whole number from 1 to 65535"),
        ("read_ahead=2G", "read_ahead: '2G' is more than the limit of 1G"),
        ("attr_timeout=-1", "attr_timeout: '-1' is not a duration"),
        ("settle=x", "settle: 'x' is not a duration"),
        ("mount_timeout=0", "mount_timeout: it must be more than 0"),
        ("policy=fifo", "policy: 'fifo' is not one of hotness, lru, lfu, decay"),
        ("write_budget_gb_per_day=50G", "write_budget_gb_per_day: '50G' is not a number of GiB, such as 64"),
        ("write_budget_gb_per_day=-1", "write_budget_gb_per_day: '-1' is not a number of GiB, such as 64"),
        (
            "write_budget_gb_per_day=0",
            "write_budget_gb_per_day: 0 GiB a day is too little; give more, or leave it out for no limit",
        ),
        ("log_level=loud", "log_level: 'loud' is not one of debug, info"),
        ("manifest=/no/such/file", "the manifest '/no/such/file' cannot be used: No such file"),
        ("manifest=/", "the manifest '/' is not a regular file"),
        ("log_file=/", "the log file '/' is a directory"),
        ("store=/dev/null", "the store '/dev/null' is not a directory"),
        ("store=/dev/null/x", "the store '/dev/null/x' cannot be used: Not a directory"),
    ],
)
def test_a_bad_value_is_refused(tree: Path, option: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        made(tree, option)
    assert str(caught.value).startswith(sentence)


def test_a_bad_variable_is_refused_by_its_name(tree: Path) -> None:
    with pytest.raises(UsageError, match=r"^MUMMU_DISK_CACHE_GB: 'much' is not"):
        made(tree, environ={"MUMMU_DISK_CACHE_GB": "much"})


def test_contradicting_or_empty_long_options_are_refused(tree: Path) -> None:
    with pytest.raises(UsageError, match="say the same thing: give one"):
        made(tree, store_gb="1", store_size="1G")
    with pytest.raises(UsageError, match="'--log-file' needs a value that is not empty"):
        made(tree, log_file="")


@pytest.mark.parametrize(
    ("places", "sentence"),
    [
        ({"source": "absent"}, "the source .*absent' cannot be used: No such file"),
        (
            {"source": "file"},
            "the source .*file' is not a directory: give the directory that the file lies in",
        ),
        (
            {"mountpoint": "absent"},
            "the mountpoint .*absent' cannot be used: No such file.*; make the directory",
        ),
        ({"mountpoint": "file"}, "the mountpoint .*file' is not a directory"),
        ({"mountpoint": "source"}, "lies in the source .*: the mount would show itself"),
        ({"source": "", "mountpoint": "mountpoint"}, "lies in the source .*: the mount would show itself"),
        ({"mountpoint": ""}, "the source .* lies in the mountpoint .*: the mount would hide it"),
    ],
)
def test_a_bad_place_is_refused(tree: Path, places: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        build(
            str(tree / places.get("source", "source")),
            str(tree / places.get("mountpoint", "mountpoint")),
            environ={},
        )


@pytest.mark.parametrize(
    ("store", "sentence"),
    [
        ("source", "the store .* lies in the source"),
        ("source/new/store", "the store .* lies in the source"),
        ("link/store", "the store .* lies in the source"),
        ("mountpoint/store", "the store .* lies in the mountpoint"),
        (".", "the source .* lies in the store"),
    ],
)
def test_a_store_that_is_not_apart_is_refused(tree: Path, store: str, sentence: str) -> None:
    (tree / "link").symlink_to("source")
    with pytest.raises(UsageError, match=sentence):
        made(tree, store=str(tree / store))


@pytest.mark.parametrize("places", [("", "x"), ("x", "")])
def test_an_empty_path_is_refused(places: tuple[str, str], tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    source, mountpoint = (place and str(tree / "source") for place in places)
    with pytest.raises(UsageError, match="has no name: give a path that is not empty"):
        build(source, mountpoint, environ={})


def test_a_mountpoint_in_use_is_refused(tree: Path) -> None:
    with pytest.raises(UsageError, match=r"the mountpoint '/proc' is in use: '\S+' \(proc\) is mounted there"):
        build(str(tree / "source"), "/proc", environ={})


@pytest.mark.parametrize("fstype", ["fuse.mummufs", "fuse.sshfs"])
@pytest.mark.parametrize("dead", [False, True])
def test_only_a_dead_mount_of_mummufs_counts_as_free(
    tree: Path, monkeypatch: pytest.MonkeyPatch, fstype: str, dead: bool
) -> None:
    there = MountEntry(1, 0, (0, 9), "/", str(tree / "mountpoint"), "ro", fstype, "/slow", "ro")
    monkeypatch.setattr(paths, "read_mountinfo", lambda: [there])
    monkeypatch.setattr(paths, "is_dead", lambda _path: dead)
    if dead and fstype == "fuse.mummufs":
        assert made(tree).mountpoint == tree / "mountpoint"
    else:
        with pytest.raises(UsageError, match="is in use"):
            made(tree)


def test_a_source_that_may_not_be_read_is_refused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mummufs.paths.os.access", lambda _path, _mode: False)
    with pytest.raises(UsageError, match="may not be read by this user"):
        made(tree)


def test_a_failing_source_is_refused_with_its_reason(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: object, *, strict: bool = False) -> str:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("mummufs.paths.os.path.realpath", fail)
    with pytest.raises(UsageError, match="cannot be used: Input/output error"):
        made(tree)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    store=NAMES,
    fsname=NAMES,
    size=st.integers(1 << 20, 1 << 62),
    settle=st.integers(0, 10**9),
    other=st.booleans(),
)
def test_the_daemon_gets_the_same_settings(
    tree: Path, store: str, fsname: str, size: int, settle: int, other: bool
) -> None:
    config = replace(
        made(tree, "rw,noexec,nosuid,policy=lru,prefetch=order,read_ahead=0,write_budget_gb_per_day=33.3333333"),
        store_dir=Path(paths.writable_place("x", f"{tree}/new/{store}", directory=True)),
        fsname=fsname,
        store_bytes=size,
        settle_s=settle / 1000,
        allow_other=other,
    )
    command, o, options, dashes, *places = daemon_arguments(config)
    assert (command, o, dashes) == ("mount", "-o", "--")
    if config.store_dir is None or config.mountpoint.is_relative_to(config.store_dir):
        return  # a name such as ".." : refused, and tested above
    assert build(*places, options=[options], environ={}) == replace(config, warnings=())
