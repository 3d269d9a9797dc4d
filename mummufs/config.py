"""The settings of one mount: every value checked before anything is mounted.

`build` is the one way in: command line, `-o` options and environment give a `MountConfig`, or one sentence.
`daemon_arguments` is the way back: the command line that gives the same settings in another process, whatever its
directory and environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeGuard

from mummufs import paths
from mummufs.core.errors import UsageError
from mummufs.options import ParsedOptions, parse_options, quote_option
from mummufs.units import gib, parse_count, parse_duration, parse_gib, parse_size

Policy = Literal["hotness", "lru", "lfu", "decay"]
Verify = Literal["first", "always"]

STORE_ENV = "MUMMU_DISK_CACHE_DIR"
"""The environment's default of the store's directory. Empty means unset, as for the next."""

STORE_GB_ENV = "MUMMU_DISK_CACHE_GB"
"""The environment's default of the store's budget, in GiB."""

STORE_BYTES_DEFAULT = 64 << 30
"""The store's budget where nothing else is said."""

STORE_BYTES_MIN = 1 << 20
"""A smaller budget holds hardly a range; it is taken for a forgotten unit."""

SOURCE_READS_MAX = 1024
"""More reads at once than this help no source: each needs a thread."""

READ_AHEAD_BYTES_MAX = 1 << 30
"""The kernel keeps read-ahead in RAM for every open file."""

MAX_BACKGROUND_DEFAULT = 1024
"""Background requests that the kernel sends before it holds more back. Its own default, 12, lets 12 hung misses stop
every buffered read."""

MAX_BACKGROUND_MAX = 65535
"""The kernel keeps the number in 16 bits."""

ATTR_TIMEOUT_S_DEFAULT = 1.0
"""How long the kernel believes attributes without asking: so long may a change of the source stay unseen."""

SETTLE_S_DEFAULT = 5.0
"""A file that changed in so many last seconds is not cached: its version does not yet tell its contents."""

SOURCE_TIMEOUT_S_DEFAULT = 120.0
"""A call to the source that takes longer is given up, with EIO for who waits. Disks take 30 s to spin up."""

MOUNT_TIMEOUT_S_DEFAULT = 60.0
"""How long `mummufs mount` waits for the mount to answer. A source may have to spin up."""

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_LEVEL_DEFAULT = "info"

LANE = ("auto", "on", "off")
IO = ("auto", "cached", "direct")
SWITCH = ("on", "off")
PREFETCH = ("off", "order")

UNBUFFERED_ENV = "MUMMUFS_UNBUFFERED"
"""1 makes every read go past the page cache, 0 none, whatever `io` says. Empty means unset."""

OWN_ENVIRONMENT = (STORE_ENV, STORE_GB_ENV, UNBUFFERED_ENV)
"""What a daemon does not look at: its command line says everything."""

VERIFY: dict[str, Verify] = {"first": "first", "always": "always"}

POLICIES: tuple[Policy, ...] = ("hotness", "lru", "lfu", "decay")

WRITE_BUDGET_BYTES_MIN = 1 << 20
"""A smaller allowance of writes per day is taken for a forgotten unit."""

PASS_THROUGH_NOTE = "no store directory: pass-through, nothing is cached (give --store DIR)"  # noqa: S105 - no password


class Places(Protocol):
    """The checks of the paths that a mount is made of. See `paths`."""

    def source_directory(self, text: str, /) -> Path: ...

    def usable_mountpoint(self, text: str, /) -> Path: ...

    def writable_place(self, what: str, text: str, /, *, directory: bool) -> Path: ...

    def existing_file(self, what: str, text: str, /) -> Path: ...

    def check_places(self, source: Path, mountpoint: Path, store: Path | None, /) -> None: ...


