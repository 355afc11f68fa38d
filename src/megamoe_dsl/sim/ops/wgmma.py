"""wgmma as its warpgroup sees it: four warps issue an operation together, and it is done for all of them at once.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". An operation executes, in order, after all four warps have issued it,
and reads shared memory then; accumulators hold poison until `wait_group`. A wait of one warp covers what the operation read for the others
too. Each warp answers for its own 16 rows of A, with what it knew at issue; of B only what all four knew counts. Sums in FP32 are to the
bit what silicon makes of them (`umma`), others are formed in float64.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial, reduce
from typing import Any

import numpy as np

from .. import umma
from ..chunks import CHUNK, Chunks
from ..clock import Actor, Clock
from ..cta import kept
from ..descriptors import K_BYTES, SmemDescriptor, operand_bytes
from ..formats import Float64Array
from ..interfaces import Origin
from ..memory import POISON
from ..tma_engine import AsyncGroups
from . import Binder, Cta, Handler, Mask, Outcome, PtxInstruction, SimError, Warp, plain, register, vector
from .access import origin
from .tcgen05_mma import fetch_operand, operand_chunks

WARPS = 4


@dataclass(slots=True)
class Part:
    """One warp's part: where its sums are, A as a descriptor or as the bytes of its 16 rows, and what the warp knew."""

    thread: WgmmaThread
    registers: tuple[int, ...]
    accumulate: bool
    a: SmemDescriptor | umma.Bytes
    b: SmemDescriptor
    clock: Clock


@dataclass
class Operation:
    """One wgmma.mma_async of a warpgroup: what each of its warps issued. `number` counts those of the warpgroup from 1."""

    number: int
    line: int
    parts: dict[int, Part] = field(default_factory=dict)
    done: bool = False


class Warpgroup:
    """Four warps of a CTA. `agent` stands for their operations in the race detector."""

    def __init__(self, cta: Cta, index: int) -> None:
        if WARPS * (index + 1) > len(cta.warps):
            raise SimError(f"wgmma in warpgroup {index} of a CTA of {len(cta.warps)} warps: a warpgroup has four")
        self.cta, self.name = cta, f"{cta} warpgroup {index}"
        self.pipe = cta.world.pipe()
        self.operations: dict[int, Operation] = {}  # not issued by all warps yet
        self.agent = cta.world.race.agent(f"{self.name} wgmma", cta)
        self._known: list[Clock] = []  # what the warps knew when they issued the last operation, and with what that did
        self._acting: list[Clock] = []
        cta.exit_checks[self.name] = self._exit_check

    def issue(self, warp: Warp, number: int, part: Part, execute: Callable[[Operation], None], origin: Origin) -> Operation:
        """A warp issues its operation of that number; the last of the four sends it off. Raises SimError where the warps' operations
        differ."""
        operation = self.operations.setdefault(number, Operation(number, warp.line))
        operation.parts[warp.index % WARPS] = part
        first, from_memory = next(iter(operation.parts.values())), isinstance(part.a, SmemDescriptor)
        if warp.line != operation.line:
            raise SimError(f"wgmma.mma_async number {number} of the warpgroup is at PTX line {operation.line} for its other warps")
        if (from_memory and part.a != first.a) or (part.b, part.accumulate) != (first.b, first.accumulate):
            raise SimError("the warps of a warpgroup issue a wgmma.mma_async with different descriptors or predicates")
        if len(operation.parts) == WARPS:
            del self.operations[number]
            self.cta.world.post(lambda: execute(operation), origin, self.pipe)
        return operation

    def actors(self, operation: Operation) -> list[Actor]:
        """Who reads each warp's rows of A, and last who reads B; none without the race detector."""
        race = self.cta.world.race
        if not race:
            return []
        clocks = [part.clock for _, part in sorted(operation.parts.items())]
        if [id(clock.rows) for clock in clocks] != [id(clock.rows) for clock in self._known]:
            self._known, self._acting = clocks, [clock.copy() for clock in clocks]
            for clock in self._acting:
                clock.fit(race.width)
            self._acting.append(Clock(reduce(np.minimum, (clock.rows for clock in self._acting))))
        for clock in self._acting:
            clock.set(self.agent, operation.number)
        return [Actor(self.agent, clock, operation.line) for clock in self._acting]

    def _exit_check(self, cta: Cta) -> None:
        for operation in self.operations.values():
            raise SimError(f"{self.name}: wgmma.mma_async at PTX line {operation.line} issued by {len(operation.parts)} of {WARPS} warps")


