"""What is to go wrong: pure state, asked by the operations and changed by the control socket."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class FailRule:
    """Calls of `op` (on `path`, or on any) fail with `errno`: the first `after` pass, then `count` fail (None: all)."""

    op: str
    errno: int
    after: int = 0
    count: int | None = None
    path: str | None = None

    def fires(self, op: str, path: str) -> bool:
        """Whether this call fails. Counts it, so ask once per call."""
        if op != self.op or self.path not in (None, path):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        if self.count is None:
            return True
        self.count -= 1
        return self.count >= 0


@dataclass(frozen=True)
class BitFlip:
    """Reads of `path` that cover `offset` see its byte XORed with `mask`. What is stored stays as it is."""

    path: str
    offset: int
    mask: int


@dataclass
class Faults:
    """All faults of one mount. The path None stands for every path; a path's own setting wins over it."""

    fail_rules: list[FailRule] = field(default_factory=list)
    bit_flips: list[BitFlip] = field(default_factory=list)
    read_delays_s: dict[str | None, float] = field(default_factory=dict)
    hung_paths: set[str | None] = field(default_factory=set)
    short_read_bytes: int | None = None
    attr_delay_s: float = 0.0
    power_is_off: bool = False
    sync_delay_s: float = 0.0
    syncs_lie: bool = False
    """An fsync is answered and nothing has become durable."""
    writable_bytes: int | None = None
    """How many more bytes may be written before ENOSPC. None: no limit."""

    def failure(self, op: str, path: str) -> int | None:
        """The errno that this call fails with. Every rule counts the call, the first that fires decides."""
        fired = [rule.errno for rule in self.fail_rules if rule.fires(op, path)]
        return fired[0] if fired else None

    def read_delay_s(self, path: str) -> float:
        """How long a read of `path` waits."""
        return self.read_delays_s.get(path, self.read_delays_s.get(None, 0.0))

    def hangs(self, path: str) -> bool:
        """Whether reads of `path` wait until they are released."""
        return None in self.hung_paths or path in self.hung_paths

    def read_size(self, size: int) -> int:
        """How much of a read of `size` bytes is answered at most."""
        return size if self.short_read_bytes is None else min(size, self.short_read_bytes)

    def corrupt(self, path: str, offset: int, data: bytes) -> bytes:
        """`data`, read at `offset` of `path`, with the bit flips that lie in it."""
        flips = [flip for flip in self.bit_flips if flip.path == path and offset <= flip.offset < offset + len(data)]
        if not flips:
            return data
        changed = bytearray(data)
        for flip in flips:
            changed[flip.offset - offset] ^= flip.mask
        return bytes(changed)

    def take_space(self, size: int) -> int:
        """How much of a write of `size` bytes finds room; 0 for a non-empty write means ENOSPC."""
        if self.writable_bytes is None:
            return size
        taken = min(size, self.writable_bytes)
        self.writable_bytes -= taken
        return taken
