"""The FUSE protocol as the lane speaks it: structs against the kernel's header, and INIT rewritten."""

from __future__ import annotations

import errno
import re
import shutil
import struct
import subprocess
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mummufs.backends.fuse import wire
from mummufs.backends.fuse.wire import Negotiated, Offer, Wishes

HEADER = Path("/usr/include/linux/fuse.h")

STRUCTS = {
    "fuse_in_header": (wire.IN_HEADER, "len opcode unique nodeid uid gid pid total_extlen padding"),
    "fuse_out_header": (wire.OUT_HEADER, "len error unique"),
    "fuse_read_in": (wire.READ_IN, "fh offset size read_flags lock_owner flags padding"),
    "fuse_open_out": (wire.OPEN_OUT, "fh open_flags backing_id"),
    "fuse_interrupt_in": (wire.INTERRUPT_IN, "unique"),
    "fuse_notify_store_out": (wire.STORE_OUT, "nodeid offset size padding"),
    "fuse_init_in": (wire.INIT_IN, "major minor max_readahead flags flags2"),
    "fuse_init_out": (
        wire.INIT_OUT,
        (
            "major minor max_readahead flags max_background congestion_threshold max_write time_gran max_pages"
            " map_alignment flags2 max_stack_depth"
        ),
    ),
    "fuse_backing_map": (wire.BACKING_MAP, "fd flags padding"),
}
"""Kernel's name -> ours, and its fields as far as we name them."""

SINCE = {
    ("fuse_in_header", "total_extlen"): (38, "Linux 6.3", 36, 2),
    ("fuse_open_out", "backing_id"): (40, "Linux 6.9", 12, 4),
    ("fuse_init_out", "max_stack_depth"): (40, "Linux 6.9", 36, 4),
    ("fuse_backing_map", "fd"): (40, "Linux 6.9", 0, 4),
    ("fuse_backing_map", "flags"): (40, "Linux 6.9", 4, 4),
    ("fuse_backing_map", "padding"): (40, "Linux 6.9", 8, 8),
}
"""What is younger than 7.37: minor version, kernel, offset and size in bytes."""

CONSTANTS = {
    **{f"FUSE_{name}": getattr(wire, name) for name in ("LOOKUP", "FORGET", "GETATTR", "OPEN", "READ", "WRITE")},
    **{f"FUSE_{name}": getattr(wire, name) for name in ("RELEASE", "INIT", "READDIR", "INTERRUPT", "DESTROY")},
    **{f"FUSE_{name}": getattr(wire, name) for name in ("BATCH_FORGET", "READDIRPLUS", "NOTIFY_STORE")},
    **{f"FUSE_{name}": getattr(wire, name) for name in ("ASYNC_DIO", "MAX_PAGES", "INIT_EXT")},
    "FUSE_SPLICE_WRITE | FUSE_SPLICE_MOVE | FUSE_SPLICE_READ": wire.SPLICE_FLAGS,
    "FUSE_DEV_IOC_CLONE": wire.IOC_CLONE,
}
"""Expressions of the header -> ours."""

CONSTANTS_SINCE = {
    "FUSE_DIRECT_IO_ALLOW_MMAP": (39, wire.DIRECT_IO_ALLOW_MMAP << 32, 1 << 36),
    "FUSE_PASSTHROUGH": (40, wire.PASSTHROUGH << 32, 1 << 37),
    "FOPEN_PASSTHROUGH": (40, wire.FOPEN_PASSTHROUGH, 1 << 7),
    "FUSE_DEV_IOC_BACKING_OPEN": (40, wire.IOC_BACKING_OPEN, 1 << 30 | 16 << 16 | 229 << 8 | 1),
    "FUSE_DEV_IOC_BACKING_CLOSE": (40, wire.IOC_BACKING_CLOSE, 1 << 30 | 4 << 16 | 229 << 8 | 2),
}
"""Name -> minor version that has it, ours, and the value as that kernel's header states it."""


@cache
def header_minor() -> int:
    """The protocol's minor version that the installed header is of."""
    if not HEADER.exists() or shutil.which("gcc") is None:
        pytest.skip("linux-libc-dev and gcc are needed to look at the kernel's header")
    found = re.search(r"#define FUSE_KERNEL_MINOR_VERSION (\d+)", HEADER.read_text())
    assert found is not None
    return int(found[1])


def evaluated(expressions: list[str], folder: Path) -> dict[str, int]:
    """What C says that these are, with the kernel's header."""
    lines = "".join(f'printf("%llu\\n", (unsigned long long)({expression}));\n' for expression in expressions)
    source = folder / "sizes.c"
    includes = "#include <stddef.h>\n#include <stdio.h>\n#include <sys/ioctl.h>\n#include <linux/fuse.h>\n"
    source.write_text(f"{includes}int main(void) {{\n{lines}return 0;\n}}\n")
    subprocess.run(["gcc", "-o", folder / "sizes", source], check=True, timeout=60)
    said = subprocess.run([folder / "sizes"], check=True, timeout=10, capture_output=True, text=True).stdout
    return dict(zip(expressions, map(int, said.split()), strict=True))


