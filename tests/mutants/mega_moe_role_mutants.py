"""Mutants of roles that one architecture has: loaders, MMA, epilogues, the store warp."""

from __future__ import annotations

from mutant import Mutant

SM90_RUNS = "tests/kernels/test_sm90_end_to_end.py"
SM100_RUNS = "tests/kernels/test_end_to_end.py"
ON_SM90 = ("sm_90a",)
ON_SM100 = ("sm_100a",)
SM100_ROLES = (
    Mutant(
        "the second CTA's tokens start at half a full tile",
        "wrong base",
        "load_tokens",
        "block.mma_n >> 1",
        "config.block_m >> 1",
        archs=ON_SM100,
    ),
    Mutant(
        "scales of every expert's weights are the first one's",
        "wrong base",
        "load_weights",
        "block.expert * k_blocks * k_block.words",
        "0",
        archs=ON_SM100,
    ),
    Mutant(
        "rows of weights of Linear2 are counted as those of Linear1",
        "wrong base",
        "load_weights",
        "select(is_fc1, Int32(config.fc1_n_blocks * CLUSTER), Int32(config.fc2_n_blocks * CLUSTER))",
        "Int32(config.fc1_n_blocks * CLUSTER)",
        (f"{SM100_RUNS}::test_every_tier", f"{SM100_RUNS}::test_other_grids"),
        archs=ON_SM100,
    ),
    Mutant(
        "the MMA warp waits for the accumulator's other phase",
        "wrong phase",
        "multiply_tile",
        'wait(ctx.barrier("acc_empty", acc.index), acc.phase ^ 1)',
        'wait(ctx.barrier("acc_empty", acc.index), acc.phase)',
        archs=ON_SM100,
    ),
    Mutant(
        "both passes of the Linear1 epilogue stage their tile in one buffer",
        "stale buffer",
        "PoolOutputs.buffer",
        "div(first, self.part.tokens) & 1",
        "0",
        (f"{SM100_RUNS}::test_every_tier",),
        archs=ON_SM100,
    ),
    Mutant(
        "the Linear1 epilogue waits for one store less",
        "stale buffer",
        "PoolOutputs.buffer",
        "partial(wait_group_read, 1)",
        "partial(wait_group_read, 2)",
        (f"{SM100_RUNS}::test_every_tier",),
        archs=ON_SM100,
    ),
    Mutant(
        "the Linear1 store is not fenced for the TMA that reads it",
        "missing order",
        "finish_passes",
        "fence_async_shared(); part.sync_group()",
        "part.sync_group()",
        archs=ON_SM100,
    ),
    Mutant(
        "the arrival bit of intermediate channels computed in 32 bits",
        "too narrow",
        "part_mark",
        "Int64(1) << Int64(part)",
        "Int64(cutlass.Int32(1) << part)",
        (f"{SM100_RUNS}::test_more_than_a_warp_or_a_word_holds[34 arrival bits]",),
        archs=ON_SM100,
    ),
    Mutant(
        "parts of the activations beyond the 64th are to have a bit",
        "too narrow",
        "MASK_BITS",
        "64",
        "128",
        (f"{SM100_RUNS}::test_more_than_a_warp_or_a_word_holds[66 parts]",),
        archs=ON_SM100,
    ),
    Mutant(
        "the maximum of a scale's other half is the warp's own",
        "wrong number",
        "sm100.epilogue:finish_fc1",
        "me.warp ^ 1",
        "me.warp",
        archs=ON_SM100,
    ),
    Mutant(
        "Linear2 writes one row more than a tile has",
        "off by one",
        "PoolResults.has",
        "row < self.valid",
        "row <= self.valid",
        archs=ON_SM100,
    ),
    Mutant(
        "an accumulator is given back without a fence after its loads",
        "missing order",
        "finish_tiles",
        "fence_before_sync()",
        "",
        archs=ON_SM100,
    ),
)
SM90_ROLES = (
    Mutant(
        "every expert's weights are the first one's",
        "wrong base",
        "weights_of",
        "tile.expert * n_blocks + tile.n_block",
        "tile.n_block",
        archs=ON_SM90,
    ),
    Mutant(
        "every expert's weight scales are the first one's",
        "wrong base",
        "weight_scales",
        "tile.expert * row_blocks + select(is_fc1, tile.n_block, tile.n_block * 2 + own)",
        "select(is_fc1, tile.n_block, tile.n_block * 2 + own)",
        archs=ON_SM90,
    ),
    Mutant("up has gate's scale", "wrong base", "weight_scales", "Int32(up)", "Int32(0)", archs=ON_SM90),
    Mutant(
        "the last block of rows reads the tokens' scales again, when its products are there",
        "missing order",
        "ColumnShare.multiply",
        "partial = wgmma.wait(partial)",
        "partial = wgmma.wait(partial)\n"
        "if cutlass.const_expr(b == self.blocks - 1): "
        "per_token = [load_pair(stage, token_scales + 32 * j) for j in range(self.tokens // 8)]",
        ("tests/kernels/test_resources_sm90.py::test_tile_fits_the_chip",),
        archs=ON_SM90,
    ),
    Mutant(
        "the last block of rows reads the tokens' scales again",
        "missing order",
        "ColumnShare.multiply",
        "b == 0",
        "b in (0, self.blocks - 1)",
        ("tests/kernels/test_resources_sm90.py::test_tile_fits_the_chip",),
        archs=ON_SM90,
        equivalent="In PTX the scales are used before the stage is given back, so this is about the assembler's order alone. Read before "
        "the wait for the products, they are there when the products are: in no tile of the presets does the machine code let the "
        "arrival overtake them, and the test looks at each.",
    ),
    Mutant(
        "the staging buffer is written while the store warp reads it",
        "stale buffer",
        "finish_tile",
        'wait(ctx.barrier("store_empty"), stores.phase ^ 1)',
        "",
        archs=ON_SM90,
    ),
    Mutant(
        "a CTA that has no tile cleans counts that its scheduler has yet to read",
        "missing order",
        "math",
        'wait(ctx.barrier("counts"), Int32(0))',
        "",
        (f"{SM90_RUNS}::test_clusters_of_two_over_several_launches", f"{SM90_RUNS}::test_launches_without_a_pause"),
        archs=ON_SM90,
    ),
    Mutant(
        "the store warp gives the staging buffer back before it has been read",
        "stale buffer",
        "store_if_fc1",
        "wait_group_read(0)",
        "",
        archs=ON_SM90,
    ),
    Mutant(
        "Linear1's tile is said to be there without a release",
        "missing order",
        "signal_part",
        'reduce_or_u64(arrival, mark, "release", "gpu")',
        'reduce_or_u64(arrival, mark, "relaxed", "gpu")',
        archs=ON_SM90,
    ),
    Mutant(
        "Linear1's tile is said to be there before its store has written",
        "missing order",
        "store_if_fc1",
        "wait_group(0)",
        "",
        archs=ON_SM90,
    ),
    Mutant(
        "Linear2 writes one row more than a tile of few tokens has",
        "off by one",
        "finish_fc2",
        "if own_row + step + first < tile.valid_m: "
        "form.send(destinations[i] + channel_bytes, channel_bytes, me.lane, load_shared_v4(read + step * HALF))",
        "if own_row + step + first <= tile.valid_m: "
        "form.send(destinations[i] + channel_bytes, channel_bytes, me.lane, load_shared_v4(read + step * HALF))",
        archs=ON_SM90,
    ),
    Mutant(
        "Linear2 writes one row more than a tile of many tokens has",
        "off by one",
        "send_passes",
        "row < mine.valid",
        "row <= mine.valid",
        archs=ON_SM90,
    ),
    Mutant(
        "maxima of a half tile are read before the other warpgroup wrote them",
        "missing order",
        "peaks_of_row",
        "sync_math_warps()",
        "",
        archs=ON_SM90,
    ),
    Mutant(
        "fetched tiles start at the first again",
        "wrong base",
        "publish_tiles",
        "config.num_clusters * config.blocks_per_fetch",
        "(config.num_clusters - 1) * config.blocks_per_fetch",
    ),
)
