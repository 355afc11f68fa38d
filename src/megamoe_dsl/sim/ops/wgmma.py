"""wgmma: the asynchronous warpgroup MMA of SM90 (PTX ISA, "wgmma.mma_async", "wgmma.fence", "wgmma.commit_group", "wgmma.wait_group").

Shared memory is read when the operation executes, after all warps of the warpgroup have issued it (`warpgroup`); accumulators hold poison
until `wait_group`. Sums in FP32 are to the bit what silicon makes of them (`aligned_sum`), those in FP16 and of integers formed in float64.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ..accessor import Actor
from ..aligned_sum import aligned_multiply_accumulate, alignment_of
from ..chunks import CHUNK, Chunks
from ..formats import Float64Array
from ..instruction_descriptor import K_BYTES
from ..smem_descriptor import SmemDescriptor, operand_bytes
from ..umma import Bytes, decode_operand, element_bytes, multiply_accumulate
from ..warpgroup import WARPS, Operation, Part, Warpgroup, wgmma_thread
from ..wgmma_fragment import RESULT_TYPES, a_fragment
from . import Binder, Cta, Handler, Mask, Outcome, PtxInstruction, SimError, Straight, Warp, converged, register, vector
from .common import origin
from .tcgen05_mma import fetch_operand, operand_chunks

_K_OF_FORMAT = {"e4m3": 32, "e5m2": 32, "f16": 16, "bf16": 16, "tf32": 8, "s8": 32, "u8": 32}
_INTEGERS = ("s8", "u8")
_ROWS = 16  # of one warp


@register("wgmma.fence")
def build_fence(ins: PtxInstruction, b: Binder) -> Straight:
    """Orders register accesses of the warp before later wgmma."""

    def run(w: Warp, mask: Mask) -> None:
        wgmma_thread(w).fenced = True

    return Straight(run)


@register("wgmma.commit_group")
def build_commit(ins: PtxInstruction, b: Binder) -> Straight:
    """Close the group of what the warp has issued since the last one."""

    def run(w: Warp, mask: Mask) -> None:
        thread = wgmma_thread(w)
        thread.groups.append(thread.open)
        thread.open = []
        w.world.progress += 1

    return Straight(run)


@register("wgmma.wait_group")
def build_wait(ins: PtxInstruction, b: Binder) -> Handler:
    """wgmma.wait_group.sync.aligned N: until at most N groups are pending."""
    keep = int(ins.operands[0], 0)

    @converged
    def run(w: Warp, mask: Mask) -> Outcome | None:
        thread = wgmma_thread(w)
        if not thread.ready(keep):
            return w.block(f"wgmma.wait_group {keep}", lambda: thread.ready(keep))
        thread.retire(keep)
        if w.world.race:
            w.order.wait()
        return None

    return run


@register("wgmma.mma_async")
def build_mma(ins: PtxInstruction, b: Binder) -> Handler:
    """wgmma.mma_async.sync.aligned.m64nNkK[.satfinite].D.A.B {d}, a, b-desc, scale-d [, scale-a, scale-b [, trans-a] [, trans-b]]"""
    shape = next((m for part in ins.parts if (m := re.fullmatch(r"m64n(\d+)k(\d+)", part))), None)
    d_name, a_name, b_name = ins.parts[-3:]
    known = d_name in RESULT_TYPES and {a_name, b_name} <= set(_K_OF_FORMAT)
    if shape is None or "sp" in ins.parts or not known or (d_name == "s32") != (a_name in _INTEGERS and b_name in _INTEGERS):
        raise SimError(f"{ins.opcode} is not modeled: f32, f16 and s32 accumulators with {', '.join(_K_OF_FORMAT)} operands are")
    n, dtype = int(shape.group(1)), RESULT_TYPES[d_name]
    if int(shape.group(2)) != _K_OF_FORMAT[a_name]:
        raise SimError(f"{ins.opcode}: K must be {_K_OF_FORMAT[a_name]}")
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
        combine: Callable[..., Any] = partial(aligned_multiply_accumulate, alignment=alignment_of(a_name, b_name))
    else:
        combine = partial(multiply_accumulate, dtype=dtype, saturate="satfinite" in ins.parts)

    @converged
    def run(w: Warp, mask: Mask) -> None:
        thread, lane, race = wgmma_thread(w), w.first(mask), w.world.race
        a: SmemDescriptor | Bytes
        if a_word:
            a = SmemDescriptor.decode_sm90(int(a_word(w)[lane]))
        else:
            a = a_fragment([np.ascontiguousarray(reader(w)) for reader in a_registers])
        accumulate = bool(enable(w)[lane])
        accumulator = thread.accumulate_into(registers, accumulate, dtype)
        part = Part(accumulator, accumulate, a, SmemDescriptor.decode_sm90(int(b_word(w)[lane])), race.snapshot(w) if race else None)
        accumulator.pending += 1
        thread.issued += 1
        thread.open.append(thread.group.issue(w, thread.issued, part, partial(execute, thread.group), origin(w)))

    def execute(group: Warpgroup, operation: Operation) -> None:
        parts = [operation.parts[k] for k in range(WARPS)]
        own, common = group.actors(operation) or (None, None)
        if isinstance(parts[0].a, SmemDescriptor):
            rows = _fetch_a(group.cta, [part.a for part in parts], a_name, a_mn_major, own, common)
        else:
            rows = decode_operand(np.concatenate([part.a for part in parts]), a_name)
        columns = fetch_operand(group.cta, parts[0].b, n, b_name, b_mn_major, common)
        previous = np.concatenate([part.accumulator.values for part in parts]) if parts[0].accumulate else None
        result = combine(rows if a_sign == 1 else -rows, columns if b_sign == 1 else -columns, previous)
        for k, part in enumerate(parts):
            part.accumulator.values = result[_ROWS * k : _ROWS * k + _ROWS]
        operation.done = True

    return run


def _fetch_a(cta: Cta, descriptors: list[Any], name: str, mn_major: bool, actors: list[Actor] | None, common: Actor | None) -> Float64Array:
    """The 64 rows of A in shared memory: each warp's descriptor says where its 16 are, and its actor reads them.

    Where all four warps know enough, which is what `common` knows, they read together.
    """
    alike = descriptors.count(descriptors[0]) == len(descriptors)
    if actors and common and (race := cta.world.race):
        chunks = operand_chunks(descriptors[0], _ROWS * WARPS, K_BYTES, element_bytes(name), mn_major)[0]
        if not (alike and race.read_shared_if_known(cta, chunks, common)):
            for k, (descriptor, actor) in enumerate(zip(descriptors, actors, strict=True)):
                race.read_shared(cta, _row_chunks(descriptor, k, name, mn_major), CHUNK, actor)
    if alike:
        return fetch_operand(cta, descriptors[0], _ROWS * WARPS, name, mn_major, None)
    whole = [fetch_operand(cta, descriptor, _ROWS * WARPS, name, mn_major, None) for descriptor in descriptors]
    return np.concatenate([rows[_ROWS * k : _ROWS * k + _ROWS] for k, rows in enumerate(whole)])


@lru_cache(maxsize=4096)
def _row_chunks(descriptor: SmemDescriptor, warp: int, name: str, mn_major: bool) -> Chunks:
    """The 16-byte chunks that hold a warp's rows of A."""
    index = operand_bytes(descriptor, _ROWS * WARPS, K_BYTES, element_bytes(name), mn_major)
    return Chunks(np.unique(index[_ROWS * warp : _ROWS * warp + _ROWS] // CHUNK) * CHUNK)
