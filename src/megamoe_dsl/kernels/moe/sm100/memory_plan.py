"""Memory of the SM100 kernel: a CTA's shared memory (article 3.2.1.4), and the table of tensor maps, nine, encoded once per buffer and set
of weights.  The kernel gets its address; Linear2 maps follow their Linear1 counterparts at a fixed distance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from ....blocks.sm100.epilogue_tile import result_bytes
from ....blocks.sm100.pair_stage import PairStage, byte_rows, k_tiles, scale_words, weight_tiles
from ....hardware.cta_pair import ACCUMULATORS, BLOCK_N, CLUSTER
from ....hardware.operand_tile import CHANNELS_PER_SCALE, CHANNELS_PER_WORD, OPERAND_ALIGNMENT
from ....hardware.tensor_map import MapFields, TensorMap
from ....layouts.arith import align
from ....layouts.region import U8, U32, Field, MBarrier
from ..layouts.smem_plan import TILE_ROWS, WARPS_PER_GROUP, SmemPlan

FC1_STORE_STAGES = 2


@dataclass(frozen=True)
class Sm100SmemPlan(SmemPlan):
    """Adds to what is always live the TMEM address.  A dispatch warp has one slot, of a whole row."""

    work_tiles: ClassVar[int] = 2
    after_barriers: ClassVar[tuple[Field, ...]] = (Field("tmem_address", (1,), U32),)  # the column that the TMEM allocation starts at

    @property
    def stage(self) -> PairStage:
        return PairStage(self.config.block_m, self.config.k_block)

    @property
    def fc1_row_bytes(self) -> int:
        """A CTA's 64 outputs of Linear1 for a token."""
        return self.config.problem.formats.activations.row_bytes(BLOCK_N // 2)

    @property
    def fc1_tile_bytes(self) -> int:
        """One pass of the Linear1 epilogue: [store_block_m][64]."""
        return self.config.store_block_m * self.fc1_row_bytes

    @property
    def tile_fields(self) -> tuple[Field, ...]:
        """cd, Linear1: two stages; Linear2: one BF16 tile.  sfb: of the weights; sfa: of the tokens."""
        staged = align(max(FC1_STORE_STAGES * self.fc1_tile_bytes, result_bytes(self.config.store_block_m)), OPERAND_ALIGNMENT)
        return (
            *self.stage.operands(self.num_stages),
            Field("cd", (self.config.epilogue_warpgroups, staged), U8, OPERAND_ALIGNMENT),
            *self.stage.scales(self.num_stages),
        )

    @property
    def maxima(self) -> Field:
        tokens = self.config.store_block_m if self.config.problem.formats.hidden.channels == CHANNELS_PER_SCALE else 0
        return Field("amax", (self.config.epilogue_warpgroups, WARPS_PER_GROUP, tokens), U32, 16)

    @property
    def pull_chunk(self) -> int:
        return self.config.problem.formats.activations.row_bytes(self.config.problem.hidden)

    @cached_property
    def barriers(self) -> tuple[MBarrier, ...]:
        """All mbarriers, in SMEM order."""
        num_stages, work_tiles, readers = self.num_stages, self.work_tiles, 32 * (CLUSTER * (2 + WARPS_PER_GROUP) + 1)
        dispatch_warps, sets = self.config.warps.dispatch, 2 * self.config.epilogue_warps
        return self.kept(
            MBarrier("full", num_stages, 4, "token and weight loaders of both CTAs", "operands and scales of both CTAs", "MMA warp", True),
            MBarrier("empty", num_stages, 1, "tcgen05.commit, multicast to the pair", "", "token and weight loaders"),
            MBarrier("acc_full", ACCUMULATORS, 1, "tcgen05.commit, multicast to the pair", "", "epilogue warps"),
            MBarrier("acc_empty", ACCUMULATORS, 8, "the four warps of the epilogue warpgroup of both CTAs", "", "MMA warp", True),
            MBarrier("counts", 1, 32, "every lane of the scheduler warp", "", "scheduler warp, dispatch warps and epilogue warps, once"),
            MBarrier("work_tile_full", work_tiles, 1, "the pair's scheduler warp", "the work tile", "loaders, MMA warp, epilogue warps"),
            MBarrier("work_tile_empty", work_tiles, readers, "every lane that reads the tile, in the pair", "", "scheduler warp", True),
            MBarrier("pull", dispatch_warps, 1, "the dispatch warp", "one token row", "the dispatch warp"),
            MBarrier("combine", sets, 1, "the epilogue warp", "one piece of a token's top-k results", "the epilogue warp"),
        )


LINEAR_MAPS = ("tokens", "sfa", "weights", "sfb")
TABLE_MAPS = (*LINEAR_MAPS, *LINEAR_MAPS, "fc1_output")


def tensor_maps(config: Any, sym: int, weights: Mapping[str, int]) -> list[TensorMap]:
    """Descriptors in table order.  Beyond the last channel of tokens and of Linear1's outputs TMA loads zeros and stores nothing.

    sym      address of this rank's symmetric buffer
    weights  addresses by name:
    fc1, fc2       tiles of 128 rows (quant.tile_sm100): of [2I, H] with gate and up rows interleaved by 8, and of [H, I]
    fc1_sf, fc2_sf words of scales in UTCCP order: [El * H / 128, 2I]; [El * I / 128, H]; of NVFP4 twice as many, without scales none
    """
    problem = config.problem
    region = config.symmetric
    experts, hidden, intermediate = problem.experts_per_rank, problem.hidden, problem.intermediate
    pool = region["fc1_topk_weights"].field.shape[0]

    k_block, tokens = config.k_block, problem.formats.activations

    def phase(acts: str, sf: str, k: int, tiles: int, address: int, scales: int) -> list[MapFields]:
        sf_words, sf_rows = region[sf].field.shape
        n, channels = tiles * TILE_ROWS, align(k, min(k_block.channels, CHANNELS_PER_WORD))
        weight_words = problem.formats.weights.scale_words(channels)
        rows = byte_rows(region.address(sym, acts), tokens.row_bytes(k), pool, config.block_m // 2, k_block.row_bytes)
        weights = weight_tiles(address, experts * n // BLOCK_N * k_tiles(k, k_block), k_block)
        if not k_block.words:
            return [rows, rows, weights, weights]
        token_scales = scale_words(region.address(sym, sf), sf_rows, sf_words, config.sf_block_m, k_block)
        return [rows, token_scales, weights, scale_words(scales, n, experts * weight_words, BLOCK_N, k_block)]

    outputs = region.address(sym, "fc2_acts"), tokens.row_bytes(intermediate), pool, config.store_block_m, config.smem.fc1_row_bytes
    fields = [
        *phase("fc1_acts", "fc1_sf", hidden, config.fc1_n_blocks, weights["fc1"], weights["fc1_sf"]),
        *phase("fc2_acts", "fc2_sf", intermediate, config.fc2_n_blocks, weights["fc2"], weights["fc2_sf"]),
        byte_rows(*outputs),
    ]
    return [one.tensor_map for one in fields]
