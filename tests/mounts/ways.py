"""The four ways in which the mount tests run: with the lane, without it, and with what older kernels offer.

    python -m tests.mounts.ways all [PYTEST ARGUMENT...]      every way, the whole of tests/mounts; of older kernels
                                                              what reads and writes at random, too
    python -m tests.mounts.ways others [PYTEST ARGUMENT...]   for a suite that has run the first way by itself: of each
                                                              other way what it is most likely to break, in two minutes

An older kernel is imitated by taking out of INIT's offer what it did not know.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from mummufs.mount import MASKED_ENV
from tests import stages

OPTIONS_ENV = "MUMMUFS_TEST_OPTIONS"
"""A string for `-o`, added to every mount of the harness; a test's own options win."""

SINCE = {
    "CREATE_SUPP_GROUP": (34, (6, 3)),
    "HAS_EXPIRE_ONLY": (35, (6, 4)),
    "DIRECT_IO_ALLOW_MMAP": (36, (6, 6)),
    "PASSTHROUGH": (37, (6, 9)),
    "NO_EXPORT_SUPPORT": (38, (6, 9)),
    "HAS_RESEND": (39, (6, 9)),
    "ALLOW_IDMAP": (40, (6, 12)),
    "OVER_IO_URING": (41, (6, 14)),
    "REQUEST_TIMEOUT": (42, (6, 15)),
}
"""INIT flags that came after 6.1, the oldest kernel served: name -> bit, first Linux that offers it. All of them are in
flags2; the first word was full before."""


def offered_after(kernel: tuple[int, int]) -> int:
    """The mask of what this kernel does not offer: flags in the low word, flags2 in the high one."""
    return sum(1 << bit for bit, since in SINCE.values() if since > kernel)


WAYS: dict[str, dict[str, str]] = {
    "lane": {},
    "no lane": {OPTIONS_ENV: "lane=off"},
    "6.1": {MASKED_ENV: f"{offered_after((6, 1)):x}"},
    "6.8": {MASKED_ENV: f"{offered_after((6, 8)):x}"},
}
"""Name -> environment of the tests."""

ALL = ("tests/mounts",)


def _files(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/mounts/test_{name}.py" for name in names)


AT_RANDOM = tuple(f"tests/hostile/test_{name}.py" for name in ("operator", "state_machine", "writers"))
"""These take the lane, and do without it, by themselves."""

STATE_MACHINE = "tests/hostile/test_state_machine.py"

NOT_WITHOUT = ("--ignore-glob=*/test_lane*.py",)
"""These want the lane whatever the way, so they would say the same once more."""

PLANS: dict[str, dict[str, Sequence[str]]] = {
    "all": {
        "lane": ALL,
        "no lane": (*ALL, *NOT_WITHOUT),
        "6.1": (*ALL, *AT_RANDOM),
        "6.8": (*ALL, *AT_RANDOM),
    },
    "others": {
        "no lane": _files("bytes", "filling", "mirror", "store_faults", "warm"),
        "6.1": (*_files("bytes", "lane"), STATE_MACHINE),
        "6.8": (*_files("lane_modes", "lane_push"), STATE_MACHINE),
    },
}
"""Plan -> what each way of it runs."""


def main(arguments: Sequence[str]) -> int:
    """Run a plan to its end; 1 if a way has failed."""
    if not arguments or arguments[0] not in PLANS:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    failed = []
    for way, paths in PLANS[arguments[0]].items():
        print(f"== {way}", flush=True)
        if not stages.run("mount", [*paths, *arguments[1:]], {**os.environ, **WAYS[way]}):
            failed.append(way)
    print(f"failed: {', '.join(failed)}" if failed else f"all well: {', '.join(PLANS[arguments[0]])}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
