"""Range files: proved before they are believed, and again whenever somebody may have touched them."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from xxhash import xxh3_128

from mummufs.core.errors import RangeFileError
from mummufs.core.ranges import Version
from mummufs.store.layout import HEADER_BYTES, HEADER_USED_BYTES, RANGES_DIR, SCRUB_NAME, RangeHeader, table_name
from mummufs.store.osfs import RealOs
from mummufs.store.rangestore import RangeStore
from mummufs.store.storedrange import PROVE_ATTEMPTS
from mummufs.store.written import Purpose
from tests.store.faulty import FaultyOs
from tests.store.samples import DATA, FILE, KEY, NO_FILES, OTHER_DATA, VERSION, Store, put, read
from tests.support.descriptors import descriptors


@pytest.mark.parametrize(("offset", "size"), [(0, KEY.size), (0, 0), (17, 4096), (KEY.size - 1, 1)])
def test_any_part_of_the_window(store: Store, offset: int, size: int) -> None:
    assert read(store.open(), offset, size) == DATA[offset : offset + size]


def test_the_file_is_its_header_and_the_windows_bytes(store: Store) -> None:
    header = RangeHeader(KEY, VERSION, xxh3_128(DATA).digest())
    assert store.path.read_bytes() == header.pack() + DATA


def test_a_read_past_the_window_is_refused(store: Store) -> None:
    with pytest.raises(RangeFileError, match="ends at"):
        read(store.open(), KEY.size - 1, 2)


# ---------------------------------------------------------------------- proving


def test_it_is_proved_once(store: Store) -> None:
    stored = store.open()
    assert store.fs.bytes_read == HEADER_USED_BYTES
    read(stored, 5, 10)
    before = store.fs.bytes_read
    assert before >= KEY.size
    for _ in range(5):
        read(stored, 5, 10)
    assert store.fs.bytes_read == before + 50


def test_what_was_just_written_is_proved_too(store: Store) -> None:
    stored = store.store.write_range(KEY, VERSION, memoryview(OTHER_DATA))
    assert read(stored, 5, 10) == OTHER_DATA[5:15]
    assert store.fs.bytes_read > len(OTHER_DATA)


def test_a_byte_changed_right_after_it_was_written_is_not_shown(store: Store) -> None:
    """Between the last write and the first look at its state: nothing but its checksum tells."""
    stored = store.store.write_range(KEY, VERSION, memoryview(bytes(len(DATA))))
    store.write_at(HEADER_BYTES + 5, b"\xff")
    with pytest.raises(RangeFileError):
        read(stored, 0, 10)


@pytest.mark.parametrize("written_here", [True, False])
def test_it_is_proved_again_when_somebody_may_have_touched_it(store: Store, written_here: bool) -> None:
    stored = store.store.write_range(KEY, VERSION, memoryview(DATA)) if written_here else store.open()
    read(stored)
    changes: list[Callable[[], None]] = [store.touch, lambda: store.path.chmod(0o640), lambda: store.write_at(0, b"M")]
    for change in changes:
        change()
        before = store.fs.bytes_read
        assert read(stored, 0, 1) == DATA[:1]
        assert store.fs.bytes_read - before > KEY.size
        before = store.fs.bytes_read
        read(stored, 0, 1)
        assert store.fs.bytes_read - before == 1


@pytest.mark.parametrize("at", [0, 50, 90, HEADER_BYTES, HEADER_BYTES + 4500, HEADER_BYTES + KEY.size - 1])
@pytest.mark.parametrize("proved", [True, False])
def test_a_flipped_byte_is_never_shown(store: Store, at: int, proved: bool) -> None:
    stored = store.open()
    if proved:
        read(stored)
    store.write_at(at, bytes([store.path.read_bytes()[at] ^ 0x20]))
    for _ in range(2):
        with pytest.raises(RangeFileError):
            read(stored, 0, 1)


def test_a_change_with_its_mtime_put_back_is_found(store: Store) -> None:
    stored = store.open()
    read(stored)
    before = store.path.stat()
    store.write_at(HEADER_BYTES, bytes([DATA[0] ^ 1]))
    os.utime(store.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(RangeFileError, match="checksum"):
        read(stored, 0, 1)


def test_bytes_sealed_again_are_taken_as_they_are(store: Store) -> None:
    stored = store.open()
    read(stored)
    sealed = RangeHeader(KEY, VERSION, xxh3_128(OTHER_DATA).digest()).pack()
    store.write_at(0, sealed + OTHER_DATA)
    assert read(stored) == OTHER_DATA
    assert read(store.open()) == OTHER_DATA


_FOREIGN: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda whole: whole[:-1],
    "empty": lambda _: b"",
    "a header alone": lambda whole: whole[:HEADER_BYTES],
    "half a header": lambda whole: whole[:40],
    "extended": lambda whole: whole + b"\0",
    "zeros": lambda whole: bytes(len(whole)),
    "another key": lambda _: RangeHeader(KEY._replace(offset=0), VERSION, xxh3_128(DATA).digest()).pack() + DATA,
    "another version": lambda _: RangeHeader(KEY, Version(1, 2, 3), xxh3_128(DATA).digest()).pack() + DATA,
}


@pytest.mark.parametrize("name", _FOREIGN)
def test_another_file_in_its_place_is_refused(store: Store, name: str) -> None:
    stored = store.open()
    read(stored)
    contents = _FOREIGN[name](store.path.read_bytes())
    store.path.write_bytes(contents)
    store.touch()
    with pytest.raises(RangeFileError):
        read(stored, 0, 1)
    with pytest.raises(RangeFileError):
        store.open()
    del stored
    assert store.fs.fds == {}


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_that_lost_its_name_is_refused(store: Store, how: str) -> None:
    stored = store.open()
    read(stored)
    if how == "removed":
        store.path.unlink()
    else:
        store.store.write_range(KEY, VERSION, memoryview(DATA))
    with pytest.raises(RangeFileError, match="removed"):
        read(stored, 0, 1)


def test_a_file_that_is_written_to_all_the_time_is_given_up(store: Store) -> None:
    stored = store.open()
    touched = 0

    def touch(name: str) -> None:
        nonlocal touched
        if name == "read":
            touched += 1
            store.touch()

    store.fs.on_call = touch
    with pytest.raises(RangeFileError, match="keeps writing"):
        stored.prove()
    assert touched >= PROVE_ATTEMPTS


def test_two_threads_prove_it_once(store: Store) -> None:
    stored = store.open()
    first_reads, second_looks = threading.Event(), threading.Event()
    results: list[bytes] = []

    def second() -> None:
        first_reads.wait(10)
        results.append(read(stored, 1, 1))

    def on_call(name: str) -> None:
        if threading.current_thread() is other:
            second_looks.set()  # it has seen that the file is not proved yet, or is about to
        elif name == "read":
            first_reads.set()
            assert second_looks.wait(10)

    other = threading.Thread(target=second)
    store.fs.on_call = on_call
    before = store.fs.bytes_read
    other.start()
    results.append(read(stored, 0, 1))
    other.join(10)
    assert sorted(results) == sorted([DATA[:1], DATA[1:2]])
    assert store.fs.bytes_read - before == HEADER_USED_BYTES + KEY.size + 2


# ---------------------------------------------------------------------- descriptors


def test_it_is_closed_with_the_last_reference(store: Store) -> None:
    closed: list[dict[int, str]] = []
    stored = store.open()
    stored.when_closed(lambda: closed.append(dict(store.fs.fds)))
    second = stored
    del stored
    assert closed == [] and read(second, 0, 1) == DATA[:1]
    del second
    assert closed == [{}], "once, when the descriptor is closed"


def test_its_owner_hears_of_a_close_that_fails(store: Store) -> None:
    closed: list[int] = []
    stored = store.open()
    stored.when_closed(lambda: closed.append(1))
    store.fs.fail(1, 5)
    del stored
    assert store.fs.heal() and closed == [1]


def test_many_files_leave_no_descriptor(store: Store) -> None:
    before = descriptors()
    for _ in range(50):
        read(store.open())
    store.store.save_table(FILE, VERSION, b"x")
    store.store.load_table(FILE, VERSION)
    assert not descriptors() - before


# ---------------------------------------------------------------------- in place of a file


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_refused_at_once(store: Store, kind: str) -> None:
    """By an error that says nothing of the disk."""
    put(store.path, kind)
    with pytest.raises(RangeFileError):
        store.open()
    assert store.fs.fds == {}


@pytest.mark.parametrize("kind", [kind for kind in NO_FILES if kind != "directory"])
def test_what_is_no_file_is_replaced_by_a_fill(store: Store, kind: str) -> None:
    put(store.path, kind)
    store.store.write_range(KEY, VERSION, memoryview(DATA))
    assert read(store.open()) == DATA
    store.store.remove_range(KEY)
    assert not store.path.exists()


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_does_not_fail_a_probe(store: Store, kind: str) -> None:
    """Neither in the place of a range file, nor of a directory of them; what can be read is looked for beyond it."""
    put(store.path, kind)
    put(store.directory / RANGES_DIR / "00foreign", "dangling" if kind == "directory" else kind)
    store.store.probe_read()
    real = store.directory / RANGES_DIR / "zz" / store.path.name
    real.parent.mkdir()
    real.write_bytes(b"x")
    before = store.fs.bytes_read
    store.store.probe_read()
    assert store.fs.bytes_read == before + 1
    assert store.fs.fds == {}


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_mark_is_none(store: Store, kind: str) -> None:
    put(store.directory / SCRUB_NAME, kind)
    assert store.store.load_mark() is None
    assert store.fs.fds == {}


def test_a_directory_in_its_place_fails_the_fill_and_leaves_nothing(store: Store) -> None:
    put(store.path, "directory")
    with pytest.raises(OSError):
        store.store.write_range(KEY, VERSION, memoryview(DATA))
    store.store.remove_range(KEY)
    assert store.path.is_dir(), "it is somebody else's"
    assert list((store.directory / "tmp").iterdir()) == [] and store.fs.fds == {}


def test_removing_what_is_gone_is_fine(store: Store) -> None:
    store.store.remove_range(KEY)
    store.store.remove_range(KEY)
    with pytest.raises(FileNotFoundError):
        store.open()


# ---------------------------------------------------------------------- the directory


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_only_the_owner_may_read_it(tmp_path: Path, mask: int) -> None:
    with _umask(mask):
        store = Store(tmp_path)
        store.store.save_table(FILE, VERSION, b"x")
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert len(modes) == 6


def test_the_start_removes_what_was_being_written_and_nothing_else(store: Store) -> None:
    tmp = store.directory / "tmp"
    (tmp / f"{'a' * 32}.7.tmp").write_bytes(b"half")
    (tmp / "notes.txt").write_bytes(b"mine")
    (tmp / f"{'b' * 32}.7.tmp").mkdir()
    again = RangeStore(FaultyOs(store.directory))
    assert {path.name for path in tmp.iterdir()} == {"notes.txt", f"{'b' * 32}.7.tmp"}
    assert read(again.open_range(KEY, VERSION)) == DATA


def test_a_store_that_is_renamed_while_it_is_used_stays_the_same_store(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    directory.mkdir()
    store = RangeStore(RealOs(directory))
    directory.rename(tmp_path / "elsewhere")
    directory.mkdir()
    store.write_range(KEY, VERSION, memoryview(DATA))
    assert read(store.open_range(KEY, VERSION)) == DATA
    assert list(directory.iterdir()) == []
    assert store.free_bytes() > 0


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RealOs(tmp_path / "none")
    (tmp_path / "ranges").write_bytes(b"")
    (tmp_path / "tmp").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        RangeStore(RealOs(tmp_path))


def test_what_is_written_is_counted_by_its_purpose(tmp_path: Path) -> None:
    store = RangeStore(FaultyOs(tmp_path))
    store.write_range(KEY, VERSION, memoryview(DATA))
    assert store.written.of(Purpose.RANGES) == HEADER_BYTES + KEY.size
    store.save_table(KEY.file, VERSION, b"payload")
    assert store.written.of(Purpose.TABLES) == (tmp_path / table_name(KEY.file)).stat().st_size
    other = store.written.of(Purpose.OTHER)
    assert store.restamp_range(KEY, VERSION, VERSION._replace(ctime_ns=9), memoryview(DATA))
    store.probe_write()
    store.save_mark(KEY)
    assert store.written.of(Purpose.OTHER) - other == HEADER_USED_BYTES + HEADER_BYTES + 32
    assert store.written.total == sum(map(store.written.of, Purpose))
