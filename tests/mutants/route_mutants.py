"""Mutants of the route family; a test of its own runs each."""

from __future__ import annotations

from functools import partial

from mutant import Mutant

NVFP4_TOKENS = ("tests/kernels/test_expert_layer_sm100.py::test_tokens_are_quantized_as_torch_does",)
SORTED = ("tests/kernels/test_expert_routing.py::test_slots_are_sorted_and_tokens_quantized",)
mutant = partial(Mutant, nearest=SORTED, archs=())
of_nvfp4 = partial(Mutant, nearest=NVFP4_TOKENS, archs=())

MUTANTS = (
    mutant(
        "slots of one expert in a warp have one row",
        "off by one",
        "find_place",
        "load_shared_u32(counts + key * 4) + before",
        "load_shared_u32(counts + key * 4)",
    ),
    mutant(
        "an expert's next row is one too low",
        "off by one",
        "pass_places",
        "place + popc(same)",
        "place + popc(same) - 1",
    ),
    mutant(
        "warps count before all counts are cleared",
        "missing order",
        "sort_slots",
        "cute.arch.sync_threads(); lanes = ctas * (WARPS * LANES)",
        "lanes = ctas * (WARPS * LANES)",
    ),
    mutant(
        "rows of experts in warps before are not counted",
        "wrong base",
        "sum_of_block",
        "cutlass.select_(warp > one, of_warp, Int32(0))",
        "cutlass.select_(warp > one, Int32(0), Int32(0))",
    ),
    mutant(
        "a lane counts on before the others have read",
        "missing order",
        "pass_places",
        "sync_warp()\nif (key != NO_KEY) & (before == 0): ...",
        "if (key != NO_KEY) & (before == 0): ...",
    ),
    mutant(
        "an expert that is not there has rows",
        "off by one",
        "experts_of",
        "name < config.problem.num_experts",
        "name <= config.problem.num_experts + 9",
    ),
    mutant(
        "counts are added before all CTAs have counted",
        "missing order",
        "meet",
        'load_acquire_u32(counter, "gpu") < ctas',
        'load_acquire_u32(counter, "gpu") < 1',
    ),
    mutant(
        "counts of CTAs are not released",
        "missing order",
        "meet",
        'reduce_add_u32(counter, 1, "release", "gpu")',
        'reduce_add_u32(counter, 1, "relaxed", "gpu")',
    ),
    mutant("slots of a CTA itself lie before it", "off by one", "of_all_ctas", "cta > other", "cta >= other"),
    mutant("nobody sets the counter back", "off by one", "meet", "2 * ctas - 1", "2 * ctas"),
    of_nvfp4(
        "NVFP4: a scale of zero is divided by",
        "wrong number",
        "ue4m3_scale",
        'cutlass.select_(divisor > Float32(0.0), divisor, Float32(float("inf")))',
        "divisor",
    ),
    of_nvfp4("NVFP4: codes are of a scale before it was rounded", "wrong number", "ue4m3_scale", "[scale]", "[divided(amax, whole)]"),
    of_nvfp4("NVFP4: a scale is for E4M3", "wrong number", "ue4m3_scale", "Float32(E2M1_MAX)", "Float32(E4M3_MAX)"),
    of_nvfp4(
        "NVFP4: values are multiplied by a rounded reciprocal",
        "wrong number",
        "quantize_values",
        "divided(value, divisor)",
        "value * divided(Float32(1.0), divisor)",
    ),
    of_nvfp4(
        "NVFP4: a scale is shared by four lanes",
        "wrong number",
        "quantize_values",
        "form.channels // PER_LANE",
        "4",
    ),
)