@dataclass
class WgmmaThread:
    """State of one warp. `issued` counts its wgmma.mma_async. For the registers of each accumulator in flight `sums` has its values so far,
    and `pending` how many instructions will write it; `delivered` is what registers got last."""

    warp: Warp
    group: Warpgroup
    groups: AsyncGroups = field(default_factory=AsyncGroups)
    sums: dict[tuple[int, ...], umma.Matrix | None] = field(default_factory=dict)
    pending: Counter[tuple[int, ...]] = field(default_factory=Counter)
    delivered: dict[int, Any] = field(default_factory=dict)
    fenced: bool = False
    issued: int = 0

    def accumulate_into(self, registers: tuple[int, ...], needs_value: bool, dtype: type) -> None:
        """An instruction that writes these registers is being issued; they hold poison from now on.  Raises SimError when they were touched
        and no `wgmma.fence` followed, or overlap another accumulator in flight."""
        self.pending[registers] += 1
        if registers in self.sums:
            return
        if any(not set(registers).isdisjoint(other) for other in self.sums):
            raise SimError("wgmma accumulator overlaps one of another shape that is in flight")
        file = self.warp.R
        if not self.fenced and any(file[r] is not self.delivered.get(r) for r in registers):
            raise SimError("wgmma.mma_async on registers that were written, or never used by wgmma, without wgmma.fence")
        self.sums[registers] = umma.to_matrix([file[r] for r in registers], dtype) if needs_value else None
        for r in registers:
            file[r] = POISON[file[r].dtype.type]

    def retire(self, keep: int) -> None:
        """The warp has waited: deliver accumulators that nothing uses any more, learn what was read."""
        last: Operation | None = None
        for _ in range(max(0, len(self.groups.committed) - keep)):
            for last in self.groups.committed.popleft():
                registers = last.parts[self.warp.index % WARPS].registers
                self.pending[registers] -= 1
                if not self.pending[registers]:
                    self._deliver(registers)
        if last is not None:  # those before it are done, too
            self.warp.order.know(self.group.agent, last.number)
        self.fenced = False

    def _deliver(self, registers: tuple[int, ...]) -> None:
        values, file = self.sums.pop(registers), self.warp.R
        assert values is not None
        for r, row in zip(registers, umma.to_registers(values), strict=True):
            poison = file[r]
            if poison is not POISON.get(poison.dtype.type):
                raise SimError("an accumulator register was written while wgmma was in flight")
            file[r] = self.delivered[r] = row.view(poison.dtype)


def wgmma_thread(w: Warp) -> WgmmaThread:
    """The state of a warp; it and that of its warpgroup are made at first use."""
    index = w.index // WARPS
    return kept(w, "wgmma", lambda w: WgmmaThread(w, kept(w.cta, ("warpgroup", index), lambda cta: Warpgroup(cta, index))))


_INTEGERS = ("s8", "u8")
_ROWS = 16  # of one warp


@plain("wgmma.fence")
def fence(ins: PtxInstruction, w: Warp, mask: Mask) -> None:
    """Orders register accesses of the warp before later wgmma."""
    wgmma_thread(w).fenced = True


@plain("wgmma.commit_group")
def commit(ins: PtxInstruction, w: Warp, mask: Mask) -> None:
    """Close the group of what the warp has issued since the last one."""
    wgmma_thread(w).groups.commit()
    w.world.progress += 1


@plain("wgmma.wait_group", straight=False)
def wait(ins: PtxInstruction, w: Warp, mask: Mask) -> Outcome | None:
    """wgmma.wait_group.sync.aligned N: until at most N groups are pending."""
    thread, keep = wgmma_thread(w), int(ins.operands[0], 0)
    if not thread.groups.ready(keep):
        return w.block(f"wgmma.wait_group {keep}", lambda: thread.groups.ready(keep))
    thread.retire(keep)
    w.order.wait()
    return None


