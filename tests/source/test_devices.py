"""How many reads at once, from /sys and /proc trees made for the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mummufs.source.devices import READS_ROTATIONAL, READS_SOLID, member_devices, spins, suggested_reads


class Kernel:
    """A /sys and a /proc that say what a test wants, about the file system that `volume` is on."""

    def __init__(self, root: Path) -> None:
        self.sys, self.proc = root / "sys", root / "proc"
        self.volume = root / "volume"
        for directory in (self.sys / "dev/block", self.sys / "devices", self.proc / "self", self.volume):
            directory.mkdir(parents=True)
        self.mountinfo("")

    def disk(self, name: str, rotational: str | None) -> Path:
        device = self.sys / "devices" / name
        (device / "queue").mkdir(parents=True)
        if rotational is not None:
            (device / "queue/rotational").write_text(rotational + "\n")
        return device

    def partition(self, disk: Path, name: str) -> Path:
        part = disk / name
        part.mkdir()
        (part / "partition").write_text("1\n")
        return part

    def over(self, name: str, *lower: Path) -> Path:
        device = self.disk(name, "0")
        (device / "slaves").mkdir()
        for below in lower:
            (device / "slaves" / below.name).symlink_to(below)
        return device

    def holds(self, device: Path) -> None:
        """The volume is on this block device."""
        number = os.stat(self.volume).st_dev
        (self.sys / "dev/block" / f"{os.major(number)}:{os.minor(number)}").symlink_to(device)

    def btrfs(self, *members: Path, uuid: str = "0a1b-2c3d") -> None:
        devices = self.sys / "fs/btrfs" / uuid / "devices"
        devices.mkdir(parents=True)
        for member in members:
            (devices / member.name).symlink_to(member)

    def mountinfo(self, *lines: str) -> None:
        (self.proc / "self/mountinfo").write_text("".join(line + "\n" for line in lines if line), "utf-8")

    def mount_line(self, at: str, kind: str, device: str) -> str:
        return f"36 35 0:52 / {at} rw,noatime shared:1 - {kind} {device} rw,subvol=/"

    def suggested(self, path: Path | None = None) -> int:
        return suggested_reads(str(path or self.volume), sys=self.sys, proc=self.proc)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path.resolve())


def test_the_limits_are_those_of_the_manual() -> None:
    assert (READS_ROTATIONAL, READS_SOLID) == (4, 16)


@pytest.mark.parametrize(("rotational", "reads"), [("1", 4), ("0", 16), (None, 4), ("", 4)])
def test_one_disk(kernel: Kernel, rotational: str | None, reads: int) -> None:
    kernel.holds(kernel.disk("sda", rotational))
    assert kernel.suggested() == reads


@pytest.mark.parametrize(("rotational", "reads"), [("1", 4), ("0", 16)])
def test_a_partition_is_what_its_disk_is(kernel: Kernel, rotational: str, reads: int) -> None:
    kernel.holds(kernel.partition(kernel.disk("sda", rotational), "sda2"))
    assert kernel.suggested() == reads


@pytest.mark.parametrize(("first", "second", "reads"), [("0", "0", 16), ("0", "1", 4), ("1", "1", 4)])
def test_a_mapping_over_two_disks(kernel: Kernel, first: str, second: str, reads: int) -> None:
    lower = [kernel.partition(kernel.disk("sda", first), "sda1"), kernel.disk("sdb", second)]
    kernel.holds(kernel.over("dm-1", kernel.over("dm-0", *lower)))
    assert kernel.suggested() == reads


def test_mappings_that_go_round_in_circles_come_to_an_end(kernel: Kernel) -> None:
    first = kernel.over("dm-0")
    (first / "slaves/dm-1").symlink_to(kernel.over("dm-1", first))
    kernel.holds(first)
    assert kernel.suggested() in (READS_ROTATIONAL, READS_SOLID)


@pytest.mark.parametrize(("last", "reads"), [("0", 16), ("1", 4)])
def test_a_btrfs_over_four_disks(kernel: Kernel, last: str, reads: int) -> None:
    other = [kernel.disk(name, "1" if last == "0" else "0") for name in ("sde", "sdf")]
    kernel.btrfs(*other, uuid="ffff-0000")
    members = [kernel.disk(name, rotational) for name, rotational in zip("wxyz", ("0", "0", "0", last), strict=True)]
    kernel.btrfs(*members)
    (kernel.sys / "fs/btrfs/features").mkdir()
    kernel.mountinfo(
        kernel.mount_line("/", "btrfs", "/dev/sde"),
        kernel.mount_line(str(kernel.volume), "btrfs", "/dev/x"),
        kernel.mount_line(str(kernel.volume) + "-other", "btrfs", "/dev/sdf"),
    )
    assert member_devices(str(kernel.volume), sys=kernel.sys, proc=kernel.proc) == members
    assert kernel.suggested() == reads


@pytest.mark.parametrize("name", ["deep mem", "tab\there", "back\\slash", "déjà", "日本 語", "\\040"])
def test_the_mount_is_found_whatever_its_path(kernel: Kernel, name: str) -> None:
    place = kernel.volume / name / "models"
    place.mkdir(parents=True)
    kernel.btrfs(kernel.disk("sda", "0"))
    escaped = str(place.parent)
    for character in "\\ \t\n":
        escaped = escaped.replace(character, f"\\{ord(character):03o}")
    kernel.mountinfo(kernel.mount_line("/", "ext4", "/dev/sdz"), kernel.mount_line(escaped, "btrfs", "/dev/sda"))
    assert kernel.suggested(place) == READS_SOLID


def test_the_mount_on_top_counts(kernel: Kernel) -> None:
    kernel.btrfs(kernel.disk("sda", "0"))
    lower = kernel.mount_line(str(kernel.volume), "btrfs", "/dev/sda")
    kernel.mountinfo(lower)
    assert kernel.suggested() == READS_SOLID
    kernel.mountinfo(lower, kernel.mount_line(str(kernel.volume), "nfs4", "server:/models"))
    assert kernel.suggested() == READS_ROTATIONAL


@pytest.mark.parametrize("kind", ["nfs4", "fuse.x", "overlay", "btrfs"])
def test_what_is_not_known_is_taken_to_spin(kernel: Kernel, kind: str) -> None:
    kernel.disk("sda", "0")
    kernel.mountinfo(kernel.mount_line(str(kernel.volume), kind, "/dev/sda"))
    assert kernel.suggested() == READS_ROTATIONAL


def test_a_volume_that_no_mount_holds(kernel: Kernel) -> None:
    assert kernel.suggested() == READS_ROTATIONAL


@pytest.mark.parametrize(
    ("rotational", "expected"),
    [(("1",), True), (("0",), False), ((None,), False), (("0", "1"), True), (("0", None), False), ((), False)],
)
def test_a_volume_spins_if_one_of_its_disks_says_so(
    tmp_path: Path, rotational: tuple[str | None, ...], expected: bool
) -> None:
    kernel = Kernel(tmp_path)
    disks = [kernel.disk(f"sd{i}", said) for i, said in enumerate(rotational)]
    if disks:
        kernel.holds(kernel.partition(kernel.over("dm-0", *disks), "dm-0p1"))
    assert spins(os.fspath(kernel.volume), sys=kernel.sys, proc=kernel.proc) is expected
