"""The asynchronous side of a warp that issues wgmma: accumulators in flight, and groups.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions" (`wgmma.fence`, async-groups in the async proxy).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from .errors import SimError
from .interfaces import WarpLike
from .warpgroup import WARPS, Operation, Warpgroup, warpgroup
from .wgmma_fragment import Accumulator, to_matrix, to_registers

_POISON_WORD = np.uint32(0x7FC0DEAD)  # a NaN
_POISON = {dtype: np.full(32, _POISON_WORD).view(dtype) for dtype in (np.uint32, np.int32, np.float32)}


@dataclass
class WgmmaThread:
    """State of one warp. `issued` counts its wgmma.mma_async."""

    warp: WarpLike
    group: Warpgroup
    open: list[Operation] = field(default_factory=list)
    groups: deque[list[Operation]] = field(default_factory=deque)
    in_flight: dict[int, Accumulator] = field(default_factory=dict)
    delivered: dict[int, Any] = field(default_factory=dict)
    fenced: bool = False
    issued: int = 0

    def accumulate_into(self, registers: tuple[int, ...], needs_value: bool, dtype: type) -> Accumulator:
        """The accumulator of an instruction that is being issued; its registers hold poison from now on.

        Raises:
            SimError: the registers were touched and no `wgmma.fence` followed, or they overlap another accumulator in flight.
        """
        owner = self.in_flight.get(registers[0])
        if owner is not None and owner.registers == registers:
            return owner
        if any(r in self.in_flight for r in registers):
            raise SimError("wgmma accumulator overlaps one of another shape that is in flight")
        file = self.warp.R
        if not self.fenced and any(file[r] is not self.delivered.get(r) for r in registers):
            raise SimError("wgmma.mma_async on registers that were written, or never used by wgmma, without wgmma.fence")
        accumulator = Accumulator(registers, to_matrix([file[r] for r in registers], dtype) if needs_value else None)
        for r in registers:
            self.in_flight[r] = accumulator
            file[r] = _POISON[file[r].dtype.type]
        return accumulator

    def ready(self, keep: int) -> bool:
        """Whether all but the `keep` most recent groups are done."""
        older = max(0, len(self.groups) - keep)
        return all(operation.done for group in islice(self.groups, older) for operation in group)

    def retire(self, keep: int) -> None:
        """The warp has waited: deliver accumulators that nothing uses any more, learn what was read."""
        last: Operation | None = None
        for _ in range(max(0, len(self.groups) - keep)):
            for last in self.groups.popleft():
                accumulator = last.parts[self.warp.index % WARPS].accumulator
                accumulator.pending -= 1
                if accumulator.pending == 0:
                    self._deliver(accumulator)
        if last is not None:  # those before it are done, too
            self.group.learn(self.warp, last)
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


def wgmma_thread(w: WarpLike) -> WgmmaThread:
    """The wgmma side of a warp, created at first use."""
    thread = w.state.get("wgmma")
    if thread is None:
        thread = w.state["wgmma"] = WgmmaThread(w, warpgroup(w))
    return thread  # type: ignore[no-any-return]
