"""wgmma: the asynchronous warpgroup MMA of SM90 (PTX ISA, "wgmma.mma_async", "wgmma.fence", "wgmma.commit_group", "wgmma.wait_group").

Shared memory is read when the operation executes, not when it is issued; accumulators hold poison until `wait_group`.  FP8 operands are
summed to the bit as silicon does it (`aligned_sum`), others in float64.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ..aligned_sum import aligned_multiply_accumulate
from ..errors import SimError
from ..formats import Float64Array
from ..interfaces import Warp
from ..lanes import Mask
from ..operands import Binder, vector
from ..outcome import Outcome
from ..parser import Instruction
from ..smem_descriptor import DescriptorError, SmemDescriptor
from ..umma import decode_operand, multiply_accumulate
from ..wgmma_thread import Operation, a_fragment, wgmma_thread
from . import Handler, Straight, register
from .common import origin
from .tcgen05_mma import fetch_operand

_K_OF_FORMAT = {"e4m3": 32, "e5m2": 32, "f16": 16, "bf16": 16, "tf32": 8}
_ROWS = 16  # of one warp


@register("wgmma.fence")
def build_fence(ins: Instruction, b: Binder) -> Straight:
    """Orders register accesses of the warp before later wgmma."""

    def run(w: Warp, mask: Mask) -> None:
        wgmma_thread(w).fenced = True

    return Straight(run)


@register("wgmma.commit_group")
def build_commit(ins: Instruction, b: Binder) -> Straight:
    """Close the open group."""

    def run(w: Warp, mask: Mask) -> None:
        thread = wgmma_thread(w)
        thread.groups.append(thread.open)
        thread.open = []
        w.world.progress += 1

    return Straight(run)


@register("wgmma.wait_group")
def build_wait(ins: Instruction, b: Binder) -> Handler:
    """wgmma.wait_group.sync.aligned N"""
    keep = int(ins.operands[0], 0)

    def run(w: Warp, mask: Mask) -> Outcome | None:
        if not w.converged(mask):
            return w.block("convergence")
        thread = wgmma_thread(w)
        if not thread.ready(keep):
            return w.block(f"wgmma.wait_group {keep}", lambda: thread.ready(keep))
        thread.retire(keep)
        return None

    return run


@register("wgmma.mma_async")
def build_mma(ins: Instruction, b: Binder) -> Handler:
    """wgmma.mma_async.sync.aligned.m64nNkK.f32.A.B {d}, a, b-desc, scale-d, scale-a, scale-b [, trans-a] [, trans-b]"""
    shape = next((m for part in ins.parts if (m := re.fullmatch(r"m64n(\d+)k(\d+)", part))), None)
    types = ins.parts[-3:]
    if shape is None or "sp" in ins.parts or types[0] != "f32" or any(name not in _K_OF_FORMAT for name in types[1:]):
        raise SimError(f"{ins.opcode} is not modelled: f32 accumulators with {', '.join(_K_OF_FORMAT)} operands are")
    n, a_name, b_name = int(shape.group(1)), types[1], types[2]
    if int(shape.group(2)) != _K_OF_FORMAT[a_name]:
        raise SimError(f"{ins.opcode}: K must be {_K_OF_FORMAT[a_name]}")
    registers = tuple(b.index[name] for name in vector(ins.operands[0]))
    if len(registers) != n // 2:
        raise SimError(f"{ins.opcode} with {len(registers)} accumulator registers")
    a_registers = [b.read(name, np.uint32) for name in vector(ins.operands[1])] if ins.operands[1].startswith("{") else []
    a_word = None if a_registers else b.read(ins.operands[1], np.uint64)
    b_word, enable = b.read(ins.operands[2], np.uint64), b.read(ins.operands[3], np.bool_)
    immediates = [int(text, 0) for text in ins.operands[4:]]
    a_sign, b_sign = immediates[:2]
    transposed = immediates[2:]
    combine = aligned_multiply_accumulate if _K_OF_FORMAT[a_name] == 32 else multiply_accumulate
    a_mn_major = bool(transposed[0]) if transposed and not a_registers else False
    b_mn_major = bool(transposed[-1]) if transposed else False

    def run(w: Warp, mask: Mask) -> Outcome | None:
        if not w.converged(mask):
            return w.block("convergence")
        thread, lane = wgmma_thread(w), w.first(mask)
        a: SmemDescriptor | NDArray[np.uint8] = (
            _decode(int(a_word(w)[lane])) if a_word else a_fragment([np.ascontiguousarray(reader(w)) for reader in a_registers])
        )
        b_descriptor, accumulate = _decode(int(b_word(w)[lane])), bool(enable(w)[lane])
        accumulator = thread.accumulate_into(registers, accumulate)
        operation = Operation(accumulator, thread.actor())
        accumulator.pending += 1
        thread.open.append(operation)

        def execute() -> None:
            rows = _a_values(w, a, a_name, a_mn_major, operation)
            columns = fetch_operand(w.cta, b_descriptor, n, b_name, b_mn_major, operation.actor)
            previous = accumulator.values if accumulate else None
            accumulator.values = combine(rows * a_sign, columns * b_sign, previous)
            operation.done = True

        thread.pipe.push(execute, origin(w))
        return None

    return run


def _a_values(w: Warp, a: SmemDescriptor | NDArray[np.uint8], name: str, mn_major: bool, operation: Operation) -> Float64Array:
    """The 16 rows of this warp."""
    if not isinstance(a, SmemDescriptor):
        return decode_operand(a, name)
    first = _ROWS * (w.index % 4)
    return fetch_operand(w.cta, a, 64, name, mn_major, operation.actor)[first : first + _ROWS]


def _decode(word: int) -> SmemDescriptor:
    try:
        return SmemDescriptor.decode_sm90(word)
    except DescriptorError as error:
        raise SimError(str(error)) from None
