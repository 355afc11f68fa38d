"""Mutants of a token pool that is a ring: its order of blocks, the rows that they take, and who waits for whom."""

from __future__ import annotations

from mutant import Mutant

RUNS = ("tests/kernels/test_sm90_ring.py::test_small_tiles",)
MODEL = (
    "tests/schedule/test_ring.py::test_every_block_once_and_in_an_order_without_deadlock",
    "tests/schedule/test_ring.py::test_a_launch_ends_and_no_rows_are_taken_too_early",
)
WHOLE = ("tests/schedule/test_ring.py::test_where_all_fits_the_order_is_that_of_a_whole_pool",)

RING_MUTANTS = (
    Mutant(
        "rows are taken when all but one warp have read them",
        "off by one",
        "wait_rows",
        "config.fc2_n_blocks * config.epilogue_warps",
        "config.fc2_n_blocks * config.epilogue_warps - 1",
        RUNS,
        (),
    ),
    Mutant(
        "rows are taken when the block behind them has been read",
        "wrong base",
        "wait_rows",
        "pool_block - config.ring_blocks",
        "pool_block - config.ring_blocks + 1",
        RUNS,
        (),
    ),
    Mutant(
        "rows are freed before the places of results have come",
        "missing order",
        "free_rows",
        "(lane == 0) & (ballot(Int32(read != 0)) != 0)",
        "lane == 0",
        ("tests/kernels/test_sm90_ring.py::test_smallest_ring[0]",),
        (),
    ),
    Mutant(
        "reads of a ring's rows are not cleared",
        "missing clean-up",
        "clean_expert",
        'store_u32(ctx.at("fc2_read_count", pool_block + block), 0)',
        "",
        RUNS,
        (),
    ),
    Mutant(
        "tiles of more than a part free their rows before the last part's places are read",
        "missing order",
        "finish_fc2",
        "first + rows == ctx.config.block_m",
        "first == 0",
        ("tests/kernels/test_sm90_ring.py::test_packed_weights",),
        (),
    ),
    Mutant(
        "Linear1 goes further than a ring has rows",
        "off by one",
        "RingOrder.sizes",
        "select(blocks <= config.ring_blocks, blocks, config.window)",
        "select(blocks <= config.ring_blocks, blocks, config.ring_blocks + 2)",
        MODEL,
        (),
    ),
    Mutant(
        "Linear2 of a band comes before its Linear1 has begun",
        "missing order",
        "RingOrder.sizes",
        "select(crowded | late, fc2_rows, 0)",
        "fc2_rows",
        MODEL,
        (),
    ),
    Mutant(
        "a launch that fits in the ring has a window all the same",
        "too narrow",
        "RingOrder.sizes",
        "select(blocks <= config.ring_blocks, blocks, config.window)",
        "config.window",
        WHOLE,
        (),
    ),
    Mutant(
        "a band that did not fit is left out",
        "wrong base",
        "RingOrder.sizes",
        "part.fc1_first + part.fc1_rows",
        "part.fc1_first + self._band(part.fc1_expert, part.fc1_first)",
        MODEL,
        (),
    ),
)
