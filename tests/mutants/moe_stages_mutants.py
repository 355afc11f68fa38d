"""Mutants of the unfused layer's stages, by the name of the kernel, their short simulation, and their PTX-level faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from mutant import Mutant

RUNS = ("tests/kernels/test_stages.py::test_two_ranks",)
ON_SM100 = ("tests/kernels/test_stages_sm100.py::test_two_ranks",)
IN_PARTS = ("tests/kernels/test_stages.py::test_rows_in_parts",)
mutant = partial(Mutant, nearest=RUNS, archs=("sm_90a",))
mutant_sm100 = partial(Mutant, nearest=ON_SM100, archs=("sm_100a",))

MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "moe_dispatch": (
        mutant(
            "dispatch pulls before the table of experts is there",
            "missing order",
            "dispatch_kernel",
            'wait(ctx.barrier("counts"), Int32(0))',
            "",
        ),
    ),
    "moe_fc1": (
        mutant(
            "Linear1's results go where Linear2's belong",
            "wrong base",
            "StageContext.result_rows",
            '"fc1_out" if self.result_phase == FC1 else "fc2_out"',
            '"fc2_out"',
        ),
        mutant_sm100(
            "all eight rows of a pass go to the first one's place", "wrong base", "StageContext.result_rows", "place + step", "place"
        ),
        mutant(
            "a linear stage has as many blocks of weights as the other",
            "wrong number",
            "StageConfig.n_blocks",
            "self.fused.fc1_n_blocks if self.part.phase == FC1 else self.fused.fc2_n_blocks",
            "self.fused.fc2_n_blocks if self.part.phase == FC1 else self.fused.fc1_n_blocks",
        ),
    ),
    "moe_swiglu": (
        mutant(
            "gate is up, and up is gate",
            "wrong base",
            "activate_part",
            "(0, RUN_BYTES)",
            "(RUN_BYTES, 0)",
        ),
        mutant(
            "the maximum of a scale is that of half of its channels",
            "too narrow",
            "activate_part",
            "sharing.bit_length() - 1",
            "sharing.bit_length() - 2",
        ),
        mutant_sm100(
            "the maximum of 32 channels is that of 16",
            "too narrow",
            "activate_part",
            "shuffle_xor_f32(peak, 1 << step)",
            "peak",
        ),
        mutant_sm100(
            "a scale lies where that of a row of the pool would",
            "wrong base",
            "store_scale",
            "row - pool_block * ctx.config.block_m",
            "row",
        ),
        mutant(
            "Linear2 counts its tiles on from Linear1's",
            "missing clean-up",
            "swiglu_kernel",
            'store_u32(ctx.at("tile_counter"), 0)',
            "",
        ),
    ),
    "moe_fc2": (
        mutant(
            "every linear stage multiplies Linear1's weights",
            "wrong base",
            "LinearOrder.block",
            "self.config.part.phase",
            "0",
        ),
    ),
    "moe_combine": (
        mutant(
            "a warp walks tokens before their table is there", "missing order", "each_part", 'wait(ctx.barrier("counts"), Int32(0))', ""
        ),
        mutant(
            "only a row's first part is sent",
            "wrong base",
            "push_results",
            "part * (2 * channels) + lane * VECTOR_BYTES",
            "lane * VECTOR_BYTES",
            nearest=IN_PARTS,
        ),
        mutant(
            "the ranks do not meet before the sums",
            "missing order",
            "combine_kernel",
            "rank_barrier(ctx, Group(NamedBarrier.EPILOGUE_ALL, 32 * config.epilogue_warps, thread - THREADS), RankBarrier.BEFORE_COMBINE)",
            "",
        ),
    ),
}


def short_simulation(arch: str) -> str | None:
    """What shows that a stage is wrong, as `kind: text`; None when nothing does: two ranks, launches without a pause, poisoned buffers,
    race detector on, y against the reference."""
    import test_stage_faults
    import test_stages_sm100

    return {"sm_90a": test_stage_faults, "sm_100a": test_stages_sm100}[arch].how_noticed(None, None)


def ptx_faults(kernel: str) -> Iterator[tuple[str, str, Callable[[], str | None]]]:
    """Faults of a stage's PTX: architecture, name, and what runs the faulty kernel and says how the fault shows."""
    import test_stage_faults
    import test_stages_sm100
    from fault_trial import trials

    for arch, tests in (("sm_90a", test_stage_faults), ("sm_100a", test_stages_sm100)):
        yield from trials([one for one in tests.CASES if one[1] == kernel], tests.how_noticed, lambda stage, arch=arch: arch)
