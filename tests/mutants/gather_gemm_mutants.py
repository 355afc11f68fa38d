"""Mutants of the gather_gemm family, and its short simulation; its faults of PTX are among gemm's."""

from __future__ import annotations

from mutant import Mutant

FOLDER = "kernels/gather_gemm"
RUNS = ("tests/kernels/test_gather_gemm.py::test_every_row_is_exact",)
ACTIVATED = ("tests/kernels/test_gather_gemm.py::test_gate_and_up_are_activated_and_quantised",)
PAIRS = ("tests/kernels/test_pair_gather.py::test_every_row_is_exact",)
PAIR_ACTIVATED = ("tests/kernels/test_pair_gather.py::test_gate_and_up_are_activated_and_quantised",)
CONSUMERS = ("tests/kernels/test_pair_gather.py::test_every_row_is_exact[two-consumers]",)
TWO_PAIRS = ("tests/kernels/test_pair_gather.py::test_every_row_is_exact[two-pairs-sorted]",)
TWO_PAIRS_GATHER = ("tests/kernels/test_pair_gather.py::test_gate_and_up_are_activated_and_quantised[two-pairs-gate-first]",)
STORED = ("tests/kernels/test_pair_gather.py::test_gate_and_up_are_activated_and_quantised[stored-up_first]",)
NVFP4_GATE_UP = ("tests/kernels/test_pair_gather.py::test_gate_and_up_are_activated_and_quantised[nvfp4-gate_first]",)
NVFP4_SCALED = ("tests/kernels/test_pair_gather.py::test_gate_and_up_are_activated_and_quantised[nvfp4-scaled-gate_first]",)
NVFP4 = ("tests/kernels/test_pair_gather.py::test_every_row_is_exact[nvfp4]",)
PLAIN = ("tests/kernels/test_pair_gather.py::test_every_row_is_exact[bf16xbf16-gathered-blocked]",)
LISTS = ("tests/kernels/test_gather_gemm.py::test_rows_that_are_not_there_are_those_that_are",)


def mutant(name: str, kind: str, file: str, old: str, new: str, nearest: tuple[str, ...] = RUNS) -> Mutant:
    """One of a file of the family's folder."""
    return Mutant(name, kind, f"{FOLDER}/{file}", old, new, nearest, ("sm_90a",))


def pair_mutant(name: str, kind: str, file: str, old: str, new: str, nearest: tuple[str, ...] = PAIRS, equivalent: str = "") -> Mutant:
    """One of SM100's files."""
    return Mutant(f"SM100: {name}", kind, f"{FOLDER}/sm100/{file}", old, new, nearest, ("sm_100a",), equivalent)


