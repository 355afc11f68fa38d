"""Mutants of roles that one architecture has: loaders, MMA, epilogues, the store warp."""

from __future__ import annotations

from mutant import Mutant

SM100 = "kernels/mega_moe/sm100"
SM90 = "kernels/mega_moe/sm90"
SM90_RUNS = "tests/kernels/test_sm90_end_to_end.py"
SM100_RUNS = "tests/kernels/test_end_to_end.py"
ON_SM90 = ("sm_90a",)
ON_SM100 = ("sm_100a",)
SM100_ROLES = (
    Mutant(
        "the second CTA's tokens start at half a full tile",
        "wrong base",
        f"{SM100}/load.py",
        "ctx.cta_rank * (block.mma_n >> 1)",
        "ctx.cta_rank * (config.block_m >> 1)",
        archs=ON_SM100,
    ),
    Mutant(
        "scales of every expert's weights are the first one's",
        "wrong base",
        f"{SM100}/load.py",
        "block.expert * k_blocks * k_block.words, k_block",
        "0, k_block",
        archs=ON_SM100,
    ),
    Mutant(
        "rows of weights of Linear2 are counted as those of Linear1",
        "wrong base",
        f"{SM100}/load.py",
        "rows = select(block.phase == FC1, Int32(config.fc1_n_blocks * TILE_ROWS), Int32(config.fc2_n_blocks * TILE_ROWS))",
        "rows = Int32(config.fc1_n_blocks * TILE_ROWS)",
        (f"{SM100_RUNS}::test_every_tier", f"{SM100_RUNS}::test_four_ranks_unequal_and_empty"),
        archs=ON_SM100,
    ),
    Mutant(
        "the MMA warp waits for the accumulator's other phase",
        "wrong phase",
        f"{SM100}/mma.py",
        'wait(ctx.barrier("acc_empty", acc.index), acc.phase ^ 1)',
        'wait(ctx.barrier("acc_empty", acc.index), acc.phase)',
        archs=ON_SM100,
    ),
    Mutant(
        "both passes of the Linear1 epilogue stage their tile in one buffer",
        "stale buffer",
        f"{SM100}/epilogue_fc1.py",
        "(div(first, config.store_block_m) & 1) * plan.fc1_tile_bytes",
        "0 * plan.fc1_tile_bytes",
        (f"{SM100_RUNS}::test_every_tier",),
        archs=ON_SM100,
    ),
    Mutant(
        "the Linear1 epilogue waits for one store less",
        "stale buffer",
        f"{SM100}/epilogue_fc1.py",
        "wait_group_read(1)",
        "wait_group_read(2)",
        (f"{SM100_RUNS}::test_every_tier",),
        archs=ON_SM100,
    ),
    Mutant(
        "the Linear1 store is not fenced for the TMA that reads it",
        "missing order",
        f"{SM100}/epilogue_fc1.py",
        "        fence_async_shared()\n",
        "",
        archs=ON_SM100,
    ),
    Mutant(
        "the arrival bit of intermediate channels computed in 32 bits",
        "too narrow",
        "kernels/mega_moe/arrival.py",
        "Int64(1) << Int64(part)",
        "Int64(cutlass.Int32(1) << part)",
        (f"{SM100_RUNS}::test_more_than_a_warp_or_a_word_holds[34 arrival bits]",),
        archs=ON_SM100,
    ),
    Mutant(
        "parts of the activations beyond the 64th are to have a bit",
        "too narrow",
        "kernels/mega_moe/arrival.py",
        "MASK_BITS = 64",
        "MASK_BITS = 128",
        (f"{SM100_RUNS}::test_more_than_a_warp_or_a_word_holds[66 parts]",),
        archs=ON_SM100,
    ),
    Mutant(
        "the maximum of a scale's other half is the warp's own",
        "wrong number",
        f"{SM100}/epilogue_fc1.py",
        "tile.group, tile.warp ^ 1, pair)",
        "tile.group, tile.warp, pair)",
        archs=ON_SM100,
    ),
    Mutant(
        "Linear2 writes one row more than a tile has",
        "off by one",
        f"{SM100}/epilogue_fc2.py",
        "return row < self.valid",
        "return row <= self.valid",
        archs=ON_SM100,
    ),
    Mutant(
        "an accumulator is given back without a fence after its loads",
        "missing order",
        f"{SM100}/epilogue.py",
        "        fence_before_sync()\n        sync_warp()\n",
        "        sync_warp()\n",
        archs=ON_SM100,
    ),
)
SM90_ROLES = (
    Mutant(
        "every expert's weights are the first one's",
        "wrong base",
        f"{SM90}/load.py",
        "(tile.expert * n_blocks + tile.n_block) * k_blocks",
        "tile.n_block * k_blocks",
        archs=ON_SM90,
    ),
    Mutant(
        "every expert's weight scales are the first one's",
        "wrong base",
        f"{SM90}/math.py",
        "first = tile.expert * row_blocks + select(",
        "first = select(",
        archs=ON_SM90,
    ),
    Mutant(
        "up has gate's scale",
        "wrong base",
        f"{SM90}/math.py",
        "second = first + select(is_fc1, Int32(up), ",
        "second = first + select(is_fc1, Int32(0), ",
        archs=ON_SM90,
    ),
    Mutant(
        "the last block of rows reads the tokens' scales again, when its products are there",
        "missing order",
        "blocks/sm90/tokens_as_n.py",
        "            sums.append(promote(acc.parts[b], partial, per_token, row_scales))\n",
        """            if cutlass.const_expr(b == self.blocks - 1):
                per_token = [load_pair(stage, token_scales + 32 * j) for j in range(self.tokens // 8)]
            sums.append(promote(acc.parts[b], partial, per_token, row_scales))
""",
        ("tests/kernels/test_resources_sm90.py::test_tile_fits_the_chip",),
        archs=ON_SM90,
    ),
    Mutant(
        "the last block of rows reads the tokens' scales again",
        "missing order",
        "blocks/sm90/tokens_as_n.py",
        "if cutlass.const_expr(b == 0):",
        "if cutlass.const_expr(b in (0, self.blocks - 1)):",
        ("tests/kernels/test_resources_sm90.py::test_tile_fits_the_chip",),
        archs=ON_SM90,
        equivalent="In PTX the scales are used before the stage is given back, so this is about the assembler's order alone. Read before "
        "the wait for the products, they are there when the products are: in no tile of the presets does the machine code let the "
        "arrival overtake them, and the test looks at each.",
    ),
    Mutant(
        "the staging buffer is written while the store warp reads it",
        "stale buffer",
        f"{SM90}/math.py",
        '    wait(ctx.barrier("store_empty"), stores.phase ^ 1)\n',
        "",
        archs=ON_SM90,
    ),
    Mutant(
        "a CTA that has no tile cleans counts that its scheduler has yet to read",
        "missing order",
        f"{SM90}/math.py",
        '    wait(ctx.barrier("counts"), Int32(0))\n    rank_barrier',
        "    rank_barrier",
        (f"{SM90_RUNS}::test_clusters_of_two_over_several_launches", f"{SM90_RUNS}::test_launches_without_a_pause"),
        archs=ON_SM90,
    ),
    Mutant(
        "the store warp gives the staging buffer back before it has been read",
        "stale buffer",
        f"{SM90}/store.py",
        '            wait_group_read(0)\n            arrive(ctx.barrier("store_empty"))\n',
        '            arrive(ctx.barrier("store_empty"))\n',
        archs=ON_SM90,
    ),
    Mutant(
        "Linear1's tile is said to be there without a release",
        "missing order",
        "kernels/mega_moe/arrival.py",
        'reduce_or_u64(arrival, mark, "release", "gpu")',
        'reduce_or_u64(arrival, mark, "relaxed", "gpu")',
        archs=ON_SM90,
    ),
    Mutant(
        "Linear1's tile is said to be there before its store has written",
        "missing order",
        f"{SM90}/store.py",
        "            wait_group(0)\n",
        "",
        archs=ON_SM90,
    ),
    Mutant(
        "Linear2 writes one row more than a tile of few tokens has",
        "off by one",
        f"{SM90}/epilogue_columns.py",
        "if own_row + step + first < tile.valid_m:",
        "if own_row + step + first <= tile.valid_m:",
        archs=ON_SM90,
    ),
    Mutant(
        "Linear2 writes one row more than a tile of many tokens has",
        "off by one",
        f"{SM90}/epilogue_rows.py",
        "if row < valid:",
        "if row <= valid:",
        archs=ON_SM90,
    ),
    Mutant(
        "maxima of a half tile are read before the other warpgroup wrote them",
        "missing order",
        f"{SM90}/epilogue_rows.py",
        "            store_shared_f32(mine + 32 * h, peaks[h])\n    sync_math_warps()\n",
        "            store_shared_f32(mine + 32 * h, peaks[h])\n",
        archs=ON_SM90,
    ),
    Mutant(
        "fetched tiles start at the first again",
        "wrong base",
        "kernels/mega_moe/tile_scheduler.py",
        "first = config.num_clusters * config.blocks_per_fetch",
        "first = (config.num_clusters - 1) * config.blocks_per_fetch",
    ),
)