@register("wgmma.mma_async")
def build_mma(ins: PtxInstruction, b: Binder) -> Handler:
    """wgmma.mma_async.sync.aligned.m64nNkK[.satfinite].D.A.B {d}, a, b-desc, scale-d [, scale-a, scale-b [, trans-a] [, trans-b]]"""
    shape = next((m for part in ins.parts if (m := re.fullmatch(r"m64n(\d+)k(\d+)", part))), None)
    d_name, a_name, b_name = ins.parts[-3:]
    known = d_name in umma.RESULT_TYPES and {a_name, b_name} <= set(umma.WHOLE_FORMATS)
    if shape is None or "sp" in ins.parts or not known or (d_name == "s32") != (a_name in _INTEGERS and b_name in _INTEGERS):
        raise SimError(f"{ins.opcode} is not modeled: f32, f16 and s32 accumulators with {', '.join(umma.WHOLE_FORMATS)} operands are")
    n, dtype = int(shape.group(1)), umma.RESULT_TYPES[d_name]
    if int(shape.group(2)) != (k := K_BYTES // umma.element_bytes(a_name)):
        raise SimError(f"{ins.opcode}: K must be {k}")
    registers = tuple(b.index[name] for name in vector(ins.operands[0]))
    if len(registers) != n * np.dtype(dtype).itemsize // 8:
        raise SimError(f"{ins.opcode} with {len(registers)} accumulator registers")
    a_registers = [b.read(name, np.uint32) for name in vector(ins.operands[1])] if ins.operands[1].startswith("{") else []
    a_word = None if a_registers else b.read(ins.operands[1], np.uint64)
    b_word, enable = b.read(ins.operands[2], np.uint64), b.read(ins.operands[3], np.bool_)
    a_sign, b_sign, *transposed = [int(text, 0) for text in ins.operands[4:]] or [1, 1]
    a_mn_major = bool(transposed[0]) if transposed and not a_registers else False
    b_mn_major = bool(transposed[-1]) if transposed else False
    if d_name == "f32":
        combine: Callable[..., Any] = partial(umma.aligned_multiply_accumulate, alignment=umma.alignment_of(a_name, b_name))
    else:
        combine = partial(umma.multiply_accumulate, dtype=dtype, saturate="satfinite" in ins.parts)

    def run(w: Warp, mask: Mask) -> None:
        thread, lane = wgmma_thread(w), w.first(mask)
        in_registers = [reader(w) for reader in a_registers]
        a = SmemDescriptor.decode_sm90(int(a_word(w)[lane])) if a_word else umma.row_fragment(in_registers, 2)
        accumulate = bool(enable(w)[lane])
        thread.accumulate_into(registers, accumulate, dtype)
        part = Part(thread, registers, accumulate, a, SmemDescriptor.decode_sm90(int(b_word(w)[lane])), w.order.snapshot())
        thread.issued += 1
        thread.groups.open.append(thread.group.issue(w, thread.issued, part, partial(execute, thread.group), origin(w)))

    def execute(group: Warpgroup, operation: Operation) -> None:
        parts = [operation.parts[k] for k in range(WARPS)]
        actors = group.actors(operation)
        if isinstance(parts[0].a, SmemDescriptor):
            rows = _fetch_a(group.cta, parts[0].a, a_name, a_mn_major, actors)
        else:
            rows = umma.decode_operand(np.concatenate([part.a for part in parts]), a_name)
        columns = fetch_operand(group.cta, parts[0].b, n, b_name, b_mn_major, actors[-1] if actors else None)
        previous = np.concatenate([part.thread.sums[registers] for part in parts]) if parts[0].accumulate else None
        result = combine(rows if a_sign == 1 else -rows, columns if b_sign == 1 else -columns, previous)
        for k, part in enumerate(parts):
            part.thread.sums[registers] = result[_ROWS * k : _ROWS * k + _ROWS]
        operation.done = True

    return run


def _fetch_a(cta: Cta, descriptor: SmemDescriptor, name: str, mn_major: bool, actors: list[Actor]) -> Float64Array:
    """The 64 rows of A in shared memory, 16 by each warp's actor. Where the last actor knows enough, they read together."""
    if actors:
        chunks = operand_chunks(descriptor, _ROWS * WARPS, K_BYTES, umma.element_bytes(name), mn_major)[0]
        if not cta.world.race.read_shared_if_known(cta, chunks, actors[-1]):
            for k, actor in enumerate(actors[:-1]):
                cta.world.race.read_bytes(cta.shared, _row_chunks(descriptor, k, name, mn_major), CHUNK, actor)
    return fetch_operand(cta, descriptor, _ROWS * WARPS, name, mn_major, None)


@lru_cache(maxsize=4096)
def _row_chunks(descriptor: SmemDescriptor, warp: int, name: str, mn_major: bool) -> Chunks:
    index = operand_bytes(descriptor, _ROWS * WARPS, K_BYTES, umma.element_bytes(name), mn_major)
    return Chunks(np.unique(index[_ROWS * warp : _ROWS * warp + _ROWS] // CHUNK) * CHUNK)
