"""Mutants of the gemm family, its short simulation, and its PTX-level faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gemm_decoding_mutants import DECODING_MUTANTS
from mutant import Mutant

FOLDER = "kernels/gemm"
ON_SM90 = ("sm_90a",)
ON_SM100 = ("sm_100a",)
RUNS = ("tests/kernels/test_gemm_end_to_end.py::test_every_element_is_exact",)
PAIR_RUNS = ("tests/kernels/test_pair_gemm.py::test_every_element_is_exact",)


def mutant(name: str, kind: str, file: str, old: str, new: str) -> Mutant:
    """One of a file of the family's folder; all have the same nearest tests."""
    return Mutant(name, kind, f"{FOLDER}/{file}", old, new, RUNS, ON_SM90)


NVFP4_RUNS = (f"{PAIR_RUNS[0]}[masked-few-nvfp4xnvfp4]",)


def nvfp4_mutant(name: str, kind: str, file: str, old: str, new: str) -> Mutant:
    """Of what NVFP4 has for itself, which only its tests run into."""
    return Mutant(name, kind, file, old, new, NVFP4_RUNS, ())


def pair_mutant(name: str, kind: str, file: str, old: str, new: str) -> Mutant:
    """The same of the kernel of CTA pairs."""
    return Mutant(name, kind, f"{FOLDER}/sm100/{file}", old, new, PAIR_RUNS, ON_SM100)


NVFP4_MUTANTS = (
    nvfp4_mutant("UE4M3 scales are described as UE8M0", "wrong number", "hardware/pair_mma.py", "64, scales=0,", "64, scales=1,"),
    nvfp4_mutant("a UE4M3 scale is for 32 channels", "wrong number", "hardware/pair_mma.py", "scale_channels=16)", "scale_channels=32)"),
    nvfp4_mutant(
        "a stage of NVFP4 has half of its words of scales",
        "wrong number",
        "blocks/sm100/pair_config.py",
        "packed_values(self.block_k, formats.activations.channels)",
        "packed_values(self.block_k)",
    ),
    nvfp4_mutant("the factor is the first group's", "wrong base", f"{FOLDER}/sm100/factor.py", "Int64(tile.group) * 4", "Int64(0)"),
    nvfp4_mutant("sums keep their size", "wrong number", f"{FOLDER}/sm100/factor.py", "[value * factor for value in sums]", "list(sums)"),
    nvfp4_mutant(
        "words of scales of A are counted by 128 channels",
        "wrong base",
        f"{FOLDER}/sm100/maps.py",
        "args.a_sf_ld, problem.k_words,",
        "args.a_sf_ld, problem.k_blocks,",
    ),
)
PLAIN_RUNS = (
    f"{PAIR_RUNS[0]}[bf16xbf16-64]",
    "tests/kernels/test_pair_gemm.py::test_without_scales_tensor_memory_holds_sums_alone",
)


def plain_mutant(name: str, kind: str, file: str, old: str, new: str) -> Mutant:
    """Of what operands without scales have for themselves on SM100, which only their tests run into."""
    return Mutant(name, kind, file, old, new, PLAIN_RUNS, ())


PLAIN_PAIR_MUTANTS = (
    plain_mutant(
        "BF16 is described as FP16", "wrong number", "hardware/pair_mma.py", 'PairMma("f16", 1, 1, 16)', 'PairMma("f16", 0, 0, 16)'
    ),
    plain_mutant("sums of BF16 are described as FP16", "wrong number", "hardware/pair_mma.py", "1 << 4 | self.weights", "self.weights"),
    plain_mutant(
        "MMAs of BF16 all multiply the first 16 channels", "wrong base", "blocks/sm100/mma.py", "step = word * len(ids) + i", "step = word"
    ),
    plain_mutant(
        "a stage of BF16 has one MMA less",
        "off by one",
        "hardware/k_block.py",
        "self.row_bytes // MMA_K_BYTES",
        "self.row_bytes // MMA_K_BYTES - 1",
    ),
    plain_mutant(
        "tensor memory has columns of scales that nobody has",
        "wrong number",
        f"{FOLDER}/sm100/config.py",
        "scaled=self.problem.formats.scaled",
        "scaled=True",
    ),
    plain_mutant(
        "a stage of BF16 has 128 values of K", "wrong base", f"{FOLDER}/sm100/config.py", "least = problem.k_block", "least = 128"
    ),
)
PAIR_MUTANTS = (
    *NVFP4_MUTANTS,
    *PLAIN_PAIR_MUTANTS,
    pair_mutant(
        "the second CTA's rows start at half a full tile",
        "wrong base",
        "load.py",
        "ctx.cta_rank * (mma_tokens(tile.valid_m) >> 1)",
        "ctx.cta_rank * (config.block_m >> 1)",
    ),
    pair_mutant("scales of rows are fetched from the tile's first row on", "wrong base", "load.py", "tile.row & -SF_ATOM_ROWS", "tile.row"),
    pair_mutant(
        "scales of every group's packed B are the first one's", "wrong base", "load.py", "tile.group * problem.k_words", "tile.group * 0"
    ),
    pair_mutant(
        "a tile's scales begin with those of its atom",
        "wrong base",
        "mma.py",
        "first_scale = ctx.row_in_atom(tile) // ROWS_PER_COLUMN",
        "first_scale = 0",
    ),
    pair_mutant(
        "a row more than a tile of a pair has is stored",
        "off by one",
        "epilogue.py",
        "(row < self.tile.valid_m) &",
        "(row <= self.tile.valid_m) &",
    ),
    pair_mutant(
        "columns beyond D are stored",
        "off by one",
        "epilogue.py",
        "(self.column < self.ctx.config.problem.n)",
        "(self.column <= self.ctx.config.problem.n)",
    ),
    pair_mutant(
        "an accumulator of a GEMM is given back without a fence after its loads",
        "missing order",
        "epilogue.py",
        "        fence_before_sync()\n        sync_warp()\n",
        "        sync_warp()\n",
    ),
)
BF16_RUNS = (f"{RUNS[0]}[bf16-64]", f"{RUNS[0]}[bf16-24]")