@dataclass(frozen=True)
class MountConfig:
    """The settings of one mount, all checked.

    Attributes:
        source: the directory to mirror; absolute, no symlinks.
        mountpoint: where it appears; absolute, no symlinks.
        store_dir: the store's directory, absolute; it may not exist yet. None means pass-through.
        store_bytes: the store's budget.
        store_reserve_bytes: free space that fills leave on the store's file system; None for the store's default.
        read_only: nothing is written through the mount; the kernel answers EROFS.
        allow_other: other users may use the mount.
        source_reads: reads of the source at once; None for a number chosen by its devices.
        read_ahead_bytes: the kernel's read-ahead on the mount; None for the default.
        max_background: see MAX_BACKGROUND_DEFAULT.
        attr_timeout_s: see ATTR_TIMEOUT_S_DEFAULT.
        settle_s: see SETTLE_S_DEFAULT.
        source_timeout_s: see SOURCE_TIMEOUT_S_DEFAULT.
        offline_reads: serve what is in the store while the source is absent.
        verify: prove a range file before its first hit of a mount, or before every hit.
        policy: the order of eviction.
        write_budget_bytes: what may be written to the store in a day; 0 for any amount.
        lane: whether threads of our own serve hits in front of libfuse: auto, on (or the mount fails), off.
        direct: files are read past the kernel's page cache.
        push: store the rest of a window into the page cache when a mapping walks through it.
        prefetch: what is fetched before it is asked for: nothing (off), or what follows while a model is read in the
            order of its manifest (order). Nothing where `direct`.
        passthrough: have the kernel read files without ranges by itself. Off unless asked for: an open handle then
            sees a rewrite in place, as in the source, where it would otherwise see one version or ESTALE.
        ram_budget_bytes: memory that the engine takes for itself, for io=auto.
        manifest: a native manifest that names the ranges of the file it states, or None.
        log_file: where the daemon logs, absolute; None for nowhere in the background, stderr in the foreground.
        log_level: one of LOG_LEVELS.
        fsname: the source as the user gave it: what mountinfo shows. It may hold spaces and commas.
        mount_flags: of nosuid, nodev, noexec, noatime, nodiratime and sync those wanted, for libfuse.
        foreground: the daemon is this process.
        mount_timeout_s: see MOUNT_TIMEOUT_S_DEFAULT.
        warnings: a sentence each, for whoever started the mount.
    """

    source: Path
    mountpoint: Path
    store_dir: Path | None = None
    store_bytes: int = STORE_BYTES_DEFAULT
    store_reserve_bytes: int | None = None
    read_only: bool = False
    allow_other: bool = False
    source_reads: int | None = None
    read_ahead_bytes: int | None = None
    max_background: int = MAX_BACKGROUND_DEFAULT
    attr_timeout_s: float = ATTR_TIMEOUT_S_DEFAULT
    settle_s: float = SETTLE_S_DEFAULT
    source_timeout_s: float = SOURCE_TIMEOUT_S_DEFAULT
    offline_reads: bool = False
    verify: Verify = "first"
    policy: Policy = "hotness"
    write_budget_bytes: int = 0
    lane: str = "auto"
    direct: bool = False
    push: bool = True
    prefetch: str = PREFETCH[0]
    passthrough: bool = False
    ram_budget_bytes: int = 0
    manifest: Path | None = None
    log_file: Path | None = None
    log_level: str = LOG_LEVEL_DEFAULT
    fsname: str = ""
    mount_flags: tuple[str, ...] = ()
    foreground: bool = False
    mount_timeout_s: float = MOUNT_TIMEOUT_S_DEFAULT
    warnings: tuple[str, ...] = ()


