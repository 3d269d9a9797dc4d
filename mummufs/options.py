"""The grammar of `-o`: what mount(8), an fstab line and `mummufs mount -o` may say.

Options are separated by commas. A double quote opens or closes a part in which commas are plain characters, and the
quotes are dropped: `store="/a,b"`. A backslash before a double quote makes it a plain character; every other
backslash stands for itself. The last of two contradicting options wins, as with mount(8).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from mummufs.core.errors import UsageError

OWN_OPTIONS = {
    "store": "DIR",
    "store_size": "SIZE",
    "store_gb": "GIB",
    "store_reserve": "SIZE",
    "source_reads": "N",
    "read_ahead": "SIZE",
    "max_background": "N",
    "attr_timeout": "SECONDS",
    "settle": "SECONDS",
    "source_timeout": "SECONDS",
    "verify": "first|always",
    "policy": "hotness|lru|lfu|decay",
    "write_budget_gb_per_day": "GIB",
    "lane": "auto|on|off",
    "io": "auto|cached|direct",
    "push": "on|off",
    "prefetch": "off|order",
    "passthrough": "off|on",
    "ram_budget": "SIZE",
    "manifest": "FILE",
    "log_file": "FILE",
    "log_level": "LEVEL",
    "mount_timeout": "SECONDS",
    "fsname": "NAME",
}
"""The options of mummufs that take a value, and what the value is."""

OWN_FLAGS = frozenset({"allow_other", "default_permissions", "offline_reads"})
"""The options of mummufs without a value. `default_permissions` is always on, so it changes nothing."""

KEPT_FLAGS = {
    "suid": "nosuid",
    "dev": "nodev",
    "exec": "noexec",
    "atime": "noatime",
    "diratime": "nodiratime",
    "async": "sync",
}
"""Flags of the kernel's mount: the word that takes one back, and the one that is handed on."""

IGNORED_FLAGS = frozenset(
    (
        *("defaults", "auto", "noauto", "nofail", "_netdev"),
        *("user", "nouser", "users", "nousers", "owner", "noowner", "group", "nogroup"),
        *(
            "relatime",
            "norelatime",
            "strictatime",
            "nostrictatime",
            "lazytime",
            "nolazytime",
            "silent",
            "loud",
        ),
    )
)
"""Words that mount(8), systemd or the kernel's defaults have already dealt with."""

IGNORED_PREFIXES = ("x-", "X-", "comment=", "user=", "uhelper=", "helper=")
"""Options for other programs that read fstab, and mount(8)'s notes to itself."""

_EXCLUSIVE = {"store_size": "store_gb", "store_gb": "store_size"}


@dataclass(frozen=True)
class ParsedOptions:
    """What a list of `-o` strings says.

    Attributes:
        values: option -> text, for OWN_OPTIONS; of `store_size` and `store_gb` only the last given.
        flags: of OWN_FLAGS, those given.
        mount_flags: of KEPT_FLAGS' values, those in force, in alphabetical order.
        read_only: `ro` was given, and no `rw` after it.
        warnings: a sentence each.
    """

    values: dict[str, str]
    flags: frozenset[str]
    mount_flags: tuple[str, ...]
    warnings: tuple[str, ...]
    read_only: bool = False


def split_options(text: str) -> list[str]:
    """The items of one `-o` string, without their quotes. Empty items are left out.

    Raises:
        UsageError: a quote is left open.
    """
    items: list[str] = []
    item: list[str] = []
    quoted = False
    i = 0
    while i < len(text):
        char = text[i]
        if text.startswith('\\"', i):
            item.append('"')
            i += 1
        elif char == '"':
            quoted = not quoted
        elif char == "," and not quoted:
            items.append("".join(item))
            item = []
        else:
            item.append(char)
        i += 1
    if quoted:
        raise UsageError(f"a double quote is left open in the options {text!r}")
    items.append("".join(item))
    return [found for found in items if found]


def quote_option(name: str, value: str) -> str:
    """`name=value` such that `split_options` yields exactly that."""
    body = value.rstrip("\\")
    trailing = value[len(body) :]  # inside the quotes a last backslash would take the closing one with it
    escaped = body.replace('"', '\\"')
    return f'{name}="{escaped}"{trailing}'


def parse_options(texts: Iterable[str], *, sloppy: bool = False) -> ParsedOptions:
    """Read `-o` strings in order.

    Args:
        sloppy: an unknown option becomes a warning (mount(8)'s `-s`).

    Raises:
        UsageError: an unknown option, a missing or needless value, `remount`, an open quote.
    """
    values: dict[str, str] = {}
    flags: set[str] = set()
    mount_flags: set[str] = set()
    warnings: list[str] = []
    read_only = False
    taken_back = {**KEPT_FLAGS, **{kept: kept for kept in KEPT_FLAGS.values()}}
    for item in (item for text in texts for item in split_options(text)):
        name, equals, value = item.partition("=")
        if name in OWN_OPTIONS:
            if not value:
                raise UsageError(f"option '{name}' needs a value: {name}={OWN_OPTIONS[name]}")
            values.pop(_EXCLUSIVE.get(name, ""), None)
            values[name] = value
        elif item.startswith(IGNORED_PREFIXES):
            continue
        elif name not in OWN_FLAGS | IGNORED_FLAGS | taken_back.keys() | {"ro", "rw", "remount"}:
            if not sloppy:
                raise UsageError(_unknown(name))
            warnings.append(f"unknown option '{name}' is ignored")
        elif equals:
            raise UsageError(f"option '{name}' takes no value, but {value!r} was given")
        elif name == "remount":
            raise UsageError("remount is not supported: unmount, then mount again with the new options")
        elif name in OWN_FLAGS:
            flags.add(name)
        elif name in ("ro", "rw"):
            read_only = name == "ro"
        elif name in taken_back:
            mount_flags.discard(taken_back[name])
            if name not in KEPT_FLAGS:
                mount_flags.add(name)
    return ParsedOptions(values, frozenset(flags), tuple(sorted(mount_flags)), tuple(warnings), read_only)


def _unknown(name: str) -> str:
    known = {*OWN_OPTIONS, *OWN_FLAGS, *KEPT_FLAGS, *KEPT_FLAGS.values(), *IGNORED_FLAGS, "ro", "rw"}
    nearest = get_close_matches(name, sorted(known), n=1, cutoff=0.0)[0]
    return f"unknown option '{name}'; the nearest known one is '{nearest}'"
