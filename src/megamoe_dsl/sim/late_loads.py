"""Loads that take their values late: at a random time up to the latest that PTX allows.

A weak load is checked and recorded where it stands, but its value is taken when something waits for it (an instruction that names a
register of it, one of the same lane that orders memory, a store or copy of its warp, which may be to the same bytes), or before. What
`sass.overtaken_loads` finds in the machine code, an arrival that passes a load, can then be provoked in the PTX. `ldmatrix` is not late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .cta import YIELD, Outcome, Warp
from .interfaces import RunState
from .lanes import Lanes, Mask
from .loads_in_flight import is_weak_load, registers_of
from .parser import ParsedKernel, PtxInstruction

Take = Callable[[Warp, Mask, Lanes], None]  # Takes the values of a load of some lanes at some addresses.

_OF_ITS_LANES = {"mbarrier", "red", "atom", "fence", "membar", "bar", "barrier"}
_OF_ITS_WARP = {"st", "stmatrix", "cp", "tensormap"}
_AT_ONCE = 0.2  # the chance of a load that it lands whenever its warp is looked at
_RELEASED = 0.5  # the chance that others run after an instruction that orders memory


@dataclass
class _Late:
    """A load in flight: its lanes, addresses and PTX line."""

    number: int
    lanes: Lanes
    where: Lanes
    take: Take
    line: int


class LateLoads:
    """The weak loads of one kernel, and the instructions that wait for them."""

    def __init__(self, kernel: ParsedKernel) -> None:
        self._numbers = {id(ins): n for n, ins in enumerate(kernel.code) if ins.parts[0] == "ld" and is_weak_load(ins)}
        self._loads: dict[str, set[int]] = {}  # by register
        for ins in kernel.code:
            if (number := self._numbers.get(id(ins))) is not None:
                for name in registers_of(ins) - {ins.predicate}:
                    if name in ins.operands[0]:
                        self._loads.setdefault(name, set()).add(number)

    def waits_for(self, ins: PtxInstruction) -> frozenset[int]:
        return frozenset().union(*(self._loads.get(name, ()) for name in registers_of(ins)))

    def orders(self, ins: PtxInstruction) -> bool:
        """Whether it orders memory accesses of its lanes, or may write what its warp's loads read."""
        return ins.parts[0] in _OF_ITS_LANES | _OF_ITS_WARP and not ins.opcode.startswith("bar.warp")

    def defer(self, ins: PtxInstruction, take: Take) -> Callable[[Warp, Mask, Lanes], None]:
        number, line = self._numbers[id(ins)], ins.line

        def run(w: Warp, mask: Mask, where: Lanes) -> None:
            lanes = np.ones(32, np.bool_) if mask is None else mask.copy()
            w.state.setdefault("late", []).append(_Late(number, lanes, where, take, line))

        return run

    def waiting(self, ins: PtxInstruction) -> Callable[..., None]:
        """A step before an instruction that names destination registers of loads: these loads complete."""
        numbers = self.waits_for(ins)

        def run(w: Warp, *_: Any) -> None:
            if late := w.state.get("late"):
                _land(w, [one for one in late if one.number in numbers], None)

        return run

    def around(self, ins: PtxInstruction, handler: Callable[[Warp, Mask], Outcome | None]) -> Callable[[Warp, Mask], Outcome | None]:
        """A handler. If it orders memory, loads of its lanes, or all of its warp's, have landed, and then others may run."""
        orders, whole_warp, wait = self.orders(ins), ins.parts[0] in _OF_ITS_WARP, self.waiting(ins)

        def run(w: Warp, mask: Mask) -> Outcome | None:
            wait(w)
            if orders and (late := w.state.get("late")):
                _land(w, list(late), None if whole_warp else mask)
            outcome = handler(w, mask)
            if orders and outcome is None and w.state.get("late") and w.world.rng.random() < _RELEASED:
                return YIELD
            return outcome

        return run


def land_some(world: RunState, w: Warp) -> None:
    if late := w.state.get("late"):
        _land(w, [one for one in late if world.rng.random() < _AT_ONCE], None)


def _land(w: Warp, loads: list[_Late], mask: Mask) -> None:
    line = w.line
    for one in loads:
        now = one.lanes if mask is None else one.lanes & mask
        if now.any():
            w.line = one.line
            one.take(w, None if now.all() else now, one.where)
            one.lanes = one.lanes & ~now
    w.line = line
    w.state["late"] = [one for one in w.state["late"] if one.lanes.any()]