MUTANTS = (
    mutant("gathered rows are read before the tensor core sees them", "missing order", "context.py", "        fence_async_shared()\n", ""),
    Mutant(
        "rows are gathered past the tile's last",
        "off by one",
        f"{FOLDER}/gather.py",
        "rows[i] < tile.valid_m",
        "rows[i] <= tile.valid_m",
        RUNS,
        ("sm_90a",),
        equivalent="a row more is fetched and multiplied, of which nothing is stored: 128 bytes for each K block",
    ),
    mutant("the second warp gathers what the first does", "wrong base", "gather.py", "number * ROWS_PER_COPY + lane", "0 * number + lane"),
    mutant("chunks lie where no swizzle puts them", "wrong base", "gather.py", "(chunk ^ (row & 7)) << 4", "chunk << 4"),
    mutant("all K blocks have the scales of the first of four", "wrong base", "scaled_stage.py", " + self.word_in_place * SCALE_BYTES", ""),
    mutant(
        "scales are copied to where some are still read",
        "wrong number",
        "smem_plan.py",
        "(self.num_stages + self.scales_at_once - 1)",
        "self.num_stages",
    ),
    mutant("scales of a K block that begins none are copied, too", "wrong base", "gather.py", "if stage.word_in_place == 0:", "if True:"),
    mutant("a row of the list may lie past the tokens", "off by one", "gather.py", "ctx.args.a_rows - 1)", "ctx.args.a_rows)", LISTS),
    mutant(
        "blocks before a run of 32 experts are not counted",
        "wrong base",
        "row_table.py",
        "(blocks_before + total - blocks)",
        "(total - blocks)",
    ),
    mutant(
        "a list is read where D's rows begin",
        "wrong base",
        "context.py",
        "if not self.config.problem.places_rows:",
        "if self.config.problem.gathers:",
    ),
    mutant(
        "up first is read as gate first",
        "wrong base",
        "gate_up.py",
        "-problem.n // 2 if up_first else problem.n // 2",
        "problem.n // 2",
        ACTIVATED,
    ),
    mutant("scales of up are those of gate", "wrong base", "context.py", "+ second * (problem.scale_rows // 2)", "+ 0 * second", ACTIVATED),
    mutant("interleaved channels are put in pairs", "wrong number", "epilogue_gate_up.py", "transposed if", "joined_pairs if", ACTIVATED),
    mutant(
        "a row more than a tile has is activated and stored",
        "off by one",
        "epilogue_gate_up.py",
        "        if token < tile.valid_m:\n            stored =",
        "        if token <= tile.valid_m:\n            stored =",
        ACTIVATED,
    ),
    mutant(
        "gate and up of a row more than a tile has are stored",
        "off by one",
        "epilogue_gate_up.py",
        "            if token < tile.valid_m:\n                stored =",
        "            if token <= tile.valid_m:\n                stored =",
        ACTIVATED,
    ),
    mutant(
        "up is stored where gate belongs",
        "wrong base",
        "epilogue_gate_up.py",
        "up == (problem.gate_up",
        "up != (problem.gate_up",
        ACTIVATED,
    ),
    mutant(
        "gate and up are staged while those before them leave",
        "missing order",
        "epilogue_gate_up.py",
        "                store_v4(first + Int64(tile.row + token) * (2 * config.problem.n), stored)\n        sync_warp()\n",
        "                store_v4(first + Int64(tile.row + token) * (2 * config.problem.n), stored)\n",
        ACTIVATED,
    ),
    Mutant(
        "a warpgroup without rows of a tile keeps its stages",
        "missing clean-up",
        "kernels/gemm/math.py",
        "        release_stage(stage, me.lane)\n",
        "",
        ACTIVATED,
        ("sm_90a",),
    ),
    pair_mutant(
        "a lane gives a list back for its warp, after a warp barrier",
        "missing order",
        "gather.py",
        """    named = [row_of_a(ctx, Int32(word)) for word in words]
    scaled = [row_of_a(ctx, Int32(load_shared_u32(ctx.shared("rows", lists.index, row)))) for row in scaled_rows(ctx, thread)]
    release(ctx.barrier("list_empty", lists.index), reduce(cutlass.max, [*named, *scaled]))
""",
        """    loaded = [load_shared_u32(ctx.shared("rows", lists.index, row)) for row in scaled_rows(ctx, thread)]
    cute.arch.sync_warp()
    if thread % 32 == 0:
        for _ in range(32):
            release(ctx.barrier("list_empty", lists.index), Int32(0))
    named, scaled = ([row_of_a(ctx, Int32(word)) for word in those] for those in (words, loaded))
""",
    ),
    pair_mutant("a list's place is taken twice", "wrong phase", "gather.py", "            lists = lists.next()\n", ""),
    pair_mutant("a list is read a row further on", "off by one", "list_rows.py", "first + row, ctx", "first + row + 1, ctx"),
    pair_mutant(
        "rows beyond a tile's are read from the list",
        "off by one",
        "list_rows.py",
        "row < tile.valid_m",
        "row <= tile.valid_m",
        equivalent="a word more is read, of a row that nobody asks for",
    ),
    pair_mutant(
        "both CTAs gather the first half of a tile", "wrong base", "gather.py", "ctx.place_in_pair * half", "ctx.place_in_pair * 0"
    ),
    pair_mutant(
        "scales lie in the order of their rows",
        "wrong base",
        "gather.py",
        "[utccp_row(row) * WORD for row",
        "[row * WORD for row",
    ),
    pair_mutant(
        "a tile's scales are those of its place in D", "wrong base", "context.py", "        return 0\n", "        return tile.row & 127\n"
    ),
    pair_mutant("the MMA warp does not wait for copied scales", "missing order", "stage.py", "        self.wait_copied()\n", ""),
    pair_mutant("copied scales without proxy fence", "missing order", "stage.py", "        fence_async_shared()\n", ""),
    pair_mutant(
        "a row past a tile's last is scattered",
        "off by one",
        "scatter.py",
        "select(own + i < tile.valid_m, tile.row",
        "select(own + i <= tile.valid_m, tile.row",
    ),
    pair_mutant(
        "gate and up in BF16 have no factor",
        "wrong number",
        "gate_up_bf16.py",
        "with_factor(ctx, one, factor)",
        "one",
        NVFP4_GATE_UP,
    ),
    pair_mutant(
        "the second eight rows of a store of gate and up lie on the first",
        "wrong base",
        "gate_up_bf16.py",
        "(matrix >> 1) * (8 * HALF_BYTES)",
        "0",
        NVFP4_GATE_UP,
    ),
    pair_mutant(
        "BF16 gate and up are scattered before all warps have stored theirs",
        "missing order",
        "gate_up_bf16.py",
        "        fence_async_shared()\n        part.sync_group()\n",
        "        fence_async_shared()\n",
        NVFP4_GATE_UP,
    ),
    *(
        pair_mutant(name, kind, "gate_up_nvfp4.py", old, new, NVFP4_SCALED)
        for name, kind, old, new in (
            ("up with a scale has gate's factor", "wrong number", "(self.gate if i & 2 == gates else self.up)", "self.gate"),
            ("all experts' gate and up have the first's factor", "wrong base", "args.hidden_factors + place", "args.hidden_factors"),
            ("two lanes find one row's scale", "wrong base", "((lane >> 2) & 1)", "0"),
            (
                "half of a row's channels have no part in its scale",
                "wrong base",
                "left[i], left[half + i]) for",
                "left[half + i], left[i]) for",
            ),
            ("of two rows both have the first's divisor", "wrong base", "(2 * g + q) * COLUMNS", "2 * g * COLUMNS"),
            ("a row more than a tile has gets an E4M3 scale", "off by one", "first + own < tile", "first + own <= tile"),
            ("scales lie where warps have others", "wrong base", "WARPS_PER_GROUP + part.warp", "WARPS_PER_GROUP + (part.warp ^ 1)"),
            ("E2M1 with a factor is staged while the pass before is scattered", "missing order", "        wait_group_read(0)\n", ""),
            (
                "E2M1 with a factor is scattered before all warps have stored theirs",
                "missing order",
                "        fence_async_shared()\n        part.sync_group()\n",
                "        fence_async_shared()\n",
            ),
        )
    ),
    pair_mutant(
        "a pass is staged while the last is scattered",
        "missing order",
        "epilogue.py",
        "        wait_group_read(0)\n        stage_pass",
        "        stage_pass",
    ),
    pair_mutant(
        "up first is read as gate first", "wrong base", "gate_up.py", "2 if problem.gate_up == UP_FIRST else 0", "0", PAIR_ACTIVATED
    ),
    pair_mutant(
        "interleaved rows are taken for halves",
        "wrong base",
        "gate_up.py",
        "if problem.gate_up == INTERLEAVED:",
        "if problem.gate_up == UP_FIRST:",
        PAIR_ACTIVATED,
    ),
    pair_mutant(
        "a row more than a tile has gets a scale", "off by one", "epilogue.py", "own & (row < tile", "own & (row <= tile", PAIR_ACTIVATED
    ),
    Mutant(
        "SM100: the second consumer multiplies the first's weights",
        "wrong base",
        "blocks/sm100/mma.py",
        "own = consumer * (",
        "own = 0 * (",
        CONSUMERS,
        ("sm_100a",),
    ),
    Mutant(
        "SM100: scales of the second consumer's weights lie in the first's columns",
        "wrong base",
        "blocks/sm100/mma.py",
        "copy_scales(columns.sfb + 4 * atom",
        "copy_scales(columns.sfb",
        CONSUMERS,
        ("sm_100a",),
    ),
    Mutant(
        "SM100: a stage is empty when one of two pairs has finished",
        "missing order",
        "kernels/gemm/sm100/barriers.py",
        'MBarrier("empty", num_stages, pairs,',
        'MBarrier("empty", num_stages, 1,',
        TWO_PAIRS,
        ("sm_100a",),
    ),
    pair_mutant(
        "both warpgroups store one consumer's sums", "wrong base", "epilogue.py", "column + group * config.block_m", "column", CONSUMERS
    ),
    pair_mutant("both consumers have the same columns of D", "wrong base", "epilogue.py", ".consumers + group", ".consumers", CONSUMERS),
    pair_mutant(
        "two consumers share the passes of one",
        "wrong number",
        "epilogue.py",
        "column + group * config.block_m, 1, Int32(0)",
        "column + group * config.block_m, every, first",
        CONSUMERS,
    ),
    pair_mutant(
        "sums of two tiles take columns of scales",
        "wrong number",
        "config.py",
        "return two if two.fits else replace(two, accumulators=1)",
        "return two",
        CONSUMERS,
    ),
    pair_mutant(
        "both pairs gather the same four rows",
        "wrong base",
        "gather.py",
        "ctx.config.pairs + ctx.pair",
        "ctx.config.pairs",
        TWO_PAIRS_GATHER,
    ),
    pair_mutant("both pairs bring the same sorted rows", "wrong base", "gather.py", "first + ctx.pair * rows", "first", TWO_PAIRS),
    pair_mutant("sums are announced to the first pair", "wrong base", "context.py", "<< (self.cta_rank & 2)", "<< 0", TWO_PAIRS),
    pair_mutant("rows go to both CTAs of a pair", "wrong base", "context.py", "1 | 1 << CLUSTER", "1 | 1 << 1", TWO_PAIRS),
    pair_mutant(
        "a row has a word of scales for 128 of K", "wrong base", "gather.py", "problem.k_words * WORD", "problem.k_blocks * WORD", NVFP4
    ),
    pair_mutant("a row more than a tile has is stored", "off by one", "preactivations.py", "if row < tile", "if row <= tile", STORED),
    pair_mutant(
        "gate and up are read before they are staged",
        "missing order",
        "preactivations.py",
        "    part.sync_group()\n    own =",
        "    own =",
        STORED,
    ),
    pair_mutant(
        "gate and up are stored in each other's columns",
        "wrong base",
        "preactivations.py",
        "select(lane < 8, Int32(0), Int32(problem.n // 2))",
        "select(lane < 8, Int32(problem.n // 2), Int32(0))",
        STORED,
    ),
    *(
        Mutant(f"SM100, BF16: {name}", kind, f"{FOLDER}/sm100/{file}", old, new, PLAIN)
        for name, kind, file, old, new in (
            (
                "a stage waits for scales that nobody announces",
                "wrong number",
                "smem_plan.py",
                "super().loaded + self.copies",
                "super().loaded + 1",
            ),
            (
                "tiles wait for a warp that reads none",
                "wrong number",
                "smem_plan.py",
                "super().reading_warps + self.copies",
                "super().reading_warps + 1",
            ),
            (
                "half as much of a row is gathered as the stage has",
                "wrong base",
                "gather.py",
                'gather_quad(ctx, stage.shared("tokens") + rows.quad * (ROWS * row_bytes), full, k * row_bytes',
                'gather_quad(ctx, stage.shared("tokens") + rows.quad * (ROWS * row_bytes), full, k * (row_bytes // 2)',
            ),
        )
    ),
    pair_mutant("sums of 32 experts are those of 31", "off by one", "tile_search.py", "shuffle(end, LANES - 1)", "shuffle(end, LANES - 2)"),
    pair_mutant(
        "the first expert of 32 begins where it ends",
        "wrong base",
        "tile_search.py",
        "Int32(cutlass.select_(within > 0, of_run, first))",
        "Int32(of_run)",
    ),
)


def short_simulation(arch: str) -> str | None:
    """What shows that the kernel is wrong, as `kind: text`; None when nothing does: rows gathered into blocks, race detector on."""
    from test_gemm_faults import how_noticed

    return how_noticed(None, "gathered" if arch == "sm_90a" else "gathered by a pair")
