"""The loop of the warps that decode E2M1 weights once for all tokens of a tile: packed tiles (hardware/packed_tile.py) to E4M3 under SW128,
as a main loop with tokens as rows reads them (decoded_share.py).

waits     codes_full and empty, per stage
signals   full and codes_empty, per warp and stage

Both rings have one depth.  A warp has 16 rows of every 64, and each thread what the thread of a packed tile has (packed_share.py): codes by
four loads of 16 bytes for 128 rows; what it decodes is a fragment of 8 x 8 matrices, which stmatrix stores four at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Uint32

from ...device.e2m1 import decode, entry_by_table, normal_entry, rows_of_shifts
from ...device.matrix import store_b16
from ...device.mbarrier import arrive
from ...device.memory import fence_async_shared, load_shared_v4, store_shared_u32
from ...device.ptx import emit_to
from ...device.stage import Stage, release_stage
from ...device.warp import ballot, sync_warp
from ...hardware.packed_part import WHOLE_TILE, PackedPart
from ...hardware.packed_tile import HALF_BYTES, RECORD_BYTES, TINY_BITS, record_index
from .math_thread import MathThread
from .tokens_as_m import CHUNK_ROWS, ROW_BYTES

BLOCKS, HALVES, STEPS = 2, 2, 2
CHUNK_BYTES = CHUNK_ROWS * ROW_BYTES
CODE_FIELDS = {"weights": "codes", "full_barrier": "codes_full_barrier", "empty_barrier": "codes_empty_barrier"}


@dataclass(frozen=True)
class CodeStage(Stage):
    """A stage of the ring of packed tiles: `codes` and mbarriers of its own in the place of a stage's weights."""

    @staticmethod
    def of(stage: Stage) -> CodeStage:
        """At the position of another ring's stage, which has the same depth."""
        return CodeStage(stage.plan, stage.cluster, stage.smem, stage.ring)

    def shared(self, name: str) -> Any:
        """Shared address of a field of the plan, in this stage."""
        return super().shared(CODE_FIELDS[name])


@cute.jit
def decode_tile(stage: Stage, me: MathThread, table: Int32, k_blocks: Int32, part: cutlass.Constexpr[PackedPart] = WHOLE_TILE):
    """One of four warps: its rows of `k_blocks` stages, each with a part of a tile of whole groups.  Returns the stage after them."""
    for _ in cutlass.range(k_blocks, unroll=1):
        codes = CodeStage.of(stage)
        codes.wait_full()
        stage.wait_empty()
        decode_stage(codes, stage, me, table, part)
        fence_async_shared()
        sync_warp()
        if me.lane == 0:
            arrive(stage.full)
        release_stage(codes, me.lane)
        stage = stage.next()
    return stage


@cute.jit
def decode_stage(codes: Stage, stage: Stage, me: MathThread, table: Int32, part: cutlass.Constexpr[PackedPart]):
    """The warp's rows of one K block, with their scales."""
    packed = codes.shared("weights")
    records = [load_shared_v4(packed + (part.code_bytes + record_index(g, me.warp, me.row) * RECORD_BYTES)) for g in range(part.groups)]
    lane = emit_to(Int32, "mov.b32 {}, {};", me.lane)  # no register is left to keep its row's place in
    if (lane & 3) == 0:
        for g in cutlass.range_constexpr(part.groups):
            store_shared_u32(stage.shared("row_exponents") + 4 * record_index(g, me.warp, lane >> 2), records[g][3])
    if (me.warp == 0) & (me.lane == 0):
        store_shared_u32(stage.shared("sfb"), records[0][2])
    shifts = [records[g][block] for g in range(part.groups) for block in range(BLOCKS)]
    tiny = Uint32(0)
    for word in shifts:
        tiny = tiny | (word & (word << 1))
    if ballot(tiny & Uint32(TINY_BITS)) == 0:
        decode_rows(packed, stage.shared("weights"), me, table, shifts, by_table=False)
    else:
        decode_rows(packed, stage.shared("weights"), me, table, shifts, by_table=True)


def decode_rows(packed: Any, weights: Any, me: MathThread, table: Any, shifts: list[Any], by_table: bool) -> None:
    """All rows of the warp; without a table where no shift makes subnormal numbers."""
    source = packed + (me.warp * 32 + me.lane) * 16
    # Matrix m of a store: 8 rows by their 16 bytes 4 half + m, which SW128 has at (4 half + m) ^ row; lane 8 m + r addresses its row r.
    row = me.lane & 7
    first = weights + (me.warp * (16 * ROW_BYTES) + row * ROW_BYTES) + (((me.lane >> 3) ^ row) << 4)
    units = [(half, g, block) for half in range(HALVES) for g in range(len(shifts) // BLOCKS) for block in range(BLOCKS)]

    def load(unit: tuple[int, int, int]) -> tuple[Any, ...]:
        half, g, block = unit
        return load_shared_v4(source + ((g * BLOCKS + block) * HALVES + half) * HALF_BYTES)

    # Neither compiler moves a load over a store: the next codes are loaded before the first of these is stored.
    following = load(units[0])
    for i, (half, g, block) in enumerate(units):
        codes, rows = following, rows_of_shifts(shifts[g * BLOCKS + block])
        for h in range(2):
            words: list[Any] = []
            for step in range(STEPS):
                entry = entry_by_table(table, rows[h], 2 * half + step) if by_table else normal_entry(rows[h], 2 * half + step)
                words += decode(codes[2 * step + h], entry)
            if h == 0 and i + 1 < len(units):
                following = load(units[i + 1])
            place = (first ^ (64 * half)) + (g * CHUNK_BYTES + (64 * block + 8 * h) * ROW_BYTES)
            store_b16(place, words)
