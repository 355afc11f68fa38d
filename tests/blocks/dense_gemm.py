"""The smallest dense FP8 GEMM out of blocks, for SM90: D[M, N] f32 = A[M, K] x B[N, K], E4M3 with FP32 scales; tiles go round robin.

It has what a kernel of another family has to write itself, and nothing else: a plan, tensor maps, which warp does what, an epilogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from megamoe_dsl.blocks.sm90.load import Fetch, OperandMaps, TokenTile, WeightTile, load_tokens, load_weights
from megamoe_dsl.blocks.sm90.main_loop import Share
from megamoe_dsl.blocks.sm90.math_thread import MathThread
from megamoe_dsl.blocks.sm90.tokens_as_m import CHUNK_ROWS, RowShare
from megamoe_dsl.blocks.sm90.tokens_as_n import ColumnShare
from megamoe_dsl.blocks.sm90.weight_scales import ScaleMatrix, WeightScales
from megamoe_dsl.blocks.walk import Walk, advance_to_valid, next_block
from megamoe_dsl.device.cluster import ClusterPlace
from megamoe_dsl.device.mbarrier import fence_init, init
from megamoe_dsl.device.memory import store_f32
from megamoe_dsl.device.stage import Stage
from megamoe_dsl.device.tma import acquire_tensor_map
from megamoe_dsl.device.warp import smem_base
from megamoe_dsl.hardware.operand_tile import BLOCK_K
from megamoe_dsl.hardware.tensor_map import DESCRIPTOR_BYTES, TensorMap, TensorMapDtype
from megamoe_dsl.layouts.arith import select
from megamoe_dsl.layouts.region import F32, U8, U64, Field, Region
from megamoe_dsl.schedule import DenseBlock, DenseOrder

TILE_ROWS = 256
MATH_WARPS, FIRST_MATH_WARP = 8, 4
MAPS = TOKENS, TOKENS_HALF, WEIGHTS, SCALES = range(4)


@dataclass(frozen=True)
class GemmConfig:
    """`block_m` up to 32: tokens are the wgmma's columns; 128: its rows.  `tiled`: B lies in tiles (quant.tile_sm90), else K-major."""

    n: int
    k: int
    block_m: int
    tiled: bool
    num_sms: int
    num_stages: int = 2
    group_m: int = 2

    @property
    def n_blocks(self) -> int:
        return self.n // TILE_ROWS

    @property
    def k_blocks(self) -> int:
        return self.k // BLOCK_K

    @property
    def swap_ab(self) -> bool:
        return self.block_m <= 32

    @cached_property
    def region(self) -> Region:
        stages = self.num_stages
        return Region.stack(
            "smem",
            Field("weights", (stages, TILE_ROWS * BLOCK_K), U8, 1024),
            Field("tokens", (stages, self.block_m * BLOCK_K), U8, 1024),
            Field("sfa", (stages, max(self.block_m, 32)), F32, 128),
            Field("full_barrier", (stages,), U64),
            Field("empty_barrier", (stages,), U64),
        )

    def tensor_maps(self, a: int, sfa: int, b: int, m: int) -> list[TensorMap]:
        """Of A [m, k], its scales [k / 128, m] and B, at these addresses; `m` is a multiple of 4."""

        def rows(address: int, width: int, height: int, box: int) -> TensorMap:
            return TensorMap(address, TensorMapDtype.U8, (width, height), (width,), (BLOCK_K, box), 128)

        half = self.block_m if self.swap_ab else self.block_m // 2
        return [
            rows(a, self.k, m, self.block_m),
            rows(a, self.k, m, half),
            rows(b, BLOCK_K, self.n * self.k_blocks, TILE_ROWS) if self.tiled else rows(b, self.k, self.n, TILE_ROWS),
            TensorMap(sfa, TensorMapDtype.U32, (m, self.k_blocks), (4 * m,), (self.block_m, 1), 0),
        ]


@dataclass(frozen=True)
class GemmArguments:
    """Table of tensor maps, scales of B [n / 128, k / 128], D [m, n], and m."""

    maps: Int64
    sfb: Int64
    d: Int64
    m: Int32


@dataclass(frozen=True)
class TracedDense(DenseOrder):
    config: cutlass.Constexpr[GemmConfig]
    rows: Int32


@dataclass(frozen=True)
class Gemm:
    """What the roles share."""

    config: cutlass.Constexpr[GemmConfig]
    args: GemmArguments
    smem: Int32

    def walk(self) -> Walk:
        order = TracedDense(self.config, self.args.m)
        return advance_to_valid(Walk.start(order, cute.arch.block_idx()[0], self.config.num_sms, Int32))

    def stage(self) -> Stage:
        return Stage.first(self.config.region, self.smem, self.config.num_stages)

    def map(self, which: int) -> Any:
        return self.args.maps + which * DESCRIPTOR_BYTES

    def is_half(self, block: DenseBlock) -> Any:
        return False if self.config.swap_ab else block.valid_m <= 64