def layout(packed: struct.Struct) -> list[tuple[int, int]]:
    """Offset and size of each field of a struct without holes."""
    sizes = {"I": 4, "i": 4, "Q": 8, "q": 8, "H": 2}
    found, at = [], 0
    for count, code in re.findall(r"(\d*)([a-zA-Z])", packed.format):
        for _ in range(int(count or 1)):
            found.append((at, sizes[code]))
            at += sizes[code]
    assert at == packed.size
    return found


def fields() -> list[tuple[str, str, int, int]]:
    """Struct, field, offset and size, of every field that is named."""
    return [
        (name, field, offset, size)
        for name, (packed, names) in STRUCTS.items()
        for field, (offset, size) in zip(names.split(), layout(packed), strict=False)
    ]


def test_structs_are_the_kernel_s(tmp_path: Path) -> None:
    """As far as the installed header goes; the rest is held against the table."""
    minor = header_minor()
    wanted: dict[str, int] = {}
    for name, (packed, _) in STRUCTS.items():
        if max((SINCE[key][0] for key in SINCE if key[0] == name == "fuse_backing_map"), default=0) <= minor:
            wanted[f"sizeof(struct {name})"] = packed.size
    for name, field, offset, size in fields():
        if SINCE.get((name, field), (0,))[0] <= minor:
            wanted[f"offsetof(struct {name}, {field})"] = offset
            wanted[f"sizeof(((struct {name} *)0)->{field})"] = size
    assert len(wanted) > 60
    assert evaluated(list(wanted), tmp_path) == wanted


def test_fields_that_are_younger_than_the_header_are_those_of_the_table() -> None:
    known = {(name, field): (offset, size) for name, field, offset, size in fields()}
    for key, (minor, _, offset, size) in SINCE.items():
        assert known[key] == (offset, size), key
        assert 37 < minor <= wire.PROTOCOL_MINOR_KNOWN
    assert wire.BACKING_MAP.size == 16


def test_numbers_are_the_kernel_s(tmp_path: Path) -> None:
    minor = header_minor()
    wanted = CONSTANTS | {name: ours for name, (since, ours, _) in CONSTANTS_SINCE.items() if since <= minor}
    assert evaluated(list(wanted), tmp_path) == wanted
    for name, (_, ours, stated) in CONSTANTS_SINCE.items():
        assert ours == stated, name


def test_the_size_of_a_listing_is_found() -> None:
    """READDIR's struct is READ's."""
    message = wire.IN_HEADER.pack(80, wire.READDIR, 1, 1, 0, 0, 0, 0, 0) + wire.READ_IN.pack(2, 3, 77_777, 0, 0, 0, 0)
    assert struct.unpack_from("=I", message, wire.READDIR_SIZE_AT) == (77_777,)


# ---------------------------------------------------------------------- INIT

words = st.integers(0, 2**32 - 1)
halves = st.integers(0, 2**16 - 1)
wishes_of_any_kind = st.builds(
    Wishes,
    max_pages=st.integers(1, 2**16 - 1),
    max_write_bytes=st.integers(4096, 2**32 - 1),
    max_background=st.integers(1, 2**16 - 1),
    passthrough=st.booleans(),
    masked=st.integers(0, 2**64 - 1),
)
NO_WISH = Wishes(max_pages=256, max_write_bytes=1 << 20, max_background=1024, passthrough=True)
ALL = 2**32 - 1


def init_request(flags: int, flags2: int, minor: int = 45, readahead: int = 131_072) -> bytearray:
    body = wire.INIT_IN.pack(7, minor, readahead, flags, flags2, *range(1, 12))
    return bytearray(wire.IN_HEADER.pack(wire.IN_HEADER.size + len(body), wire.INIT, 2, 0, 0, 0, 0, 0, 0) + body)


def init_reply(flags: int, flags2: int, *, max_write: int = 1 << 20, max_pages: int = 32) -> bytearray:
    body = wire.INIT_OUT.pack(7, 38, 131_072, flags, 12, 9, max_write, 1, max_pages, 0, flags2, 0, 1, 2, 3, 4, 5, 6)
    return bytearray(wire.OUT_HEADER.pack(wire.OUT_HEADER.size + len(body), 0, 2) + body)


def answered(reply: bytearray) -> dict[str, int]:
    """The fields of an answer to INIT."""
    names = STRUCTS["fuse_init_out"][1].split()
    return dict(zip(names, wire.INIT_OUT.unpack_from(reply, wire.OUT_HEADER.size), strict=False))


@given(flags=words, flags2=words, minor=words, readahead=words, wishes=wishes_of_any_kind)
def test_libfuse_is_offered_what_the_kernel_offers(
    flags: int, flags2: int, minor: int, readahead: int, wishes: Wishes
) -> None:
    """Less what is masked and what splices; nothing else of the request is touched."""
    request = init_request(flags, flags2, minor, readahead)
    before = bytes(request)
    offer = wire.offer_to_libfuse(request, wishes)
    left = flags & ~wire.SPLICE_FLAGS & ~(wishes.masked & ALL)
    left2 = flags2 & ~(wishes.masked >> 32) if left & wire.INIT_EXT else 0
    assert offer == Offer(minor, left, left2)
    found = wire.INIT_IN.unpack_from(request, wire.IN_HEADER.size)
    assert found == (7, minor, readahead, left, left2, *range(1, 12))
    assert request[: wire.IN_HEADER.size] == before[: wire.IN_HEADER.size]


