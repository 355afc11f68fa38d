"""A kernel bound to its instruction families, as units that run without interruption.

A unit is a branch, one handler that may block, or a run of straight-line instructions fused into one generated Python function: full for
32 active lanes, masked otherwise. Both are compiled when first used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from .cta import Warp
from .errors import SimError
from .lanes import Lanes, Mask
from .late_loads import LateLoads
from .loads_in_flight import LoadsInFlight
from .operands import Binder
from .ops import Handler, Inline, Straight, build, load_families
from .parser import ParsedKernel, PtxInstruction, parse
from .segment import Live, Segment, lane_program, live_registers

STRAIGHT, BRANCH, HANDLER = 0, 1, 2
MAX_FUSED = 200


def select(predicate: Lanes, negated: bool, mask: Mask) -> Any:
    """The lanes of `mask` whose guard holds: None when all 32, False when none, else a mask."""
    lanes = ~predicate if negated else predicate
    if mask is not None:
        lanes = lanes & mask
    bits = lanes.tobytes()
    if b"\x01" not in bits:
        return False
    return lanes if b"\x00" in bits else None


class Unit:
    """What runs at one program counter. `next` is the counter after it, `count` its number of instructions."""

    def __init__(self, kind: int, pc: int, count: int, line: int) -> None:
        self.kind, self.count, self.line, self.next = kind, count, line, pc + count
        self.compile: Callable[[bool], Callable[..., None]]  # of a straight one
        self.handler: Handler
        self.predicate: int | None = None
        self.negated = False
        self.target = 0

    @cached_property
    def full(self) -> Callable[..., None]:
        return self.compile(False)

    @cached_property
    def masked(self) -> Callable[..., None]:
        return self.compile(True)


class Program:
    """The executable form of one kernel. Shared by all warps of all launches."""

    def __init__(self, kernel: ParsedKernel, late_loads: bool = False) -> None:
        load_families()
        self.kernel = kernel
        self.loads = LoadsInFlight(kernel)
        self.binder = Binder(kernel)
        self.late = self.binder.late = LateLoads(kernel) if late_loads else None
        self.registers: list[Lanes] = [np.zeros(32, dtype) for dtype in self.binder.storage]  # shared: arrays are not modified in place
        self.units: list[Any] = [None] * len(kernel.code)
        self._link()

    @cached_property
    def with_late_loads(self) -> Program:
        return Program(self.kernel, late_loads=True)

    def pack(self, args: tuple[int | bytes, ...]) -> Lanes:
        """Kernel arguments to the bytes of the parameter block."""
        kernel = self.kernel
        if len(args) != len(kernel.parameters):
            raise SimError(f"{kernel.name} takes {len(kernel.parameters)} arguments, got {len(args)}")
        block = bytearray(kernel.parameter_bytes + 64)
        for value, p in zip(args, kernel.parameters, strict=True):
            raw = bytes(value) if isinstance(value, bytes | bytearray) else (value & ((1 << 8 * p.size) - 1)).to_bytes(p.size, "little")
            if len(raw) != p.size:
                raise SimError(f"parameter {p.name} has {p.size} bytes, got {len(raw)}")
            block[p.offset : p.offset + p.size] = raw
        return np.frombuffer(bytes(block), np.uint8)

    def _link(self) -> None:
        code, units = self.kernel.code, self.units
        targets = {ins.target for ins in code if ins.target is not None}
        if not code or (code[-1].parts[0] not in ("ret", "exit", "bra", "trap") or code[-1].predicate):
            raise SimError(f"{self.kernel.name} does not end in ret")
        built = [None if ins.parts[0] == "bra" else self._build(ins) for ins in code]
        pc = 0
        while pc < len(code):
            ins, item = code[pc], built[pc]
            if isinstance(item, Inline | Straight):
                end = pc + 1
                while end < len(code) and end not in targets and isinstance(built[end], Inline | Straight) and end - pc < MAX_FUSED:
                    end += 1
                unit = Unit(STRAIGHT, pc, end - pc, ins.line)
                unit.compile = partial(self._compile, list(zip(code[pc:end], built[pc:end], strict=True)))
            elif ins.parts[0] == "bra":
                unit = Unit(BRANCH, pc, 1, ins.line)
                assert ins.target is not None
                unit.target = ins.target
            else:
                unit = Unit(HANDLER, pc, 1, ins.line)
                unit.handler = item  # type: ignore[assignment]
            if ins.predicate and unit.kind != STRAIGHT:
                unit.predicate, unit.negated = self.binder.index[ins.predicate], ins.negated
            units[pc] = unit
            pc = unit.next
        self.live = live_registers(self.binder, zip(code, built, (unit is not None for unit in units), strict=True))
        if self.late:  # waits come between instructions that are else done together
            self.live = Live(set(range(len(self.binder.storage))), set(range(len(self.binder.storage))))

    def _build(self, ins: PtxInstruction) -> Any:
        item = build(ins, self.binder)
        if self.late is None or isinstance(item, Inline) or (isinstance(item, Straight) and not self.late.orders(ins)):
            return item
        return self.late.around(ins, item.handler if isinstance(item, Straight) else item)

    def _compile(self, body: list[tuple[PtxInstruction, Any]], masked: bool) -> Callable[..., None]:
        steps, segment = list[Callable[..., None]](), Segment(self.binder, self.live)

        def end_segment() -> Segment:
            if segment.kept(masked):
                steps.append(lane_program(segment, masked))
            return Segment(self.binder, self.live)

        for ins, item in body:
            if self.late and self.late.waits_for(ins):
                segment = end_segment()
                steps.append(self.late.waiting(ins))
            if isinstance(item, Inline):
                segment.add(ins, item)
            else:
                segment = end_segment()
                steps.append(self._call(ins, item.handler))
        end_segment()
        if len(steps) == 1:
            return steps[0]

        def unit(*given: Any) -> None:
            for step in steps:
                step(*given)

        return unit

    def _call(self, ins: PtxInstruction, handler: Callable[[Warp, Mask], None]) -> Callable[..., None]:
        line, negated = ins.line, ins.negated
        guard = None if ins.predicate is None else self.binder.index[ins.predicate]

        def run(w: Warp, R: list[Lanes], mask: Mask = None) -> None:
            w.line = line
            if guard is not None and (mask := select(R[guard], negated, mask)) is False:
                return
            w.mask = mask
            handler(w, mask)

        return run


@lru_cache(maxsize=16)  # one of a large kernel takes 20 MB
def load(ptx: str, kernel: str | None = None) -> Program:
    """One kernel of a PTX module: the entry named `kernel`, or the first. It holds no state of a run, so launches and simulators share it.
    Raises SimError when there is no such entry, and for PTX that is not understood."""
    return Program(parse(ptx, kernel))