@cute.jit
def run_token_loader(gemm: Gemm):
    config = gemm.config
    blocks, stage = gemm.walk(), gemm.stage()
    half_rows = config.block_m if config.swap_ab else config.block_m // 2
    while blocks.valid():
        block = blocks.block()
        half = gemm.is_half(block)
        maps = OperandMaps(gemm.map(TOKENS_HALF), gemm.map(TOKENS), half_rows)
        tokens = Fetch.of(maps, ClusterPlace(Int32(0), 1), half, False)
        rows = select(half, Int32(half_rows), Int32(config.block_m))
        num_bytes = rows * BLOCK_K + 4 * config.block_m
        tile = TokenTile(tokens, block.m_block * config.block_m, rows, num_bytes, gemm.map(SCALES))
        stage = load_tokens(stage, tile, Int32(config.k_blocks))
        blocks = next_block(blocks)


@cute.jit
def run_weight_loader(gemm: Gemm):
    config = gemm.config
    blocks, stage = gemm.walk(), gemm.stage()
    while blocks.valid():
        maps = OperandMaps(gemm.map(WEIGHTS), gemm.map(WEIGHTS), TILE_ROWS)
        weights = Fetch.of(maps, ClusterPlace(Int32(0), 1), False, False)
        row = blocks.block().n_block * (TILE_ROWS * config.k_blocks if config.tiled else TILE_ROWS)
        tile = WeightTile(weights, row, TILE_ROWS if config.tiled else 0, TILE_ROWS * BLOCK_K)
        stage = load_weights(stage, tile, Int32(config.k_blocks))
        blocks = next_block(blocks)


@cute.jit
def run_math(gemm: Gemm, warp: Int32):
    config = gemm.config
    me = MathThread(warp >> 2, warp & 3, cute.arch.lane_idx())
    blocks, stage = gemm.walk(), gemm.stage()
    while blocks.valid():
        block = blocks.block()
        if cutlass.const_expr(config.swap_ab):
            stage = compute(gemm, block, ColumnShare.of(me, config.block_m), stage)
        else:
            if gemm.is_half(block):
                stage = compute(gemm, block, RowShare.of(me, half=True), stage)
            else:
                stage = compute(gemm, block, RowShare.of(me, half=False), stage)
        blocks = next_block(blocks)


@cute.jit
def compute(gemm: Gemm, block: DenseBlock, me: Share, stage: Stage):
    config = gemm.config
    matrix = ScaleMatrix(gemm.args.sfb, Int32(config.k_blocks), config.k_blocks)
    first = block.n_block * 2 + (me.group if me.has_own_weights else 0)
    second = first + (0 if me.has_own_weights else 1)
    scales = WeightScales((matrix.load(first, me.lane), matrix.load(second, me.lane)), Boolean(False))
    stage.wait_full()
    sums, stage = me.multiply_tile(stage, scales, Int32(config.k_blocks))
    for part in cutlass.range_constexpr(len(sums)):
        for pair in cutlass.range_constexpr(len(sums[part]) // 2):
            for i in cutlass.range_constexpr(2 * pair, 2 * pair + 2):
                token, row = place_of(me, part, i)
                if token < block.valid_m:
                    index = Int64(block.m_block * config.block_m + token) * config.n + (block.n_block * TILE_ROWS + row)
                    store_f32(gemm.args.d + index * 4, sums[part][i])
    return stage


def place_of(me: Share, part: int, i: int) -> tuple[Any, Any]:
    """Token and weight row, within the tile, of a value of the accumulator, as the shares' docstrings say."""
    j, h, e = i // 4, i // 2 % 2, i % 2
    if isinstance(me, ColumnShare):
        return 8 * j + me.pair + e, me.group * 128 + 64 * part + 16 * me.warp + me.row + 8 * h
    return me.token + 8 * h, (me.first_chunk + part) * CHUNK_ROWS + 8 * j + me.pair + e


@cute.kernel
def gemm_kernel(config: cutlass.Constexpr[GemmConfig], args: GemmArguments):
    buffer: Any = cutlass.Array(cutlass.Int8, config.region.size, space=cutlass.AddressSpace.smem, alignment=1024)
    warp, thread = cute.arch.warp_idx(), cute.arch.thread_idx()[0]
    smem = smem_base(buffer)
    gemm = Gemm(config, args, smem)
    if thread == 0:
        for i in cutlass.range_constexpr(config.num_stages):
            init(config.region.address(smem, "full_barrier", i), 2)
            init(config.region.address(smem, "empty_barrier", i), MATH_WARPS)
        fence_init()
        for which in cutlass.range_constexpr(len(MAPS)):
            acquire_tensor_map(gemm.map(which))
    cute.arch.sync_threads()
    if warp == 0:
        run_token_loader(gemm)
    elif warp == 1:
        run_weight_loader(gemm)
    elif warp >= FIRST_MATH_WARP:
        run_math(gemm, warp - FIRST_MATH_WARP)


@cute.jit
def gemm(config: cutlass.Constexpr[GemmConfig], args: GemmArguments, stream: Any):
    """Launches the kernel."""
    block = (32 * (FIRST_MATH_WARP + MATH_WARPS), 1, 1)
    gemm_kernel(config, args).launch(grid=(config.num_sms, 1, 1), block=block, min_blocks_per_mp=1, stream=stream)
