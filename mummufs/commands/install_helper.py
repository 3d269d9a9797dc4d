"""`mummufs install-helper`: links that let mount(8), and with it fstab and systemd, find `mount.mummufs`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mummufs.commands.output import printable
from mummufs.core.errors import MummufsError, UsageError

SCRIPT_NAME = "mount.mummufs"

LINK_NAMES = ("mount.mummufs", "mount.fuse.mummufs")
"""mount(8) runs /sbin/mount.TYPE: the types are `mummufs` and `fuse.mummufs`."""

DIRECTORY_DEFAULT = "/sbin"
"""The one place where mount(8) of util-linux always looks."""


@click.command("install-helper")
@click.option("--remove", is_flag=True, help="Take the links away again.")
@click.option("--dir", "directory", metavar="DIR", default=DIRECTORY_DEFAULT, show_default=True, help="Where to.")
def install_helper(remove: bool, directory: str) -> None:
    """Let mount(8) and fstab know the type fuse.mummufs."""
    script = Path(sys.executable).parent / SCRIPT_NAME
    target = Path(directory)
    if not target.is_dir():
        raise UsageError(f"'{directory}' is not a directory")
    try:
        lines = remove_links(target, script) if remove else install_links(target, script)
    except PermissionError as error:
        raise MummufsError(f"'{directory}' may not be changed by this user: use sudo") from error
    for line in lines:
        click.echo(printable(line))


def install_links(directory: Path, script: Path) -> list[str]:
    """Make the links. All are checked before the first is made. Gives a line for each.

    Raises:
        MummufsError: the script is missing, or something that is not ours has a link's name.
        OSError: the directory cannot be changed.
    """
    if not script.is_file():
        raise MummufsError(f"'{script}' is not there: install the package with pip into this environment first")
    links = [directory / name for name in LINK_NAMES]
    for link in links:
        if not _is_free(link) and not _is_ours(link, script) and not _is_abandoned(link):
            raise MummufsError(f"'{link}' is there already and is not of this installation: remove it first")
    lines = []
    for link in links:
        if _is_ours(link, script):
            lines.append(f"'{link}' is there already")
            continue
        link.unlink(missing_ok=True)
        link.symlink_to(script)
        lines.append(f"'{link}' -> '{script}'")
    return lines


def remove_links(directory: Path, script: Path) -> list[str]:
    """Take away the links of this installation, and no others. Gives a line for each.

    Raises:
        OSError: the directory cannot be changed.
    """
    lines = []
    for link in (directory / name for name in LINK_NAMES):
        if _is_free(link):
            lines.append(f"'{link}' is not there")
        elif _is_ours(link, script):
            link.unlink()
            lines.append(f"'{link}' is removed")
        else:
            lines.append(f"'{link}' stays: it is not of this installation")
    return lines


def _is_free(link: Path) -> bool:
    return not link.is_symlink() and not link.exists()


def _is_ours(link: Path, script: Path) -> bool:
    return link.is_symlink() and link.readlink() == script


def _is_abandoned(link: Path) -> bool:
    """Whether it is the link of a mummufs installation that is no more."""
    return link.is_symlink() and link.readlink().name == SCRIPT_NAME and not link.exists()