def build(
    source: str,
    mountpoint: str,
    *,
    options: Iterable[str] = (),
    environ: Mapping[str, str],
    overrides: Mapping[str, str | None] | None = None,
    foreground: bool = False,
    sloppy: bool = False,
    places: Places = paths,
) -> MountConfig:
    """Check everything that a mount needs and give its settings. Nothing is created or mounted.

    Args:
        source: a directory, as the user gave it; relative paths are of the current directory.
        mountpoint: an empty place in the tree; a dead mount of mummufs there is taken for empty.
        options: `-o` strings.
        environ: STORE_ENV and STORE_GB_ENV are read from it.
        overrides: option -> text of the long options, which win over `options`; None for one not given.
        foreground: see `MountConfig`.
        sloppy: unknown options are warnings.
        places: what checks the paths; Windows has checks of its own.

    Raises:
        UsageError: a sentence that says what is wrong and what to do.
    """
    parsed = parse_options(options, sloppy=sloppy)
    values = _merged(parsed, overrides or {})
    source_path = places.source_directory(source)
    mountpoint_path = places.usable_mountpoint(mountpoint)
    store_text = values.get("store") or environ.get(STORE_ENV) or None
    store_dir = places.writable_place("the store", store_text, directory=True) if store_text else None
    places.check_places(source_path, mountpoint_path, store_dir)
    return MountConfig(
        source=source_path,
        mountpoint=mountpoint_path,
        store_dir=store_dir,
        store_bytes=_store_bytes(values, environ),
        store_reserve_bytes=_size(values, "store_reserve"),
        read_only=parsed.read_only,
        allow_other="allow_other" in parsed.flags,
        source_reads=_count(values, "source_reads", 1, SOURCE_READS_MAX),
        read_ahead_bytes=_read_ahead(values),
        max_background=_count(values, "max_background", 1, MAX_BACKGROUND_MAX) or MAX_BACKGROUND_DEFAULT,
        attr_timeout_s=_duration(values, "attr_timeout", ATTR_TIMEOUT_S_DEFAULT),
        settle_s=_duration(values, "settle", SETTLE_S_DEFAULT),
        source_timeout_s=_source_timeout(values),
        offline_reads="offline_reads" in parsed.flags,
        verify=_verify(values),
        policy=_policy(values),
        write_budget_bytes=_write_budget(values),
        lane=_one_of("lane", values, LANE),
        direct=_direct(values, environ),
        push=_one_of("push", values, SWITCH) == "on",
        prefetch=_one_of("prefetch", values, PREFETCH),
        passthrough=_one_of("passthrough", values, SWITCH[::-1]) == "on",
        ram_budget_bytes=_size(values, "ram_budget") or 0,
        manifest=places.existing_file("the manifest", values["manifest"]) if "manifest" in values else None,
        log_file=(
            places.writable_place("the log file", values["log_file"], directory=False) if "log_file" in values else None
        ),
        log_level=_log_level(values),
        fsname=values.get("fsname", source),
        mount_flags=parsed.mount_flags,
        foreground=foreground,
        mount_timeout_s=_mount_timeout(values),
        warnings=parsed.warnings,
    )


def daemon_arguments(config: MountConfig) -> list[str]:
    """What follows `mummufs` to give the same settings, apart from `foreground`, from any directory."""
    options = {
        "store": config.store_dir,
        "store_size": config.store_bytes,
        "store_reserve": config.store_reserve_bytes,
        "source_reads": config.source_reads,
        "read_ahead": config.read_ahead_bytes,
        "max_background": config.max_background,
        "attr_timeout": f"{config.attr_timeout_s:.6f}",
        "settle": f"{config.settle_s:.6f}",
        "source_timeout": f"{config.source_timeout_s:.6f}",
        "verify": config.verify,
        "policy": config.policy,
        "write_budget_gb_per_day": gib(config.write_budget_bytes) if config.write_budget_bytes else None,
        "lane": config.lane,
        "io": "direct" if config.direct else "cached",
        "push": _switch(config.push),
        "prefetch": config.prefetch,
        "passthrough": _switch(config.passthrough),
        "ram_budget": config.ram_budget_bytes,
        "manifest": config.manifest,
        "log_file": config.log_file,
        "log_level": config.log_level,
        "mount_timeout": f"{config.mount_timeout_s:.6f}",
        "fsname": config.fsname,
    }
    words = [quote_option(name, str(value)) for name, value in options.items() if value is not None]
    words.extend(config.mount_flags)
    if config.read_only:
        words.append("ro")
    if config.allow_other:
        words.append("allow_other")
    if config.offline_reads:
        words.append("offline_reads")
    return ["mount", "-o", ",".join(words), "--", str(config.source), str(config.mountpoint)]


def _merged(parsed: ParsedOptions, overrides: Mapping[str, str | None]) -> dict[str, str]:
    """The long options laid over those of `-o`."""
    given = {name: value for name, value in overrides.items() if value is not None}
    if "store_size" in given and "store_gb" in given:
        raise UsageError("--store-size and --store-gb say the same thing: give one of them")
    for name, value in given.items():
        if not value:
            raise UsageError(f"option '--{name.replace('_', '-')}' needs a value that is not empty")
    values = dict(parsed.values)
    if "store_size" in given or "store_gb" in given:
        values.pop("store_size", None)
        values.pop("store_gb", None)
    return {**values, **given}