def bf16_mutant(name: str, kind: str, file: str, old: str, new: str) -> Mutant:
    """Of what operands without scales have for themselves."""
    return Mutant(name, kind, file, old, new, BF16_RUNS, ON_SM90)


ACCUMULATE = "blocks/sm90/accumulate.py"
BF16_MUTANTS = (
    bf16_mutant(
        "a stage is given back while the tensor core reads it",
        "stale buffer",
        ACCUMULATE,
        "        sums = wait_block(sums, len(parts))\n",
        "        sums = wait_block(sums, 2 * len(parts))\n",
    ),
    bf16_mutant(
        "the stage that is given back is the one just issued",
        "off by one",
        ACCUMULATE,
        "        release_stage(stage.previous(), me.lane)\n        stage",
        "        release_stage(stage, me.lane)\n        stage",
    ),
    bf16_mutant(
        "the last stage is not given back",
        "missing clean-up",
        ACCUMULATE,
        "\n    sums = wait_block(sums, 0)\n    release_stage(stage.previous(), me.lane)\n",
        "\n    sums = wait_block(sums, 0)\n",
    ),
    bf16_mutant(
        "a K block more than there are is multiplied",
        "off by one",
        ACCUMULATE,
        "    for _ in cutlass.range(k_blocks - 1, unroll=1):",
        "    for _ in cutlass.range(k_blocks, unroll=1):",
    ),
    bf16_mutant(
        "later K blocks of BF16 begin sums anew",
        "wrong number",
        ACCUMULATE,
        "        sums = issue_block(stage, me, sums, element)\n",
        "        sums = issue_block(stage, me, sums, element, accumulate=False)\n",
    ),
    bf16_mutant(
        "K blocks of BF16 are counted in values of a byte",
        "wrong base",
        f"{FOLDER}/problem.py",
        "8 * ROW_BYTES // self.formats.activations.element_bits",
        "ROW_BYTES",
    ),
    bf16_mutant(
        "rows of B are as long as their number of values",
        "wrong base",
        f"{FOLDER}/maps.py",
        "problem.formats.weights.row_bytes(problem.k)",
        "problem.k",
    ),
)
MUTANTS: tuple[Mutant, ...] = (
    mutant(
        "rows of every group's B are the first one's",
        "wrong base",
        "load.py",
        "tile.group * config.problem.n + tile.n_block * config.block_n",
        "tile.n_block * config.block_n",
    ),
    mutant("scales of every group's B are the first one's", "wrong base", "math.py", "base = tile.group * problem.scale_rows", "base = 0"),
    mutant(
        "the second row of a warpgroup's scales is its first",
        "wrong base",
        "context.py",
        "cutlass.min(first + index, self.config.problem.scale_rows - 1)",
        "cutlass.min(first, self.config.problem.scale_rows - 1)",
    ),
    mutant(
        "a packed group begins where the one before it begins",
        "off by one",
        "group_table.py",
        "load(entry - 4), ctx.args.m)",
        "load(entry - 8), ctx.args.m)",
    ),
    mutant(
        "a role reads the table of groups before it is written",
        "missing order",
        "group_table.py",
        "cutlass.max(rows, Int32(0)), first)\n    sync_warp()\n",
        "cutlass.max(rows, Int32(0)), first)\n",
    ),
    mutant(
        "a row more than a group has is stored",
        "off by one",
        "store.py",
        "if (row < rows) & (column < config.problem.n):",
        "if (row <= rows) & (column < config.problem.n):",
    ),
    mutant(
        "a box is stored before its warp has written it",
        "missing order",
        "store.py",
        "    fence_async_shared()\n    sync_warp()\n    if cute.arch.lane_idx() == 0:\n        store_tile",
        "    if cute.arch.lane_idx() == 0:\n        store_tile",
    ),
    mutant(
        "a box is filled while TMA reads it",
        "stale buffer",
        "store.py",
        "    return 0 if odd else config.boxes - 1",
        "    return config.boxes",
    ),
    mutant(
        "the counter of tiles is not set back",
        "missing clean-up",
        "tile_scheduler.py",
        '            reduce_add_u32(ctx.args.counter, 0 - fetches * taken, "relaxed", "gpu")',
        "            pass",
    ),
    mutant(
        "a cluster's second tile is its first",
        "off by one",
        "tile_scheduler.py",
        "following = advance_to_valid(blocks.forward(1))",
        "following = blocks",
    ),
    mutant(
        "a tile's first row is its block's among all, not in its group",
        "wrong base",
        "tile_scheduler.py",
        '        row = row + GroupTable(ctx.shared("group_table")).first_row(block.expert)\n',
        "",
    ),
    mutant(
        "a CTA ends while TMA reads its last box",
        "stale buffer",
        "math.py",
        "    # What TMA still reads is this CTA's.\n    wait_group_read(0)\n",
        "",
    ),
    mutant(
        "a CTA without a last tile leaves while its end is on its way",
        "stale buffer",
        "work_tile.py",
        "            next_tile(tiles)\n",
        "            pass\n",
    ),
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
