"""Mutants of the gemm family, its short simulation, and its PTX-level faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from gemm_decoding_mutants import DECODING_MUTANTS
from mutant import Mutant

ON_SM90 = ("sm_90a",)
ON_SM100 = ("sm_100a",)
RUNS = ("tests/kernels/test_gemm_end_to_end.py::test_every_element_is_exact",)
PAIR_RUNS = ("tests/kernels/test_pair_gemm.py::test_every_element_is_exact",)
mutant = partial(Mutant, nearest=RUNS, archs=ON_SM90)

NVFP4_RUNS = (f"{PAIR_RUNS[0]}[masked-few-nvfp4xnvfp4]",)
nvfp4_mutant = partial(Mutant, nearest=NVFP4_RUNS, archs=())
pair_mutant = partial(Mutant, nearest=PAIR_RUNS, archs=ON_SM100)

NVFP4_MUTANTS = (
    nvfp4_mutant("UE4M3 scales are described as UE8M0", "wrong number", "PAIR_MMAS", "scales=0", "scales=1"),
    nvfp4_mutant("a UE4M3 scale is for 32 channels", "wrong number", "PAIR_MMAS", "scale_channels=16", "scale_channels=32"),
    nvfp4_mutant(
        "a stage of NVFP4 has half of its words of scales",
        "wrong number",
        "k_block_of",
        "packed_values(config.block_k, formats.activations.channels)",
        "packed_values(config.block_k)",
    ),
    nvfp4_mutant("the factor is the first group's", "wrong base", "load_factor", "Int64(tile.group) * 4", "Int64(0)"),
    nvfp4_mutant("sums keep their size", "wrong number", "with_factor", "[value * factor for value in sums]", "list(sums)"),
    nvfp4_mutant(
        "words of scales of A are counted by 128 channels",
        "wrong base",
        "PairRows.maps",
        "problem.k_words",
        "problem.k_blocks",
    ),
)
PLAIN_RUNS = (f"{PAIR_RUNS[0]}[bf16xbf16-64]", "tests/kernels/test_pair_gemm.py::test_without_scales_tensor_memory_holds_sums_alone")
plain_mutant = partial(Mutant, nearest=PLAIN_RUNS, archs=())

PLAIN_PAIR_MUTANTS = (
    plain_mutant("BF16 is described as FP16", "wrong number", "PAIR_MMAS", 'PairMma("f16", 1, 1, 16)', 'PairMma("f16", 0, 0, 16)'),
    plain_mutant(
        "sums of BF16 are described as FP16", "wrong number", "PairMma.formats", "1 << 4 | self.weights << 7", "self.weights << 7"
    ),
    plain_mutant("MMAs of BF16 all multiply the first 16 channels", "wrong base", "multiply", "word * len(ids) + i", "word"),
    plain_mutant(
        "a stage of BF16 has one MMA less",
        "off by one",
        "KBlock.mmas",
        "self.row_bytes // MMA_K_BYTES",
        "self.row_bytes // MMA_K_BYTES - 1",
    ),
    plain_mutant(
        "tensor memory has columns of scales that nobody has",
        "wrong number",
        "Sm100GemmConfig._tmem",
        "TmemPlan(block_m, self.consumers, accumulators, self.problem.formats.scaled)",
        "TmemPlan(block_m, self.consumers, accumulators, True)",
    ),
    plain_mutant(
        "a stage of BF16 has 128 values of K",
        "wrong base",
        "block_ks",
        "least = BLOCK_K if formats.scaled else PLAIN_VALUES.channels",
        "least = 128",
    ),
)
PAIR_MUTANTS = (
    *NVFP4_MUTANTS,
    *PLAIN_PAIR_MUTANTS,
    pair_mutant(
        "the second CTA's rows start at half a full tile", "wrong base", "load_tokens", "mma_tokens(tile.valid_m)", "config.block_m"
    ),
    pair_mutant("scales of rows are fetched from the tile's first row on", "wrong base", "load_tokens", "begin & -SF_ATOM_ROWS", "begin"),
    pair_mutant(
        "scales of every group's packed B are the first one's",
        "wrong base",
        "weight_operand",
        "tile.group * problem.k_words",
        "tile.group * 0",
    ),
    pair_mutant(
        "a tile's scales begin with those of its atom",
        "wrong base",
        "pair_tile",
        "config.rows.row_in_atom(ctx, tile) // ROWS_PER_COLUMN",
        "0",
    ),
    pair_mutant(
        "a row more than a tile of a pair has is stored",
        "off by one",
        "ResultsOfTile.has",
        "row < self.tile.valid_m",
        "row <= self.tile.valid_m",
    ),
    pair_mutant(
        "columns beyond D are stored",
        "off by one",
        "ResultsOfTile.has",
        "self.column < self.ctx.config.problem.d_columns",
        "self.column <= self.ctx.config.problem.d_columns",
    ),
    pair_mutant(
        "an accumulator of a GEMM is given back without a fence after its loads",
        "missing order",
        "sm100.results:finish_tiles",
        "fence_before_sync()",
        "",
    ),
)
BF16_RUNS = (f"{RUNS[0]}[bf16-64]", f"{RUNS[0]}[bf16-24]")
bf16_mutant = partial(Mutant, nearest=BF16_RUNS, archs=ON_SM90)

BF16_MUTANTS = (
    bf16_mutant("a stage is given back while the tensor core reads it", "stale buffer", "accumulate_tile", "len(parts)", "2 * len(parts)"),
    bf16_mutant(
        "the stage that is given back is the one just issued",
        "off by one",
        "accumulate_tile",
        "release_stage(stage.previous(), me.lane); stage = stage.next()",
        "release_stage(stage, me.lane); stage = stage.next()",
    ),
    bf16_mutant(
        "the last stage is not given back",
        "missing clean-up",
        "accumulate_tile",
        "release_stage(stage.previous(), me.lane); return sums, stage",
        "return sums, stage",
    ),
    bf16_mutant("a K block more than there are is multiplied", "off by one", "accumulate_tile", "k_blocks - 1", "k_blocks"),
    bf16_mutant(
        "later K blocks of BF16 begin sums anew",
        "wrong number",
        "accumulate_tile",
        "issue_block(stage, me, sums, element)",
        "issue_block(stage, me, sums, element, accumulate=False)",
    ),
    bf16_mutant(
        "K blocks of BF16 are counted in values of a byte",
        "wrong base",
        "GemmProblem.k_block",
        "8 * ROW_BYTES // self.formats.activations.element_bits",
        "ROW_BYTES",
    ),
    bf16_mutant(
        "rows of B are as long as their number of values",
        "wrong base",
        "WholeRows.maps",
        "problem.formats.weights.row_bytes(problem.k)",
        "problem.k",
    ),
)
MUTANTS: tuple[Mutant, ...] = (
    mutant(
        "rows of every group's B are the first one's",
        "wrong base",
        "weight_tile",
        "tile.group * config.problem.group_rows + tile.n_block * config.block_n",
        "tile.n_block * config.block_n",
    ),
    mutant(
        "scales of every group's B are the first one's",
        "wrong base",
        "load_scales",
        "tile.group * ceil_div(problem.group_rows, SCALE_BLOCK)",
        "0",
    ),
    mutant("the second row of a warpgroup's scales is its first", "wrong base", "WholeRows.scale_row", "first + index", "first"),
    mutant("a packed group begins where the one before it begins", "off by one", "fill_table", "entry - 4", "entry - 8"),
    mutant(
        "an aligned group begins where the one before it ends",
        "wrong base",
        "fill_table",
        "div(first + (ROW_BLOCK - 1), ROW_BLOCK) * ROW_BLOCK",
        "first",
        nearest=(f"{RUNS[0]}[aligned-swapped]",),
        archs=(),
    ),
    mutant(
        "a masked group has more rows than there is room for",
        "missing check",
        "fill_table",
        "cutlass.min(load(entry), room)",
        "load(entry)",
        nearest=("tests/kernels/test_gemm_end_to_end.py::test_rows_beyond_a_groups_capacity_are_cut_off",),
    ),
    mutant(
        "a role reads the table of groups before it is written",
        "missing order",
        "fill_table",
        "for base in cutlass.range_constexpr(0, count + 1, 32): ...\nsync_warp()",
        "for base in cutlass.range_constexpr(0, count + 1, 32): ...",
    ),
    mutant("a row more than a group has is stored", "off by one", "store_box_rows", "row < rows", "row <= rows"),
    mutant("a box is stored before its warp has written it", "missing order", "store_box", "fence_async_shared(); sync_warp()", ""),
    mutant(
        "a box is filled while TMA reads it",
        "stale buffer",
        "pending_of_last_tile",
        "0 if odd else config.epilogue_buffers - 1",
        "config.epilogue_buffers",
    ),
    mutant(
        "the counter of tiles is not set back",
        "missing clean-up",
        "reset_counter",
        'reduce_add_u32(ctx.args.counter, 0 - fetches * taken, "relaxed", "gpu")',
        "",
    ),
    mutant("a cluster's second tile is its first", "off by one", "publish_tiles", "advance_to_valid(blocks.forward(1))", "blocks"),
    mutant(
        "a tile's first row is its block's among all, not in its group",
        "wrong base",
        "tile_of",
        "row = row + table_of(ctx).first_block(block.expert)",
        "",
    ),
    mutant(
        "a CTA ends while TMA reads its last box",
        "stale buffer",
        "math",
        "ctx.read_end(tile, tiles); wait_group_read(0)",
        "ctx.read_end(tile, tiles)",
    ),
    mutant("a CTA without a last tile leaves while its end is on its way", "stale buffer", "GemmContext.read_end", "next_tile(queue)", ""),
    *DECODING_MUTANTS,
    *BF16_MUTANTS,
    *PAIR_MUTANTS,
)


def short_simulation(arch: str) -> str | None:
    """What shows that the kernel is wrong, as `kind: text`; None when nothing does: tiles of rows, of columns, with a ring ahead, and of
    groups in pairs, launched without a pause, race detector on."""
    from test_gemm_faults import SUBJECTS, how_noticed

    mine = (subject for subject, one in SUBJECTS.items() if one.run.config.arch.name == arch)
    return next((sign for subject in mine if (sign := how_noticed(None, subject)) is not None), None)


def ptx_faults() -> Iterator[tuple[str, str, Callable[[], str | None]]]:
    """Faults of the compiled PTX: architecture, name, and what runs the faulty kernel and says how the fault shows."""
    from fault_trial import trials
    from test_gemm_faults import CASES, SUBJECTS, how_noticed

    return trials(CASES, how_noticed, lambda subject: SUBJECTS[subject].run.config.arch.name)
