"""The asynchronous side of a warp that issues wgmma: accumulators in flight, groups, and register fragments.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions" (register fragments, `wgmma.fence`, async-groups in the async proxy).
Each warp of the warpgroup is simulated on its own: it computes its 16 of the 64 rows.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .accessor import Actor
from .errors import SimError
from .interfaces import Warp
from .pipe import Pipe

Float32Array = NDArray[np.float32]
_POISON_WORD = np.uint32(0x7FC0DEAD)  # a NaN
_POISON = {dtype: np.full(32, _POISON_WORD).view(dtype) for dtype in (np.uint32, np.int32, np.float32)}


def to_matrix(registers: list[Any]) -> Float32Array:
    """The D fragment: register 4j + 2h + q of thread t is row t / 4 + 8h, column 8j + 2 (t % 4) + q; returns (16, n)."""
    words = np.stack([np.ascontiguousarray(r).view(np.float32) for r in registers])
    n = 2 * len(registers)
    return words.reshape(n // 8, 2, 2, 8, 4).transpose(1, 3, 0, 4, 2).reshape(16, n)


def to_registers(matrix: Float32Array) -> Float32Array:
    """Inverse of :func:`to_matrix`: (registers, 32 threads)."""
    n = matrix.shape[1]
    return np.ascontiguousarray(matrix.reshape(2, 8, n // 8, 4, 2).transpose(2, 0, 4, 1, 3)).reshape(n // 2, 32)


def a_fragment(registers: list[NDArray[np.uint32]]) -> NDArray[np.uint8]:
    """The A fragment: register h + 2g of thread t holds bytes 16g + 4 (t % 4) of row t / 4 + 8h; returns (16, 32) bytes."""
    words = np.stack(registers).reshape(2, 2, 8, 4)  # g, h, t / 4, t % 4
    return np.ascontiguousarray(words.transpose(1, 2, 0, 3)).view(np.uint8).reshape(16, 32)


@dataclass
class Accumulator:
    """Registers that unfinished instructions will write, and their value so far."""

    registers: tuple[int, ...]
    values: Float32Array | None
    pending: int = 0


@dataclass
class Operation:
    """One wgmma.mma_async."""

    accumulator: Accumulator
    actor: Actor | None
    done: bool = False


@dataclass
class WgmmaThread:
    """State of one warp."""

    warp: Warp
    pipe: Pipe
    open: list[Operation] = field(default_factory=list)
    groups: deque[list[Operation]] = field(default_factory=deque)
    in_flight: dict[int, Accumulator] = field(default_factory=dict)
    delivered: dict[int, Any] = field(default_factory=dict)
    fenced: bool = False
    agent: int = -1
    count: int = 0

    def actor(self) -> Actor | None:
        """The async-proxy agent of this warp, about to issue one more instruction."""
        race = self.warp.world.race
        if race is None:
            return None
        if self.agent < 0:
            self.agent = race.agent(f"{self.warp} wgmma", self.warp.cta)
        self.count += 1
        clock = race.snapshot(self.warp)
        clock.fit(race.width)
        clock.set(self.agent, self.count)
        return Actor(self.agent, clock, self.warp.line)

    def accumulate_into(self, registers: tuple[int, ...], needs_value: bool) -> Accumulator:
        """The accumulator of an instruction that is being issued; its registers hold poison from now on.

        Raises:
            SimError: the registers were touched and no `wgmma.fence` followed, or they overlap another accumulator in flight.
        """
        owners = {id(self.in_flight[r]): self.in_flight[r] for r in registers if r in self.in_flight}
        if owners:
            owner = next(iter(owners.values()))
            if len(owners) > 1 or owner.registers != registers:
                raise SimError("wgmma accumulator overlaps one of another shape that is in flight")
            return owner
        file = self.warp.R
        if not self.fenced and any(file[r] is not self.delivered.get(r) for r in registers):
            raise SimError("wgmma.mma_async on registers that were written, or never used by wgmma, without wgmma.fence")
        accumulator = Accumulator(registers, to_matrix([file[r] for r in registers]) if needs_value else None)
        for r in registers:
            self.in_flight[r] = accumulator
            file[r] = _POISON[file[r].dtype.type]
        return accumulator

    def ready(self, keep: int) -> bool:
        """Whether all but the `keep` most recent groups are done."""
        return all(op.done for group in list(self.groups)[: max(0, len(self.groups) - keep)] for op in group)

    def retire(self, keep: int) -> None:
        """The warp has waited: deliver accumulators that nothing uses any more, learn what was read."""
        for _ in range(max(0, len(self.groups) - keep)):
            for operation in self.groups.popleft():
                accumulator = operation.accumulator
                accumulator.pending -= 1
                if operation.actor is not None:
                    self.warp.clock.join(operation.actor.clock)
                if accumulator.pending == 0:
                    self._deliver(accumulator)
        self.fenced = False

    def _deliver(self, accumulator: Accumulator) -> None:
        assert accumulator.values is not None
        file = self.warp.R
        for r, row in zip(accumulator.registers, to_registers(accumulator.values), strict=True):
            poison = file[r]
            if poison is not _POISON.get(poison.dtype.type):
                raise SimError("an accumulator register was written while wgmma was in flight")
            file[r] = self.delivered[r] = row.view(poison.dtype)
            del self.in_flight[r]


def wgmma_thread(w: Warp) -> WgmmaThread:
    """The wgmma side of a warp, created at first use."""
    thread = w.state.get("wgmma")
    if thread is None:
        thread = w.state["wgmma"] = WgmmaThread(w, Pipe(w.world))
    return thread  # type: ignore[no-any-return]
