"""What failed keeps nothing open: an error that is kept or brought from a thread would have frames that have files.

The collector is off here. A daemon of many ranges tells it to pass over what it has seen, and what a cycle of
references holds then stays open for ever.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from mummufs.engine.overlay import Handle
from mummufs.engine.threads import Pool
from mummufs.source.memory import MemorySource
from tests.engine.harness import PAGE, Engine, FakeParser, contents, engine, make_table

WINDOW = 64 * PAGE


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """What goes goes by counts of references."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Held:
    """Something that a call has in its hands."""


@pytest.mark.parametrize("kind", [OSError, RuntimeError])
async def test_a_call_that_raises(kind: type[Exception]) -> None:
    def fail(held: Held) -> None:
        raise kind

    held = Held()
    gone = weakref.ref(held)
    with contextlib.suppress(OSError, RuntimeError):
        await Pool(1).run(fail, held)
    del held
    assert gone() is None


async def _missing_attribute(e: Engine, source: MemorySource, handle: Handle) -> None:
    await e.overlay.getxattr(handle.node, b"user.none")


async def _read(e: Engine, source: MemorySource, handle: Handle) -> None:
    source.fail_read(1)
    await e.read(handle, 2 * WINDOW + PAGE, PAGE)  # in no window


async def _fill(e: Engine, source: MemorySource, handle: Handle) -> None:
    source.fail_read(1)
    source.fail_read(2)
    await e.read(handle, PAGE, PAGE)


async def _change(e: Engine, source: MemorySource, handle: Handle) -> None:
    source.write(b"model", contents(3 * WINDOW, seed=7))
    await e.read(handle, PAGE, PAGE)


@pytest.mark.parametrize("step", [_missing_attribute, _read, _fill, _change])
async def test_a_file_of_which_something_failed_is_closed(
    tmp_path: Path, step: Callable[[Engine, MemorySource, Handle], Awaitable[None]]
) -> None:
    data = contents(3 * WINDOW)
    parser = FakeParser({b"model": make_table(len(data), [(0, WINDOW), (WINDOW, WINDOW)])})
    source = MemorySource({b"model": data})
    async with engine(source, tmp_path, parser) as e:
        handle = await e.open(b"model")
        gone = weakref.ref(handle.file)
        with contextlib.suppress(OSError):
            await step(e, source, handle)
        await e.idle()
        e.overlay.close(handle)
        del handle
        await e.idle()
        assert gone() is None
