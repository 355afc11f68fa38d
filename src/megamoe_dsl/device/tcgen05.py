"""Tensor-core instructions of a CTA pair (PTX ISA, tcgen05; SM100_FACTS).

A constant that reaches inline PTX becomes an immediate, and tcgen05 takes none: hence the moves into local registers, which ptxas folds.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from cutlass import Float32, Int64, Uint32

from ..hardware.cta_pair import PairMma, ScaledMma
from ..hardware.operand_tile import BOX_BYTES, ROW_BYTES
from .ptx import emit, emit_to_many

OPERAND_HIGH = {128: 0x40004040, 64: 0x80004020}  # SMEM descriptor, high word, by span: swizzle, version 1, SBO 8 spans
SCALE_HIGH = 0x00004008  # no swizzle, version 1, SBO 128
K_STEP = 2  # 32 bytes of K in a SMEM descriptor, in units of 16 bytes
COLUMNS_STEP = 16 * ROW_BYTES >> 4  # 16 rows of K of an MN-major operand
COLUMNS_LOW = BOX_BYTES >> 4 << 16  # LBO: from 64 columns to the next ones; SBO is that of K-major rows
INSTRUCTION = 256 >> 7 << 27  # M = 256; formats, N and the scale ids are added per kind, tile and step


def instruction(kind: PairMma, mma_n: Any, mn_major: tuple[bool, bool] = (False, False)) -> Any:
    """Instruction descriptor for a multiple of 16 tokens: formats, N >> 3 in bits 17-22, in bits 15 and 16 whether A and B are MN-major."""
    weights, tokens = mn_major
    return (mma_n << 14) | (INSTRUCTION | kind.formats | weights << 15 | tokens << 16)


def descriptor(low: Any, high: int) -> Any:
    return (Int64(high) << 32) | Int64(Uint32(low))


def operand(low: Any, step: int, high: int, mn_major: bool, before: int = 0) -> Any:
    """SMEM descriptor of K step `step` of an operand, `before` units behind `low`; of an MN-major one columns lie in boxes of 64."""
    return descriptor(low + (before + (step * COLUMNS_STEP + COLUMNS_LOW if mn_major else step * K_STEP)), high)


def allocate(result: Any, columns: int) -> None:
    """Allocates TMEM columns and writes their address to shared memory; called by one warp of each CTA."""
    emit("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [{}], {};", result, columns)
    emit("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;")


free = partial(emit, "{{\n\t.reg .b32 t;\n\tmov.b32 t, {};\n\ttcgen05.dealloc.cta_group::2.sync.aligned.b32 t, {};\n\t}}")
"""(address, columns): by the warp that allocated, when all warps of both CTAs have finished with tensor memory."""
copy_scales = partial(emit, "{{\n\t.reg .b32 t;\n\tmov.b32 t, {};\n\ttcgen05.cp.cta_group::2.32x128b.warpx4 [t], {};\n\t}}")
"""(column, descriptor): one UTCCP atom: 128 rows x 4 scales into 4 columns, replicated over the lane quarters."""


def mma(kind: PairMma, accumulator: Any, a: Any, b: Any, instruction: Any, accumulate: Any) -> None:
    """D[256, N] (+)= A[256, K] B[N, K]^T, K as the kind has it; `accumulate` 0 overwrites."""
    emit(
        "{{\n\t.reg .pred p;\n\t.reg .b32 d, i;\n\tmov.b32 d, {0};\n\tmov.b32 i, {3};\n\tsetp.ne.b32 p, {4}, 0;\n\t"
        f"tcgen05.mma.cta_group::2.kind::{kind.name} [d], {{1}}, {{2}}, i, p;\n\t}}}}",
        *(accumulator, a, b, instruction, accumulate),
    )


def scaled_mma(kind: ScaledMma, accumulator: Any, a: Any, b: Any, instruction: Any, scales_a: int, scales_b: int, accumulate: Any) -> None:
    emit(
        "{{\n\t.reg .pred p;\n\t.reg .b32 d, i, sa, sb;\n\tmov.b32 d, {0};\n\tmov.b32 i, {3};\n\tmov.b32 sa, {4};\n\tmov.b32 sb, {5};\n\t"
        "setp.ne.b32 p, {6}, 0;\n\t"
        f"tcgen05.mma.cta_group::2.kind::{kind.name}.block_scale.block{kind.scale_channels} [d], {{1}}, {{2}}, i, [sa], [sb], p;\n\t}}}}",
        *(accumulator, a, b, instruction, scales_a, scales_b, accumulate),
    )


def commit_pair(barrier: Any, ctas: Any = 3) -> None:
    """One arrival at `barrier` in each CTA of the cluster whose bit is set in `ctas`, of a pair alone in its cluster both, once all earlier
    tcgen05 work of this thread is done."""
    mask = f"mov.b16 m, {ctas};" if isinstance(ctas, int) else "cvt.u16.u32 m, {1};"
    emit(
        f"{{{{\n\t.reg .b16 m;\n\t{mask}\n\t"
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [{0}], m;\n\t}}",
        *((barrier,) if isinstance(ctas, int) else (barrier, ctas)),
    )


fence_after_sync = partial(emit, "tcgen05.fence::after_thread_sync;")
"""Orders the tcgen05 instructions that follow after everything that the barrier just passed has ordered before."""
fence_before_sync = partial(emit, "tcgen05.fence::before_thread_sync;")
"""Orders the tcgen05 instructions so far before everything that the next barrier orders after it."""


def load_columns(address: Any, groups: int) -> list[tuple[Any, ...]]:
    """8 * groups columns of the warp's 32 lanes, as `groups` tuples of eight Float32.

    Value 4 s + 2 h + q of group g in thread t is lane 16 s + 8 h + t / 4, column 8 g + 2 (t % 4) + q (shape 16x256b, twice).
    Loads and wait are one block, so that no move of a result can come before the wait.
    """
    half = 4 * groups
    low, high = (", ".join(f"{{{i}}}" for i in range(start, start + half)) for start in (0, half))
    source = f"{{{2 * half}}}"
    load = f"tcgen05.ld.sync.aligned.16x256b.x{groups}.b32"
    text = (
        f"{{{{\n\t.reg .b32 t;\n\tor.b32 t, {source}, 0x100000;\n\t{load} {{{{{low}}}}}, [{source}];\n\t"
        f"{load} {{{{{high}}}}}, [t];\n\ttcgen05.wait::ld.sync.aligned;\n\t}}}}"
    )
    r = emit_to_many([Float32] * (2 * half), text, address)
    return [(*r[4 * g : 4 * g + 4], *r[half + 4 * g : half + 4 * g + 4]) for g in range(groups)]
