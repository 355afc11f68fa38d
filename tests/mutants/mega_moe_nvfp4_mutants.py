"""Mutants of what NVFP4 has for itself in the fused layer on SM100: factors, and a scale for the 16 channels of a warp."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

RUNS = "tests/kernels/test_nvfp4.py"
mutant = partial(Mutant, nearest=(f"{RUNS}::test_fault_is_noticed[None]",), archs=())

NVFP4_MUTANTS = (
    mutant("Linear2's sums have gate's factor", "wrong base", "sm100.epilogue:finish_fc2", "'fc2'", "'gate'"),
    mutant("sums of up have gate's factor", "wrong base", "GateUpFactors.of_sums", "self.up", "self.gate"),
    mutant("all experts have the first one's factors", "wrong base", "expert_factor", "Int64(expert)", "Int64(0)"),
    mutant(
        "warps share a scale of 16 channels",
        "wrong base",
        "PoolOutputs.scale",
        "fc1_scale(part.n_block, part.warp, config.problem.formats.hidden.channels)",
        "fc1_scale(part.n_block, part.warp)",
    ),
    mutant(
        "a lane stores the scale of another row",
        "wrong base",
        "finish_passes",
        "first + row_of_lane(lane)",
        "first + lane",
    ),
    mutant(
        "the map of weight scales ends with the first expert",
        "wrong number",
        "sm100.memory_plan:linear_maps",
        "experts * weight_words",
        "weight_words",
    ),
    Mutant(
        "scales of a last tile's second half have no words",
        "too narrow",
        "symmetric_buffer",
        "align(intermediate, CHANNELS_PER_WORD)",
        "intermediate",
        (f"{RUNS}::test_layers_of_other_kinds[hidden-intermediate-num_ranks]",),
        (),
    ),
)