@given(offered=words, offered2=words, flags=words, flags2=words, write=words, pages=halves, wishes=wishes_of_any_kind)
def test_the_kernel_is_asked_for_nothing_that_it_has_not_offered(
    offered: int, offered2: int, flags: int, flags2: int, write: int, pages: int, wishes: Wishes
) -> None:
    offer = Offer(45, offered & ~wire.SPLICE_FLAGS, offered2)
    reply = init_reply(flags, flags2, max_write=write, max_pages=pages)
    before = answered(reply)
    negotiated = wire.answer_to_kernel(reply, offer, wishes)
    after = answered(reply)
    assert after["flags"] & ~offered == 0
    assert after["flags2"] & ~offered2 == 0
    assert after["flags"] & wire.SPLICE_FLAGS == 0
    assert after["flags2"] == 0 or after["flags"] & wire.INIT_EXT
    assert flags & offer.flags & ~after["flags"] == 0, "what libfuse has agreed to stays"
    assert (after["flags"] & wire.MAX_PAGES != 0) == (offered & wire.MAX_PAGES != 0)
    assert after["max_pages"] == (wishes.max_pages if offered & wire.MAX_PAGES else pages)
    assert after["max_write"] == min(write, wishes.max_write_bytes), "it is never more than libfuse can take"
    assert after["max_background"] == wishes.max_background
    assert after["congestion_threshold"] <= wishes.max_background
    passes = bool(after["flags2"] & wire.PASSTHROUGH)
    assert after["max_stack_depth"] == int(passes)
    if passes and not flags2 & wire.PASSTHROUGH:
        assert wishes.passthrough
    for name in ("major", "minor", "max_readahead", "time_gran", "map_alignment"):
        assert after[name] == before[name]
    assert negotiated == Negotiated(
        minor=38,
        max_pages=after["max_pages"] if offered & wire.MAX_PAGES else 32,
        max_write_bytes=after["max_write"],
        direct_mmap=bool(after["flags2"] & wire.DIRECT_IO_ALLOW_MMAP),
        passthrough=passes,
    )


def test_what_is_wished_and_offered_is_asked_for() -> None:
    """libfuse 3.14 knows neither of the two in flags2."""
    reply = init_reply(wire.MAX_PAGES, 0)
    offer = Offer(45, ALL & ~wire.SPLICE_FLAGS, ALL)
    negotiated = wire.answer_to_kernel(reply, offer, NO_WISH)
    assert negotiated == Negotiated(38, 256, 1 << 20, direct_mmap=True, passthrough=True)
    after = answered(reply)
    assert after["flags"] == wire.DONT_MASK | wire.ASYNC_DIO | wire.MAX_PAGES | wire.INIT_EXT
    assert after["flags2"] == wire.DIRECT_IO_ALLOW_MMAP | wire.PASSTHROUGH
    assert after["max_stack_depth"] == 1


def test_a_kernel_without_the_second_word_gets_none() -> None:
    request = init_request(ALL & ~wire.INIT_EXT, ALL)
    offer = wire.offer_to_libfuse(request, NO_WISH)
    assert offer.flags2 == 0
    reply = init_reply(ALL, ALL)
    negotiated = wire.answer_to_kernel(reply, offer, NO_WISH)
    assert negotiated is not None
    assert not negotiated.passthrough
    assert answered(reply)["flags2"] == 0
    assert not answered(reply)["flags"] & wire.INIT_EXT


@pytest.mark.parametrize("short", [16, 24, 40])
def test_a_short_reply_goes_on_as_it_came(short: int) -> None:
    """An older libfuse's, without the fields that are rewritten."""
    reply = init_reply(ALL, 0)[:short]
    before = bytes(reply)
    assert wire.answer_to_kernel(reply, Offer(45, ALL, ALL), NO_WISH) is None
    assert reply == before


def test_a_refusal_goes_on_as_it_came() -> None:
    reply = bytearray(wire.error_reply(2, errno.EPROTO))
    assert wire.answer_to_kernel(reply, Offer(45, ALL, ALL), NO_WISH) is None
    assert reply == wire.OUT_HEADER.pack(16, -errno.EPROTO, 2)
    whole = init_reply(ALL, ALL)
    wire.OUT_HEADER.pack_into(whole, 0, len(whole), -errno.EPROTO, 2)
    before = bytes(whole)
    assert wire.answer_to_kernel(whole, Offer(45, ALL, ALL), NO_WISH) is None
    assert whole == before


def test_an_errno_alone() -> None:
    assert struct.unpack("=IiQ", wire.error_reply(77, errno.EIO)) == (16, -errno.EIO, 77)