def _store_bytes(values: Mapping[str, str], environ: Mapping[str, str]) -> int:
    if "store_size" in values:
        what, size = "store_size", parse_size("store_size", values["store_size"])
    elif "store_gb" in values:
        what, size = "store_gb", parse_gib("store_gb", values["store_gb"])
    elif environ.get(STORE_GB_ENV):
        what, size = STORE_GB_ENV, parse_gib(STORE_GB_ENV, environ[STORE_GB_ENV])
    else:
        return STORE_BYTES_DEFAULT
    if size < STORE_BYTES_MIN:
        raise UsageError(f"{what}: a store of {size} bytes is too small; give at least 1M")
    return size


def _size(values: Mapping[str, str], name: str) -> int | None:
    return parse_size(name, values[name]) if name in values else None


def _count(values: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    return parse_count(name, values[name], low, high) if name in values else None


def _duration(values: Mapping[str, str], name: str, default: float) -> float:
    return parse_duration(name, values[name]) if name in values else default


def _read_ahead(values: Mapping[str, str]) -> int | None:
    size = _size(values, "read_ahead")
    if size is not None and size > READ_AHEAD_BYTES_MAX:
        raise UsageError(f"read_ahead: {values['read_ahead']!r} is more than the limit of 1G")
    return size


def _source_timeout(values: Mapping[str, str]) -> float:
    seconds = _duration(values, "source_timeout", SOURCE_TIMEOUT_S_DEFAULT)
    if seconds <= 0:
        raise UsageError("source_timeout: give a time longer than 0")
    return seconds


def _verify(values: Mapping[str, str]) -> Verify:
    value = values.get("verify", "first")
    known = VERIFY.get(value)
    if known is None:
        raise UsageError(f"verify: {value!r} is not one of: {', '.join(VERIFY)}")
    return known


def _mount_timeout(values: Mapping[str, str]) -> float:
    seconds = _duration(values, "mount_timeout", MOUNT_TIMEOUT_S_DEFAULT)
    if seconds <= 0:
        raise UsageError("mount_timeout: it must be more than 0, such as 60s")
    return seconds


def _policy(values: Mapping[str, str]) -> Policy:
    policy = values.get("policy", POLICIES[0])
    if not _is_policy(policy):
        raise UsageError(f"policy: {policy!r} is not one of {', '.join(POLICIES)}")
    return policy


def _write_budget(values: Mapping[str, str]) -> int:
    name = "write_budget_gb_per_day"
    if name not in values:
        return 0
    size = parse_gib(name, values[name])
    if size < WRITE_BUDGET_BYTES_MIN:
        raise UsageError(f"{name}: {values[name]} GiB a day is too little; give more, or leave it out for no limit")
    return size


def _is_policy(text: str) -> TypeGuard[Policy]:
    return text in POLICIES


def _one_of(name: str, values: Mapping[str, str], known: tuple[str, ...]) -> str:
    value = values.get(name, known[0])
    if value not in known:
        raise UsageError(f"{name}: {value!r} is not one of: {', '.join(known)}")
    return value


def _switch(on: bool) -> str:
    return "on" if on else "off"


def _direct(values: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Whether reads go past the page cache. `auto` means cached here: engines map their models, and pages that do not
    fit are dropped and come back from the store."""
    forced = environ.get(UNBUFFERED_ENV)
    if forced not in (None, "", "0", "1"):
        raise UsageError(f"{UNBUFFERED_ENV}: {forced!r} is neither 0 nor 1")
    return forced == "1" if forced else _one_of("io", values, IO) == "direct"


def _log_level(values: Mapping[str, str]) -> str:
    level = values.get("log_level", LOG_LEVEL_DEFAULT).lower()
    if level not in LOG_LEVELS:
        raise UsageError(f"log_level: {level!r} is not one of {', '.join(LOG_LEVELS)}")
    return level
