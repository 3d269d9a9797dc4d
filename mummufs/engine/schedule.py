"""Who reads the source next: what somebody waits for goes at once, the rest by turns while nobody does.

A read that somebody waits for takes a thread of the pool in the order of arrival. One that nobody waits for gets its
turn when no other read is under way, in the order of its place on the disk (`core/elevator.py`), BACKGROUND_READS at
once. It is not put off for ever: after BACKGROUND_WAIT_S it goes all the same, and at once when somebody has come for
its bytes. Lowest of all is what is read ahead of any reader, a warm: it has its turn when no other read waits for one
either, and it is put off for LOWEST_WAIT_S.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import trio

from mummufs.core.elevator import Elevator, Turn
from mummufs.core.ranges import FileId
from mummufs.engine.threads import Pools

BACKGROUND_READS = 1
"""Reads at once that nobody waits for. One keeps the disks busy, and two would have them seek."""
BACKGROUND_WAIT_S = 0.25
"""How long such a read lets others pass."""
LOWEST_WAIT_S = 10.0
"""How long one of the lowest does."""

Result = TypeVar("Result")
Args = TypeVarTuple("Args")


class Schedule:
    """The reads of a source.

    Attributes:
        foreground: reads under way, or waiting for a thread, that somebody waits for.
        background: reads under way that nobody waits for.
        waiting_max: the most reads that have waited for a turn at once.
    """

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._elevator = Elevator()
        self._lowest = Elevator()
        self._waiting: dict[Turn, trio.Event] = {}
        self.foreground = 0
        self.background = 0
        self.waiting_max = 0

    @property
    def waiting(self) -> int:
        """Reads that wait for their turn."""
        return len(self._elevator) + len(self._lowest)

    @property
    def is_quiet(self) -> bool:
        """Whether nobody waits for the source."""
        return self.foreground == 0

    async def read(self, call: Callable[[*Args], Result], *args: *Args) -> Result:
        """Make a call to the source that somebody waits for.

        Raises:
            OSError: as `Pool.run`.
        """
        self.foreground += 1
        try:
            return await self._pools.source.run(call, *args)
        finally:
            self.foreground -= 1
            self._grant()

    async def read_in_turn(
        self,
        file: FileId,
        offset: int,
        go: trio.Event,
        call: Callable[[*Args], Result],
        *args: *Args,
        lowest: bool = False,
    ) -> Result:
        """Make a call to the source that nobody waits for.

        Args:
            file, offset: its place on the disk.
            go: set by whoever comes for the bytes: the read waits no longer then.
            lowest: let everything else pass.

        Raises:
            OSError: as `Pool.run`.
        """
        if not await self._wait_turn(file, offset, go, lowest=lowest):
            return await self.read(call, *args)
        try:
            return await self._pools.source.run(call, *args)
        finally:
            self.background -= 1
            self._grant()

    async def _wait_turn(self, file: FileId, offset: int, go: trio.Event, *, lowest: bool) -> bool:
        """Wait for a turn, and have it counted; False where there is no time for one any more."""
        elevator = self._lowest if lowest else self._elevator
        turn = elevator.add(file, offset)
        self._waiting[turn] = go
        self.waiting_max = max(self.waiting_max, self.waiting)
        self._grant()
        try:
            with trio.move_on_after(LOWEST_WAIT_S if lowest else BACKGROUND_WAIT_S):
                await go.wait()
            return turn not in self._waiting
        except BaseException:
            if turn not in self._waiting:
                self.background -= 1
                self._grant()
            raise
        finally:
            if self._waiting.pop(turn, None) is not None:
                elevator.remove(turn)

    def _grant(self) -> None:
        """Let the next one begin, if it is to."""
        if self.foreground or self.background >= BACKGROUND_READS:
            return
        turn = self._elevator.take() or self._lowest.take()
        if turn is not None:
            self.background += 1
            self._waiting.pop(turn).set()
